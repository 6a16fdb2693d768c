"""The sections ``[aggregator]`` and ``[attack]``: names, options, what they cannot go with, own code."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fednlp
from fednlp import config
from fednlp.config import Experiment
from fednlp.errors import ConfigError, RunError
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.attacks import ATTACKS
from fednlp.inference.model import open_trained
from fednlp.simulation.run_dir import RunDir, settings_hash

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

UNIFORM = {"algorithm": {"weighting": "uniform"}}
MEDIAN = UNIFORM | {"aggregator": {"name": "median"}}
FLIP = {"name": "sign-flip", "fraction": 0.2}
CODE = """
from dataclasses import dataclass

from fednlp.federated.aggregators.median import Median
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.attacks.sign_flip import sign_flip


def middle(*, unused=0):
    return Median()


class Sum(WeightedMean):
    pass


def plain():
    return Sum()


def flip(scale):
    return sign_flip(scale)


def nothing():
    return None
"""


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_robust.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.delitem(sys.modules, "my_robust", raising=False)


def made(changes: dict[str, Any]) -> Experiment:
    return config.parse(
        {"data": {"name": "bbc"}, "partition": {"method": "uniform", "clients": 20}} | changes
    )


def test_files_are_found_by_their_names() -> None:
    assert {"mean", "median", "trimmed-mean"} <= set(AGGREGATORS.names())
    assert {"base", "weighted-mean", "coordinate-wise"}.isdisjoint(AGGREGATORS.names())
    assert "sign-flip" in ATTACKS.names()
    assert {"fedavg", "fedprox", "fedopt", "fedadam"} <= set(ALGORITHMS.names())
    assert AGGREGATORS.find("trimmed-mean").title == "Trimmed mean"
    for registry in (AGGREGATORS, ATTACKS, ALGORITHMS):
        assert all(registry.find(name).name == name for name in registry.names())


def test_defaults_are_written_out_and_read_back() -> None:
    resolved = made(UNIFORM | {"aggregator": {"name": "trimmed-mean"}, "attack": FLIP}).resolved()
    assert resolved.aggregator is not None
    assert resolved.attack is not None
    assert resolved.aggregator.function_options == {"fraction": 0.1}
    assert (resolved.attack.fraction, resolved.attack.function_options) == (0.2, {"scale": 1.0})
    assert config.parse(resolved.model_dump(exclude_none=True)) == resolved
    assert resolved.resolved() == resolved


def test_without_the_sections_nothing_is_said_of_them() -> None:
    plain, mean = made({}).resolved(), made({"aggregator": {"name": "mean"}}).resolved()
    assert (plain.aggregator, plain.attack) == (None, None)
    assert settings_hash(plain) != settings_hash(mean)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"aggregator": {"name": "medain"}},
            'there is no aggregator "medain": did you mean median? known are ',
        ),
        ({"attack": FLIP | {"name": "sign_flip"}}, 'there is no attack "sign_flip": did you mean sign-flip?'),
        ({"aggregator": {"name": "median", "fracton": 0.2}}, "did you mean aggregator.fraction?"),
        ({"aggregator": {"name": "median", "colour": 0.2}}, "it is no option of any aggregator"),
        ({"aggregator": {"name": "trimmed-mean", "beta": 0.2}}, "trimmed-mean takes fraction"),
        ({"aggregator": "median"}, '[aggregator] is a section; say aggregator.name = "median"'),
        (
            {"aggregator": {"name": "mine:midrange", "shift": 0.2}},
            "the options of mine:midrange go into [aggregator.options]",
        ),
        ({"aggregator": {"name": "trimmed-mean", "fraction": 0.5}}, "should be less than 0.5"),
        ({"aggregator": {"name": "trimmed-mean", "fraction": 0.0}}, "should be greater than 0"),
        ({"aggregator": {"name": "trimmed-mean", "fraction": "a"}}, "aggregator.fraction = "),
        ({"attack": {"name": "sign-flip"}}, "attack.fraction is missing"),
        ({"attack": {"fraction": 0.1}}, "attack.name is missing"),
        ({"attack": FLIP | {"fraction": 1.0}}, "attack.fraction = 1.0"),
        ({"attack": FLIP | {"scale": -1.0}}, "attack.scale = -1.0: input should be greater than 0"),
        ({"attack": FLIP | {"strength": 1.0}}, "unknown key attack.strength"),
    ],
)
def test_what_is_mistyped_is_said(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(changes)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            UNIFORM | {"aggregator": {"name": "trimmed-mean", "fraction": 0.09}},
            "aggregator.fraction = 0.09 of clients_per_round = 10 cuts no client",
        ),
        (
            UNIFORM | {"aggregator": {"name": "median", "fraction": 0.2}},
            'aggregator.fraction is not supported by median: say aggregator.name = "trimmed-mean"',
        ),
        (
            UNIFORM | {"aggregator": {"name": "median", "options": {"a": 1}}},
            "aggregator.options are for an aggregator of your own",
        ),
    ],
)
def test_options_that_do_not_fit_are_refused_with_the_reason(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        made(changes).resolved()
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"secure": {"protocol": "secagg+"}},
        {"privacy": {"clip": 1.0, "noise": 1.0}},
        {"pull": {"rule": "low"}},
        {"model": {"peft": {"method": "lora", "averaging": "exact"}}},
    ],
)
def test_the_mean_goes_with_all_of_these(changes: dict[str, Any]) -> None:
    made(UNIFORM | {"aggregator": {"name": "mean"}, "attack": FLIP} | changes).resolved()


def test_another_name_drops_the_options_of_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text(
        'data = { name = "bbc" }\n[algorithm]\nweighting = "uniform"\n'
        '[aggregator]\nname = "trimmed-mean"\nfraction = 0.2\n'
        '[variants.median.aggregator]\nname = "median"\n[variants.more.aggregator]\nfraction = 0.3\n'
        '[variants.attacked.attack]\nname = "sign-flip"\nfraction = 0.2\n'
    )
    assert config.load(file, ["aggregator.name=median"]).aggregator == made(MEDIAN).aggregator
    assert config.load(file, ["aggregator.fraction=0.3"]).aggregator.function_options == {"fraction": 0.3}  # type: ignore[union-attr]
    base = config.load(file)
    assert config.with_method(base, "median", 0).resolved().aggregator == made(MEDIAN).aggregator
    more, attacked = (config.with_method(base, name, 0).resolved() for name in ("more", "attacked"))
    assert more.aggregator is not None
    assert (more.aggregator.name, more.aggregator.function_options) == ("trimmed-mean", {"fraction": 0.3})
    assert attacked.attack is not None
    assert attacked.aggregator == base.aggregator
    reference = config.with_algorithm(attacked, "centralised", 0).resolved()
    assert (reference.aggregator, reference.attack) == (None, None)


def test_own_rules_and_attacks_run_as_the_known_ones_do(
    own_module: None, experiment: Callable[..., Experiment], tmp_path: Path
) -> None:
    short = {"num_rounds": 1, "algorithm.weighting": "uniform"}
    known = {"aggregator": {"name": "median"}, "attack": FLIP | {"scale": 2.0}}
    own = {
        "aggregator": {"name": "my_robust:middle", "options": {"unused": 1}},
        "attack": {"name": "my_robust:flip", "fraction": 0.2, "options": {"scale": 2.0}},
        "runtime.workers": 2,
    }
    first = fednlp.run(experiment(short | known), tmp_path / "a")
    second = fednlp.run(experiment(short | own), tmp_path / "b")
    assert (first.model / "model.safetensors").read_bytes() == (
        second.model / "model.safetensors"
    ).read_bytes()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"aggregator": {"name": "nowhere:f"}}, "there is no module nowhere"),
        ({"attack": FLIP | {"name": "my_robust:missing"}}, "module my_robust has no missing"),
        ({"aggregator": {"name": "my_robust:nothing"}}, "returned NoneType: return an Aggregator"),
        ({"attack": {"name": "my_robust:nothing", "fraction": 0.1}}, "returned NoneType: return a function"),
        (
            {"aggregator": {"name": "my_robust:plain", "options": {"x": 1}}},
            "unknown key aggregator.options.x; your function takes no options",
        ),
        (
            {"aggregator": {"name": "my_robust:plain", "fraction": 0.1}},
            "those of your own aggregator go into",
        ),
        (
            {"aggregator": {"name": "my_robust:plain"}, "secure": {"protocol": "secagg+"}},
            "[secure] has an aggregator of its own, and my_robust:plain is another: leave [secure] out, or leave",
        ),
        (
            UNIFORM | {"aggregator": {"name": "my_robust:middle"}, "secure": {"protocol": "secagg+"}},
            "my_robust:middle needs each update, and [secure] shows the server nothing but the sum",
        ),
    ],
)
def test_own_code_that_does_not_fit_is_refused_in_one_line(
    own_module: None, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        made(changes).resolved()
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("key", "section"),
    [
        ("aggregator.name", '[aggregator]\nname = "my_robust:plain"\n'),
        ("attack.name", '[attack]\nname = "my_robust:flip"\nfraction = 0.2\noptions = { scale = 1.0 }\n'),
    ],
)
def test_nothing_is_imported_that_only_a_run_directory_names(
    own_module: None, experiment: Callable[..., Experiment], tmp_path: Path, key: str, section: str
) -> None:
    short = {"num_rounds": 1, "model.train": {"personal": "head"}}
    run: RunDir = fednlp.run(experiment(short), tmp_path / "run")
    (run.folder / "summary.json").unlink()
    with (run.folder / "resolved.toml").open("a") as file:
        file.write(section)
    assert open_trained(run.folder, client=0).model is not None
    with pytest.raises(RunError, match=re.escape(f'{key} = "my_robust:')):
        fednlp.resume(run.folder)
    assert "my_robust" not in sys.modules


def test_an_experiment_with_both_sections_is_read_without_torch() -> None:
    code = (
        "import sys\nfrom fednlp import config\n"
        "config.parse({'data': {'name': 'bbc'}, 'aggregator': {'name': 'trimmed-mean', 'fraction': 0.2}, "
        "'attack': {'name': 'sign-flip', 'fraction': 0.2, 'scale': 2.0}})\n"
        "from fednlp.federated.aggregators import AGGREGATORS\n"
        "AGGREGATORS.find('trimmed-mean').call()\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
