"""A site that loses what it was set up for in the middle of a run is set up again, and begins anew or is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.operate.shards import split_out
from fednlp.deployment.session.messages import Call, Withdrawn, pack
from fednlp.deployment.session.setup import Again, Ready
from fednlp.deployment.site.participate import BoundRun, Participant
from fednlp.deployment.site.policy import SitePolicy
from fednlp.deployment.site.worker import STATE_IS_LOST, require_same_data
from fednlp.errors import RunError

from .ends import drain, welcome
from .machines import Killed, Machines
from .test_federation import METHODS, quiet, rounds

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
SETTINGS = {
    "num_rounds": 3,
    "clients_per_round": 2,
    "partition.clients": 2,
    "task.name": "text-classification",
}


class Losing(Machines):
    """A federation whose first site is killed when it is asked to train in the second round, and loses files.

    Args:
        lost: Names in the site's folder; None for the whole folder.
    """

    def __init__(self, *arguments: Any, lost: tuple[str, ...] | None, **options: Any) -> None:
        self.lost, self.starts, self.lines = lost, 0, list[str]()
        super().__init__(*arguments, **options)

    def _participant(self, client: int) -> Participant:
        if client == 0:
            self.starts += 1
            if self.starts == 2:
                self._lose(self.folder / "site-0")
        part = super()._participant(client)
        if client == 0:
            answer = part.site.answer

            def mortal(name: str, request: Any, objects: Any) -> Any:
                if self.starts == 1 and name == "train" and request["request"]["round"] == 2:
                    raise Killed
                return answer(name, request, objects)

            part.site.answer = mortal  # type: ignore[method-assign]
            part.site.log = self.lines.append
        return part

    def _lose(self, folder: Path) -> None:
        for name in [path.name for path in folder.iterdir()] if self.lost is None else self.lost:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("lost", [None, ("setup.json",), ("start",)])
@pytest.mark.variants(1)
def test_a_site_without_state_goes_on_as_if_nothing_had_happened(
    lost: tuple[str, ...] | None, experiment: Make, tmp_path: Path
) -> None:
    made = experiment(SETTINGS)
    machines = Losing(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path, lost=lost)
    deployed, simulated = machines.run(), fednlp.run(made, tmp_path / "simulated")
    assert machines.starts == 2
    assert rounds(deployed) == rounds(simulated)
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] == weights[1]
    assert STATE_IS_LOST not in machines.lines


@pytest.mark.parametrize("lost", [None, ("record.bin",)])
@pytest.mark.parametrize("method", ["ditto", "8 bits", "splitbert"])
@pytest.mark.variants(1)
def test_what_a_site_keeps_for_itself_begins_anew(
    method: str, lost: tuple[str, ...] | None, experiment: Make, tmp_path: Path
) -> None:
    made = experiment(SETTINGS | METHODS[method])
    machines = Losing(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path, lost=lost)
    lines = rounds(machines.run())
    assert [(line["cohort"], line.get("dropped")) for line in lines] == [([0, 1], None)] * 3
    assert machines.lines.count(STATE_IS_LOST) == 1


def test_a_control_variate_does_not_begin_anew(experiment: Make, tmp_path: Path) -> None:
    """The server's sum would keep the share of the lost one for good."""
    made = experiment(SETTINGS | METHODS["scaffold"])
    shards = split_out(made.resolved(), tmp_path / "shards", quiet)
    lines = rounds(Losing(shards, tmp_path, lost=("record.bin",)).run())
    assert "dropped" not in lines[0]
    for line in lines[1:]:
        assert [one["client"] for one in line["dropped"]] == [0]
        assert "what scaffold keeps at this site is lost" in line["dropped"][0]["reason"]


def test_a_site_that_comes_back_with_other_data_is_refused() -> None:
    ready = Ready(train=700, test=20)
    require_same_data(None, ready)
    require_same_data(Again(counted=3), ready)
    require_same_data(Again(train=700, test=20, counted=3), ready)
    for again in (Again(train=712, test=20, counted=0), Again(train=700, test=21, counted=1)):
        with pytest.raises(RunError, match="join with the same data and the same site's file as then"):
            require_same_data(again, ready)


def test_work_waits_until_the_site_is_set_up(tmp_path: Path) -> None:
    """The server asks for work before it has seen that the site is not set up."""

    class Site:
        run: str | None = None

        def admits(self, name: str, request: Any, objects: Any) -> bool:
            return name == "setup" or self.run is not None

        def answer(self, name: str, request: Any, objects: Any) -> Any:
            self.run = "run"
            return {}, None

        policy = SitePolicy()

    part = Participant(tmp_path / "site", Site(), None, quiet)  # type: ignore[arg-type]
    part.session.begin(lambda: None)
    assert [one.run for one in drain(part.session)] == [None]
    part.session.receive(welcome())
    for call in (Call("2.0.train", {}), Call("5.0.setup", {"run": "run"})):
        part.session.receive(pack(call))
    done = [part.next_call()]
    assert done[0] is not None
    part._answer(done[0])
    done.append(part.next_call())
    assert [call and call.id for call in done] == ["5.0.setup", "2.0.train"]


def test_calls_that_are_withdrawn_do_not_pile_up_at_a_site(tmp_path: Path) -> None:
    """A server that asks and withdraws without end would fill the memory with requests of 4 MB each."""

    class Site:
        run = "run"

        def admits(self, *call: Any) -> bool:
            return True

    part = Participant(tmp_path, Site(), None, quiet)  # type: ignore[arg-type]
    part.session.begin(lambda: None)
    part.session.receive(welcome())
    for number in range(1, 300):
        part.session.receive(pack(Call(f"{number}.0.train", {"padding": "x" * 1000})))
        part.session.receive(pack(Withdrawn(f"{number}.0.train")))
    for call_id in ("300.0.train", "7.0.train"):  # the second was withdrawn, and is wanted again
        part.session.receive(pack(Call(call_id, {})))
    assert [call and call.id for call in (part.next_call(), part.next_call())] == ["300.0.train", "7.0.train"]


@pytest.mark.parametrize("bound", [False, True])
def test_another_run_takes_another_token(bound: bool, tmp_path: Path) -> None:
    """A server that names a new run would have the site forget what it has answered."""

    class Site:
        run = "first"

    invitation = "invitation:1" if bound else None
    note = BoundRun(tmp_path, invitation)
    note.write("first")
    note.write("second")
    assert note.read() == ("first" if bound else None)
    part = Participant(tmp_path, Site(), invitation, quiet)  # type: ignore[arg-type]
    part.session.begin(lambda: None)
    assert [one.run for one in drain(part.session)] == ["first"]
    part.session.receive(welcome(run="second"))
    assert part.session.finished is part.session.leaves is bound
    if bound:
        assert "a join token is for one run" in str(part.session.reason)
        assert BoundRun(tmp_path, "invitation:2").read() is None
    else:
        part.session.begin(lambda: None)
        part.session.receive(welcome(run="third"))
        assert part.session.leaves
        assert "join again" in str(part.session.reason)


def test_a_damaged_note_of_the_run_is_said(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"run": 1}')
    with pytest.raises(RunError, match=r"run\.json is damaged"):
        BoundRun(tmp_path, "invitation:1").read()
