"""Tasks that need no annotation, made of BBC News: put the punctuation back, match headlines, and write them."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fednlp.data.catalogue.classification import bbc_index
from fednlp.data.catalogue.entries import Opener, Pair
from fednlp.data.files import folder_rows
from fednlp.data.store import Fault, Located, Rows
from fednlp.hubs.checksums import BBC

Make = Callable[[Iterable[Located]], Iterator[Located]]

_TAGGED = ("words", "tags", "topic", "file")
_PAIRED = ("text", "text_pair", "label", "topic", "file")
_ASKED = ("messages", "topic", "file")
_CORE = re.compile(r"\w(.*\w)?", re.DOTALL)
"""A word without the marks around it."""
_SENTENCES = re.compile(r"(?<=[.!?])\s")
_MARKS = {",": "COMMA", ";": "COMMA", ":": "COMMA", ".": "PERIOD", "!": "PERIOD", "?": "QUESTION"}
_LEAD = 2


def punctuated(articles: Iterable[Located]) -> Iterator[Located]:
    """Yield every paragraph as lower-case words, each tagged with the mark that follows it.

    The tags are ``B-COMMA`` (also for a semicolon or a colon), ``B-PERIOD`` (also for an exclamation mark),
    ``B-QUESTION`` and ``O``. The headline is left out.
    """
    for place, row in articles:
        if isinstance(row, Fault):
            yield place, row
            continue
        text, topic, file = row
        for paragraph in _paragraphs(str(text))[1:]:
            found = [word for word in map(_word_and_tag, paragraph.split()) if word[0]]
            if found:
                words, tags = zip(*found, strict=True)
                yield place, (json.dumps(words, ensure_ascii=False), json.dumps(tags), topic, file)


def _word_and_tag(token: str) -> tuple[str, str]:
    end = token.rstrip("\"')]")[-1:]
    core = _CORE.search(token)
    return core[0].lower() if core else "", f"B-{_MARKS[end]}" if end in _MARKS else "O"


def matched(articles: Iterable[Located]) -> Iterator[Located]:
    """Yield each article's first paragraphs with a headline: its own, or, for every other, one of its topic.

    Those that change headlines change them among themselves, so every headline and every article is there once.
    """
    topics: dict[str, list[tuple[str, str, str, str]]] = {}
    for place, row in articles:
        if isinstance(row, Fault):
            yield place, row
            continue
        text, topic, file = (str(value) for value in row)
        headline, *rest = _paragraphs(text)
        topics.setdefault(topic, []).append((place, headline, " ".join(rest[:_LEAD]), file))
    for topic, found in topics.items():
        changed = found[1::2] if len(found) > 3 else []
        others = {file: changed[(n + 1) % len(changed)][1] for n, (*_, file) in enumerate(changed)}
        for place, headline, lead, file in found:
            label = "other" if file in others else "same"
            yield place, (others.get(file, headline), lead, label, topic, file)


def asked(articles: Iterable[Located]) -> Iterator[Located]:
    """Yield each article as a conversation: a user asks for the headline by its first sentence, and gets it."""
    for place, row in articles:
        if isinstance(row, Fault):
            yield place, row
            continue
        text, topic, file = row
        headline, *rest = _paragraphs(str(text))
        first = _SENTENCES.split(" ".join(rest[:1]), maxsplit=1)[0]
        turns = (("user", f"Write the headline of this report.\n\n{first}"), ("assistant", headline))
        messages = [{"role": role, "content": content} for role, content in turns]
        yield place, (json.dumps(messages, ensure_ascii=False), topic, file)


def _paragraphs(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _made(make: Make, columns: tuple[str, ...], articles: Rows) -> Rows:
    return replace(
        articles,
        what=(make.__name__, *articles.what),
        names=lambda: columns,
        read=lambda roles: (columns, make(articles.read({})[1])),
    )


def _opener(make: Make, columns: tuple[str, ...]) -> Opener:
    def folder(path: Path) -> Pair | None:
        if not path.is_dir() or not any(one.is_dir() for one in path.iterdir()):
            return None
        return _made(make, columns, folder_rows(path, latin1=True)), None

    def index() -> Pair:
        return _made(make, columns, bbc_index()[0]), None

    return Opener(folder, index, (BBC,))


NEWS: dict[str, Opener] = {
    "bbc-punctuation": _opener(punctuated, _TAGGED),
    "bbc-headlines": _opener(matched, _PAIRED),
    "bbc-chats": _opener(asked, _ASKED),
}
"""The data sets made of BBC News."""
