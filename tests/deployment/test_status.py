"""The status of a federation: its file, what the server writes into it, and the command that shows it."""

import json
import os
import socket
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fednlp.cli import main
from fednlp.config import parse
from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.deployment.operate.feed import Overview
from fednlp.deployment.server import status_writer
from fednlp.deployment.server.status import STALE, Status, read_status, write_status
from fednlp.deployment.server.status_writer import SiteActivity, StatusWriter, site_state
from fednlp.deployment.session.hub import Hub, Presence
from fednlp.deployment.session.messages import Call
from fednlp.errors import RunError
from fednlp.privacy.dp import DPMechanism
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir, new_run_dir

from .watched import NOW, append, line, run_directory, status

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


# ---- the file --------------------------------------------------------------------------------------------------------


@given(TEXT, st.floats(0, 1e12), st.integers(0, 2**62))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, name: str, when: float, count: int
) -> None:
    folder, one = tmp_path_factory.mktemp("federation"), status().sites[0]
    site = one.model_copy(update={"name": name, "since": when, "bytes_in": count})
    written = status(run=name, sites=[site], updated=when)
    write_status(folder, written)
    assert read_status(folder) == written
    assert [path.name for path in folder.iterdir()] == ["status.json"]


def test_none_is_written_yet(tmp_path: Path) -> None:
    assert read_status(tmp_path) is None


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"version": 2}', '{"version": 1, "pid": "1"}', "[" * 100_000, "\xff"],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "status.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(RunError, match=r"^[^\n]*status\.json is damaged[^\n]*$"):
        read_status(tmp_path)


@given(st.sampled_from(sorted(Status.model_fields)), st.one_of(st.none(), st.booleans(), st.floats(), TEXT))
def test_other_types_are_refused(key: str, value: object) -> None:
    fields = status().model_dump() | {key: value}
    with suppress(ValidationError):
        assert Status(**fields).model_dump()[key] == value


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "status.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(RunError, match="longer than"):
        read_status(tmp_path)


def test_whether_the_server_is_alive() -> None:
    here = status(pid=os.getpid(), host=socket.gethostname())
    assert here.alive(NOW + STALE)
    assert not here.alive(NOW + STALE + 1), "it writes no more"
    assert not status(pid=2**22 + 1, host=socket.gethostname()).alive(NOW), "its process has ended"
    assert status(pid=2**22 + 1, host="elsewhere.example").alive(NOW), (
        "its process is not to be seen from here"
    )
    for phase in ("finished", "stopped"):
        assert not status(phase=phase, pid=os.getpid(), host=socket.gethostname()).alive(NOW)


# ---- a site ----------------------------------------------------------------------------------------------------------


def present(since: float = 1.0, bytes_in: int = 0, bytes_out: int = 0, doing: str = "waits") -> Presence:
    return Presence(since, since + 1, bytes_in, bytes_out, doing)


@pytest.mark.parametrize(
    ("registered", "presence", "asked", "state"),
    [
        ("removed", present(), True, "removed"),
        ("enrolled", present(), True, "connected"),
        ("enrolled", present(doing="works on 1.0.train"), True, "working"),
        ("enrolled", None, True, "awaited"),
        ("enrolled", None, False, "enrolled"),
        ("invited", None, True, "invited"),
    ],
)
def test_state_of_a_site(registered: str, presence: Presence | None, asked: bool, state: str) -> None:
    assert site_state(registered, presence, asked) == state


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), min_size=1, max_size=4), max_size=4)
)
def test_bytes_count_over_all_connections(connections: list[list[tuple[int, int]]]) -> None:
    """Each connection counts from zero; between two of them the site is now gone, now not."""
    tally, wanted, now = SiteActivity(), [0, 0], 10.0
    for number, steps in enumerate(connections):
        total_in = total_out = 0
        for step_in, step_out in steps:
            total_in, total_out, now = total_in + step_in, total_out + step_out, now + 1
            presence = present(float(number + 1), total_in, total_out)
            tally.look(now, "enrolled", presence, [])
            assert tally.traffic == (wanted[0] + total_in, wanted[1] + total_out)
        wanted = [wanted[0] + total_in, wanted[1] + total_out]
        if number % 2:
            tally.look(now, "enrolled", None, [])
    assert tally.traffic == tuple(wanted)
    assert SiteActivity.of(tally.status(0, "a")).traffic == tuple(wanted), "after a restart of the server too"


def test_since_when_a_site_is_awaited() -> None:
    tally = SiteActivity()
    since = []
    for now, asked in (
        (10.0, "1.0.train"),
        (12.0, "1.0.train"),
        (13.0, "2.0.train"),
        (15.0, ""),
        (20.0, "3.0.train"),
    ):
        tally.look(now, "enrolled", None, [asked] if asked else [])
        since.append(tally.awaited_since if tally.awaited else None)
    assert since == [10.0, 10.0, 13.0, None, 20.0]
    assert (tally.since, tally.doing) == (20.0, "has the training of round 3 to do")


# ---- the writer ------------------------------------------------------------------------------------------------------


@dataclass
class Member:
    name: str
    client: int
    state: str
    certificate_expires: float | None = None


class Session:
    """A connection as the hub knows one."""

    welcomed, set_up, since, heard, bytes_in, bytes_out, doing = True, True, NOW, NOW + 1, 7, 8, "waits"

    def wake(self) -> None: ...


@pytest.fixture
def directory(tmp_path: Path) -> RunDir:
    settings = {"data": {"name": "sites", "labels": ["a", "b"]}, "num_rounds": 3, "rounds": {"wait": 60.0}}
    made = new_run_dir(parse(settings).resolved(), tmp_path / "trial")
    (made.folder / FOLDER).mkdir()
    return made


def seen(directory: RunDir) -> Status:
    found = read_status(directory.folder / FOLDER)
    assert found is not None
    return found


def test_what_the_server_writes(directory: RunDir) -> None:
    said: list[str] = []
    hub = Hub(directory.folder / FOLDER, "run")
    members = [Member("nord", 0, "enrolled"), Member("west", 1, "invited"), Member("away", 2, "removed")]
    clock = SimpleNamespace(now=NOW)
    writer = StatusWriter(directory, hub, lambda: members, said.append, lambda: float(clock.now))
    writer.tick()
    first = seen(directory)
    assert (first.phase, first.round, first.rounds, first.pid) == ("waiting for sites", 0, 3, os.getpid())
    assert [site.state for site in first.sites] == ["enrolled", "invited", "removed"]
    assert [(one.name, one.release) for one in first.awaited] == [
        ("west", "it joins, or fednlp sites remove")
    ]

    members[1].state = "enrolled"
    hub._client(0).session = Session()  # type: ignore[assignment]
    for client in (0, 1):
        hub.ask(client, Call(f"1.{client}.train", {}, {}))
    watched = writer.watched(NullCallback())
    watched.started(directory, directory.experiment(), 3, 0)
    clock.now += 5
    writer.tick()
    clock.now += 30
    writer.tick()
    second = seen(directory)
    assert (second.phase, second.round) == ("round 1 of 3", 1)
    assert [(site.state, site.bytes_in, site.bytes_out) for site in second.sites] == [
        ("connected", 7, 8),
        ("awaited", 0, 0),
        ("removed", 0, 0),
    ]
    assert [(one.client, one.seconds) for one in second.awaited] == [(0, 30.0), (1, 30.0)]
    assert "60 s are over (rounds.wait)" in second.awaited[0].release
    assert second.round_ended is None

    watched.on_progress(1, 2, "clients")
    writer.tick()
    assert seen(directory).phase == "round 1 of 3"
    watched.on_progress(1, 2, "test batches")
    writer.tick()
    assert seen(directory).phase == "evaluating"
    watched.on_round(line(1), None)
    writer.tick()
    third = seen(directory)
    assert (third.phase, third.round, third.round_ended) == ("round 2 of 3", 2, clock.now)
    assert not said


def test_epsilon_so_far_is_that_of_the_site_that_took_part_most(directory: RunDir) -> None:
    pytest.importorskip("dp_accounting")
    writer = StatusWriter(directory, Hub(directory.folder / FOLDER, "run"), list, [].append)
    mechanism = DPMechanism(1.0, 2.0, True, "fixed", 4, 2, 3, 1e-5, 0)
    writer.opened(SimpleNamespace(mechanism=mechanism))  # type: ignore[arg-type]
    spent = []
    for cohort in ([], [0, 1], [1, 2], [2, 3]):
        writer.rounds_done([{"cohort": cohort}])
        writer.tick()
        privacy = seen(directory).privacy
        assert privacy is not None
        spent.append((privacy.rounds, privacy.epsilon))
    assert spent == [(rounds, mechanism.spent(rounds)) for rounds in (0, 1, 2, 2)]
    assert mechanism.spent(3) >= mechanism.epsilon(), "nothing is counted for sampling"


@pytest.mark.parametrize("finished", [True, False])
def test_the_last_status(directory: RunDir, finished: bool) -> None:
    hub = Hub(directory.folder / FOLDER, "run")
    with StatusWriter(directory, hub, list, [].append) as writer:
        assert seen(directory).phase == "waiting for sites"
        if finished:
            writer.watched(NullCallback()).finished(directory, {"finished": True})
    assert seen(directory).phase == ("finished" if finished else "stopped")
    assert not [one for one in threading.enumerate() if one.name == "fednlp-status"]


def test_a_status_that_cannot_be_written_stops_nothing(directory: RunDir) -> None:
    said: list[str] = []
    writer = StatusWriter(directory, Hub(directory.folder / FOLDER, "run"), list, said.append)
    (directory.folder / FOLDER / "status.json").mkdir()
    writer.tick()
    writer.tick()
    assert len(said) == 1
    assert "the run goes on" in said[0]


def test_it_writes_by_itself(directory: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status_writer, "EVERY", 0.01)
    with StatusWriter(directory, Hub(directory.folder / FOLDER, "run"), list, [].append) as writer:
        writer.phase("round 1 of 3", 1)
        until = time.monotonic() + 60
        while seen(directory).round != 1:
            assert time.monotonic() < until
            time.sleep(0.01)


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def run(directory: RunDir) -> Path:
    (directory.folder / FOLDER).rmdir()
    return run_directory(directory.folder, line(1))


def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> str:
    monkeypatch.setattr(sys, "argv", ["fednlp", "status", *map(str, words)])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 0
    return capsys.readouterr().out


def test_a_federation_at_work(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_status(run / FOLDER, status(updated=time.time(), host="elsewhere"))
    out = typed(monkeypatch, capsys, run)
    for words in (
        "round 2 of 3",
        "the server is at work (process 1 on elsewhere)",
        "waiting for west <b>&amp; (1 min 5 s), until it answers, or fednlp sites remove",
        "works on the training of round 2",
        "2026-05-28 20:26 UTC",
        "sent up 4.50 MB, down 6 MB",
        "epsilon 2.5 so far at delta 1e-05 against whoever sees the models, for a site that took part in 1 round",
        "0.25",
    ):
        assert words in out, out


def test_many_sites_fit_on_one_screen(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = status()
    sites = [before.sites[0].model_copy(update={"client": n, "name": f"s{n}"}) for n in range(1000)]
    awaited = [before.awaited[0].model_copy(update={"client": n, "name": f"s{n}"}) for n in range(1000)]
    write_status(run / FOLDER, status(sites=sites, awaited=awaited, updated=time.time(), host="elsewhere"))
    out = typed(monkeypatch, capsys, run)
    assert "s5 (1 min 5 s) and 994 more, until it answers" in out
    assert "and 975 more sites: --json has all" in out
    assert len(out.splitlines()) < 45


def test_a_server_that_was_killed(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = typed(monkeypatch, capsys, run, "--follow")
    assert "go on with the same fednlp serve command" in out
    assert "waiting for" not in out


def test_a_run_that_has_ended_and_one_that_never_began(run: Path) -> None:
    (run / "summary.json").write_text(json.dumps({"finished": True}))
    ended = Overview(run)
    assert (ended.phase, ended.server, ended.ended) == ("finished", "the federation has ended", True)
    if ended.status is not None and not ended.alive:
        assert not any(site.doing or site.state == "working" for site in ended.status.sites)
    (run / "summary.json").unlink()
    (run / FOLDER / "status.json").unlink()
    assert Overview(run).server == "no server has started yet"


def test_a_simulation_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / FOLDER / "status.json").unlink()
    (run / FOLDER).rmdir()
    out = typed(monkeypatch, capsys, run)
    assert "this run is a simulation" in out
    assert "1 of 3 rounds done" in out


def test_json(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    append(run, line(2))
    found: dict[str, Any] = json.loads(typed(monkeypatch, capsys, run, "--json"))
    assert (found["phase"], found["server_alive"], len(found["rounds_done"])) == ("stopped", False, 2)
    assert found["status"] == status().model_dump()


def test_names_are_harmless_on_a_terminal(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sites = [one.model_copy(update={"name": "[red]\x1b[2J", "doing": "\x1b[2J"}) for one in status().sites]
    write_status(run / FOLDER, status(sites=sites))
    out = typed(monkeypatch, capsys, run)
    assert "\x1b" not in out
    assert "[red]" in out
