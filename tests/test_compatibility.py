"""What a method cannot go with, by what its value declares: the same by name, as a function and as a value."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.compatibility import plugin_feature, settings_features
from fednlp.config.fields import section_types
from fednlp.config.sections import GIVEN
from fednlp.config.values import algorithm_of
from fednlp.errors import ConfigError
from fednlp.federated.aggregators.median import Median
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.algorithms.fedavg import fedavg
from fednlp.federated.cohort import Cohort, Population, equally, uniform_cohort
from fednlp.federated.links import Uplink
from fednlp.federated.schedules import RateSchedule
from fednlp.federated.server import ServerOptimizer
from fednlp.section import TRAITS, conflicts
from fednlp.simulation.protection import protect

FEATURES = [feature for _, section in section_types() for feature in section.traits]

MEDIAN = {"aggregator": {"name": "median"}}
SECURE = {"secure": {"protocol": "secagg+"}}
PRIVACY = {"privacy": {"clip": 1.0, "noise": 1.0}}
PULL = {"pull": {"rule": "low"}}
EXACT = {"model": {"peft": {"method": "lora", "averaging": "exact"}}}
SEARCH = {"fewshot": {"pacing": "search"}, "task": {"prompt": "bbc"}}
SECTIONS = {"secure": SECURE, "privacy": PRIVACY, "pull": PULL, "exact": EXACT, "search": SEARCH}
PLAIN = fedavg(10, weight=equally)


class Sum(WeightedMean):
    """A sum of a method's own."""


def made(name: str, changes: Mapping[str, Any]) -> Experiment:
    """Return an experiment of a method, with settings that most methods need."""
    base: dict[str, Any] = {
        "data": {"name": "bbc"},
        "partition": {"method": "uniform", "clients": 20},
        "algorithm": {"name": name} | ({} if name == GIVEN else {"weighting": "uniform"}),
        "client": {"optimizer": "sgd"},
        "costs": {"device": "raspberry-pi-4b"},
    }
    return config.parse(base | dict(changes))


def mistakes(experiment: Experiment, value: Algorithm | None = None) -> list[str]:
    """Return what is wrong with an experiment, a sentence each."""
    try:
        experiment.resolved(value)
    except ConfigError as error:
        return error.problems
    return []


@pytest.mark.parametrize("section", SECTIONS)
@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_a_value_is_refused_what_its_name_is_refused(name: str, section: str) -> None:
    """But for what the method's decorator says, which a value does not know of."""
    named, plugin = made(name, SECTIONS[section]), ALGORITHMS.find(name)
    settings = settings_features(named.settled())
    own = plugin.refused({}, named.settled())
    own += [one for one in conflicts([*settings, plugin_feature(plugin)]) if one not in conflicts(settings)]
    by_name = mistakes(named)
    assert mistakes(made(GIVEN, SECTIONS[section]), algorithm_of(named)) == [
        one for one in by_name if one not in own
    ]
    assert set(own) <= set(by_name)


@pytest.mark.parametrize(
    ("value", "changes", "said"),
    [
        ({"sends": ("model", "control")}, SECURE, "[secure] sums the model's update alone under its masks, and mine"),
        ({"sends": ("model", "control")}, PRIVACY, "[privacy] clips and noises the model's update alone, and mine"),
        ({"sends": ("model", "control")}, PULL, "and mine also sends control: leave [pull] out"),
        ({"reports": ("tau", "loss")}, SECURE, "nothing else than updates, and mine has its clients report tau, loss"),
        ({"reports": ("tau",)}, PRIVACY, "noises nothing else than updates, and mine has its clients report tau"),
        ({"keeps": ("h",)}, EXACT, "mine has its clients keep what follows no other base (h), and [model.peft]"),
        ({"keeps": ("h",)}, SEARCH, 'and mine has its clients keep h: leave fewshot.pacing = "search" out'),
        (
            {"keeps": ("own",), "personal_model": "own"},
            {"model": {"train": {"personal": "head"}}},
            "mine keeps a whole personal model with each client, and model.train keeps layers with each client",
        ),
        (
            {"keeps": ("own",), "personal_model": "own"},
            {"pull": {"rule": "low", "push": "selected"}},
            'and pull.push = "selected" sends no client the whole model: leave',
        ),
        (
            {"keeps": ("own",), "personal_model": "own"},
            {"client": {"keep_optimizer": True}},
            "and mine trains two models at each client: leave client.keep_optimizer out",
        ),
        ({"server": ServerOptimizer("adam", 0.1)}, EXACT, "and mine has a server that does more than average: say"),
        ({"reports": ("tau",)}, MEDIAN, "leaves attackers out of the updates alone, and mine has its clients report"),
        ({"aggregator": Median()}, SECURE, "the aggregator of mine (Median) needs each update, and [secure]"),
        ({"aggregator": Median()}, PRIVACY, "and the aggregator of mine (Median) is no sum: leave [privacy] out"),
        ({"aggregator": Median()}, PULL, "(Median) compares the same tensors of all clients, and [pull]"),
        ({"aggregator": Median()}, EXACT, "the aggregator of mine (Median) is no average"),
        ({"aggregator": Sum()}, SECURE, "and the aggregator of mine (Sum) is another: leave [secure] out"),
        ({"aggregator": Sum()}, PRIVACY, "and the aggregator of mine (Sum) is another: leave [privacy] out"),
        ({"aggregator": Sum()}, {"aggregator": {"name": "median"}}, "of its own (Sum): leave [aggregator] out"),
        ({"weight": float}, PRIVACY, "build mine with weight=fednlp.federated.cohort.equally"),
        ({"weight": float}, {"aggregator": {"name": "median"}}, "median counts every client once"),
        ({"weight": float, "aggregator": Median()}, {}, "the aggregator of mine (Median) counts every client once"),
        ({"uplink": Uplink(error_feedback=True)}, {}, "leave uplink and downlink out of the Algorithm"),
        ({}, {"client": {"round_schedule": "linear"}}, "client.round_schedule is not read beside an algorithm"),
        ({}, {"min_clients": 3}, "build it with min_clients=3"),
        ({}, {"server": {"momentum": 0.9}}, "[server] does not reach an algorithm that is given as a value"),
    ],
)  # fmt: skip
def test_what_a_value_declares_decides(value: dict[str, Any], changes: dict[str, Any], said: str) -> None:
    given = replace(PLAIN, name="mine", **value)
    found = mistakes(made(GIVEN, changes), given)
    assert [one for one in found if said in one], found
    assert all("\n" not in one for one in found)


def test_features_name_traits_that_there_are() -> None:
    methods = [plugin_feature(ALGORITHMS.find(name)) for name in ALGORITHMS.names()]
    named = {trait for one in [*FEATURES, *methods] for trait in (*one.needs, *one.breaks)}
    assert named <= {*TRAITS}


@pytest.mark.parametrize(
    "changes", [SECURE, PRIVACY, SECURE | PRIVACY, PULL, EXACT, {"aggregator": {"name": "median"}}]
)
def test_a_plain_value_goes_with_everything(changes: dict[str, Any]) -> None:
    assert not mistakes(made(GIVEN, changes), PLAIN)


def test_a_method_of_one_s_own_says_what_it_needs_in_its_decorator() -> None:
    plugin = replace(ALGORITHMS.find("fedavg"), needs={"same_tensors": "compares layers"})
    assert conflicts([plugin_feature(plugin), *settings_features(made("fedavg", PULL))]) == [
        "fedavg compares layers, and [pull] sends different tensors for each client: leave [pull] out"
    ]
    with pytest.raises(
        ConfigError, match=r'algorithm.name = "fedavg" needs or breaks same_tensor: known are add'
    ):
        plugin_feature(replace(plugin, needs={"same_tensor": "compares layers"}))


def test_settings_that_a_value_follows_are_no_mistakes() -> None:
    given = fedavg(10, client_rate=RateSchedule("linear", 5), min_clients=3)
    assert not mistakes(made(GIVEN, {"min_clients": 3}), given)


def cyclic(population: Population, round_number: int) -> Cohort:
    """The first ten clients."""
    return Cohort(list(range(10)))


@pytest.mark.parametrize(
    ("sample", "changes", "said"),
    [
        (uniform_cohort(5), PRIVACY, "the cohorts of fedavg have 5 clients"),
        (uniform_cohort(5), SECURE, "go by clients_per_round = 10: make the two the same"),
        (cyclic, PRIVACY, "counts on cohorts that are drawn uniformly, and fedavg draws them otherwise"),
        (cyclic, SECURE, None),
        (uniform_cohort(10), PRIVACY, None),
        (cyclic, {"privacy": {"clip": 1.0, "noise": 1.0, "sampling": "poisson"}}, None),
    ],
)
@pytest.mark.variants(2)
def test_a_protection_s_numbers_are_those_of_the_cohorts(
    sample: Any, changes: dict[str, Any], said: str | None
) -> None:
    experiment = made(GIVEN, changes).resolved(PLAIN)

    class Even:
        train_offsets = np.arange(21)

    algorithm = replace(PLAIN, sample=sample)
    if said is None:
        protect(algorithm, experiment, Even(), 100)  # type: ignore[arg-type]
        return
    with pytest.raises(ConfigError, match=said):
        protect(algorithm, experiment, Even(), 100)  # type: ignore[arg-type]
