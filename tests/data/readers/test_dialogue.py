"""Cornell Movie-Dialogs: every utterance but the last of a conversation, with its reply."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fednlp.data.readers import summaries as module
from fednlp.data.readers.summaries import CORNELL_COLUMNS, cornell
from fednlp.errors import DataError

Write = Callable[[str, str | bytes], Path]

S = " +++$+++ "


def corpus(
    write: Write, lines: list[tuple[str, ...]], conversations: list[tuple[str, ...]], ending: str = "\n"
) -> Path:
    content = "".join(S.join(line) + ending for line in lines)
    write("movie_conversations.txt", "".join(S.join(line) + "\n" for line in conversations))
    return write("movie_lines.txt", content.encode("latin-1")).parent


# As the published file: the last utterance first, and ids that do not sort as numbers.
LINES = [
    (f"L{number}", f"u{number % 2}", "m0", "AB"[number % 2], f"says {number}")
    for number in range(205, 190, -1)
]


def test_pairs_follow_the_conversations(write: Write) -> None:
    folder = corpus(
        write,
        [*LINES, ("L1", "u7", "m1", "CHLOÉ", "Où? "), ("L9", "u8", "m1", "DAN", "")],
        [
            ("u0", "u1", "m0", "['L194', 'L195', 'L196']"),
            ("u7", "u8", "m1", "['L1', 'L9', 'L1']"),
            ("u0", "u1", "m0", "['L199', 'L200']"),
        ],
    )
    assert list(cornell(folder)) == [
        ("says 194", "says 195", "m0", "A", "B"),
        ("says 195", "says 196", "m0", "B", "A"),
        ("says 199", "says 200", "m0", "B", "A"),
    ]
    assert len(CORNELL_COLUMNS) == 5


def test_latin1_and_windows_line_ends(write: Write) -> None:
    folder = corpus(
        write,
        [("L1", "u7", "m1", "CHLOÉ", "Où?"), ("L2", "u8", "m1", "DAN", "Ici\x85")],
        [("u7", "u8", "m1", "['L1', 'L2']")],
        "\r\n",
    )
    assert list(cornell(folder)) == [("Où?", "Ici", "m1", "CHLOÉ", "DAN")]


def test_an_utterance_without_its_last_blank_is_empty(write: Write) -> None:
    write("movie_lines.txt", f"L1{S}u0{S}m0{S}A{S}hi\nL2{S}u1{S}m0{S}B +++$+++\n")
    folder = write("movie_conversations.txt", f"u0{S}u1{S}m0{S}['L1', 'L2']\n").parent
    assert list(cornell(folder)) == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (("u0", "u1", "m0", "['L194', 'L999']"), "there is no utterance L999"),
        (("u0", "u1", "m0", "__import__('os')"), "not user, user, movie and"),
        (("u0", "u1", "['L194', 'L195']"), "not user, user, movie and"),
    ],
)
def test_conversations_that_are_none(write: Write, line: tuple[str, ...], said: str) -> None:
    folder = corpus(write, LINES, [("u0", "u1", "m0", "['L194', 'L195']"), line])
    with pytest.raises(DataError, match=rf"movie_conversations\.txt:2: {said}"):
        list(cornell(folder))


def test_lines_that_are_none(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    good = ("u0", "u1", "m0", "['L194', 'L195']")
    with pytest.raises(DataError, match=r"movie_lines\.txt:16: not id, user, movie"):
        list(cornell(corpus(write, [*LINES, ("no separator",)], [good])))
    with pytest.raises(DataError, match="the utterance L195 has 3 parts"):
        list(cornell(corpus(write, [LINES[11], ("L195", "u0", "m0")], [good])))
    monkeypatch.setattr(module, "MOST_LINES", 10)
    with pytest.raises(DataError, match="more than 10 utterances"):
        list(cornell(corpus(write, LINES, [good])))


def test_a_folder_without_the_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot read .*movie_lines\.txt: No such file"):
        list(cornell(tmp_path))
