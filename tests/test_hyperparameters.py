"""The choice of settings: equal trials, the same result after an interruption, and no look at the test set."""

import csv
import itertools
import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fednlp
from fednlp import config
from fednlp.cli.compare import parse_grid
from fednlp.config import Experiment
from fednlp.errors import ConfigError, RunError
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.partition import Partition
from fednlp.runtime.worker_process import WorkerProcess
from fednlp.simulation.run_dir import RunDir
from fednlp.studies.halving import best, stages, total_rounds
from fednlp.studies.hyperparameters import SearchResult, doubts, tune, tuning_table
from fednlp.studies.trial_plan import _PARTS, Candidate, MethodSearch, added_part, plan_searches

from .conftest import example_rows, write_csv

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("undrawn")]

Make = Callable[..., Experiment]
RATES = {"client.learning_rate": [1e-3, 1e-2, 3e-2]}


@given(st.integers(2, 200), st.integers(1, 500))
def test_stages_halve_down_to_two(trials: int, rounds: int) -> None:
    try:
        plan = stages(trials, rounds)
    except ConfigError:
        assert rounds < trials  # never refused where each trial could have a round in turn
        return
    assert plan[0].trials == trials
    assert plan[-1].trials == 2
    assert rounds / 2 < plan[-1].rounds <= rounds or len(plan) > 1
    assert plan[-1].rounds <= rounds
    for one, other in itertools.pairwise(plan):
        assert other.trials == -(-one.trials // 2)
        assert other.rounds == 2 * one.rounds
    assert total_rounds(plan) <= trials * plan[-1].rounds


@given(st.integers(2, 40), st.integers(1, 300), st.integers(1, 300))
def test_no_trial_is_compared_before_the_fewest_rounds(trials: int, rounds: int, least: int) -> None:
    if least > rounds:
        with pytest.raises(ConfigError, match="a number from 1 to"):
            stages(trials, rounds, least)
        return
    plan = stages(trials, rounds, least)
    assert plan[0].trials == trials
    assert all(stage.rounds >= least for stage in plan)
    assert plan[0].rounds < 2 * least or plan[-1].trials == 2  # no stage is left out that could be compared
    if least == rounds:
        assert [(stage.trials, stage.rounds) for stage in plan] == [(trials, rounds)]


@given(
    st.dictionaries(st.integers(0, 50), st.none() | st.tuples(st.floats(0, 1), st.floats(0, 9)), min_size=1),
    st.integers(1, 50),
)
def test_the_best_are_not_worse_than_the_rest(
    results: dict[int, tuple[float, float] | None], keep: int
) -> None:
    """In score; of equal scores, in training loss."""
    kept = best(results, keep)
    assert len(kept) == min(keep, len(results))
    value = {number: (-1.0, 0.0) if one is None else (one[0], -one[1]) for number, one in results.items()}
    rest = [value[number] for number in results if number not in kept]
    assert not rest or min(value[number] for number in kept) >= max(rest)


def test_every_method_has_the_same_number_of_trials(experiment: Make, tmp_path: Path) -> None:
    """A setting counts for the methods that have it; what a method lacks takes none of its trials."""
    methods = ["fedavg", "fedprox", "fedopt", "centralised"]
    grid = {**RATES, "fedprox:algorithm.mu": [0.1, 1.0], "server.learning_rate": [0.3, 1.0]}
    found = {one.method: one for one in plan_searches(experiment(), methods, grid, tmp_path, rounds=4)}
    assert {one.combinations for one in found.values()} == {3, 6}
    assert {len(one.candidates) for one in found.values()} == {3}
    assert found["fedavg"].lacking == found["centralised"].lacking == ("server.learning_rate",)
    assert {key for one in found["fedopt"].candidates for key in one.changes} == {
        "client.learning_rate",
        "server.learning_rate",
    }
    for one in found.values():
        assert len({json.dumps(candidate.changes) for candidate in one.candidates}) == 3
        for candidate in one.candidates:
            assert candidate.experiment.evaluation.validation_fraction == 0.2
    assert "3 of 6 combinations (drawn by the seed" in found["fedopt"].describe()
    for trials, each in ((2, 2), (3, 3), (4, 3), (99, 3)):
        limited = plan_searches(experiment(), methods, grid, tmp_path, trials=trials, rounds=4)
        assert {len(one.candidates) for one in limited} == {each}
        said = f"(fewer than the {trials} trials asked for, so every method has 3)"
        assert (said in limited[0].describe()) == (trials > 3)


def test_a_method_without_the_settings_is_compared_as_it_is(experiment: Make, tmp_path: Path) -> None:
    fedavg, fedprox = plan_searches(
        experiment(), ["fedavg", "fedprox"], {"algorithm.mu": [0.1, 1.0]}, tmp_path, rounds=4
    )
    assert (fedavg.candidates, len(fedprox.candidates)) == ((), 2)
    assert "compared as it is" in fedavg.describe()


def test_a_setting_for_all_methods_is_tried_where_it_is_a_methods_own(
    experiment: Make, tmp_path: Path
) -> None:
    """FedOpt takes FedProx's mu and would be another method with it; a variant that configures mu is one already."""
    near = {"algorithm": {"name": "fedopt", "mu": 0.5}}
    plain = {"algorithm": {"name": "fedopt", "mu": 0.0}}
    settings = experiment({"variants": {"near": near, "plain": plain}})
    grid = {**RATES, "algorithm.mu": [0.1, 1.0], "server.momentum": [0.0, 0.5]}
    methods = ["fedavg", "fedprox", "fedopt", "near", "plain", "scaffold"]
    settings = config.with_settings(settings, {"client.optimizer": "sgd"})
    found = {one.method: one for one in plan_searches(settings, methods, grid, tmp_path, rounds=4)}
    searched = {name: {*one.candidates[0].changes} - {*RATES} for name, one in found.items()}
    assert searched == {
        "fedavg": set(),
        "fedprox": {"algorithm.mu"},
        "fedopt": {"server.momentum"},
        "near": {"algorithm.mu", "server.momentum"},
        "plain": {"server.momentum"},
        "scaffold": set(),
    }
    assert {len(one.candidates) for one in found.values()} == {3}
    assert all(one.experiment.algorithm.model_dump()["mu"] == 0.0 for one in found["fedopt"].candidates)
    assert found["fedopt"].lacking == ()
    assert "algorithm.mu is left out, as it would add FedProx's proximal term" in found["fedopt"].describe()
    assert found["scaffold"].lacking == ("algorithm.mu",)
    assert "server.momentum is left out, as it would add FedOpt's" in found["scaffold"].describe()


def test_a_setting_that_is_no_methods_own_is_refused_and_can_be_given_for_one(
    experiment: Make, tmp_path: Path
) -> None:
    methods = ["fedavg", "fedopt"]
    with pytest.raises(
        ConfigError, match=r"algorithm\.mu cannot be tuned: no compared method has it"
    ) as refused:
        plan_searches(experiment(), methods, {"algorithm.mu": [0.1, 1.0]}, tmp_path, rounds=4)
    typed = str(refused.value).partition("--tune ")[2].partition(" ")[0]
    grid = parse_grid([typed])
    fedavg, fedopt = plan_searches(experiment(), methods, grid, tmp_path, rounds=4)
    assert [one.changes for one in fedopt.candidates] == [{"algorithm.mu": 0.1}, {"algorithm.mu": 1.0}]
    assert (fedavg.candidates, fedopt.borrowed) == ((), ())


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_what_a_method_begins_with_is_its_own(name: str, experiment: Make) -> None:
    """Its options are, but those that are off by default and belong to another method."""
    method = ALGORITHMS.find(name)
    settings = experiment({"algorithm.name": name})
    own = {key for key in method.options().model_fields if added_part(settings, f"algorithm.{key}") is None}
    assert own == {*method.options().model_fields} - (set() if name in ("fedprox", "moon") else {"mu"})
    if method.server is not None:
        assert added_part(settings, "server.learning_rate") is None
        begins = method.server.name != "sgd" or method.server.momentum > 0
        for key in ("server.momentum", "server.optimizer"):
            assert (added_part(settings, key) is None) is begins
        adaptive = experiment({"algorithm.name": "fedopt", "server.optimizer": "adam"})
        assert added_part(adaptive, "server.optimizer") is None


def test_a_new_option_of_several_methods_needs_a_decision() -> None:
    """Whether it is the own option of each of them."""
    of_each = {"algorithm.alpha"}  # of FedDyn and of APFL, which have nothing but the letter in common
    several = {f"algorithm.{one}" for one in ALGORITHMS.all_options() if len(ALGORITHMS.takers(one)) > 1}
    assert several - of_each == {key for key in _PARTS if key.startswith("algorithm.")}


def test_settings_that_do_not_go_together_are_no_combination(experiment: Make, tmp_path: Path) -> None:
    grid = {"server.optimizer": ["sgd", "adam"], "server.learning_rate": [0.1, 1.0]}
    (found,) = plan_searches(experiment(), ["fedopt"], grid, tmp_path, rounds=4)
    assert found.combinations == 4
    with pytest.raises(
        ConfigError, match=r"server\.tau cannot be tuned.*not supported by the server optimiser sgd"
    ):
        plan_searches(experiment(), ["fedopt"], {"server.tau": [0.1, 1.0]}, tmp_path, rounds=4)


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({"client.learnig_rate": [1, 2]}, {}, "did you mean client.learning_rate"),
        ({"client.learning_rate": [0.1]}, {}, r"1 value to choose from; give at least two: say --set client"),
        ({"algorithm.mu": [0.1, 1.0]}, {}, r"algorithm\.mu cannot be tuned: .*not supported by fedavg"),
        ({"algorithm.mu": [-1.0, 1.0]}, {"methods": ["fedprox"]}, "algorithm.mu"),
        ({"seed": [1, 2]}, {}, "seed cannot be tuned: give a setting of the method"),
        ({"data.test_fraction": [0.1, 0.2]}, {}, "cannot be tuned"),
        ({"fedprox:algorithm.mu": [0.1, 1.0]}, {}, "fedprox is not compared; choose from fedavg"),
        (
            RATES,
            {"trials": 0},
            "0 trials of a method cannot be compared: let --trials, or trials, be at least 2",
        ),
        (RATES, {"trials": 1}, "1 trial of a method cannot be compared"),
        (RATES, {"rounds": 1}, "1 round cannot be halved for 3 trials: give at least 2 rounds"),
        ({}, {}, "a search needs methods, and values"),
        (RATES, {"methods": []}, "a search needs methods, and values"),
        (RATES, {"rounds": -4}, "-4 rounds cannot be halved for 3 trials"),
        ({"client.optimizer": [date(2020, 1, 1)]}, {}, "1 value to choose from.*2020-01-01"),
    ],
)
def test_mistakes_are_reported_before_the_first_trial(
    grid: dict[str, list[Any]], options: dict[str, Any], message: str, experiment: Make, tmp_path: Path
) -> None:
    methods = options.pop("methods", ["fedavg"])
    with pytest.raises(ConfigError, match=message):
        tune(experiment(), methods, grid, tmp_path / "trials", **{"rounds": 4, **options})
    assert not (tmp_path / "trials").exists()


def test_few_labels_cannot_be_tuned(experiment: Make, tmp_path: Path) -> None:
    """A baseline that knows all labels can be."""
    few = experiment({"fewshot": {"gold": 24}})
    with pytest.raises(ConfigError, match=r"fedavg cannot be tuned: .*leave the tuning out"):
        plan_searches(few, ["centralised", "fedavg"], RATES, tmp_path, rounds=4)
    only = {f"centralised:{key}": values for key, values in RATES.items()}
    baseline, fedavg = plan_searches(few, ["centralised", "fedavg"], only, tmp_path, rounds=4)
    assert (len(baseline.candidates), fedavg.candidates) == (3, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (text, "write key=value,value")
        for text in ("client.learning_rate", "=1,2", "fedprox:=1,2", ":algorithm.mu=1,2")
    ],
)
def test_values_are_written_as_key_and_values(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_grid([text])


_TEXTS = st.text(st.sampled_from("ab.,:=[]{}'\"# é1"), max_size=9)
_LISTS = st.lists(st.integers(-9, 9) | _TEXTS | st.lists(_TEXTS, max_size=3), min_size=1, max_size=3)
_KEYS = ("client.learning_rate", "model.config.layer_norm-eps", "algorithm.mu", "fedprox:algorithm.mu")


@given(
    st.dictionaries(st.sampled_from([*_KEYS, "a variant:server.tau", "own:f:client.x"]), _LISTS, min_size=1)
)
def test_several_settings_in_one_option_are_those_of_several_options(grid: dict[str, list[Any]]) -> None:
    """A comma or a key inside quotes or brackets begins no setting."""
    texts = [
        f"{key}={','.join(json.dumps(value, ensure_ascii=False) for value in values)}"
        for key, values in grid.items()
    ]
    assert parse_grid([",".join(texts)]) == parse_grid([", ".join(texts)]) == parse_grid(texts) == grid


@pytest.mark.parametrize(
    ("text", "grid"),
    [
        (
            "client.learning_rate=1e-3,3e-3,server.learning_rate=0.1,1,fedprox:algorithm.mu=0.1,1",
            {
                "client.learning_rate": [1e-3, 3e-3],
                "server.learning_rate": [0.1, 1],
                "fedprox:algorithm.mu": [0.1, 1],
            },
        ),
        (
            "client.optimizer=sgd,adamw,exchange.up=[],['int8','topk:0.1']",
            {"client.optimizer": ["sgd", "adamw"], "exchange.up": [[], ["int8", "topk:0.1"]]},
        ),
        (
            "model.peft={a.b=1,c.d=2},{a.b=3}",
            {"model.peft": [{"a": {"b": 1}, "c": {"d": 2}}, {"a": {"b": 3}}]},
        ),
        ("model.name_or_path=it's,a,b.1=2,c=d", {"model.name_or_path": ["it's", "a"], "b.1": [2, "c=d"]}),
    ],
)
def test_a_comma_and_a_key_begin_the_next_setting(text: str, grid: dict[str, list[Any]]) -> None:
    assert parse_grid([text]) == grid


@pytest.mark.parametrize(
    "texts",
    [
        ["client.learning_rate=1,2", "client.learning_rate=3,4"],
        ["client.learning_rate=1,2,algorithm.mu=5,6,client.learning_rate=3,4"],
    ],
)
def test_a_key_given_twice_is_refused_with_what_to_type(texts: list[str]) -> None:
    with pytest.raises(
        ConfigError, match=r"--tune client\.learning_rate is given twice: say it once"
    ) as refused:
        parse_grid(texts)
    typed = str(refused.value).rpartition("--tune ")[2].partition(" ")[0].rstrip(",")
    assert parse_grid([typed]) == {"client.learning_rate": [1, 2, 3, 4]}


@pytest.mark.parametrize("text", ["client.learning_rate=,algorithm.mu=1,2", "algorithm.mu=1,2,server.tau="])
def test_each_setting_in_an_option_has_values(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"--tune (client\.learning_rate|server\.tau)=: write key=value,value"
    ):
        parse_grid([text])


@given(
    st.lists(
        st.integers(-9, 9) | st.floats(-1, 1) | st.booleans() | st.sampled_from(["sgd", "a b"]), min_size=1
    )
)
def test_each_value_is_read_by_itself(values: list[Any]) -> None:
    """A text among numbers does not make texts of these."""
    written = [value if isinstance(value, str) else json.dumps(value) for value in values]
    assert parse_grid([f"client.x={','.join(written)}"]) == {"client.x": values}


@pytest.mark.parametrize("text", ["1]\nx = [2", "1\nx = 2", "1], x = [2", "9" * 5000, "[" * 5000, '"a', "\0"])
def test_odd_values_are_texts(text: str) -> None:
    (values,) = parse_grid([f"client.learning_rate={text}"]).values()
    assert values == [one.strip() for one in text.split(",") if one.strip()]


def test_a_trial_without_its_rounds_or_settings_is_named(experiment: Make, tmp_path: Path) -> None:
    folder = tmp_path / "trials"
    tune(experiment(), ["fedavg"], RATES, folder, rounds=4)
    finished = next(folder.glob("*/summary.json"))
    rounds, settings = finished.with_name("rounds.jsonl"), finished.with_name("resolved.toml")
    kept = rounds.read_bytes()
    rounds.write_bytes(b"")
    with pytest.raises(RunError, match=rf"{rounds} is damaged \(0 of \d rounds?\): remove the folder"):
        tune(experiment(), ["fedavg"], RATES, folder, rounds=4)
    rounds.write_bytes(kept)
    settings.unlink()
    with pytest.raises(
        RunError, match=rf"{settings} is damaged \(it is missing\): put it back, or remove the folder"
    ):
        tune(experiment(), ["fedavg"], RATES, folder, rounds=4)
    shutil.rmtree(settings.parent)
    assert tune(experiment(), ["fedavg"], RATES, folder, rounds=4)["fedavg"].chosen


def _folder_bytes(folder: Path) -> dict[str, bytes]:
    """Return the rounds of all trials, without times."""
    found = {}
    for path in sorted(folder.glob("*/rounds.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        found[path.parent.name] = json.dumps([{**line, "seconds": 0} for line in lines]).encode()
    return found


class Stopped(Exception):
    """What Ctrl-C stands for."""


class StopsAfter:
    """A callback that ends the process's work after so many logged lines."""

    def __init__(self, lines: int) -> None:
        self.left = lines

    def log(self, text: str) -> None:
        """Count a line."""
        self.left -= 1
        if not self.left:
            raise Stopped

    def started(self, *given: Any) -> None:
        """Do nothing."""

    on_progress = on_round = finished = started


@pytest.mark.parametrize("lines", [6, 8])
@pytest.mark.variants(1)
def test_a_stopped_search_goes_on_to_the_same_choice(lines: int, experiment: Make, tmp_path: Path) -> None:
    whole = tune(experiment(), ["fedavg"], RATES, tmp_path / "whole", rounds=4)
    with pytest.raises(Stopped):
        tune(experiment(), ["fedavg"], RATES, tmp_path / "parts", rounds=4, callback=StopsAfter(lines))
    assert _folder_bytes(tmp_path / "parts") != _folder_bytes(tmp_path / "whole"), "it was stopped in between"
    parts = tune(experiment(), ["fedavg"], RATES, tmp_path / "parts", rounds=4)
    assert parts["fedavg"].scores == whole["fedavg"].scores
    assert parts["fedavg"].chosen == whole["fedavg"].chosen
    assert _folder_bytes(tmp_path / "parts") == _folder_bytes(tmp_path / "whole")
    assert not list((tmp_path / "whole").glob("*/checkpoint")), "weights of trials are not kept"
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "whole").rglob("*")}
    assert (
        tune(experiment(), ["fedavg"], RATES, tmp_path / "whole", rounds=4)["fedavg"].scores
        == whole["fedavg"].scores
    )
    assert {path: path.stat().st_mtime_ns for path in before} == before, "finished trials are not repeated"


@pytest.mark.slow
def test_a_trial_that_was_given_up_can_be_taken_further(experiment: Make, tmp_path: Path) -> None:
    """Its weights are gone; with other values beside it, it is among the best."""
    first = tune(experiment(), ["fedavg"], RATES, tmp_path / "trials", rounds=4)["fedavg"]
    (given_up,) = (
        candidate.changes["client.learning_rate"]
        for candidate, scores in zip(first.search.candidates, first.scores, strict=True)
        if len(scores) == 1
    )
    grid = {"client.learning_rate": [given_up, 1e29, 1e30]}
    found, fresh = (
        tune(experiment(), ["fedavg"], grid, tmp_path / name, rounds=4)["fedavg"]
        for name in ("trials", "fresh")
    )
    assert found.scores == fresh.scores
    assert len(found.scores[0]) == 2
    assert found.chosen == fresh.chosen


def test_the_test_set_does_not_change_the_choice(experiment: Make, tmp_path: Path) -> None:
    """All labels of the test set are wrong in one of two copies of the data."""
    rows = example_rows(160)
    labels = sorted({label for _, label, _ in rows})
    wrong = dict(zip(labels, labels[1:] + labels[:1], strict=True))
    results = []
    for name, tests in (
        ("right", rows[120:]),
        ("wrong", [(t, wrong[label], s) for t, label, s in rows[120:]]),
    ):
        folder = tmp_path / name
        folder.mkdir()
        data = {
            "path": str(write_csv(folder / "train.csv", rows[:120])),
            "test_path": str(write_csv(folder / "test.csv", tests)),
        }
        settings = config.parse({**experiment().model_dump(exclude_none=True), "data": data})
        results.append(tune(settings, ["fedavg"], RATES, folder / "trials", rounds=4)["fedavg"])
    right, other = results
    assert other.scores == right.scores
    assert other.chosen == right.chosen


def test_a_trial_trains_on_the_rest_and_is_tested_on_the_part(experiment: Make, tmp_path: Path) -> None:
    settings = experiment()
    plain = fednlp.run(settings, tmp_path / "plain")
    trial = fednlp.run(
        config.with_settings(settings, {"evaluation.validation_fraction": 0.25}), tmp_path / "trial"
    )
    whole, part = (Partition.load(run.partition) for run in (plain, trial))
    for client in range(whole.num_clients):
        assert {*part.train(client).tolist(), *part.test(client).tolist()} == {*whole.train(client).tolist()}
    tested = np.load(trial.test_numbers)
    assert tested.tolist() == sorted(part.test_indices.tolist())
    facts = trial.read_json("environment.json")["data"]
    assert (facts["train"], facts["test"]) == (len(part.train_indices), len(tested))


def test_trials_that_diverge_are_not_chosen(experiment: Make, tmp_path: Path) -> None:
    grid = {"client.learning_rate": [1e-2, 1e30]}
    settings = config.with_settings(experiment(), {"client.optimizer": "sgd"})
    found = tune(settings, ["fedavg", "centralised"], grid, tmp_path / "trials", rounds=2)
    for result in found.values():
        assert result.chosen == {"client.learning_rate": 1e-2}
        assert None in [scores[-1] for scores in result.scores]
    assert (
        tune(settings, ["fedavg"], grid, tmp_path / "trials", rounds=2)["fedavg"].scores
        == found["fedavg"].scores
    )
    with pytest.raises(RunError, match="every trial of fedavg failed"):
        tune(settings, ["fedavg"], {"client.learning_rate": [1e29, 1e30]}, tmp_path / "trials", rounds=2)


def test_clients_own_models_are_compared_by_their_own_tests(experiment: Make, tmp_path: Path) -> None:
    found = tune(experiment(), ["ditto", "local"], RATES, tmp_path / "trials", rounds=2)
    for method, result in found.items():
        candidate = result.search.candidates[0]
        line = RunDir(candidate.folder).round_lines()[-1]
        assert line["evaluation"]["personal"][result.metric] in result.scores[0], method
    table = tuning_table(found)
    assert len(table.rows) == 6
    assert [note.startswith("Chosen for ") for note in table.notes[:2]] == [True, True]
    titles = [note.partition(":")[0] for note in table.notes[2:]]
    assert titles == ["Ditto"] * len(doubts(found["ditto"])) + ["Local only"] * len(doubts(found["local"]))


LOWEST = "rate = 0.1 is the lowest value tried; lower ones may be better"
HIGHEST = "rate = 10 is the highest value tried; higher ones may be better"
EQUAL = "the best trials have the same score, and the training loss chose among them"


@pytest.mark.parametrize(
    ("tried", "scores", "chosen", "reasons"),
    [
        ([0.1, 1, 10], [(0.5,), (0.3, 0.6), (0.3, 0.4)], 1, []),
        ([1, 0.1, 10], [(0.5,), (0.3, 0.6), (0.3, 0.4)], 0.1, [LOWEST]),
        ([1, 0.1, 10], [(0.5,), (0.3, 0.4), (0.3, 0.6)], 10, [HIGHEST]),
        ([0.1, 1, 10], [(0.0,), (0.0, 0.0), (0.0, 0.0)], 1, [EQUAL]),
        ([1, 1], [(0.1,), (0.2,)], 1, []),
        (["sgd", "adam"], [(0.1,), (0.2,)], "adam", []),
        ([False, True], [(0.1,), (0.2,)], True, []),
        ([0.1, "constant"], [(0.1,), (None,)], 0.1, []),
        (
            [0.1, 1],
            [(None, None), (0.2, 0.3)],
            1,
            ["rate = 1 is the highest value tried; higher ones may be better"],
        ),
    ],
)
def test_a_choice_at_an_end_or_among_equals_is_doubted(
    tried: list[Any],
    scores: list[tuple[float | None, ...]],
    chosen: Any,
    reasons: list[str],
    experiment: Make,
) -> None:
    candidates = tuple(Candidate({"rate": value}, experiment(), Path("none")) for value in tried)
    search = MethodSearch("fedavg", len(tried), (), candidates, ())
    assert doubts(SearchResult(search, tuple(scores), {"rate": chosen}, "accuracy")) == reasons


@pytest.mark.slow
def test_trials_and_compared_runs_have_the_same_workers(
    experiment: Make, tmp_path: Path, started_workers: list[WorkerProcess]
) -> None:
    """Those of a search, whose trials pause, and those of the comparison after it; none of them stays behind."""
    two = config.with_settings(experiment(), {"runtime.workers": 2})
    tune(two, ["fedavg"], RATES, tmp_path / "trials", rounds=2)
    assert len(started_workers) == 1
    fednlp.compare(two, ["fedavg", "fedprox"], out=tmp_path / "cmp")
    assert len(started_workers) == 2
    assert not any(worker.alive for worker in started_workers)


def test_the_choice_is_compared(experiment: Make, tmp_path: Path) -> None:
    chosen = {"fedavg": {"client.learning_rate": 0.5}}
    runs = fednlp.compare(experiment(), ["fedavg", "fedprox"], out=tmp_path / "cmp", settings=chosen)
    rates = {one.method: RunDir(one.folder).experiment().client.learning_rate for one in runs}
    assert rates["fedavg"] == 0.5
    assert rates["fedprox"] == experiment().client.learning_rate
    assert all(RunDir(one.folder).experiment().evaluation.validation_fraction is None for one in runs)


def test_on_the_command_line(experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from fednlp.cli import app

    monkeypatch.chdir(tmp_path)
    toml = tmp_path / "tiny.toml"
    toml.write_text(config.dump(experiment()))
    options = ["compare", str(toml), "--algorithms", "fedavg,fedprox", "--out", "cmp"]
    search = [
        "--tune",
        "client.learning_rate=1e-3,1e-2,3e-2",
        "--tune",
        "fedprox:algorithm.mu=0.01,1",
        "--tune-rounds",
        "3",
        "--trials",
        "4",
        "--tune-from",
        "2",
    ]
    done = CliRunner().invoke(app, [*options, *search], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for text in (
        "20% of each client's training examples; the test sets are not used",
        "fedavg: 3 of 3 combinations (fewer than the 4 trials asked for, so every method has 3): 3 up to round 3; ",
        "fedprox: 3 of 6 combinations (drawn by the seed 0): 3 up to round 3; 9 rounds in all",
        "Every method has 3 trials, drawn by the seed where it has more combinations.",
        "Chosen for FedAvg: client.learning_rate = ",
    ):
        assert text in done.output
    page = (tmp_path / "cmp/report/report.html").read_text()
    assert "Choice of settings" in page
    with (tmp_path / "cmp/report/tuning.csv").open() as file:
        assert len(list(csv.reader(file))) == 7
    own = {path: path.read_bytes() for path in (tmp_path / "cmp/report").rglob("*") if path.is_file()}
    again = CliRunner().invoke(app, ["report", "cmp"], catch_exceptions=False)
    assert again.exit_code == 0, again.output
    assert {path: path.read_bytes() for path in (tmp_path / "cmp/report").rglob("*") if path.is_file()} == own
    assert f"(and {len(own) - 1} files beside it)" in again.output
    for option in ("--trials", "--tune-from"):
        alone = CliRunner().invoke(app, [*options, option, "2"])
        assert isinstance(alone.exception, ConfigError)
        assert f"{option} goes with --tune" in str(alone.exception)
    for least in ("0", "-3", "4"):
        wrong = CliRunner().invoke(app, [*options, *search[:-1], least])
        assert isinstance(wrong.exception, ConfigError)
        assert "be a number from 1 to 3" in str(wrong.exception)
