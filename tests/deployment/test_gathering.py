"""Before the first round: who refuses may mend its file and come back, and nobody is asked for what it has answered."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fednlp.deployment.server import gathering, waiting
from fednlp.deployment.server.gathering import Gathering
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import Call, Reply, pack
from fednlp.deployment.session.setup import Setup
from fednlp.partition import Partition

from .ends import drain, greeting
from .test_federation import Member

SETUP = Setup(experiment={}, task="t", task_fields={}, longest=8, client=0, clients=1, run="run")


class Stopped(Exception):
    """The server is stopped."""


class Site:
    """A site that is connected for one look at a time, and answers by a script.

    Args:
        client: Its number.
        script: For each setup: why it is refused, or None if it is not.
    """

    def __init__(self, client: int, *script: str | None) -> None:
        self.client, self.script = client, list(script)
        self.asked: list[str] = []
        self.ready = {"train": 7, "test": 2}

    def act(self, hub: Hub) -> None:
        if not self.script:
            return
        session = hub.session(self.client, lambda: None, lambda: 0.0)
        session.receive(greeting("run"))
        for message in drain(session):
            if isinstance(message, Call) and self.script:
                self.asked.append(message.id)
                assert message.request == SETUP.model_dump() | {
                    "client": self.client,
                    "clients": message.request["clients"],
                }
                reason = self.script.pop(0)
                ready = self.ready | {"clients": message.request["clients"]}
                session.receive(pack(Reply(message.id, None if reason else ready, error=reason)))
        session.close()


def gather(
    folder: Path, sites: Sequence[Site], log: Callable[[str], None], stop_after: int = 10**6, **states: str
) -> Partition:
    """Start a server from its folder, and stop it after so many looks."""
    hub, looks = Hub(folder, "run"), 0

    def members() -> list[Member]:
        names = {site.client: f"site{site.client}" for site in sites}
        return [Member(name, client, states.get(name, "enrolled")) for client, name in names.items()]

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks > stop_after:
            raise Stopped
        for site in sites:
            site.act(hub)

    try:
        removal = "fednlp sites remove runs/trial"
        return Gathering(hub, members, SETUP, {}, removal, log).partition(look)
    finally:
        hub.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LOOK", 0.0)


def test_a_site_that_refuses_is_asked_again_when_it_is_back(tmp_path: Path) -> None:
    lines: list[str] = []
    sites = [Site(0, None), Site(1, "allow.most_rounds = 3", None)]
    partition = gather(tmp_path, sites, lines.append)
    assert [site.asked for site in sites] == [["0.0.setup"], ["0.1.setup", "0.1.setup-2"]]
    assert partition.train_offsets.tolist() == [0, 7, 14]
    assert lines == [
        "site site0 is ready (1 of 2)",
        "site site1 does not take part: allow.most_rounds = 3; it may mend its file and join again, or: "
        "fednlp sites remove runs/trial site1",
        "site site1 is ready (2 of 2)",
    ]


def test_also_after_a_restart_of_the_server(tmp_path: Path) -> None:
    lines: list[str] = []
    sites = [Site(0, None), Site(1, "no", "still no")]
    with pytest.raises(Stopped):
        gather(tmp_path, sites, lines.append, stop_after=20)
    sites[1].script.append(None)
    gather(tmp_path, sites, lines.append)
    assert [site.asked for site in sites] == [["0.0.setup"], ["0.1.setup", "0.1.setup-2", "0.1.setup-3"]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    st.lists(st.lists(st.sampled_from(["no", "never"]), max_size=3), min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_whatever_is_refused_and_stopped_no_call_is_answered_twice(
    tmp_path_factory: pytest.TempPathFactory, refusals: list[list[str]], looks: int
) -> None:
    folder = tmp_path_factory.mktemp("server")
    sites = [Site(0, *refusals[0]), Site(1, *refusals[-1][::-1])]
    for more in refusals:
        with pytest.raises(Stopped):
            gather(folder, sites, lambda line: None, looks)
        sites[0].script += more
        for site in sites:
            assert len([*(folder / "inbox").glob(f"0.{site.client}.*.json")]) <= 2
    for site in sites:
        site.script.append(None)
    partition = gather(folder, sites, lambda line: None)
    assert partition.num_clients == 2
    for site in sites:
        assert len({*site.asked}) == len(site.asked)


def test_a_line_says_who_is_missing_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TOLD", 1e-9)
    lines: list[str] = []
    with pytest.raises(Stopped):
        gather(tmp_path, [Site(0), Site(1, "no"), Site(2)], lines.append, stop_after=9, site2="invited")
    assert lines[-1] == (
        "waiting for site0 (not connected), site1 (has refused), site2 (invited, and has not joined): join there, or "
        "go on without a site by: fednlp sites remove runs/trial NAME"
    )


def test_of_sites_that_are_at_work_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "TOLD", 1e-9)
    monkeypatch.setattr(Hub, "connected", lambda hub: {0: None})
    lines: list[str] = []
    with pytest.raises(Stopped):
        gather(tmp_path, [Site(0)], lines.append, stop_after=9)
    assert not lines


def test_an_answer_that_is_none_is_a_refusal(tmp_path: Path) -> None:
    lines: list[str] = []
    site = Site(0, None)
    site.ready = {"train": 0, "test": 0}
    with pytest.raises(Stopped):
        gather(tmp_path, [site], lines.append, stop_after=3)
    assert "site0 does not take part: the answer does not fit: train" in lines[0]


@pytest.mark.parametrize("stop_after", [2, 3, 4, 5, 10**6])
def test_who_was_told_another_number_of_sites_is_told_again(tmp_path: Path, stop_after: int) -> None:
    """A site is invited while another one is ready; the server may be stopped at any moment."""
    sites = [Site(0, None, None), Site(1)]

    class Inviting(Site):
        def act(self, hub: Hub) -> None:
            super().act(hub)
            if self.asked and len(sites) == 2:
                sites.append(Site(2, None))

    sites[1] = Inviting(1, None, None)
    try:
        partition = gather(tmp_path, sites, lambda line: None, stop_after)
    except Stopped:
        partition = gather(tmp_path, sites, lambda line: None)
    assert partition.num_clients == 3
    assert [site.asked[-1] for site in sites[:2]] == ["0.0.setup-2", "0.1.setup-2"]
