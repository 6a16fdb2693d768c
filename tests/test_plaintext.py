"""Text of strangers in a terminal and in a spreadsheet."""

import csv
import io

from hypothesis import given
from hypothesis import strategies as st

from fednlp.formatting.safe_text import clean, csv_text, text_of_csv

NAMES = st.text(alphabet=st.sampled_from("=+-@\t\r'a ,\n\""), max_size=5) | st.text(max_size=9)


@given(NAMES)
def test_a_cell_is_no_formula_and_is_read_back(text: str) -> None:
    cell = csv_text(text)
    assert cell[:1] not in tuple("=+-@\t\r")
    assert text_of_csv(cell) == text
    file = io.StringIO(newline="")
    csv.writer(file).writerow([cell, "1"])
    assert next(csv.reader(io.StringIO(file.getvalue(), newline=""))) == [cell, "1"]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"])))
def test_a_terminal_obeys_nothing(text: str) -> None:
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 or c in "\u202e\u2066" for c in clean(text))


def test_letters_that_are_joined_stay_so() -> None:
    assert clean("می\u200cخواهم") == "می\u200cخواهم"
    assert clean("\x1b]0;pwn\x07\x1b[31mred\nnext\x9b2J") == "\ufffd]0;pwn\ufffd\ufffd[31mred next\ufffd2J"
