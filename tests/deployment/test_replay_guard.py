"""A round has one update: what is asked for under the number of a further attempt is the same."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.site.replay_guard import ReplayGuard
from fednlp.errors import RunError

NAMES = ("train", "train-2", "train-3")
ASKS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(NAMES), st.sampled_from(["x", "y"]), st.booleans()),
    max_size=12,
)


def ask(site: ReplayGuard, number: int, name: str, model: str, run: str = "run") -> None:
    site.require_same(run, number, name, {"round": number}, {"model": Path(model)})


@given(ASKS)
def test_whatever_a_server_asks_it_gets_one_update_a_round(
    tmp_path_factory: pytest.TempPathFactory, asks: list[tuple[int, str, str, bool]]
) -> None:
    """A call that was withdrawn may come again; the site may be started again between two calls."""
    path = tmp_path_factory.mktemp("site") / "asked.json"
    site, given_up = ReplayGuard(path), set[tuple[int, str]]()
    for number, name, model, restart in asks:
        if restart:
            site = ReplayGuard(path)
        try:
            ask(site, number, name, model)
        except RunError:
            continue
        given_up.add((number, model))
    assert len({number for number, _ in given_up}) == len(given_up)


def test_the_same_may_be_asked_again_and_another_run_is_another(tmp_path: Path) -> None:
    site = ReplayGuard(tmp_path / "asked.json")
    for name in NAMES:
        ask(site, 2, name, "x")
    with pytest.raises(RunError, match="asks twice to train in round 2, and not for the same"):
        ask(site, 2, "train-4", "y")
    with pytest.raises(RunError, match="asks twice to train in round 2"):  # a call that was withdrawn
        ask(site, 2, "train", "y")
    with pytest.raises(RunError, match="round 1 again, and this site has gone on to 2"):
        ask(site, 1, "train", "x")
    ask(site, 1, "train", "y", run="another")


def test_each_kind_of_call_has_its_own_rounds(tmp_path: Path) -> None:
    site = ReplayGuard(tmp_path / "asked.json")
    for number, name, model in (
        (1, "train", "x"),
        (1, "evaluate", "y"),
        (2, "train", "y"),
        (2, "tests", "z"),
    ):
        ask(site, number, name, model)
    ask(site, 1, "evaluate", "y")
    with pytest.raises(RunError, match="asks twice to evaluate in round 1"):
        ask(site, 1, "evaluate", "x")
    ask(site, 2, "evaluate", "z")


def test_what_was_asked_is_on_the_disk_before_it_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut that took the note back would let a server ask once more."""
    synced: list[Path] = []
    monkeypatch.setattr(
        os, "fsync", lambda handle: synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")))
    )
    ask(ReplayGuard(tmp_path / "asked.json"), 1, "train", "x")
    file, folder = synced
    assert file.parent == folder == tmp_path


def test_a_damaged_note_is_no_reason_to_forget(tmp_path: Path) -> None:
    (tmp_path / "asked.json").write_text('{"round": 3}')
    with pytest.raises(RunError, match=r"asked\.json is damaged"):
        ask(ReplayGuard(tmp_path / "asked.json"), 1, "train", "x")
