"""Whatever is cut, killed, lost or replayed: each call is answered once, and no work is done twice."""

from pathlib import Path
from shutil import rmtree

import pytest

from fednlp.deployment.session import objects
from fednlp.errors import ProtocolError

from .disks import Disk
from .slow_disks import make_slow
from .world import World

pytestmark = pytest.mark.whole

FAULTY, MOST_STEPS = 400, 20_000


def live_through(folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch, slow: bool = False) -> None:
    """Run a federation through faults for a while, and then without any to its end."""
    disk = Disk(monkeypatch)
    world = World(folder, seed, disk, slow=slow)
    for step in range(MOST_STEPS):
        if world.over:
            break
        world.step(faults=step < FAULTY)
    assert world.over, (
        f"seed {seed} hangs in round {world.saved + 1}, which lacks {world.expected - set(world.taken)}"
    )
    for site in world.sites:
        again = {call_id for call_id, times in site.done.items() if times > 1}
        assert again <= world.withdrawn | world.lost, (
            f"seed {seed}: work that was finished was done again: {again}"
        )
        for error in site.link.errors:
            assert isinstance(error, ProtocolError), error
    world.close()


@pytest.mark.parametrize("block", range(4))
@pytest.mark.variants(1)
def test_each_call_is_answered_once_whatever_fails(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "CHUNK", 100)
    for seed in range(block * 25, (block + 1) * 25):
        live_through(tmp_path / str(seed), seed, monkeypatch)
        rmtree(tmp_path / str(seed))


@pytest.mark.parametrize("block", range(4))
@pytest.mark.variants(1)
def test_a_round_that_goes_on_while_the_disks_are_slow_is_as_safe(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update is used before it is on the server's disk, and sent before it is on the site's."""
    monkeypatch.setattr(objects, "CHUNK", 100)
    make_slow(monkeypatch)
    for seed in range(block * 25, (block + 1) * 25):
        live_through(tmp_path / str(seed), seed, monkeypatch, slow=True)
        rmtree(tmp_path / str(seed))


@pytest.mark.slow
def test_each_call_is_answered_once_in_thousands_of_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "CHUNK", 100)
    for seed in range(1000, 6000):
        live_through(tmp_path / str(seed), seed, monkeypatch)
        rmtree(tmp_path / str(seed))
