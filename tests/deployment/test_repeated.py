"""A round has one update: what is asked for under the number of a further attempt is the same."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.repeated import LastTrained
from fednlp.errors import RunError

NAMES = ("train", "train-2", "train-3")
ASKS = st.lists(
    st.tuples(st.integers(1, 3), st.sampled_from(NAMES), st.sampled_from(["x", "y"]), st.booleans()),
    max_size=12,
)


def ask(site: LastTrained, number: int, name: str, model: str, run: str = "run") -> None:
    site.require_same(run, number, name, {"round": number}, {"model": Path(model)})


@given(ASKS)
def test_whatever_a_server_asks_it_gets_one_update_a_round(
    tmp_path_factory: pytest.TempPathFactory, asks: list[tuple[int, str, str, bool]]
) -> None:
    """A call is answered once; the site may be started again between two calls."""
    path = tmp_path_factory.mktemp("site") / "trained.json"
    site, answered, given_up = LastTrained(path), set[tuple[int, str]](), set[tuple[int, str]]()
    for number, name, model, restart in asks:
        if restart:
            site = LastTrained(path)
        if (number, name) in answered:
            continue
        answered.add((number, name))
        try:
            ask(site, number, name, model)
        except RunError:
            continue
        given_up.add((number, model))
    assert len({number for number, _ in given_up}) == len(given_up)


def test_the_same_may_be_asked_again_and_another_run_is_another(tmp_path: Path) -> None:
    site = LastTrained(tmp_path / "trained.json")
    for name in NAMES:
        ask(site, 2, name, "x")
    with pytest.raises(RunError, match="asks twice for the update of round 2, and not for the same"):
        ask(site, 2, "train-4", "y")
    with pytest.raises(RunError, match="round 1 again, and this site has gone on to 2"):
        ask(site, 1, "train", "x")
    ask(site, 1, "train", "y", run="another")


def test_a_damaged_note_is_no_reason_to_forget(tmp_path: Path) -> None:
    (tmp_path / "trained.json").write_text('{"round": 3}')
    with pytest.raises(RunError, match=r"trained\.json is damaged"):
        ask(LastTrained(tmp_path / "trained.json"), 1, "train", "x")
