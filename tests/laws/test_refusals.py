"""What goes with what stays as it is, unless it is meant to change."""

from pathlib import Path

from tests.laws.refusals import STORED, found_refusals


def test_the_same_pairs_of_options_are_refused_by_the_same_sections(tmp_path: Path) -> None:
    assert list(found_refusals(tmp_path)) == STORED.read_text(encoding="utf-8").splitlines()
