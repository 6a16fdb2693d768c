"""fednlp plan: what it tries, what that is priced with, and that a run takes what it writes."""

import json
import re
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

import fednlp
from fednlp import config
from fednlp.cli.inspect import inspect
from fednlp.cli.plan import plan
from fednlp.costs import TrainingDepth, load_profile
from fednlp.errors import ConfigError, RunError
from fednlp.formatting.units import human_bytes
from fednlp.models.selection import apply_selection, parse_selection
from fednlp.models.trainable_depth import trainable_depth
from fednlp.simulation.clients_at_once import ClientsAtOnce
from fednlp.studies.depth_capacity import TrainingPlan
from fednlp.studies.training_plan import PlanEstimator, plan_selection

Document = Callable[..., dict[str, Any]]
Type = Callable[..., Result]

DEVICE = """
name = "mine"
source = "made up"
latency = 0.5
[training]
per_million_parameters = 100.0
[inference]
per_million_parameters = 40.0
[watts]
computing = 10.0
sending = 1.0
"""
FEW = {"gold": 24, "f": 1, "n": 1, "k": 20.0}


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Type the words of plan, or of another command."""
    monkeypatch.setenv("COLUMNS", "250")

    def type_(*words: object, command: Any = plan) -> Result:
        app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
        app.command()(command)
        return CliRunner().invoke(app, [str(word) for word in words])

    return type_


@pytest.fixture
def toml(here: Path, document: Document) -> Callable[..., Path]:
    """Write an experiment on the tiny model, and the profile of a device, into the working directory."""

    def write(changes: dict[str, Any] | None = None) -> Path:
        (here / "mine.toml").write_text(DEVICE)
        wanted = {"costs": {"device": "mine.toml", "bandwidth_up": 0.1, "bandwidth_down": 0.2}}
        (here / "tiny.toml").write_text(config.dump(config.parse(document(wanted | (changes or {})))))
        return here / "tiny.toml"

    return write


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Put runs in place of the real ones whose accuracy is made up of what is trained."""

    def put(accuracy: Callable[[Sequence[str]], float]) -> list[Any]:
        seen: list[Any] = []

        class Run:
            def __init__(self, experiment: Any) -> None:
                self.experiment = experiment

            def read_json(self, name: str) -> dict[str, str]:
                return {"metric": "accuracy"}

            def round_lines(self) -> list[dict[str, Any]]:
                score = accuracy(self.experiment.model.train["shared"])
                sent = {"bytes_up": 300, "bytes_down": 100, "labelled": 6, "simulated_seconds": 2.0}
                scores = [score * n / self.experiment.num_rounds for n in range(self.experiment.num_rounds)]
                return [sent | {"evaluation": {"global": {"accuracy": s}}} for s in [*scores[1:], score]]

        def run(experiment: Any, out: Path, *, callback: Any) -> Run:
            seen.append(experiment.resolved())
            return Run(experiment)

        monkeypatch.setattr("fednlp.studies.training_plan.run", run)
        return seen

    return put


@pytest.mark.whole
def test_a_real_plan_is_one_that_a_run_takes(typed: Type, toml: Callable[..., Path], here: Path) -> None:
    """With few labels, through the command; a run of the plan does what the plan says, and of another model refuses."""
    few = toml({"fewshot": FEW, "clients_per_round": 2, "client.max_steps": 2})
    result = typed(few, "--target", "0.01", "--rounds", "1", "--out", "selection.toml")
    assert result.exit_code == 0, result
    lines = [line.split() for line in result.output.splitlines()]
    steps = ("depth", "capacity", "neighbour")
    tried = [line for line in lines if line and line[0] in steps and line[1].isdigit()]
    assert [line[:3] for line in tried] == [
        ["depth", "1", "1"],
        ["depth", "0", "0"],
        ["neighbour", "1", "0"],
    ]
    assert sum("chosen" in line for line in tried) == 1
    text = Path("selection.toml").read_text()
    assert text in result.output
    assert "2 layers" in text.splitlines()[0]

    chosen = next(line for line in tried if "chosen" in line)
    layers = int(chosen[1])
    train = tomllib.loads(text)["model"]["train"]
    assert train == plan_selection(2, TrainingPlan(layers, int(chosen[2])))
    whole = config.load(few)
    model = whole.model.model_copy(update={"train": train})
    run = fednlp.run(whole.model_copy(update={"model": model, "num_rounds": 1}), here / "run")
    line = run.round_lines()[0]
    sent = line["bytes_up"] + line["bytes_down"]
    assert f" {human_bytes(sent)} " in result.output

    plan = plan_selection(2, TrainingPlan(1, 1))
    deep = ", ".join(f"{key} = {json.dumps(value)}" for key, value in plan.items())
    for layers in (1, 3):
        other = f"model.config={{num_hidden_layers={layers}}}"
        refused = typed(few, "--set", f"model.train={{{deep}}}", "--set", other, command=inspect)
        assert isinstance(refused.exception, ConfigError)
        assert f"it is for a model of 2 layers, and this one has {layers}" in str(refused.exception)


def test_seconds_by_hand(typed: Type, toml: Callable[..., Path]) -> None:
    """One client a round, one step of 4 texts; the target is out of reach, so that all depths are tried."""
    small = {"clients_per_round": 1, "client.max_steps": 1, "client.per_device_train_batch_size": 4}
    plain = toml(small | {"partition": {"method": "uniform", "clients": 8}})
    result = typed(plain, "--target", "1", "--rounds", "1", "--json", "--memory", 10**9)
    assert isinstance(result.exception, RunError)
    found = json.loads(result.stdout)
    assert [(one["depth"], one["capacity"]) for one in found["candidates"]] == [(1, 1), (2, 2)]
    assert found["chosen"] is found["train"] is None
    parameters = json.loads(typed(plain, "--json", command=inspect).stdout)["parameters"]
    for one in found["candidates"]:
        training = one["depth"] / 2 * 100.0 * parameters / 1e6
        assert one["training"] == pytest.approx(training)
        assert one["inference"] == pytest.approx(training * 0.4)
        each_way = one["bytes"] / 2
        once = (2 - one["depth"]) / 2 * 40.0 * parameters / 1e6  # frozen layers, run for the first time
        assert one["seconds"] == pytest.approx(
            0.5 + each_way / 0.1e6 + each_way / 0.2e6 + 4 * (training + once)
        )
        assert one["parameters"] * 4 < each_way < one["parameters"] * 4 + 4000
    assert "no plan reaches 1 in 1 round" in str(result.exception)


def test_a_plan_trains_what_it_says(toml: Callable[..., Path]) -> None:
    """Every plan of the tiny model: which parameters its terms select, and that memory grows with them."""
    experiment = config.load(toml()).resolved()
    estimator = PlanEstimator(experiment, load_profile("mine.toml"), lambda text: None)
    flags = [parameter.requires_grad for parameter in estimator.model.parameters()]
    assert estimator.layers == 2
    assert estimator.has_every_plan
    for depth, capacity in [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]:
        candidate = TrainingPlan(depth, capacity)
        price = estimator.cost(candidate)
        assert [parameter.requires_grad for parameter in estimator.model.parameters()] == flags
        expected = {
            name
            for name, _ in estimator.model.named_parameters()
            if "classifier" in name or "pooler" in name or _trained(name, depth, capacity)
        }
        selection = apply_selection(estimator.model, parse_selection(estimator.selection(candidate)))
        assert selection.shared == expected
        assert price.parameters == sum(p.numel() for p in estimator.model.parameters() if p.requires_grad)
        for parameter in estimator.model.parameters():
            parameter.requires_grad_(True)
    memory = [estimator.cost(TrainingPlan(*plan)).memory for plan in ((0, 0), (1, 0), (1, 1), (2, 2))]
    assert memory == sorted(memory)
    assert estimator.least_memory() == memory[0]


def _trained(name: str, depth: int, capacity: int) -> bool:
    for number in range(2):
        if f"layer.{number}." in name:
            from_top = 2 - number
            return from_top <= capacity or (from_top <= depth and name.endswith("bias"))
    return False


def test_a_run_is_priced_as_its_plan_says(toml: Callable[..., Path]) -> None:
    """How deep a model is trained is read off what is frozen in it."""
    experiment = config.load(toml()).resolved()
    estimator = PlanEstimator(experiment, load_profile("mine.toml"), lambda text: None)
    assert trainable_depth(estimator.model) is None  # with its embeddings
    for depth in range(3):
        for capacity in range(depth + 1):
            candidate = TrainingPlan(depth, capacity)
            apply_selection(estimator.model, parse_selection(estimator.selection(candidate)))
            found = trainable_depth(estimator.model)
            for parameter in estimator.model.parameters():
                parameter.requires_grad_(True)
            assert found is not None
            assert TrainingDepth(*found, experiment.runtime.cache_activations) == estimator.depth(candidate)


def test_runs_that_try_plans(
    typed: Type, toml: Callable[..., Path], made_up: Callable[..., list[Any]]
) -> None:
    """They are the experiment's own but for the plan and the prices; a search for a pace would take too long."""
    seen = made_up(lambda shared: 0.9 if "layer.1" in shared else 0.4)
    few = toml({"fewshot": FEW | {"pacing": "search"}, "evaluation": {"every": 3}, "seed": 5})
    result = typed(few, "--target", "0.8", "--rounds", "4", "--json", "--bandwidth", "2")
    assert result.exit_code == 0, result
    found = json.loads(result.stdout)
    assert found["chosen"] == {"depth": 1, "capacity": 1}
    assert found["train"] == {"shared": ["layer.1", "head"], "rest": "frozen", "layers": 2}
    assert [one["rounds_to_target"] for one in found["candidates"] if one["reached"]] == [4, 4]
    best = found["candidates"][0]
    assert (best["seconds_to_target"], best["seconds"], best["bytes"], best["labelled"]) == (8, 2, 400, 6)
    for experiment in seen:
        assert experiment.seed == 5
        assert experiment.num_rounds == 4
        assert experiment.fewshot.pacing == "curriculum"
        assert experiment.evaluation.every == 1
        assert experiment.costs.bandwidth_up == experiment.costs.bandwidth_down == 2


def test_trials_train_several_clients_at_once_if_the_experiment_says_so(
    typed: Type, toml: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a plan trains: the head alone, biases, whole layers."""
    sizes = []

    class Seen(ClientsAtOnce):
        def __init__(self, runtime: Any, size: int, work: Callable[[Any], float]) -> None:
            sizes.append(size)
            super().__init__(runtime, size, work)

    monkeypatch.setattr("fednlp.simulation.rounds.ClientsAtOnce", Seen)
    made = toml({"model.train": "head", "clients_per_round": 2, "client.max_steps": 2})
    result = typed(made, "--target", "0.01", "--rounds", "1", "--set", "runtime.clients_at_once=2")
    assert result.exit_code == 0, result
    assert sizes == [2, 2, 2]


def test_a_plan_is_for_one_device_of_a_mix(
    typed: Type, toml: Callable[..., Path], made_up: Callable[..., list[Any]]
) -> None:
    seen = made_up(lambda shared: 0.9)
    wanted = toml({"costs.device": {"mine.toml": 0.5, "jetson-tx2": 0.5}})
    refused = typed(wanted, "--target", "0.8")
    assert isinstance(refused.exception, ConfigError)
    assert re.search(r"say for which, with --device .*mine.toml or jetson-tx2", str(refused.exception))
    assert not seen
    assert typed(wanted, "--target", "0.8", "--device", "mine.toml").exit_code == 0
    assert {Path(one.costs.device).name for one in seen} == {"mine.toml"}


def test_less_with_more_is_told(
    typed: Type, toml: Callable[..., Path], made_up: Callable[..., list[Any]]
) -> None:
    made_up(lambda shared: 0.9 if shared == ["head"] else 0.85 if shared[0] == "layer.1" else 0.4)
    result = typed(toml(), "--target", "0.8", "--rounds", "1")
    assert result.exit_code == 0, result
    assert (
        "training more gave less: 0.400 with 1 layer, 0 in full than 0.900 with 0 layers, 0 in full; the search"
        in (result.output)
    )
    assert "than 0.900 with 0 layers, 0 in full\n" in result.output  # 0.85, which is enough


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "80"], "target = 80"),
        (["--target", "nan"], "target = nan"),
        (["--target", "0.8", "--rounds", "0"], "rounds = 0"),
        (["--target", "0.8", "--bandwidth", "0"], "bandwidth = 0"),
        (["--target", "0.8", "--memory", "0"], "memory = 0"),
        (["--target", "0.8", "--memory", "1000"], "fits 1 kB of memory, the smallest requires"),
        (["--target", "0.8", "--device", "pixel-4"], "pixel-4 does not say how long"),
        (["--target", "0.8", "--device", "pixel-5"], "did you mean pixel-4?"),
        (["--target", "0.8", "--set", "algorithm.name=centralised"], "sends nothing"),
        (["--target", "0.8", "--set", "model.peft={method='lora'}"], r"leave \[model.peft\] out"),
        (["--target", "0.8", "--variant", "nosuch"], "nosuch"),
    ],
)
@pytest.mark.whole
def test_mistakes(typed: Type, toml: Callable[..., Path], words: list[str], said: str) -> None:
    result = typed(toml(), *words)
    assert isinstance(result.exception, ConfigError | RunError), result.output
    with pytest.raises(type(result.exception), match=said):
        raise result.exception


def test_device_and_bandwidth_must_be_said(typed: Type, toml: Callable[..., Path]) -> None:
    for costs, said in (
        ({"device": "mine.toml"}, "--bandwidth 1"),
        ({"bandwidth_up": 1.0, "bandwidth_down": 1.0}, "--device"),
    ):
        result = typed(toml({"costs": costs}), "--target", "0.8")
        assert isinstance(result.exception, ConfigError)
        assert said in str(result.exception)
