"""Cornell Movie-Dialogs: what one character says, and what another replies."""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

from fednlp.data.readers.text_io import LONGEST_LINE, data_errors, filled_lines
from fednlp.data.store import Row
from fednlp.disk import regular
from fednlp.errors import DataError

COLUMNS = ("source", "target", "movie", "speaker", "replier")

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
