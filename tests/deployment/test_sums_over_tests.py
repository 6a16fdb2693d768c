"""Sites that evaluate on their own tests and send sums: the simulation's, masked, and the policy's to allow."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.session.setup import Ready
from fednlp.deployment.site.disclosure import redact_sizes, require_sums_told, tells_sums
from fednlp.deployment.site.policy import Allow, SitePolicy
from fednlp.deployment.site.refusals import _told
from fednlp.errors import ConfigError, RunError, SecureAbort
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import TrainRequest
from fednlp.secure.deployment.session.terms import terms_of
from fednlp.secure.deployment.site.agreed import agreed_on_tests
from fednlp.secure.deployment.site.sums import SecureSite
from fednlp.simulation.federated_evaluation import evaluate_by_sums, sums_params
from fednlp.tasks.text_classification import TextClassification
from fednlp.training import sending
from fednlp.training.local import LocalTrainer
from fednlp.training.requests import HANDLERS
from fednlp.training.requests import train as train_requests
from fednlp.training.requests.predict import ClientSums, ClientSumsRequest, client_sums
from fednlp.training.scores import num_sums

from . import test_federation
from .machines import Machines
from .secure_rig import DIGEST, PROTOCOLS, STEPS_OF
from .test_federation import allows, deploy, rounds
from .test_secure_deployment import SETTINGS, shards_of, weights

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
FEDERATED = SETTINGS | {"evaluation.federated": True, "evaluation.personal": False}
TASK = TextClassification(("a", "b"))


def evaluated(run: Any) -> list[dict[str, Any]]:
    return [line["evaluation"]["federated"] for line in rounds(run)]


def written(numbers: list[int]) -> bytes:
    """Return numbers as a frame has them."""
    return json.dumps(numbers, separators=(",", ":")).encode()


def test_plain_sums_are_those_of_the_simulation(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sees each site's numbers, which the search of the next test finds."""
    planted: list[bytes] = []

    def kept(*arguments: Any) -> ClientSums:
        found = client_sums(*arguments)
        planted.append(written(found.sums))
        return found

    made = experiment(FEDERATED)
    simulated = fednlp.run(made, tmp_path / "simulated")
    handler = replace(HANDLERS[ClientSumsRequest], answer=kept)
    monkeypatch.setitem(HANDLERS, ClientSumsRequest, handler)
    machines = Machines(shards_of(made, tmp_path / "shards"), tmp_path)
    deployed = machines.run()
    heard = b"".join(machines.frames)
    assert all(numbers in heard for numbers in planted)
    assert len(planted) == 8
    assert rounds(deployed) == rounds(simulated)
    assert weights(deployed) == weights(simulated)
    assert evaluated(deployed)[-1]["clients"] == 4


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.variants(1)
def test_secure_sums_are_those_of_the_simulation_whoever_is_killed(
    protocol: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody evaluates twice, and nothing is kept at the end."""
    last, made = f"tests-{STEPS_OF[protocol][-1]}", experiment(FEDERATED | {"secure.protocol": protocol})
    simulated = fednlp.run(made, tmp_path / "simulated")
    done: list[tuple[int, int]] = []
    planted: list[bytes] = []
    add = SecureSite.add

    def counted(self: SecureSite, request: ClientSumsRequest, digest: str, work: Any) -> Any:
        def once(asked: ClientSumsRequest) -> ClientSums:
            done.append((asked.round, asked.client))
            found: ClientSums = work(asked)
            planted.append(written(found.sums))
            return found

        return add(self, request, digest, once)

    monkeypatch.setattr(SecureSite, "add", counted)
    machines = Machines(
        shards_of(made, tmp_path / "shards"),
        tmp_path,
        server_deaths=[(1, "tests-keys", 2), (1, "tests", 3), (2, last, 4)],
        site_deaths=[(0, "tests-shares", True), (1, "tests", True), (2, last, True)],
    )
    deployed = machines.run()
    assert (machines.server_deaths, machines.site_deaths) == ([], set())
    assert rounds(deployed) == rounds(simulated)
    assert weights(deployed) == weights(simulated)
    heard = b"".join(machines.frames)
    assert not any(numbers in heard for numbers in planted)
    assert sorted(done) == [(number, client) for number in (1, 2) for client in range(4)]
    for client in range(4):
        kept = tmp_path / f"site-{client}" / "secure-tests"
        assert [path.name for path in kept.iterdir()] == ["over.json"]


@pytest.mark.slow
def test_a_site_that_tells_no_scores_adds_to_masked_sums_alone(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(train: Path, test: Path | None, allow: dict[str, Any] | None = None) -> SitePolicy:
        allowed = allows(train, test, allow)
        return allowed.model_copy(update={"allow": Allow(tell_scores=False, tell_size=False)})

    monkeypatch.setattr(test_federation, "allows", silent)
    uniform = {
        "algorithm": {"name": "fedavg", "weighting": "uniform"},
        "evaluation.personal": True,
        "num_rounds": 1,
    }
    for protocol, clients in (("none", 0), ("secagg", 4)):
        folder = tmp_path / protocol
        folder.mkdir()
        made = experiment(FEDERATED | uniform | {"secure.protocol": protocol})
        deployed = deploy(shards_of(made, folder / "shards"), folder)
        (found,) = evaluated(deployed)
        assert found["clients"] == clients
        assert ("accuracy" in found) is bool(clients)
        (line,) = rounds(deployed)
        assert line["evaluation"]["personal"]["clients"] == 0
        assert line["train_loss"] is None
        shown = json.dumps(json.loads((deployed.folder / "summary.json").read_text())["evaluation"])
        assert ("accuracy" in shown) or not clients


def test_what_a_policy_lets_into_sums(experiment: Make) -> None:
    plain, none = experiment(FEDERATED), experiment(SETTINGS)
    secure = experiment(FEDERATED | {"secure.protocol": "secagg"})
    quiet, silent = Allow(tell_scores=False), Allow(tell_scores=False, sum_scores=False)
    assert [tells_sums(Allow(), one) for one in (plain, secure, none)] == [True, True, False]
    assert [tells_sums(quiet, one) for one in (plain, secure, none)] == [False, True, False]
    assert [tells_sums(silent, one) for one in (plain, secure, none)] == [False] * 3
    assert redact_sizes(quiet, 20, 5, sums=True) == Ready(train=20, test=5)
    assert redact_sizes(silent, 20, 5) == Ready(train=20, test=0, hidden=["test"])
    require_sums_told(quiet, secure)
    with pytest.raises(RunError, match="which this site's policy does not allow"):
        require_sums_told(quiet, plain)


def site_of(made: Experiment, folder: Path, smallest: int = 3, own: int = 1) -> SecureSite:
    expected = agreed_on_tests(made, "run", TASK, own=own, clients=5, smallest=smallest)
    assert expected is not None
    return SecureSite(folder, expected)


def said(made: Experiment, cohort: list[int], number: int = 1) -> dict[str, Any]:
    return terms_of(sums_params(made, len(cohort), num_sums(TASK)), cohort, number, DIGEST).model_dump()


def test_the_numbers_follow_from_how_many_sites_have_tests(experiment: Make, tmp_path: Path) -> None:
    made = experiment(FEDERATED | {"secure": {"protocol": "secagg", "bits": 8}})
    for number, cohort in enumerate(([0, 1, 2, 3, 4], [0, 1, 2, 3], [1, 2, 4]), 1):
        assert site_of(made, tmp_path).answer("keys", said(made, cohort, number), {})[0]


@pytest.mark.parametrize(
    ("cohort", "changes", "reason"),
    [
        ([0, 2, 3], {}, "client 1 is not in the cohort"),
        ([1, 1, 2], {}, "a cohort of 3"),
        ([1, 2, 9], {}, "of 5 sites"),
        ([1, 2, 3], {"noise_std": 1.0}, "noise_std"),
    ],
)
def test_other_terms_are_refused(
    cohort: list[int], changes: dict[str, Any], reason: str, experiment: Make, tmp_path: Path
) -> None:
    made = experiment(FEDERATED | {"secure.protocol": "secagg"})
    with pytest.raises(SecureAbort, match=reason):
        site_of(made, tmp_path).answer("keys", said(made, cohort) | changes, {})


def test_a_cohort_of_two_is_refused(experiment: Make, tmp_path: Path) -> None:
    made = experiment(FEDERATED | {"secure.protocol": "secagg"})
    terms = said(made, [0, 1, 2]) | {"cohort": [0, 1]}
    with pytest.raises(SecureAbort, match="no sum over the tests of 2 sites"):
        site_of(made, tmp_path).answer("keys", terms, {})
    with pytest.raises(ConfigError, match="3 clients or more"):
        said(made, [0, 1])
    with pytest.raises(SecureAbort, match=r"asks for 5 \(allow.smallest_cohort\)"):
        site_of(made, tmp_path, smallest=5).answer("keys", said(made, [0, 1, 2, 3]), {})


def test_nothing_is_masked_before_shares_are_delivered(experiment: Make, tmp_path: Path) -> None:
    made = experiment(FEDERATED | {"secure.protocol": "secagg"})
    site = site_of(made, tmp_path)
    terms = said(made, [0, 1, 2])
    site.answer("keys", terms, {})

    def work(request: ClientSumsRequest) -> ClientSums:
        raise AssertionError

    request = ClientSumsRequest(1, 1, {"encoding": terms["encoding"], "seeds": []})
    with pytest.raises(SecureAbort, match="before it delivers shares"):
        site.add(request, DIGEST, work)


def test_a_vector_of_tests_is_not_one_of_updates(experiment: Make, tmp_path: Path) -> None:
    """The two sessions of a round have other terms, even with the same numbers."""
    made = experiment(FEDERATED | {"secure.protocol": "secagg"})
    expected = agreed_on_tests(made, "run", TASK, own=1, clients=5, smallest=3)
    assert expected is not None
    assert expected.run == "tests-run"
    assert agreed_on_tests(experiment(FEDERATED), "run", TASK, own=1, clients=5, smallest=3) is None


def test_a_site_that_sends_nonsense_is_left_out(experiment: Make) -> None:
    class Pool:
        def publish(self, *arguments: Any) -> None:
            pass

        def do(self, requests: Any, on_progress: Any) -> list[ClientSums]:
            good = [2, 2**40, 2 * 2**40, 2, 1, 0, 1, 1, 1, 1]
            return [
                ClientSums(0, None, good),
                ClientSums(1, None, good[:-1]),
                ClientSums(2, None, [2**180] * len(good)),
                ClientSums(3, "gone"),
            ]

    context: Any = SimpleNamespace(pool=Pool(), log=print, on_progress=print)
    context.experiment = experiment(FEDERATED)
    context.partition = SimpleNamespace(test_offsets=np.array([0, 2, 4, 6, 8]))
    context.worker = SimpleNamespace(task=TASK)
    context.state = SimpleNamespace(params=None, round=1)
    found = evaluate_by_sums(context)
    assert found == {
        "accuracy": 0.5,
        "macro_f1": 0.5,
        "mcc": 0.0,
        "baseline": 0.5,
        "loss": 0.5,
        "examples": 2,
        "clients": 1,
    }


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.variants(1)
def test_losses_are_summed_under_the_masks_of_the_updates(
    protocol: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a site is killed once it has trained; no digit of a site's loss is in what the server hears."""
    planted: list[bytes] = []

    def kept(algorithm: Algorithm, request: TrainRequest, local: LocalTrainer, *arguments: Any) -> Any:
        found = sending.encode(algorithm, request, local, *arguments)
        masked = found.upload.masked
        reports = masked[local.replica.layout.numel : -1]
        planted.extend([written(reports.tolist()), reports.astype("<u4").tobytes()])
        return found

    made = experiment(
        FEDERATED | {"secure": {"protocol": protocol, "sum_reports": True}, "evaluation.federated": False}
    )
    simulated = fednlp.run(made, tmp_path / "simulated")
    monkeypatch.setattr(train_requests, "encode", kept)
    machines = Machines(
        shards_of(made, tmp_path / "shards"),
        tmp_path,
        server_deaths=[(1, "train", 2)],
        site_deaths=[(2, "train", True)],
    )
    deployed = machines.run()
    assert rounds(deployed) == rounds(simulated)
    assert weights(deployed) == weights(simulated)
    assert rounds(deployed)[-1]["train_loss"] > 0
    heard = b"".join(machines.frames)
    assert len(planted) == 16
    assert not any(numbers in heard for numbers in planted)


def test_a_site_whose_losses_may_be_in_no_sum_refuses(experiment: Make) -> None:
    made = experiment(SETTINGS | {"secure": {"protocol": "secagg", "sum_reports": True}})
    facts: Any = SimpleNamespace(
        tells_size=False, asks_labels=False, asks_losses=False, vectors=("model",), reports=()
    )
    assert not list(_told(Allow(tell_scores=False), made, facts))
    (refusal,) = _told(Allow(tell_scores=False, sum_scores=False), made, facts)
    assert (
        str(refusal)
        == "allow.sum_scores = false, the experiment sums losses of training (secure.sum_reports)"
    )
