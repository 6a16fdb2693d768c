"""A site that decides by its policy: nothing is set up, trained or told that the policy does not allow."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.config import Experiment
from fednlp.deployment.server.components import server_components
from fednlp.deployment.session.messages import Call, ObjectRef, pack
from fednlp.deployment.session.objects import ref_of
from fednlp.deployment.session.setup import Setup, model_files
from fednlp.deployment.site import participate
from fednlp.deployment.site.data import UNREADABLE
from fednlp.deployment.site.disclosure import (
    redact_error,
)
from fednlp.deployment.site.policy import Allow, parse_policy
from fednlp.deployment.site.requests import redact_loss, redact_result, redact_score, require_losses_told
from fednlp.deployment.site.site import Site
from fednlp.disk import sha256_of
from fednlp.errors import DataError, RunError, SecureAbort
from fednlp.federated.client import ClientLoss, ClientResult
from fednlp.tasks import agreed_fields
from fednlp.training.requests.predict import ClientModelResult

from .ends import welcome

Make = Callable[..., Experiment]
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def served(experiment: Make, tmp_path_factory: Any) -> tuple[Experiment, dict[str, Any], dict[str, Path]]:
    """An experiment whose data are at sites, the first call of its server, and the files that come with it."""
    folder = tmp_path_factory.mktemp("objects")
    changes = {
        "data": {"name": "sites", "labels": ["arts", "economy", "science", "sports"]},
        "task.name": "text-classification",
        "partition": None,
    }
    made = experiment(changes).resolved()
    components = server_components(made, lambda text: None)
    setup = Setup(
        experiment=made.model_dump(exclude_none=True),
        task=components.task_spec,
        task_fields=agreed_fields(components.task),
        longest=components.longest,
        client=1,
        clients=8,
        run="run",
    )
    objects = {}
    for name, path in model_files(Path(components.source)).items():
        objects[name] = folder / sha256_of(path)
        objects[name].write_bytes(path.read_bytes())
    return made, setup.model_dump(), objects


@pytest.fixture
def ask(served: Any, texts: Path, tmp_path: Path) -> Ask:
    """Send the first call to a site with a policy; settings of the experiment may be changed on the way."""

    def send(
        policy: dict[str, Any] | None = None,
        sent_objects: dict[str, Path] | None = None,
        run: str = "run",
        **changes: Any,
    ) -> dict[str, Any]:
        _, setup, objects = served
        objects = sent_objects or objects
        data = {"path": str(texts), "test_fraction": 0.25}
        allowed = parse_policy({"data": data} | (policy or {}))
        site = Site(tmp_path / "site", "nord", allowed, lambda text: None)
        sent = setup | {"run": run, "experiment": setup["experiment"] | changes}
        answer, body = site.answer("setup", sent, objects)
        assert body is None
        return answer

    return send


def test_a_site_by_default_tells_its_numbers(ask: Ask) -> None:
    assert ask() == {"train": 150, "test": 50, "clients": 8}


@pytest.mark.parametrize(
    ("allow", "answer"),
    [
        ({"tell_size": False}, {"train": 1, "test": 0, "hidden": ["train", "test"]}),
        ({"tell_scores": False}, {"train": 150, "test": 0, "hidden": ["test"]}),
        ({"tell_size": False, "tell_scores": False}, {"train": 1, "test": 0, "hidden": ["train", "test"]}),
    ],
)
def test_what_it_does_not_tell(ask: Ask, allow: dict[str, Any], answer: dict[str, int]) -> None:
    uniform = {"name": "fedavg", "weighting": "uniform"}
    told = ask({"allow": allow}, algorithm=uniform)
    assert {key: told[key] for key in answer} == answer


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        ({"allow": {"most_rounds": 3}}, "allow.most_rounds = 3, the experiment has 4 (num_rounds)"),
        ({"allow": {"tell_size": False}}, "allow.tell_size = false, the experiment weighs sites by"),
        ({"allow": {"tensors": ["head"]}}, "allow.tensors = ["),
        ({"allow": {"models": ["bert-tiny"]}}, "allow.models = ["),
        ({"limits": {"upload_mb": 0.001}}, "limits.upload_mb = 0.001, the experiment has a site send"),
        ({"device": {"memory_mb": 1}}, "device.memory_mb = 1, the experiment is predicted to need"),
    ],
)
def test_a_run_that_is_refused_is_not_set_up(
    ask: Ask, tmp_path: Path, policy: dict[str, Any], line: str
) -> None:
    """The reason names the key, and a site that is started again is not set up either."""
    with pytest.raises(RunError) as caught:
        ask(policy)
    assert str(caught.value).startswith("site nord refuses: ")
    assert line in str(caught.value)
    assert not (tmp_path / "site" / "setup.json").exists()


BEFORE: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "algorithm": ({"allow": {"algorithms": ["fedprox"]}}, {}, 'allow.algorithms = ["fedprox"]'),
    "task": ({"allow": {"tasks": ["causal-lm"]}}, {}, 'allow.tasks = ["causal-lm"]'),
    "model": ({"allow": {"models": ["bert-tiny"]}}, {}, 'allow.models = ["bert-tiny"]'),
    "digest": ({"allow": {"models": ["sha256:" + "0" * 64]}}, {}, "allow.models = ["),
    "labels": ({}, {"asked_labels": True}, "allow.tell_labels = false"),
    "size": (
        {"limits": {"download_mb": 0.001}},
        {},
        "limits.download_mb = 0.001, the experiment has a site fetch",
    ),
    "code of the task": ({}, {"task": "subprocess:Popen"}, 'names the code "subprocess:Popen"'),
    "sites": ({}, {"clients": 10**9}, "clients: Input should be less than or equal to 1000000"),
    "number": ({}, {"client": 10**9}, "client: Input should be less than 1000000"),
    "length": ({}, {"longest": 10**12}, "longest: Input should be less than"),
    "examples": ({}, {"again": {"train": 10**9, "counted": 1}}, "again.train: Input should be less than"),
    "rounds": ({}, {"again": {"counted": 10**12}}, "again.counted: Input should be less than"),
}


@pytest.mark.parametrize("case", [*BEFORE, "name"])
def test_what_a_setup_says_is_checked_before_anything_is_fetched(
    case: str, served: Any, texts: Path, tmp_path: Path
) -> None:
    policy, changes, line = BEFORE.get(case, ({}, {}, "the server sent a file that has no place in a model"))
    refs = references(served[2]) | ({"start:run.py": ObjectRef("0" * 64, 9)} if case == "name" else {})
    site = Site(tmp_path, "nord", parse_policy({"data": {"path": str(texts)}} | policy), quiet)
    with pytest.raises(RunError) as caught:
        site.admits("setup", served[1] | changes, refs)
    assert line in str(caught.value)
    assert not (tmp_path / "start").exists()


def test_what_comes_later_is_as_large_as_the_experiment_says(
    served: Any, texts: Path, tmp_path: Path
) -> None:
    """Also after a restart, before the model is opened again."""
    policy = parse_policy({"data": {"path": str(texts)}})
    site = Site(tmp_path, "nord", policy, quiet)
    assert not site.admits("train", {}, {}), "it waits for the setup"
    assert site.admits("setup", served[1], references(served[2]))
    assert site.admits("labels", {}, {})
    with pytest.raises(RunError, match="files with its question"):
        site.admits("labels", {}, {"model": ObjectRef("0" * 64, 1)})
    site.answer("setup", served[1], served[2])
    most = site.worker.layout.message_bytes
    for one in (site, Site(tmp_path, "nord", policy, quiet)):
        assert one.admits("train", {}, {"model": ObjectRef("0" * 64, most)})
        with pytest.raises(
            RunError, match=r"the server sends .* kB, and the experiment has .* kB sent to a site"
        ):
            one.admits("train-2", {}, {"model": ObjectRef("0" * 64, most), "x": ObjectRef("1" * 64, 1)})


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ({"allow": {"algorithms": ["fedprox"]}}, False),  # by the text
        ({"allow": {"tensors": ["head"]}}, False),  # by the model
        ({"labels": {"arts": "unknown"}}, True),  # the site's own to mend
    ],
)
@pytest.mark.parametrize("dry", [False, True])
def test_what_came_with_a_refused_setup_does_not_stay(
    policy: dict[str, Any],
    kept: bool,
    dry: bool,
    served: Any,
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(participate, "_PATIENCE", 0.0)
    site = Site(tmp_path, "nord", parse_policy({"data": {"path": str(texts)}} | policy), quiet)
    part = participate.Participant(tmp_path, site, None, quiet)
    for path in served[2].values():
        (tmp_path / "objects" / path.name).write_bytes(path.read_bytes())
    part.session.begin(lambda: None)
    part.session.receive(welcome(1))
    part.session.receive(pack(Call("0.1.setup", served[1], references(served[2]))))
    if dry and not kept:
        assert any("refused" in line and "allow." in line for line in part.examine("here"))
    else:
        with pytest.raises((RunError, DataError)):
            part.examine("here") if dry else part.work()
    assert bool(list((tmp_path / "objects").iterdir())) is kept
    assert not (tmp_path / "start").exists()


def references(objects: dict[str, Path]) -> dict[str, ObjectRef]:
    return {name: ref_of(path) for name, path in objects.items()}


def quiet(text: str) -> None:
    """Say nothing."""


def test_the_model_is_known_by_its_files(ask: Ask, served: Any) -> None:
    """A digest allows the file that came, and no other."""
    digest = next(path.name for name, path in served[2].items() if name.endswith(".safetensors"))
    assert ask({"allow": {"models": [f"sha256:{digest}"]}})["train"] == 150
    with pytest.raises(RunError, match=r"allow\.models"):
        ask({"allow": {"models": ["sha256:" + "0" * 64]}})


@pytest.mark.parametrize(
    ("allow", "key"),
    [
        ({"algorithms": ["scaffold"]}, "algorithms"),
        ({"tensors": ["head"]}, "tensors"),
        ({"models": ["sha256:" + 64 * "0"]}, "models"),
    ],
)
def test_a_policy_that_was_tightened_stops_a_site_that_was_set_up(
    ask: Ask, texts: Path, tmp_path: Path, allow: dict[str, Any], key: str
) -> None:
    ask()
    data = {"path": str(texts), "test_fraction": 0.25}
    policy = parse_policy({"data": data, "allow": allow})
    with pytest.raises(RunError, match=rf"site nord refuses: allow\.{key}"):
        _ = Site(tmp_path / "site", "nord", policy, lambda text: None).worker
    model = sha256_of(tmp_path / "site" / "start" / "model.safetensors")
    named = parse_policy({"data": data, "allow": {"models": [f"sha256:{model}"]}})
    assert Site(tmp_path / "site", "nord", named, lambda text: None).worker is not None


def test_a_site_keeps_to_the_experiment_that_it_has_agreed_to(ask: Ask) -> None:
    ask()
    assert ask()["train"] == 150
    with pytest.raises(RunError, match=r"changed the experiment of this run: num_rounds: 4 -> 9"):
        ask(num_rounds=9)


def test_a_site_keeps_to_the_model_that_it_has_agreed_to(ask: Ask, served: Any, tmp_path: Path) -> None:
    """A model that comes later is not put in its place, not even for the next start of the site."""
    ask()
    model = tmp_path / "site" / "start" / "model.safetensors"
    before, objects = model.read_bytes(), served[2]
    (tmp_path / "other").write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    other = objects | {"start:model.safetensors": tmp_path / "other"}
    more = objects | {"start:more.json": tmp_path / "other"}
    fewer = {name: path for name, path in objects.items() if name != "start:config.json"}
    for sent in (other, more, fewer):
        with pytest.raises(RunError, match="the server has changed the model of this run"):
            ask(sent_objects=sent)
    assert model.read_bytes() == before
    assert ask()["train"] == 150


def test_another_run_takes_nothing_from_the_one_before(ask: Ask, tmp_path: Path) -> None:
    ask()
    (tmp_path / "site" / "start" / "of-before.json").write_text("{}")
    with pytest.raises(RunError, match=r"allow\.most_rounds = 3"):
        ask({"allow": {"most_rounds": 3}}, run="another")
    assert not (tmp_path / "site" / "setup.json").exists()
    ask(run="another")
    assert not (tmp_path / "site" / "start" / "of-before.json").exists()


def test_code_that_a_server_names_is_not_imported(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "from_a_server.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RunError, match=r"allow\.code = \[\], the experiment names the code"):
        ask(algorithm={"name": "from_a_server:run"})
    assert "from_a_server" not in sys.modules


@pytest.mark.parametrize("kind", [DataError, ValueError, KeyError, UnicodeError, OSError])
def test_an_error_with_a_text_of_the_data_is_told_without_it(kind: type[Exception]) -> None:
    assert "Zweig" not in redact_error(kind("row 7 says Zweig"))
    assert redact_error(DataError("row 7 says Zweig")) == UNREADABLE
    assert redact_error(SecureAbort("only 2 clients answered")) == "only 2 clients answered"


RESULTS = st.builds(
    ClientResult,
    client=st.integers(0, 9),
    weight=st.just(1.0),
    examples=st.integers(1, 1000),
    steps=st.integers(1, 100),
    loss=st.floats(0, 1e6),
    gradient_examples=st.integers(0, 1000),
)


@given(RESULTS, RESULTS)
def test_two_sites_that_differ_in_what_is_not_told_answer_alike(
    one: ClientResult, other: ClientResult
) -> None:
    """Of losses and sizes nothing is left where neither may be told; of losses the mean where sizes may not."""
    other = replace(other, client=one.client)
    silent = Allow(tell_size=False, tell_scores=False)
    assert redact_result(silent, one) == redact_result(silent, other)
    mean = redact_result(Allow(tell_size=False), one)
    assert (mean.examples, mean.steps, mean.loss) == (1, 0, one.loss / one.examples)
    assert mean.gradient_examples == 0
    assert redact_result(Allow(), one) is one


def test_a_loss_that_a_cohort_is_drawn_by_is_told_where_losses_are() -> None:
    answer = ClientLoss(2, None, 0.5, 40)
    assert redact_loss(Allow(), answer) == answer
    assert redact_loss(Allow(tell_size=False), answer).examples == 1
    with pytest.raises(RunError, match=r"allow\.tell_scores = false"):
        require_losses_told(Allow(tell_scores=False), Experiment(data={"name": "20news"}))


def test_what_a_method_works_with_is_told() -> None:
    """FedNova divides by its clients' tau: without it the run would be another."""
    result = ClientResult(1, 1.0, 10, 5, 2.0, metrics={"tau": 5.0})
    assert redact_result(Allow(tell_size=False, tell_scores=False), result).metrics == {"tau": 5.0}


def test_scores_that_are_not_told() -> None:
    scored = ClientModelResult(1, own=0.75)
    assert redact_score(Allow(), scored) is scored
    for silent in (Allow(tell_scores=False), Allow(tell_size=False)):  # 7/12 is a score on twelve examples
        assert redact_score(silent, scored) == ClientModelResult(1)
