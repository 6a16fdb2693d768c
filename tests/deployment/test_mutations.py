"""Tokens, enrolments, invitations, an organisation's files and sites' files, mutated: only declared errors."""

from pathlib import Path

import pytest

from .mutations import Mutations


def mutate(folder: Path, seed: int, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the mutations; some of each kind are read, and more are refused."""
    monkeypatch.setattr("os.fsync", lambda handle: None)
    made = Mutations(folder / "made", seed)
    made.run(count)
    assert made.read.total() + made.refused.total() == count
    assert len(made.read) == len(made.refused) == 7
    assert made.refused.total() > count / 2


def test_three_thousand_mutations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(tmp_path, 1, 3000, monkeypatch)


@pytest.mark.slow
def test_a_hundred_thousand_mutations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(tmp_path, 2, 100_000, monkeypatch)
