"""Texts and what they become: CNN/DailyMail stories, XSum as BIG-bench has it, DialogSum, Cornell's replies.

CNN/DailyMail and Gigaword as two files of lines are read by :func:`fednlp.data.readers.parallel.parallel`.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

from fednlp.data.readers.json_files import json_document, json_lines, list_at, string_at
from fednlp.data.readers.text_io import LONGEST_LINE, data_errors, filled_lines, numbered_lines
from fednlp.data.store import Row
from fednlp.disk import regular
from fednlp.errors import DataError

COLUMNS = ("source", "target", "references")
STORY_COLUMNS = (*COLUMNS, "id")
DIALOGSUM_COLUMNS = (*COLUMNS, "id", "topic")
CORNELL_COLUMNS = ("source", "target", "movie", "speaker", "replier")

_HIGHLIGHT = "@highlight"


def stories(folder: Path, urls: Path | None = None) -> Iterator[Row]:
    """Read CNN/DailyMail stories (Hermann et al., 2015): the highlights, a line each, are the summary.

    Args:
        folder: Holds ``*.story`` files, of CNN or of the Daily Mail.
        urls: A list of URLs, one a line, that chooses the stories of a split and their order, as the published
            ``all_train.txt`` does: the name of a story is the SHA-1 of its URL, and stories of the other paper
            are passed over. All stories by name if left out.

    Raises:
        DataError: There is no such story, or one has no text or no highlight.
    """
    found = False
    for path in _story_paths(folder, urls):
        found = True
        text, highlights = _story(path)
        if not text or not highlights:
            raise DataError(f"{path}: no text, or no {_HIGHLIGHT} with a line below it: is this a story?")
        yield "\n".join(text), "\n".join(highlights), None, path.stem
    if not found:
        chosen = f" that {urls} names" if urls else ""
        raise DataError(f"{folder}: no file *.story{chosen}: give the folder of the stories")


def _story_paths(folder: Path, urls: Path | None) -> Iterator[Path]:
    with data_errors(folder):
        if urls is None:
            yield from sorted(path for path in folder.iterdir() if path.suffix == ".story")
            return
    for _, url in filled_lines(urls):
        path = folder / f"{hashlib.sha1(url.strip().encode(), usedforsecurity=False).hexdigest()}.story"
        if path.is_file():
            yield path


def _story(path: Path) -> tuple[list[str], list[str]]:
    text: list[str] = []
    highlights: list[str] = []
    into = text
    length = 0
    for number, line in numbered_lines(path):
        length += len(line)
        if length > LONGEST_LINE:
            raise DataError(f"{path}:{number}: longer than {LONGEST_LINE >> 20} MiB: is this a story?")
        line = line.strip()
        if line == _HIGHLIGHT:
            into = highlights
        elif line:
            into.append(line)
    return text, highlights


def bigbench(path: Path) -> Iterator[Row]:
    """Read a generative task of BIG-bench in JSON, e.g. XSum: ``examples`` with ``input`` and ``target``.

    Where there are several targets the first is trained on and all are references.

    Raises:
        DataError: It is no such file.
    """
    for number, example in enumerate(list_at(json_document(path), "examples", str(path))):
        where = f"{path}: examples[{number}]"
        source = string_at(example, "input", where)
        targets = example.get("target")
        targets = targets if isinstance(targets, list) else [targets]
        yield _row(source, targets, where)


def dialogsum(path: Path) -> Iterator[Row]:
    """Read DialogSum (Chen et al., 2021): JSON lines; where there are summary1 to summary3 all are references.

    Raises:
        DataError: A line is not a dialogue with a summary.
    """
    for number, item in json_lines(path):
        where = f"{path}:{number}"
        several = [item[key] for key in sorted(item) if key.startswith("summary") and key != "summary"]
        targets = [item["summary"]] if "summary" in item else several
        row = _row(string_at(item, "dialogue", where), targets, where)
        topic = item.get("topic", item.get("topic1"))
        yield *row, string_at(item, "fname", where), topic if isinstance(topic, str) else None


def _row(source: str, targets: Sequence[Any], where: str) -> Row:
    source = source.strip()
    texts = [target.strip() for target in targets if isinstance(target, str)]
    if not source or not texts or len(texts) != len(targets) or not all(texts):
        raise DataError(f"{where}: the text or a summary is missing: is this a file of this format?")
    return source, texts[0], json.dumps(texts, ensure_ascii=False) if len(texts) > 1 else None


MOST_LINES = 10_000_000
"""Utterances in a file: the index of them is held in memory, some hundred bytes each; the corpus has 304,713."""

_SEPARATOR = " +++$+++ "
_LIST = re.compile(r"\[\s*'L\d+'(?:\s*,\s*'L\d+')*\s*\]")
_ID = re.compile(r"L\d+")


def cornell(folder: Path) -> Iterator[Row]:
    """Read the corpus of Danescu-Niculescu-Mizil and Lee (2011): each utterance but the last, with its reply.

    The utterances are looked up where they lie in their file; only an index of them is in memory. A pair of
    which a side is blank is left out. ``movie`` is the natural client.

    Args:
        folder: Holds ``movie_lines.txt`` and ``movie_conversations.txt``, in UTF-8 or Latin-1.

    Raises:
        DataError: A file is missing, a line is not of it, or a conversation names an utterance that is not there.
    """
    spoken, conversations = folder / "movie_lines.txt", folder / "movie_conversations.txt"
    with data_errors(spoken), regular(spoken).open("rb") as file:
        places = _places(file, spoken)
        for number, line in filled_lines(conversations, latin1=True):
            where = f"{conversations}:{number}"
            cells = line.split(_SEPARATOR)
            if len(cells) != 4 or not _LIST.fullmatch(cells[3].strip()):
                raise DataError(f"{where}: not user, user, movie and ['L1', 'L2'] between +++$+++")
            utterances = [_utterance(file, places, key, where) for key in _ID.findall(cells[3])]
            for (speaker, source), (replier, target) in pairwise(utterances):
                if source and target:
                    yield source, target, cells[2].strip(), speaker, replier


def _places(file: BinaryIO, path: Path) -> dict[bytes, int]:
    """Return where the line of each utterance begins."""
    places: dict[bytes, int] = {}
    place = number = 0
    while line := file.readline(LONGEST_LINE + 1):
        number += 1
        key, separator, _ = line.partition(_SEPARATOR.encode())
        if line.strip():
            if not separator or len(key) > 20 or len(line) > LONGEST_LINE:
                raise DataError(f"{path}:{number}: not id, user, movie, name and utterance between +++$+++")
            places[key] = place
        place += len(line)
        if len(places) > MOST_LINES:
            raise DataError(
                f"{path}: more than {MOST_LINES:,} utterances: is this {path.name} of the corpus?"
            )
    return places


def _utterance(file: BinaryIO, places: dict[bytes, int], key: str, where: str) -> tuple[str, str]:
    """Return the name of the speaker and the text, which may be empty."""
    place = places.get(key.encode())
    if place is None:
        raise DataError(f"{where}: there is no utterance {key} in movie_lines.txt: take both from one place")
    file.seek(place)
    line = file.readline()
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError:
        text = line.decode("latin-1")
    # A line that says nothing ends with a separator, of which an editor may have cut the last blank.
    cells = [cell.strip() for cell in text.rstrip("\r\n").split(_SEPARATOR.rstrip())]
    if len(cells) != 5 or "\0" in text:
        raise DataError(
            f"{where}: the utterance {key} has {len(cells)} parts between +++$+++, where there are 5"
        )
    return cells[3], cells[4]
