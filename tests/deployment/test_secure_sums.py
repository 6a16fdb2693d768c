"""Secure sums among sites are those of a simulation, whoever vanishes, and whichever process is killed when."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import SecureAbort, TooFewClients

from .secure_rig import PROTOCOLS, STEPS_OF, WEIGHTS, Sites, deployed, params_of, simulated

_MOST = 5 * len(WEIGHTS)
_LATE = 3


@pytest.fixture(scope="module", autouse=True)
def fast_disk() -> Iterator[None]:
    """No power is cut here, and a disk takes most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.mark.parametrize("protocol", PROTOCOLS)
@settings(max_examples=12)
@given(
    vanished=st.dictionaries(st.sampled_from(sorted(WEIGHTS)), st.integers(0, 4), max_size=2),
    kills=st.sets(st.integers(1, 2 * _MOST), max_size=6),
    twice=st.sets(st.integers(1, _MOST), max_size=10),
    torn=st.sets(st.integers(1, _MOST), max_size=10),
)
@pytest.mark.whole
def test_the_sum_is_that_of_whoever_uploaded(
    protocol: str, vanished: dict[int, int], kills: set[int], twice: set[int], torn: set[int]
) -> None:
    """A server that is killed goes on with the same session; a site that is killed answers again, word for word."""
    params, steps = params_of(protocol), STEPS_OF[protocol]
    out = {client: steps[step] for client, step in vanished.items()}
    with tempfile.TemporaryDirectory() as folder:
        sites = Sites(Path(folder), params, out, kills, twice, torn)
        total, round_ = deployed(sites, params)
    expected, plain = simulated(params, vanished=[one for one, step in out.items() if step != steps[-1]])
    assert torch.equal(total.storage, expected.storage)
    assert len(sites.trained) == len(set(sites.trained))  # nobody trains twice
    assert len({call.id for call in sites.calls}) == len(
        sites.calls
    )  # nobody is asked twice for what arrived
    if not out:
        assert round_.traffic() == plain.traffic()
        assert round_.metrics(1)["bytes"] == plain.metrics(1)["bytes"]


@pytest.mark.parametrize("step", range(5))
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_came_too_late_stays_out_though_the_server_was_killed_meanwhile(
    protocol: str, step: int, tmp_path: Path
) -> None:
    """One client misses a step; the server is killed in the next one, and after that the client would answer."""
    params, steps = params_of(protocol), STEPS_OF[protocol]
    before = step * len(WEIGHTS) + (len(WEIGHTS) - 1) + 1  # replies, and the look that finds nothing else
    kill = before + 3 if step < 4 else before
    sites = Sites(tmp_path / "sites", params, kills={kill}, late={_LATE: steps[step]})
    total, _ = deployed(sites, params)
    assert sites.late == {}  # the server was killed
    expected, _ = simulated(params, vanished={_LATE} if step < 4 else ())
    assert torch.equal(total.storage, expected.storage)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_opened_where_too_few_updates_arrived(protocol: str, tmp_path: Path) -> None:
    """Started again, the round is finished with the others' updates: no sum of fewer was seen."""
    params, steps = params_of(protocol), STEPS_OF[protocol]
    sites = Sites(tmp_path / "sites", params, late={_LATE: "train"})
    with pytest.raises(TooFewClients, match="7 updates arrived, and 8 are needed; nothing was opened"):
        deployed(sites, params, fewest=8)
    assert not any(call.id.endswith(steps[-1]) for call in sites.calls)
    sites.late.clear()
    total, _ = deployed(sites, params, fewest=8)
    assert torch.equal(total.storage, simulated(params)[0].storage)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_rounds_follow_each_other_and_leave_nothing_behind(protocol: str, tmp_path: Path) -> None:
    """A round that comes to nothing does not stop the next one."""
    params, steps = params_of(protocol), STEPS_OF[protocol]
    sites = Sites(tmp_path / "sites", params)
    deployed(sites, params, 1)
    sites.vanished = dict.fromkeys(range(4), steps[1])
    with pytest.raises(SecureAbort):
        deployed(sites, params, 2)
    sites.vanished = {}
    total, _ = deployed(sites, params, 3)
    assert torch.equal(total.storage, simulated(params, 3)[0].storage)
    for client in WEIGHTS:
        own = tmp_path / "sites" / f"site-{client}"
        assert sorted(path.name for path in own.iterdir()) == ["3", "over.json"]
        sites.site(client).over(4)
        assert [path.name for path in own.iterdir()] == ["over.json"]
    assert [path.name for path in (tmp_path / "sites" / "server").iterdir()] == ["3.json"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_site_keeps_its_secrets_for_itself_and_no_longer_than_it_must(
    protocol: str, tmp_path: Path
) -> None:
    params = params_of(protocol)
    sites = Sites(tmp_path / "sites", params)
    deployed(sites, params)
    for client in WEIGHTS:
        own = tmp_path / "sites" / f"site-{client}"
        assert own.stat().st_mode & 0o077 == 0
        for path in own.rglob("*"):
            assert path.stat().st_mode & 0o077 == 0
        names = {path.name for path in (own / "1").iterdir()}
        assert not names & {"own-piece", "pieces"}
        state = sites.site(client).kept.load(1).client
        assert state is not None
        kept = {
            name: value
            for name, value in state.items()
            if name not in {"taken", "public", "keys", "survivors"}
        }
        assert not any(kept.values())
