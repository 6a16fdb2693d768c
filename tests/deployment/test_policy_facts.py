"""What a site is told before it joins: the numbers are those of a run, and the lines hold them."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.site.dry_run import dry_run
from fednlp.deployment.site.facts import Download, Facts, facts_of
from fednlp.deployment.site.policy import SitePolicy, parse_policy
from fednlp.deployment.site.refusals import check, check_settings
from fednlp.models.pretrained import load_tokenizer
from fednlp.simulation.components import make_task, open_data
from fednlp.simulation.start_model import start_model

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


@pytest.fixture
def facts(experiment: Make, tiny_model: Path) -> Callable[..., tuple[Experiment, Facts]]:
    """Return a resolved experiment on the tiny model with changes, and its facts for a site of 25 examples."""

    def make(changes: dict[str, Any] | None = None, **options: Any) -> tuple[Experiment, Facts]:
        made = experiment(changes).resolved()
        data = open_data(made)
        task = make_task(data.task, data, load_tokenizer(str(tiny_model)), {})
        model = start_model(made, str(tiny_model), task)
        return made, facts_of(made, model, task, **{"clients": 8, "examples": 25, "longest": 32} | options)

    return make


METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "head": {"model.train": "head"},
    "split": {"model.train": {"critical_layer": 1}},
    "int8": {"exchange.up": ["int8"], "exchange.down": ["bfloat16"], "exchange.error_feedback": True},
    "scaffold": {"algorithm.name": "scaffold", "client.optimizer": "sgd"},
    "pulling": {"pull.rule": "high"},
}


@pytest.mark.parametrize("name", METHODS)
def test_the_bytes_are_those_of_a_run(facts: Any, name: str, tmp_path: Path) -> None:
    """Each client of the first round sends and gets as many; with pulling fewer are sent, and never more."""
    made, found = facts({"num_rounds": 1, **METHODS[name]})
    run = fednlp.run(made, tmp_path / "run")
    (line,) = (json.loads(text) for text in (run.folder / "rounds.jsonl").read_text().splitlines())
    clients = len(line["cohort"])
    assert clients == found.cohort
    assert line["bytes_down"] == clients * found.bytes_down
    assert line["bytes_up"] <= clients * found.bytes_up
    assert (line["bytes_up"] == clients * found.bytes_up) == (name != "pulling")


def test_what_leaves_is_what_is_shared(facts: Any) -> None:
    _, whole = facts()
    _, split = facts({"model.train": {"personal": "head", "frozen": "embeddings"}})
    assert {tensor.group for tensor in whole.tensors} == {"embeddings", "layer.0", "layer.1", "head"}
    assert {tensor.group for tensor in split.tensors} == {"layer.0", "layer.1"}
    for found in (whole, split):
        assert sum(tensor.parameters for tensor in found.tensors) == found.total.shared
    assert whole.total.parameters == split.total.parameters
    assert (split.total.personal > 0, split.total.frozen > 0) == (True, True)


def test_steps_and_memory(facts: Any) -> None:
    _, found = facts({"client.num_train_epochs": 3, "client.per_device_train_batch_size": 4})
    assert found.steps == 3 * 7
    _, larger = facts({"client.per_device_train_batch_size": 16})
    assert 4 * found.total.parameters < found.memory < larger.memory


def test_the_time_is_that_of_the_device(facts: Any, tmp_path: Path) -> None:
    """Seconds an example by the site's profile; none without one, nor for a model that it does not know."""
    profile = tmp_path / "mine.toml"
    profile.write_text('name = "mine"\nsource = "stated"\n[training]\nper_million_parameters = 2.0\n')
    _, found = facts({"client.num_train_epochs": 3}, profile=str(profile))
    assert found.seconds == pytest.approx(3 * 25 * 2.0 * found.total.parameters / 1e6)
    profile.write_text('name = "mine"\nsource = "stated"\n[training]\nmodels = { "other" = 2.0 }\n')
    assert facts()[1].seconds is None
    assert facts(profile=str(profile))[1].seconds is None


@pytest.mark.parametrize("protocol", ["secagg", "secagg+", "lightsecagg"])
def test_the_smallest_secure_sum(facts: Any, protocol: str) -> None:
    """It is over three sites or more, and no more than stay in the worst case."""
    changes = {"secure.protocol": protocol, "clients_per_round": 8, "secure.dropout": 0.25}
    _, found = facts(changes)
    assert found.masked
    assert 3 <= found.smallest_sum <= 6
    assert facts()[1].smallest_sum is None


PRIVATE = {"privacy.clip": 1.0, "privacy.noise": 8.0, "algorithm.weighting": "uniform"}


def test_nothing_is_gained_by_cohorts_that_may_not_be_random(facts: Any) -> None:
    """The server's noise: as if the site trained in every round. More sites change nothing, and more rounds cost."""
    _, found = facts(PRIVATE)
    _, more = facts(PRIVATE, clients=80)
    _, longer = facts(PRIVATE | {"num_rounds": 8})
    _, drawn = facts(PRIVATE, clients=80, random_cohorts=True)
    assert more.privacy == found.privacy
    assert drawn.privacy.epsilon < found.privacy.epsilon < longer.privacy.epsilon
    assert not found.privacy.hides_from_server
    assert "nothing is counted for cohorts being drawn at random" in found.privacy.statement


def test_noise_of_the_sites_hides_them_from_the_server(facts: Any) -> None:
    _, found = facts(PRIVATE | {"secure.protocol": "secagg", "clients_per_round": 8})
    assert found.privacy.hides_from_server
    assert "against the server" in found.privacy.statement
    _, none = facts(PRIVATE | {"privacy.noise": 0.0})
    assert none.privacy.epsilon == float("inf")


def test_size_is_told_where_it_is_the_weight(facts: Any) -> None:
    assert facts()[1].tells_size
    assert not facts({"algorithm.weighting": "uniform"})[1].tells_size


def shown(made: Experiment, found: Facts, policy: SitePolicy | None = None) -> list[str]:
    policy = policy or SitePolicy()
    return dry_run("trial at server:8443", "nord", policy, made, found, check(policy, made, found), clients=8)


def test_the_lines_hold_the_facts(facts: Any) -> None:
    made, found = facts(downloads=[Download("the model", 17_500_000, "ab" * 32)])
    lines = shown(made, found)
    text = "\n".join(lines)
    assert lines[0].split() == ["federation", "trial", "at", "server:8443,", "8", "sites"]
    for part in (
        "nord, 25 training examples",
        "tiny: text-classification with ",
        "FedAvg: 4 clients a round, 4 rounds asked for",
        f"the model: 17.5 MB, sha256:{'ab' * 8}",
        f"{found.total.parameters:,} of {found.total.parameters:,} parameters",
        "each round: 4 local steps; about ",
        "each update is made of 25 examples (allow.fewest_examples)",
        "scores or sums over its tests after 4 rounds (allow.most_evaluations)",
        "not compressed, the server sees this site's update",
        "  layer.0-1: 2 x 2,224 parameters",
        "its number of training examples, 25",
        "no names of its labels",
        "no differential privacy",
        "at the end: the final model, which is kept here",
        "nothing: the site's file allows all of this",
    ):
        assert part in text
    assert lines[-1] == "nothing was sent"


def test_the_lines_follow_the_experiment_and_the_policy(facts: Any) -> None:
    changes = {"secure.protocol": "secagg", "clients_per_round": 8, "model.train": {"personal": "head"}}
    made, found = facts(changes, asks_labels=True)
    policy = parse_policy({"allow": {"tell_scores": False, "tell_labels": True, "most_rounds": 2}})
    text = "\n".join(shown(made, found, policy))
    for part in (
        "of them personal: they stay here",
        "masked: the server sees sums alone, each of ",
        "no losses and no scores (allow.tell_scores = false)",
        "the names of its labels",
        "refused     allow.most_rounds = 2, the experiment has 4 (num_rounds)",
    ):
        assert part in text
    assert "  head: " not in text
    made, found = facts(METHODS["scaffold"])
    assert "2 vectors of the same tensors: model, control" in "\n".join(shown(made, found))


def test_a_refusal_before_the_model_is_built_stands_in_the_table_too(facts: Any) -> None:
    made, _ = facts()
    policy = parse_policy({"allow": {"most_rounds": 2}})
    refusals = check_settings(policy, made)
    lines = dry_run("trial at server:8443", "nord", policy, made, None, refusals, clients=8)
    assert [line.partition(" ")[0] for line in lines] == [
        "federation",
        "this",
        "experiment",
        "",
        "refused",
        "nothing",
    ]
    assert lines[-2] == "refused     allow.most_rounds = 2, the experiment has 4 (num_rounds)"


def test_the_lines_name_no_scores_where_none_are_asked_for(facts: Any) -> None:
    made, found = facts({"evaluation.personal": False})
    text = "\n".join(shown(made, found))
    assert "its losses, and no scores of its own (evaluation.personal = false)" in text
    assert "its scores on its own test examples" not in text
    tuned = facts({"evaluation.personal": False, "client.finetune_steps": 2})
    assert "its losses, and its scores on its own test examples" in "\n".join(shown(*tuned))


def test_a_hostile_name_stays_on_its_line(facts: Any) -> None:
    made, found = facts(downloads=[Download("a\nnothing was sent\x1b[2J", 1, "0" * 64)])
    lines = shown(made, found)
    assert [line for line in lines if line.startswith("nothing was sent")] == lines[-1:]
    assert all(line.isprintable() for line in lines)


def test_a_prediction_that_is_missing_says_so(facts: Any) -> None:
    made, found = facts()
    found = replace(found, memory=None, seconds=90.0)
    assert "4 local steps, about 1 min 30 s; memory is not predicted" in "\n".join(shown(made, found))
