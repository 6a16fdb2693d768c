"""What a policy refuses: the key and the setting by name, with both values, on one line."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.config import Experiment, parse
from fednlp.deployment.site.facts import Download, Facts, PrivacyPrice, SentTensor
from fednlp.deployment.site.policy import SitePolicy, parse_policy
from fednlp.deployment.site.refusals import Refusal, check, check_settings, refused_by

TENSORS = (
    SentTensor("bert.embeddings.words.weight", "embeddings", 1000),
    SentTensor("bert.layer.0.weight", "layer.0", 100),
    SentTensor("bert.layer.0.bias", "layer.0", 10),
    SentTensor("bert.layer.11.weight", "layer.11", 100),
    SentTensor("classifier.weight", "head", 20),
)
FACTS = Facts(
    task="text-classification",
    examples=200,
    downloads=(Download("model.safetensors", 17_500_000, "ab" * 32),),
    parts=(),
    tensors=TENSORS,
    vectors=("model",),
    bytes_down=17_500_000,
    bytes_up=4_400_000,
    masked=False,
    cohort=4,
    smallest_sum=None,
    steps=25,
    memory=3_200_000_000,
    seconds=None,
    privacy=None,
    tells_size=True,
    asks_labels=False,
)
EPSILON = PrivacyPrice(7.9, 1e-5, False, "...")


def made(**sections: Any) -> Experiment:
    return parse({"data": {"path": "none.csv"}, "num_rounds": 30, **sections})


def refused(policy: dict[str, Any], facts: Facts = FACTS, **sections: Any) -> list[str]:
    return [str(one) for one in check(parse_policy(policy), made(**sections), facts)]


PRIVATE = {"clip": 1.0, "noise": 1.0}
UNIFORM = {"name": "fedavg", "weighting": "uniform"}


def test_the_default_allows_what_comes_with_fednlp() -> None:
    for facts in (FACTS, replace(FACTS, masked=True, smallest_sum=3), replace(FACTS, privacy=EPSILON)):
        assert refused({}, facts, model={"name_or_path": "some/model"}) == []
    assert refused({}, algorithm={"name": "scaffold"}, secure={"protocol": "secagg"}, num_rounds=10_000) == []


@pytest.mark.parametrize(
    ("policy", "facts", "sections", "line"),
    [
        (
            {"algorithms": ["fedavg", "fedp*"]},
            {},
            {"algorithm": {"name": "scaffold"}},
            'allow.algorithms = ["fedavg", "fedp*"], the experiment has "scaffold" (algorithm.name)',
        ),
        (
            {"averaging": ["fedsa", "f*a"]},
            {},
            {"model": {"peft": {"averaging": "hetlora"}}},
            'allow.averaging = ["fedsa", "f*a"], the experiment has "hetlora" (model.peft.averaging)',
        ),
        (
            {"tasks": ["token-*"]},
            {},
            {},
            'allow.tasks = ["token-*"], the experiment has "text-classification" (task.name)',
        ),
        (
            {"models": ["bert-tiny", "sha256:abababababababac"]},
            {},
            {"model": {"name_or_path": "evil"}},
            'allow.models = ["bert-tiny", "sha256:abababababababac"], the experiment has "evil" (model.name_or_path)',
        ),
        (
            {"tensors": ["layer.0-5", "bias", "head"]},
            {},
            {},
            'allow.tensors = ["layer.0-5", "bias", "head"], the experiment also sends 2 tensors of 1,100 parameters, '
            'such as "bert.embeddings.words.weight" (model.train)',
        ),
        (
            {"require_secure": True},
            {},
            {},
            "allow.require_secure = true, the experiment shows the server each update (secure.protocol)",
        ),
        (
            {"smallest_cohort": 5},
            {"smallest_sum": 4},
            {"secure": {"protocol": "secagg"}},
            "allow.smallest_cohort = 5, the experiment may sum over 4 sites (clients_per_round, secure.dropout)",
        ),
        (
            {"require_privacy": True},
            {},
            {},
            "allow.require_privacy = true, the experiment has no differential privacy (privacy)",
        ),
        (
            {"require_privacy": True},
            {"privacy": replace(EPSILON, epsilon=float("inf"))},
            {"privacy": PRIVATE | {"noise": 0.0}},
            "allow.require_privacy = true, the experiment adds too little noise for any epsilon (privacy.noise, "
            "num_rounds)",
        ),
        (
            {"largest_epsilon": 4},
            {"privacy": EPSILON},
            {"privacy": PRIVATE},
            "allow.largest_epsilon = 4.0, the experiment spends 7.9 in 30 rounds (privacy.noise, num_rounds)",
        ),
        (
            {"largest_epsilon": 4},
            {"privacy": EPSILON},
            {"privacy": {"clip": 1.0, "epsilon": 5.0}},
            "allow.largest_epsilon = 4.0, the experiment spends 7.9 in 30 rounds (privacy.epsilon, num_rounds)",
        ),
        (
            {"largest_epsilon": 4},
            {},
            {},
            "allow.largest_epsilon = 4.0, the experiment bounds no epsilon (privacy)",
        ),
        (
            {"tell_size": False},
            {},
            {},
            "allow.tell_size = false, the experiment weighs sites by their numbers of examples (algorithm.weighting)",
        ),
        (
            {},
            {"asks_labels": True},
            {},
            "allow.tell_labels = false, the experiment asks sites for the names of their labels (data.labels)",
        ),
        ({"most_rounds": 20}, {}, {}, "allow.most_rounds = 20, the experiment has 30 (num_rounds)"),
        (
            {"tell_size": False},
            {"tells_size": False},
            {"evaluation": {"federated": True}},
            "allow.tell_size = false, the experiment shows the server how many test examples a site has of each label "
            "(evaluation.federated, secure.protocol)",
        ),
        (
            {"tell_size": False},
            {"tells_size": False, "vectors": ("model", "control")},
            {"algorithm": {"name": "scaffold"}},
            'allow.tell_size = false, the experiment has sites send "control", from which the number of local steps '
            "follows (algorithm.name, client.max_steps)",
        ),
        (
            {"tell_size": False},
            {"tells_size": False, "reports": ("tau",)},
            {"algorithm": {"name": "fednova"}},
            'allow.tell_size = false, the experiment has sites send "tau", from which the number of local steps '
            "follows (algorithm.name, client.max_steps)",
        ),
        (
            {"fewest_examples": 32},
            {},
            {"client": {"max_steps": 3, "per_device_train_batch_size": 8}},
            "allow.fewest_examples = 32, the experiment makes an update of 24 examples (client.max_steps, "
            "client.per_device_train_batch_size)",
        ),
        (
            {"fewest_examples": 201},
            {},
            {},
            "allow.fewest_examples = 201, the experiment makes an update of all examples here, which are fewer "
            "(client.num_train_epochs)",
        ),
        (
            {"fewest_examples": 32},
            {"gold": 31},
            {"client": {"max_steps": 9}},
            "allow.fewest_examples = 32, the experiment makes an update of all examples here, which are fewer "
            "(client.num_train_epochs)",
        ),
        (
            {"most_evaluations": 5},
            {},
            {"evaluation": {"every": 5}},
            "allow.most_evaluations = 5, the experiment asks for scores or sums over tests after 6 rounds "
            "(evaluation.every, num_rounds)",
        ),
        (
            {},
            {},
            {"algorithm": {"name": "antigravity:fly"}},
            'allow.code = [], the experiment names the code "antigravity:fly" (algorithm.name)',
        ),
    ],
)
def test_a_refusal_names_the_key_and_the_setting(
    policy: dict[str, Any], facts: dict[str, Any], sections: dict[str, Any], line: str
) -> None:
    assert refused({"allow": policy}, replace(FACTS, **facts), **sections) == [line]


def test_limits() -> None:
    policy = {"limits": {"download_mb": 10, "upload_mb": 4.3}, "device": {"memory_mb": 2000}}
    assert refused(policy) == [
        "limits.download_mb = 10.0, the experiment sends a site 17.5 MB a round (model.name_or_path, model.train, "
        "exchange.down)",
        "limits.upload_mb = 4.3, the experiment has a site send 4.40 MB a round (model.name_or_path, model.train, "
        "exchange.up)",
        "device.memory_mb = 2000, the experiment is predicted to need 3200 MB (model.name_or_path, model.max_length, "
        "client.per_device_train_batch_size)",
    ]
    assert refused({"limits": {"download_mb": 17.5, "upload_mb": 4.4}, "device": {"memory_mb": 3200}}) == []
    assert refused({"device": {"memory_mb": 1}}, replace(FACTS, memory=None)) == []


def test_a_model_by_its_digest() -> None:
    """The file that is downloaded counts, whatever the server calls it."""
    for entry, allowed in (("sha256:" + "ab" * 8, True), ("sha256:" + "ab" * 32, True), ("sha256:ab", False)):
        assert (refused({"allow": {"models": [entry]}}) == []) is allowed


def test_code_is_refused_before_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No pattern stands for it: only its whole name does, in a key of its own."""
    (tmp_path / "not_yet_imported.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    name = "not_yet_imported:thing"
    named = made(
        task={"name": name, "metric": name},
        algorithm={"name": name},
        aggregator={"name": name},
        exchange={"up": [name]},
        partition={"method": name},
        runtime={"engine": name},
        attack={"name": name, "fraction": 0.5},
    )
    found = check_settings(SitePolicy(), named)
    assert {one.settings for one in found if one.key == "allow.code"} == {
        (key,)
        for key in (
            *("task.name", "task.metric", "algorithm.name", "aggregator.name", "attack.name", "exchange.up"),
            *("partition.method", "runtime.engine"),
        )
    }
    assert "not_yet_imported" not in sys.modules
    assert check_settings(parse_policy({"allow": {"code": [name], "algorithms": ["fedavg"]}}), named) == []
    served = made(runtime={"engine": "fednlp.deployment.server.site_engine:Remote"})
    assert check_settings(SitePolicy(), served) == []
    assert check_settings(SitePolicy(), made(algorithm={"name": "fednlp.disk:locked"})) != []


@pytest.mark.parametrize("text", ["a\nnothing was refused", "x" * 100_000, "\x1b[2J\u202e"])
def test_a_hostile_name_is_one_short_line(text: str) -> None:
    (line,) = refused({"allow": {"models": ["bert-tiny"]}}, model={"name_or_path": text})
    assert line.isprintable()
    assert len(line) < 200
    (told,) = refused_by("nord\nsüd", [Refusal("a", ("b",), line)])
    assert told == f"site nord süd refuses: {line}"


KEYS: dict[str, st.SearchStrategy[Any]] = {
    "require_secure": st.booleans(),
    "require_privacy": st.booleans(),
    "largest_epsilon": st.sampled_from([None, 1.0, 7.9, 8.0]),
    "tell_size": st.booleans(),
    "tell_labels": st.booleans(),
    "most_rounds": st.sampled_from([None, 29, 30]),
    "tensors": st.sampled_from(["all", ["head"], ["head", "embeddings", "layer.0-11"], ["layer.0"]]),
    "algorithms": st.sampled_from([["*"], ["fedavg"], ["scaffold"]]),
    "smallest_cohort": st.sampled_from([3, 4, 5]),
}
POLICIES = st.fixed_dictionaries({}, optional=KEYS)
SITUATIONS = st.fixed_dictionaries(
    {
        "privacy": st.sampled_from([None, EPSILON, replace(EPSILON, epsilon=float("inf"))]),
        "smallest_sum": st.sampled_from([None, 3, 4]),
        "tells_size": st.booleans(),
        "asks_labels": st.booleans(),
    }
)


def sections_of(facts: Facts) -> dict[str, Any]:
    secure = {"protocol": "none" if facts.smallest_sum is None else "secagg"}
    return {"secure": secure} | ({"privacy": PRIVATE} if facts.privacy else {})


@given(POLICIES, SITUATIONS)
def test_each_key_refuses_by_itself(keys: dict[str, Any], situation: dict[str, Any]) -> None:
    """A policy refuses what its keys refuse one by one, each naming itself: no key lifts or hides another."""
    facts = replace(FACTS, **situation)
    experiment = made(**sections_of(facts))

    def found(keys: dict[str, Any]) -> set[Refusal]:
        policy = parse_policy({"allow": {key: value for key, value in keys.items() if value is not None}})
        return set(check(policy, experiment, facts))

    free = {"tell_size": True, "tell_labels": True}
    one_by_one: set[Refusal] = set()
    for key, value in ({"tell_labels": False} | keys).items():
        alone = found(free | {key: value})
        assert all(refusal.key == f"allow.{key}" for refusal in alone)
        assert all(refusal.reason.startswith(f"allow.{key} = ") for refusal in alone)
        one_by_one |= alone
    assert found(keys) == one_by_one


Terms = st.lists(
    st.sampled_from(
        ["embeddings", "head", "layer.0", "layer.0-11", "layer.3-20", "bias", "layer.0:bias", "re:w"]
    ),
    min_size=1,
)


@given(Terms, st.lists(st.sampled_from(TENSORS), unique=True))
def test_tensors_may_leave_if_a_term_means_them(terms: list[str], tensors: list[SentTensor]) -> None:
    """More terms allow more, and a term for layers that the model lacks is no mistake."""

    def allows(terms: list[str], tensors: list[SentTensor]) -> bool:
        return refused({"allow": {"tensors": terms}}, replace(FACTS, tensors=tuple(tensors))) == []

    one_by_one = [any(allows([term], [tensor]) for term in terms) for tensor in tensors]
    assert allows(terms, tensors) == all(one_by_one)


def test_refusals_are_printed(experiment: Callable[..., Experiment]) -> None:
    (refusal,) = check(parse_policy({"allow": {"most_rounds": 3}}), experiment(), FACTS)
    assert (refusal.key, refusal.settings) == ("allow.most_rounds", ("num_rounds",))
    assert refused_by("nord", [refusal]) == [
        "site nord refuses: allow.most_rounds = 3, the experiment has 4 (num_rounds)"
    ]
