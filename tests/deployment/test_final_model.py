"""The end of a federation: what a site takes as the final model, and what it refuses before it fetches anything."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save

from fednlp.config import parse
from fednlp.deployment.operate.homes import used_folder
from fednlp.deployment.server.ending import FinalModels, await_shutdown_acks
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.messages import Bye, Call, Finished, ObjectRef, Reply, Stored, pack
from fednlp.deployment.session.servable import servable
from fednlp.deployment.session.setup import Setup, sections_for_sites
from fednlp.deployment.site import participate
from fednlp.deployment.site.agreement import Agreement
from fednlp.deployment.site.final_model import (
    DECLINED,
    final_vector,
    forget_models,
    own_weights,
    read_final_model,
)
from fednlp.deployment.site.participate import Participant
from fednlp.deployment.site.policy import SitePolicy, parse_policy
from fednlp.deployment.site.published import Published
from fednlp.deployment.site.site import Site
from fednlp.deployment.site.worker import START
from fednlp.errors import RunError
from fednlp.federated.message import message_pieces
from fednlp.federated.params import Layout
from fednlp.training.client_record import ClientInit

from .ends import drain, greeting, welcome
from .test_federation import Member, quiet

MODEL = {"model": ObjectRef("0" * 64, 5_000_000)}
LAYOUT = Layout.of({"w": ((3,), "parameter"), "b": ((2,), "buffer")})


def site(folder: Path, policy: dict[str, Any], send_model: bool = True, most_down: int = 5_000_000) -> Site:
    """Return a site that is set up for a run."""
    data = {"name": "sites", "labels": ["a", "b"]}
    made = parse(
        {"data": data, "task": {"name": "text-classification"}, "rounds": {"send_model": send_model}}
    )
    setup = Setup(
        experiment=made.model_dump(exclude_none=True),
        task="text-classification",
        task_fields={},
        longest=8,
        client=0,
        clients=2,
        run="run",
    )
    (folder / START).mkdir(parents=True)
    Agreement(folder, "nord", SitePolicy(), quiet).keep(setup, most_down)
    return Site(folder, "nord", parse_policy(policy), quiet)


@pytest.mark.parametrize(
    ("policy", "send_model", "objects", "reason"),
    [
        ({}, True, MODEL, None),
        ({"limits": {"download_mb": 5.0}}, True, MODEL, None),
        ({"limits": {"download_mb": 4.9}}, True, MODEL, "limits.download_mb = 4.9"),
        ({"allow": {"final_model": False}}, True, MODEL, "allow.final_model = false"),
        ({}, False, MODEL, "rounds.send_model = false"),
        ({}, False, {}, None),
        ({}, True, {"model": ObjectRef("0" * 64, 5_000_001)}, "the experiment has 5 MB sent to a site"),
        ({}, True, {"model": ObjectRef("0" * 64, 1 << 40)}, "the experiment has 5 MB sent to a site"),
        ({}, True, {}, "something else"),
        ({}, True, MODEL | {"model.py": ObjectRef("1" * 64, 9)}, "something else"),
        ({}, True, {"start:config.json": ObjectRef("1" * 64, 9)}, "something else"),
    ],
)
def test_a_site_fetches_one_model_of_the_size_that_it_has_agreed_to(
    policy: dict[str, Any],
    send_model: bool,
    objects: dict[str, ObjectRef],
    reason: str | None,
    tmp_path: Path,
) -> None:
    asked = site(tmp_path / "site", policy, send_model)
    if reason is None:
        assert asked.admits("model", {}, objects)
    else:
        with pytest.raises(RunError, match=reason):
            asked.admits("model", {}, objects)
    new = Site(tmp_path, "nord", SitePolicy(), quiet)
    with pytest.raises(RunError, match="did not take part"):
        new.admits("model", {}, MODEL)


def message(metadata: dict[str, str] | None = None, **tensors: torch.Tensor) -> bytes:
    good = {"w": torch.ones(3), "b": torch.zeros(2)}
    return save({name: tensor for name, tensor in (good | tensors).items() if len(tensor)}, metadata)


def claiming(shape: int) -> bytes:
    """Return a message whose header claims a tensor of so many numbers, and which has five."""
    header = {"w": {"dtype": "F32", "shape": [shape], "data_offsets": [0, 4 * shape]}}
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + bytes(20)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x80\x04K\x01.",
        (1 << 62).to_bytes(8, "little") + b"{}",
        message()[:-1],
        message() + b"x",
        message(w=torch.ones(4)),
        message(w=torch.ones(3, 1)),
        message(w=torch.ones(3, dtype=torch.float64)),
        message(w=torch.ones(3, dtype=torch.int32)),
        message(w=torch.empty(0)),
        message(w=torch.empty(0), v=torch.ones(3)),
        message(v=torch.ones(3)),
        message({"code": "import os"}),
        message(w=torch.tensor([1.0, float("nan"), 1.0])),
        message(b=torch.tensor([float("inf"), 0.0])),
        claiming(1 << 40),
    ],
)
def test_a_file_that_is_no_final_model_is_not_kept(content: bytes, tmp_path: Path) -> None:
    worker: Any = SimpleNamespace(layout=LAYOUT)
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_bytes(b"".join(message_pieces(dict(LAYOUT.views(torch.arange(5.0))))))
    bad.write_bytes(content)
    assert final_vector(Published(), worker, {"model": good}).tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(RunError):
        final_vector(Published(), worker, {"model": bad})


@pytest.mark.parametrize(
    ("personal", "record", "own"),
    [("own", {"own": torch.ones(2)}, [1, 1]), (None, {"head": torch.ones(2)}, None), ("own", {}, None)],
)
def test_a_site_has_its_own_model_without_the_final_one_where_it_lies_there_whole(
    personal: str | None, record: dict[str, torch.Tensor], own: list[float] | None, tmp_path: Path
) -> None:
    init = ClientInit(method=record)
    trainer = SimpleNamespace(record=lambda client, counted: record, init=lambda *given: init)
    algorithm = SimpleNamespace(personal_model=personal)
    worker = SimpleNamespace(trainer=trainer, algorithm=algorithm, personalised=True)
    work: Any = SimpleNamespace(worker=worker, own=SimpleNamespace(client=0))
    lines: list[str] = []
    found = own_weights(tmp_path, work, 1, None, lines.append)
    assert (None if found is None else found.shared.tolist()) == own
    said = (
        "this site's own model is a part of the final one, which the server keeps: there is no own model here"
    )
    assert lines == ([said] if record and own is None else [])


def test_models_of_another_run_go_when_one_begins(tmp_path: Path) -> None:
    for name in ("model", "own", "records"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").touch()
    for name in ("resolved.toml", "task.json", "site.toml"):
        (tmp_path / name).touch()
    forget_models(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records", "site.toml"]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"summary": {"finished": True}, "environment": {}, "counted": -1},
        {"summary": {"finished": "yes"}, "environment": {}, "counted": 0},
        {"summary": {"finished": True, "evaluation": [1]}, "environment": {}, "counted": 0},
        {"summary": {"finished": True, "model": 1}, "environment": {}, "counted": 0},
        {"summary": {"finished": True, "task": {"a": 1}}, "environment": {}, "counted": 0},
        {"summary": {"finished": True}, "environment": {}, "counted": 1 << 31},
        {"summary": {"finished": True}, "environment": {"data": 1}, "counted": 0},
        {"summary": {"finished": True}, "environment": {}, "counted": 0, "code": "x"},
    ],
)
def test_what_a_server_says_of_the_model_is_checked(told: dict[str, Any]) -> None:
    with pytest.raises(RunError, match="what the server says of the final model does not fit"):
        read_final_model(told)


def test_a_site_that_takes_no_final_model_is_through_at_once(tmp_path: Path) -> None:
    """An error would have a server that is started again wait for a site that does not come."""
    own, lines = site(tmp_path / "site", {"allow": {"final_model": False}}), list[str]()
    part = Participant(tmp_path / "site", own, None, lines.append)
    part.session.begin(lambda: None)
    drain(part.session)
    part.session.receive(welcome())
    part.session.receive(pack(Call("9.0.model", {}, MODEL)))
    call = part.next_call()
    assert call is not None
    answering = threading.Thread(target=part._answer, args=(call,))
    answering.start()
    said: list[Any] = []
    while not said:
        said = drain(part.session)
    assert said == [Reply("9.0.model", DECLINED)]
    part.session.receive(pack(Stored("9.0.model")))
    answering.join(10)
    assert "allow.final_model = false" in str(part.session.reason)
    assert [type(message) for message in drain(part.session)] == [Bye]


@pytest.mark.parametrize("back", [True, False], ids=["server comes back", "server is gone"])
@pytest.mark.whole
def test_a_site_with_its_model_stays_until_a_server_that_was_killed_has_heard_so(
    back: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server waits for it otherwise, and it does not come; one that is started later ends without a server."""
    monkeypatch.setattr(participate, "_PATIENCE", 0.0)
    monkeypatch.setattr(participate, "_LAST_PATIENCE", 60.0 if back else 0.0)
    own, lines = site(tmp_path / "site", {"allow": {"final_model": False}}), list[str]()
    part = Participant(tmp_path / "site", own, None, lines.append)
    part.session.begin(lambda: None)
    part.session.receive(welcome())
    part.session.receive(pack(Call("9.0.model", {}, MODEL)))
    call = part.next_call()
    assert call is not None
    part.session.close()
    answering = threading.Thread(target=part._answer, args=(call,))
    answering.start()
    if back:
        answering.join(1)
        assert answering.is_alive()
        assert "waits until the server has heard so" in lines[-1]
        part.session.begin(lambda: None)
        part.session.receive(welcome())
        assert Reply("9.0.model", DECLINED) in drain(part.session)
        part.session.receive(pack(Stored("9.0.model")))
    answering.join(10)
    assert "allow.final_model = false" in str(part.session.reason)

    later = Participant(tmp_path / "site", own, None, lines.append)
    assert later.work() == "this site has all that it is due, and no server answers"

    cut = Participant(tmp_path / "site", own, None, lines.append)  # before its last word was sent
    cut.session.begin(lambda: None)
    cut.session.receive(welcome())
    cut.session.leave("done")
    cut.session.close()
    working = threading.Thread(target=cut.work, daemon=True)
    working.start()
    working.join(10)
    assert not working.is_alive()


def test_a_site_that_lacks_its_model_says_that_it_waits_and_how_to_stop_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(participate, "_LONELY", 0.0)
    own, lines = site(tmp_path / "ab-nord", {}), list[str]()
    part = Participant(
        tmp_path / "ab-nord", own, None, lambda line: (lines.append(line), part.session.leave("stop"))
    )  # type: ignore[func-returns-value]
    assert own.lacks_model
    assert part.work() == "stop"
    assert lines == [
        "the federation is not over for this site: it tries until the server is back; Ctrl-C stops it, and fednlp "
        "join ab-nord goes on later"
    ]


def test_a_setup_tells_no_folder_of_the_server() -> None:
    data = {"name": "sites", "labels": ["a", "b"], "test_path": "/srv/secret/tests.csv"}
    made = parse({"data": data, "task": {"name": "text-classification"}})
    told = sections_for_sites(made)
    assert told["data"]["test_path"] == "tests.csv"
    assert "secret" not in json.dumps(told)


def test_the_end_is_told_after_the_last_call_and_also_to_who_has_none(tmp_path: Path) -> None:
    hub = Hub(tmp_path, "run")
    sessions = [hub.session(client, lambda: None, lambda: 0.0) for client in range(2)]
    for session in sessions:
        session.receive(greeting())
    hub.ask(0, Call("9.0.model", {}))
    hub.finish("done", {0: "9.0.model"})
    assert isinstance(drain(sessions[1])[-1], Finished)
    assert not any(isinstance(message, Finished) for message in drain(sessions[0]))
    sessions[0].receive(pack(Reply("9.0.model", {})))
    assert [type(message) for message in drain(sessions[0])] == [Stored, Finished]


def test_who_has_the_model_is_not_waited_for_when_the_server_comes_back(tmp_path: Path) -> None:
    """The answer lies on the server's disk: the site has ended by itself, and does not come again."""
    members = [Member(name, client) for client, name in enumerate(("nord", "sued", "west", "ost"))]
    hub, lines = Hub(tmp_path, "run"), list[str]()
    for client, answer, error in ((0, {}, None), (1, None, "the disk is full"), (3, DECLINED, None)):
        session = hub.session(client, lambda: None, lambda: 0.0)
        session.receive(greeting())
        hub.ask(client, Call(f"9.{client}.model", {}))
        session.receive(pack(Reply(f"9.{client}.model", answer, error=error)))
    hub.close()
    again = Hub(tmp_path, "run")
    made = parse({"data": {"name": "sites", "labels": ["a", "b"]}, "num_rounds": 6})
    directory: Any = SimpleNamespace(experiment=lambda: made)
    calls = FinalModels(directory, again, lambda: members, {}).calls()
    assert calls == {0: "9.0.model", 1: "9.1.model-2", 2: "9.2.model", 3: "9.3.model"}
    for client in (1, 2):
        again.ask(client, Call(calls[client], {}))
    again.finish("done", calls)
    times = iter(range(1000))
    found = await_shutdown_acks(
        again, lambda: members, lines.append, now=lambda: next(times), sleep=lambda seconds: None
    )
    assert found == ["sued", "west"]
    assert lines[:2] == ["nord has the final model", "ost takes no final model"]
    assert lines[-1] == (
        "sued, west did not take the final model: start this server again while fednlp join is at work there"
    )


def test_a_federation_without_its_model_says_when_it_comes(tmp_path: Path) -> None:
    (tmp_path / "ab-nord" / "identity").mkdir(parents=True)
    with pytest.raises(RunError, match=r"ab-nord has no final model: it comes when"):
        used_folder(Path("ab-nord"), tmp_path)
    (tmp_path / "ab-nord" / "resolved.toml").touch()
    assert used_folder(Path("ab-nord"), tmp_path) == tmp_path / "ab-nord"
    assert used_folder(Path("runs/other"), tmp_path) == Path("runs/other")


def test_what_only_a_simulation_evaluates_is_left_out_with_a_word() -> None:
    lines: list[str] = []
    made = parse({"data": {"name": "20news"}, "evaluation": {"cross_client_evaluation": True}})
    assert not servable(made, lines.append).evaluation.cross_client_evaluation
    assert "cross_client_evaluation is left out" in lines[0]
