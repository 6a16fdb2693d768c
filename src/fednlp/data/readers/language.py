"""Texts and who wrote or spoke them: plays, LEAF's Shakespeare and Reddit, RealNews, and TFF's StackOverflow."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from fednlp.data.readers import h5
from fednlp.data.readers.json_files import json_document, json_lines, list_at, string_at
from fednlp.data.readers.text_io import numbered_lines
from fednlp.data.readers.xml import elements
from fednlp.data.store import Row
from fednlp.errors import DataError

SPEECH_COLUMNS = ("text", "speaker")
LEAF_COLUMNS = ("text", "user")
REALNEWS_COLUMNS = ("text", "title", "domain", "publish_date")
STACKOVERFLOW_COLUMNS = ("text", "tags", "title", "user", "type", "score", "creation_date")
_STACKOVERFLOW_FIELDS = ("tokens", "tags", "title", "type", "score", "creation_date")

MOST_LINES = 10_000
"""Lines of a speech: more means that no speaker is found."""

_PADDING = {"<PAD>", "<BOS>", "<EOS>"}
# "Ham.", "FIRST LORD." or "Ros and Guil.", or capitals without the dot, alone on the first line of a block that
# goes on. No word but a few may be in small letters, so that a short sentence is no speaker.
_WORD = r"(?:[A-Z][\w'’-]*|and|of|the|&)"
_NAME = re.compile(rf"(?![IVX]+\.?$|SONG\b)(?:{_WORD}(?:,? +{_WORD}){{0,4}}\.|[A-Z][A-Z'’ ,&-]+)")
_HEADING = re.compile(r"(?:ACT|SCENE|PROLOGUE|EPILOGUE|INDUCTION|CHORUS)\b.*", re.IGNORECASE)
_DIRECTION = re.compile(r"\[[^\]]*\]")


def speeches(path: Path) -> Iterator[Row]:
    """Read tinyshakespeare: blocks of a line ``Speaker:`` and the speech, with blank lines between.

    Raises:
        DataError: A block has no speaker.
    """
    for number, block in _blocks(path):
        speaker, text = block[0].strip(), "\n".join(block[1:]).strip()
        if not speaker.endswith(":") or len(speaker) < 2:
            raise DataError(f"{path}:{number}: not a line 'Speaker:' at the beginning of a speech")
        if text:
            yield text, speaker[:-1]


def _blocks(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines between blank lines, with the number of the first."""
    block: list[str] = []
    start = 1
    for number, line in numbered_lines(path):
        if line.strip():
            if not block:
                start = number
            block.append(line.rstrip())
            if len(block) > MOST_LINES:
                raise DataError(
                    f"{path}:{start}: more than {MOST_LINES:,} lines without a blank one: is this a play?"
                )
        elif block:
            yield start, block
            block = []
    if block:
        yield start, block


def play_text(path: Path) -> Iterator[Row]:
    """Read a play as plain text in the modern edition of the package ``shakespeare`` (Project Gutenberg).

    A speaker stands alone on the first line of a block, ``Ham.`` or ``HAMLET.``, from the first act on; a block
    without one goes on with the speech before it. Stage directions, in brackets, are left out. The play is the
    name of the file.

    Raises:
        DataError: No speech is found.
    """
    speaker, begun, found = "", False, False
    speech: list[str] = []
    for _, block in _blocks(path):
        first = " ".join(block[0].split())
        if _HEADING.fullmatch(first) and len(block) <= 2:
            begun = True
            continue
        if begun and len(block) > 1 and _NAME.fullmatch(first):
            if speech:
                found = True
                yield "\n".join(speech), speaker, path.stem
            speaker, speech = first.removesuffix("."), []
            block = block[1:]
        if speaker:  # what is in brackets may go over several lines
            closed, end, rest = "\n".join(block).rpartition(
                "]"
            )  # no bracket is looked for in vain, again and again
            said = _DIRECTION.sub("", closed + end) + rest
            speech += [line for line in said.split("\n") if line.strip()]
        if len(speech) > MOST_LINES:
            raise DataError(f"{path}: a speech of more than {MOST_LINES:,} lines: is this a play?")
    if speech:
        yield "\n".join(speech), speaker, path.stem
    elif not found:
        raise DataError(
            f"{path}: no speech found: a speaker stands alone on a line, as 'Ham.', below an ACT or SCENE"
        )


def play_xml(path: Path) -> Iterator[Row]:
    """Read a play in the XML of PlayShakespeare.com: ``sp`` with a ``speaker`` and lines ``l``.

    Stage directions are left out; speakers are called by their long name.

    Raises:
        DataError: It is no such file.
    """
    play = path.stem
    for number, element in elements(path, {"title", "sp"}):
        if element.tag == "title":
            if element.get("type") == "common":
                play = "".join(element.itertext()).strip() or play
            continue
        speaker = element.find("speaker")
        name = "" if speaker is None else (speaker.get("long") or "".join(speaker.itertext())).strip()
        if not name:
            raise DataError(
                f"{path}:{number}: a speech without a speaker: is this a play of PlayShakespeare.com?"
            )
        text = "\n".join(filter(None, (_line(line) for line in element.iter("l"))))
        if text:
            yield text, name, play


def _line(element: Element) -> str:
    return " ".join("".join(element.itertext()).split())


def leaf_shakespeare(path: Path) -> Iterator[Row]:
    """Read Shakespeare as LEAF has it (Caldas et al., 2018): 80 characters, the next one, and who speaks.

    Raises:
        DataError: It is no such file.
    """
    for user, where, texts, targets in _leaf(path):
        if len(texts) != len(targets):
            raise DataError(f"{where}: {len(texts)} x and {len(targets)} y: there must be one y an x")
        for text, target in zip(texts, targets, strict=True):
            if not isinstance(text, str) or not isinstance(target, str) or not text:
                raise DataError(f"{where}: an x or y that is no text: is this LEAF's Shakespeare?")
            yield text, target, user


def leaf_reddit(path: Path) -> Iterator[Row]:
    """Read Reddit as LEAF has it: comments as lists of tokens, here with blanks between, and their author.

    LEAF's own marks of beginning, end and padding are left out.

    Raises:
        DataError: It is no such file.
    """
    for user, where, texts, _ in _leaf(path):
        for comment in texts:
            text = " ".join(token for token in _tokens(comment, where) if token not in _PADDING)
            if text:
                yield text, user


def _leaf(path: Path) -> Iterator[tuple[str, str, list[Any], list[Any]]]:
    """Yield each user, where that stands, and the lists x and y."""
    document = json_document(path)
    users, counts = list_at(document, "users", str(path)), list_at(document, "num_samples", str(path))
    data = document.get("user_data")
    if not isinstance(data, dict) or len(users) != len(counts):
        raise DataError(f"{path}: not users, num_samples and user_data, as LEAF has it")
    for user, count in zip(users, counts, strict=True):
        where = f"{path}: user {str(user)[:60]!r}"
        if not isinstance(user, str) or not isinstance(data.get(user), dict):
            raise DataError(f"{where} is not in user_data: the file is cut short or altered, get it again")
        texts, targets = list_at(data[user], "x", where), data[user].get("y")
        if len(texts) != count:
            raise DataError(f"{where} has {len(texts)} samples where num_samples says {count!r}")
        yield user, where, texts, targets if isinstance(targets, list) else []


def _tokens(item: Any, where: str) -> Iterator[str]:
    """Yield the strings of a comment: a list of tokens, or a list of such lists, one a sequence."""
    if not isinstance(item, list):
        raise DataError(f"{where}: an x that is no list of tokens: is this LEAF's Reddit?")
    for part in item:
        if isinstance(part, str):
            yield part
        elif isinstance(part, list) and all(isinstance(token, str) for token in part):
            yield from part
        else:
            raise DataError(f"{where}: an x that is no list of tokens: is this LEAF's Reddit?")


def realnews(path: Path, split: str = "") -> Iterator[Row]:
    """Read RealNews (Zellers et al., 2019): JSON lines with ``text``, ``domain`` and more.

    Args:
        path: The file.
        split: ``"train"`` for the articles of that split, ``"test"`` for all others, "" for all.

    Raises:
        DataError: A line is no article.
    """
    for number, article in json_lines(path):
        where = f"{path}:{number}"
        if split and (string_at(article, "split", where) == "train") != (split == "train"):
            continue
        title, date = (article.get(key) for key in ("title", "publish_date"))
        yield (
            string_at(article, "text", where).strip(),
            title if isinstance(title, str) else None,
            string_at(article, "domain", where),
            date if isinstance(date, str) else None,
        )


def stackoverflow(path: Path) -> Iterator[Row]:
    """Read ``stackoverflow_train.h5`` and its like: ``examples/<user>/tokens`` and so on.

    The users come in the order of their names, and a user's examples in that of the file. ``tags`` is as in the
    file, ``python|regex``. Fields other than the tokens may be missing.
    Source: TensorFlow Federated, tff.simulation.datasets.stackoverflow.

    Raises:
        DataError: It is no such file, or a user's lists are of unequal length.
        MissingDependency: ``h5py`` is not installed.
    """
    with h5.opened(path) as file:
        users = h5.child(file, "examples", "group", str(path))
        for user in users:
            yield from _examples(h5.child(users, user, "group", str(path)), user, path)


def _examples(group: Any, user: str, path: Path) -> Iterator[Row]:
    found = {
        name: h5.child(group, name, "dataset", str(path)) for name in _STACKOVERFLOW_FIELDS if name in group
    }
    if "tokens" not in found:
        raise DataError(f"{path}:/examples/{user[:80]}/tokens is missing: is this TFF's StackOverflow?")
    if len({dataset.shape for dataset in found.values()}) > 1:
        raise DataError(
            f"{path}:/examples/{user[:80]}: lists of unequal length: the file is damaged, get it again"
        )
    columns = {name: _values(dataset) for name, dataset in found.items()}
    for text in columns.pop("tokens"):
        rest = {name: next(values) for name, values in columns.items()}
        yield (
            text,
            rest.get("tags"),
            rest.get("title"),
            user,
            rest.get("type"),
            rest.get("score"),
            rest.get("creation_date"),
        )


def _values(dataset: Any) -> Iterator[str]:
    if dataset.dtype.kind in "iu":
        return (str(value) for value in h5.whole_numbers(dataset).tolist())
    return h5.texts(dataset)
