"""Faults are done to a federation while it runs, and it ends as the simulation does."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fednlp.config import Experiment

from .mosquitto import MOSQUITTO, Mosquitto

pytestmark = pytest.mark.whole

pytest.importorskip("grpc", reason="a deployment needs grpcio")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Make = Callable[..., Experiment]


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parts of the benchmark as modules that its processes find, too."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.fixture
def small(experiment: Make) -> Make:
    """Experiments that a few processes run in seconds."""

    def make(**changes: Any) -> Experiment:
        settings = {
            "num_rounds": 2,
            "clients_per_round": 2,
            "partition.clients": 2,
            "task.name": "text-classification",
            "client.max_steps": 2,
        }
        return experiment(settings | changes)

    return make


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Mosquitto]:
    if MOSQUITTO is None:
        pytest.skip("mosquitto is not installed")
    pytest.importorskip("paho.mqtt.client", reason="this needs paho-mqtt")
    (folder := tmp_path / "broker").mkdir()
    with Mosquitto(folder) as running:
        yield running


def ended_as_the_simulation(found: dict[str, Any]) -> bool:
    from survival.trial import held

    return held(found)


def test_a_federation_that_is_killed_ends_as_the_simulation(small: Make, tmp_path: Path) -> None:
    from survival.kills import kills

    made = small(num_rounds=3, algorithm={"name": "ditto"})
    found = kills(made, tmp_path, kills=3, seed=4, patience=5, limit=200)
    assert ended_as_the_simulation(found), found
    assert sum(found["restarts"].values()) >= 3


def test_kills_are_drawn_from_the_seed() -> None:
    from survival.kills import plan
    from survival.trial import BROKER, SERVER

    drawn = plan(3, 20, 10, ("a", "b"))
    assert drawn == plan(3, 20, 10, ("a", "b")) != plan(4, 20, 10, ("a", "b"))
    assert [kill.after for kill in drawn] == sorted(kill.after for kill in drawn)
    assert {kill.after for kill in drawn} == set(range(10))
    assert {name for kill in drawn for name in kill.victims} == {"a", "b", SERVER}
    by_broker = plan(3, 20, 10, ("a", "b"), broker=True)
    assert {name for kill in by_broker for name in kill.victims} == {"a", "b", SERVER, BROKER}


@pytest.mark.slow
def test_by_way_of_a_broker_that_is_killed_too_a_federation_ends_as_the_simulation(
    small: Make, tmp_path: Path, broker: Mosquitto
) -> None:
    from survival.kills import kills

    made = small(num_rounds=3, exchange={"up": ["int8"], "error_feedback": True})
    found = kills(made, tmp_path, kills=4, seed=1, patience=5, limit=200, broker=broker)
    assert ended_as_the_simulation(found), found
    assert found["restarts"]["broker"] >= 1


@pytest.mark.slow
def test_a_broker_that_ends_in_the_middle_of_a_round_changes_nothing(
    small: Make, tmp_path: Path, broker: Mosquitto
) -> None:
    from survival.broker_faults import restarts

    found = restarts(small(), tmp_path, broker, limit=200)
    assert ended_as_the_simulation(found), found
    assert found["restarted"] == 2


def test_whatever_a_stranger_says_by_way_of_the_broker_changes_nothing(
    small: Make, tmp_path: Path, broker: Mosquitto
) -> None:
    from survival.broker_faults import stranger

    found = stranger(small(num_rounds=3), tmp_path, broker, messages=400, seed=2, limit=200)
    assert ended_as_the_simulation(found), found
    assert found["messages"] == 400
    assert not found["tracebacks"]


def test_the_log_of_a_site_says_who_worked_twice(tmp_path: Path) -> None:
    from survival.process import trained_by

    again = "trains 1 0\ntrains 1 0\nstored 1.0.train\ntrains 2 0\nstored 2.0.train\n"
    (log := tmp_path / "worked.txt").write_text(again)
    assert trained_by([log]).twice == []
    assert trained_by([log]).begun == {(1, 0): 2, (2, 0): 1}
    log.write_text(again + "trains 1 0\nstored 2.0.train\n")
    assert trained_by([log]).twice == ["1 0", "2.0.train"]


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="the search reads /proc")
@pytest.mark.parametrize("protocol", [None, "secagg"])
def test_a_server_never_holds_what_sites_plant_into_masked_updates(
    protocol: str | None, small: Make, tmp_path: Path
) -> None:
    """Without a protocol the same search finds it in the server's memory, on its disk and in its traffic."""
    from survival.planted import kept_to_themselves, planted

    changes = {"clients_per_round": 3, "partition.clients": 3, "num_rounds": 1}
    changes |= {"secure.protocol": protocol} if protocol else {}
    made = small(algorithm={"name": "fedavg", "weighting": "uniform"}, **changes)
    found = planted(made, tmp_path, limit=200)
    assert kept_to_themselves(found, protocol), found


def test_the_search_for_what_is_planted_finds_each_form_wherever_it_lies() -> None:
    from survival.planted import Search, forms_of_numbers, forms_of_residues, numbers_of

    rng = np.random.default_rng(0)
    residues, noise = rng.integers(0, 2**31 - 1, 64).astype(np.uint32), rng.bytes(1 << 16)
    forms = forms_of_residues(residues, modulus=2**31 - 1, bits=20, step=2.0**-19)
    packed = sum(int(one) << (31 * place + 5) for place, one in enumerate(residues))
    stored = packed.to_bytes(31 * 8 + 1, "little")
    assert Search(forms).through([noise, b"abc" + stored]) == {"31 bits, little end first, 5 ahead"}
    forms |= forms_of_numbers(numbers_of("north"))
    assert not Search(forms).through([b"", b"short", bytes(1 << 12), noise])
    for ahead, (name, needle) in enumerate(forms.items()):
        assert name in Search(forms).through([noise[:ahead] + needle])


def test_an_upload_that_is_cut_at_every_chunk_goes_on_where_it_was(tmp_path: Path) -> None:
    from made_up import experiment
    from survival.network import CHUNK, cuts

    found = cuts(experiment(tmp_path / "made", hidden=128, clients=2, rounds=1), tmp_path, limit=200)
    assert ended_as_the_simulation(found), found
    assert found["cut_at_every_boundary"]
    assert found["cuts"] == -(-found["update_bytes"] // CHUNK) == 2
    assert 0 < found["bytes_beyond_the_updates"] < CHUNK


def test_a_bad_network_changes_nothing(small: Make, tmp_path: Path) -> None:
    from survival.network import Line, network

    found = network(small(), tmp_path, seed=0, line=Line(0.02, 250_000, 0.02), limit=200)
    assert ended_as_the_simulation(found), found
    assert found["packets_lost"] > 0


@pytest.mark.slow
def test_a_slow_site_and_one_that_stands_still_are_waited_for(small: Make, tmp_path: Path) -> None:
    from survival.site_faults import slow

    found = slow(small(), tmp_path, stop=1.0, times=4, limit=200)
    assert ended_as_the_simulation(found), found
    assert found["restarts"] == {}


def test_a_full_disk_is_said_and_nothing_acknowledged_is_lost(small: Make, tmp_path: Path) -> None:
    from survival.server_faults import disk

    try:
        found = disk(small(num_rounds=12), tmp_path, seed=0, times=2, full=0.5, limit=200)
    except PermissionError as error:
        pytest.skip(str(error))
    assert ended_as_the_simulation(found), found
    assert found["said"] > 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="a wrong clock needs a C compiler")
@pytest.mark.slow
def test_clocks_may_be_wrong_by_a_day(small: Make, tmp_path: Path) -> None:
    from survival.site_faults import DAY, clock

    found = clock(small(), tmp_path, limit=200)
    assert ended_as_the_simulation(found), found
    assert found["clocks_off"] == [-DAY, DAY]


@pytest.mark.slow
def test_sites_that_die_in_a_secure_sum_come_back_into_it(small: Make, tmp_path: Path) -> None:
    from survival.site_faults import PHASES, secure

    made = small(
        **{"num_rounds": 1, "clients_per_round": 4, "partition.clients": 4, "secure.protocol": "secagg+"}
    )
    found = secure(made, tmp_path, "secagg+", PHASES["secagg+"][1::3], limit=200)
    assert ended_as_the_simulation(found), found
    assert found["killed"] == found["planned"]


def test_hostile_frames_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    from survival.hostile import hostile

    monkeypatch.setattr(os, "fsync", os.fsync)  # to be put back
    found = hostile(tmp_path, 2000, 5)
    assert found["frames"] == found["taken"] + found["refused"] >= 2000
    assert min(found["taken"], found["refused"]) > 300


def test_a_crowd_of_silent_connections_does_not_keep_a_client_out(tmp_path: Path) -> None:
    from survival.hostile import crowd

    found = crowd(tmp_path, 30)
    assert found["connections"] == 30
    assert found["all_closed_after"]
    assert found["memory_grew_by"] < 64 << 20
