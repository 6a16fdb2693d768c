"""The memory of a client, as runs predict it: of what, when nothing is said, and where it is shown."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import nn
from typer.testing import CliRunner

import fednlp
from fednlp.cli import app
from fednlp.config import Experiment
from fednlp.costs import LayerSizes, ModelSizes, TrainingDepth, client_memory, load_profile, peak_memory
from fednlp.models.selection import apply_selection, parse_selection
from fednlp.models.trainable_depth import backward_depth, trainable_depth
from fednlp.partition import Partition
from fednlp.simulation.resource_estimation import _tied, memory_of_run, model_sizes
from fednlp.simulation.run_dir import RunDir
from fednlp.studies.depth_capacity import TrainingPlan
from fednlp.studies.training_plan import PlanEstimator

Make = Callable[..., Experiment]
ONE = {"num_rounds": 1, "evaluation.every": 2, "evaluation.personal": False, "client.max_steps": 1}
FEW = {"gold": 24, "gamma": 1.0, "f": 1, "n": 3, "k": 20.0}
LORA = {"model.peft": {"method": "lora", "r": 2}}


def summary_of(run: RunDir) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run.folder / "summary.json").read_text())
    return found


def by_hand(
    folder: Path, plan: TrainingDepth, trained: int | None = None, vectors: int = 1, **other: Any
) -> int:
    """Return the prediction for the tiny model with 32 tokens, from the sizes in its files.

    Args:
        folder: The model.
        plan: What is trained.
        trained: Number of trained parameters; None for all.
        vectors: Number of vectors of that length beside the model: of FedAvg, the global model.
        other: Further arguments of the formula.
    """
    from transformers import AutoModelForSequenceClassification

    model = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=4)
    whole = sum(parameter.numel() for parameter in model.parameters())
    config = model.config
    shape = LayerSizes(config.hidden_size, config.num_attention_heads, config.intermediate_size)
    length = min(32, config.max_position_embeddings)
    trained = whole if trained is None else trained
    more = {"batch": 8, "length": length, "held": vectors * trained} | other
    return peak_memory(whole, trained, shape, plan, **more)


@pytest.mark.whole
def test_a_run_says_what_training_takes(experiment: Make, tiny_model: Path, tmp_path: Path) -> None:
    run = fednlp.run(experiment(ONE), tmp_path / "run")
    assert summary_of(run)["client_memory_bytes"] == by_hand(tiny_model, TrainingDepth(2, 2))
    sgd = ONE | {
        "client.optimizer": "sgd",
        "client.per_device_train_batch_size": 3,
        "client.gradient_accumulation_steps": 4,
        "algorithm.name": "fedopt",
    }
    run = fednlp.run(experiment(sgd), tmp_path / "sgd")
    said = by_hand(tiny_model, TrainingDepth(2, 2), optimizer="sgd", batch=3)
    assert summary_of(run)["client_memory_bytes"] == said
    frozen = ONE | {"model.train": {"shared": ["layer.1", "head"], "rest": "frozen"}}
    run = fednlp.run(experiment(frozen), tmp_path / "frozen")
    summary = summary_of(run)
    assert summary["client_memory_bytes"] == by_hand(tiny_model, TrainingDepth(2, 1), summary["parameters"])


@pytest.mark.parametrize(
    ("method", "vectors"),
    [
        ({"name": "scaffold", "option": "I"}, 5),  # x, c, c_i, their difference, and the gradient at x
        ({"name": "scaffold", "option": "II"}, 4),
        ({"name": "ditto"}, 3),  # x, y, and where the client's own model begins
        ({"name": "fednova"}, 1),
        ({"name": "fedbuff", "buffer_size": 2}, 1),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_a_method_takes_the_vectors_that_its_clients_hold(
    method: dict[str, Any], vectors: int, experiment: Make, tiny_model: Path, tmp_path: Path
) -> None:
    changes = ONE | {"algorithm": method, "client.optimizer": "sgd", "costs.device": "jetson-tx2"}
    run = fednlp.run(experiment(changes), tmp_path / "run")
    said = by_hand(tiny_model, TrainingDepth(2, 2), vectors=vectors, optimizer="sgd")
    assert summary_of(run)["client_memory_bytes"] == said


def test_personal_layers_are_in_no_vector_of_a_method(
    experiment: Make, tiny_model: Path, tmp_path: Path
) -> None:
    personal = ONE | {"model.train": {"personal": ["head"]}}
    run = fednlp.run(experiment(personal), tmp_path / "run")
    summary = summary_of(run)
    said = by_hand(tiny_model, TrainingDepth(2, 2), vectors=0, held=summary["parameters"])
    assert summary["client_memory_bytes"] == said


@pytest.mark.whole
def test_a_client_that_labels_takes_the_larger_of_the_two(
    experiment: Make, tiny_model: Path, tmp_path: Path
) -> None:
    def took(name: str, **changes: Any) -> int:
        run = fednlp.run(experiment(ONE | {"evaluation.every": 1} | changes), tmp_path / name)
        memory: int = summary_of(run)["client_memory_bytes"]
        return memory

    training, labels = by_hand(tiny_model, TrainingDepth(2, 2)), {"evaluation.batch_size": 2000}
    labelling = by_hand(tiny_model, TrainingDepth(2, 2), 0, batch=2000)
    assert labelling > training
    assert took("labels", fewshot=FEW, **labels) == labelling
    assert took("few", fewshot=FEW, **{"evaluation.batch_size": 1}) == training
    assert took("none", fewshot=FEW | {"pacing": "none"}, **labels) == training
    assert took("plain", **labels) == training


@pytest.mark.parametrize(
    "changes",
    [LORA, {"algorithm.name": "centralised"}, {"algorithm.name": "local"}],
    ids=["lora", "all", "alone"],
)
def test_nothing_is_said_where_nothing_is_known(
    changes: dict[str, Any], experiment: Make, tmp_path: Path
) -> None:
    run = fednlp.run(experiment(ONE | changes), tmp_path / "run")
    assert "client_memory_bytes" not in summary_of(run)


@pytest.mark.whole
def test_a_run_and_the_plan_it_follows_say_the_same(experiment: Make, tmp_path: Path) -> None:
    few = ONE | {"fewshot": FEW, "evaluation.every": 1}
    whole = experiment(few)
    estimator = PlanEstimator(whole.resolved(), load_profile("jetson-tx2"), lambda text: None)
    for candidate in (TrainingPlan(0, 0), TrainingPlan(2, 1)):
        run = fednlp.run(
            experiment(few | {"model.train": estimator.selection(candidate)}), tmp_path / str(candidate)
        )
        assert summary_of(run)["client_memory_bytes"] == estimator.cost(candidate).memory


def test_layers_are_counted_as_the_prices_count_them_and_embeddings_reach_all(experiment: Make) -> None:
    model = PlanEstimator(experiment().resolved(), load_profile("jetson-tx2"), lambda text: None).model
    assert backward_depth(model) == (2, 2, 0)

    def kept(train: Any) -> tuple[TrainingDepth | None, Any]:
        apply_selection(model, parse_selection(train))
        passed, trained = backward_depth(model), trainable_depth(model)
        model.requires_grad_(True)
        return None if passed is None else TrainingDepth(*passed), trained

    for train, plan in (
        ({"shared": ["head"], "rest": "frozen"}, TrainingDepth(2, 0)),
        ({"shared": ["layer.1", "head"], "rest": "frozen"}, TrainingDepth(2, 1)),
        ({"shared": ["layer.1", "layer.0:bias", "head"], "rest": "frozen"}, TrainingDepth(2, 1, 1)),
    ):
        found, depth = kept(train)
        assert found == plan
        assert depth is not None
        assert TrainingDepth(*depth) == plan
    assert kept({"shared": ["layer.0", "head"], "rest": "frozen"})[0] == TrainingDepth(
        2, 1, 1
    )  # gradients pass layer 1
    assert kept({"shared": ["embeddings", "head"], "rest": "frozen"})[0] == TrainingDepth(2, 0, 2)
    assert kept({"frozen": ["layer.1"]})[0] == TrainingDepth(2, 1, 1)


def test_two_stacks_and_layers_that_run_several_times_are_not_counted() -> None:
    from transformers import AlbertConfig, AlbertModel, T5Config, T5Model

    small = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "embedding_size": 8}
    assert backward_depth(AlbertModel(AlbertConfig(vocab_size=30, num_hidden_layers=3, **small))) is None
    t5 = T5Config(vocab_size=30, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    assert backward_depth(T5Model(t5)) is None
    assert backward_depth(nn.Linear(2, 2)) is None


def test_a_side_without_a_length_with_longer_texts_or_without_attention_says_nothing(
    experiment: Make,
) -> None:
    import numpy as np

    whole = experiment().resolved()
    model = PlanEstimator(whole, load_profile("jetson-tx2"), lambda text: None).model

    def side(longest: int, texts: int) -> Any:
        return SimpleNamespace(
            spec=SimpleNamespace(longest=longest),
            replica=SimpleNamespace(model=model),
            algorithm=SimpleNamespace(held_vectors=1),
            layout=SimpleNamespace(numel=100),
            train_features=SimpleNamespace(lengths=lambda numbers: np.array([3, texts])),
            partition=Partition([0, 2], [0, 1], [0, 0], [], [0]),  # type: ignore[arg-type]
            task=SimpleNamespace(model_class="AutoModelForSequenceClassification"),
        )

    assert memory_of_run(whole, side(32, 32)) is not None
    assert memory_of_run(whole, side(0, 32)) is None
    assert memory_of_run(whole, side(32, 33)) is None  # cut into rows, nobody knows how many
    model.config = SimpleNamespace(num_hidden_layers=2)  # of an LSTM, which has no attention
    assert memory_of_run(whole, side(32, 32)) is None


def test_a_head_that_is_the_word_embedding_has_the_gradients_of_both() -> None:
    """8 bytes of each of its parameters, where it is trained: two gradients beside their sum."""
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    model = BertForMaskedLM(config)
    sizes = model_sizes(SimpleNamespace(model_class="AutoModelForMaskedLM"), model, 32)  # type: ignore[arg-type]
    plan = TrainingDepth(1, 1)
    apart = client_memory(sizes, plan, 100, batch=8)
    assert _tied(model) == 50 * 16
    assert client_memory(sizes, plan, 100, batch=8, tied=50 * 16) - apart == 8 * 50 * 16
    assert client_memory(sizes, plan, 0, batch=8, tied=50 * 16) == client_memory(sizes, plan, 0, batch=8)
    model.get_input_embeddings().weight.requires_grad_(False)
    assert _tied(model) == 0
    config.tie_word_embeddings = False
    assert _tied(BertForMaskedLM(config)) == 0


@pytest.mark.parametrize(
    ("task", "logits", "pieces"),
    [
        ({"model_class": "AutoModelForSequenceClassification"}, 0, False),
        ({"model_class": "AutoModelForMaskedLM"}, 1, False),
        ({"model_class": "AutoModelForMaskedLM", "mlm_probability": 0.25}, 8, False),
        ({"model_class": "AutoModelForCausalLM", "max_target_length": 5}, 5, False),
        ({"model_class": "AutoModelForCausalLM"}, 32, False),
    ],
)
def test_logits_over_the_vocabulary_count_where_they_are_made(
    task: dict[str, Any], logits: int, pieces: bool
) -> None:
    config = SimpleNamespace(hidden_size=16, num_attention_heads=2, intermediate_size=32, vocab_size=2**20)
    model: Any = nn.Linear(3, 4)
    model.config = config
    sizes = model_sizes(SimpleNamespace(**task), model, 32)  # type: ignore[arg-type]
    assert sizes == ModelSizes(16, LayerSizes(16, 2, 32), 32, logits * 2**20, 4 if logits else None, pieces)


def test_rows_that_are_read_in_pieces_count_once() -> None:
    whole = ModelSizes(1000, LayerSizes(16, 2, 32), 32, logits=100)
    cut = replace(whole, rows=4)

    def took(sizes: ModelSizes, **other: Any) -> int:
        return client_memory(sizes, TrainingDepth(2, 2), 1000, batch=8, **other)

    assert took(cut) == took(whole)  # training reads the whole batch
    assert took(replace(cut, recompute=True)) == client_memory(whole, TrainingDepth(2, 2), 1000, batch=4)
    assert took(cut, labelled=10**6) == took(cut, labelled=4) < took(whole, labelled=10**6)


def test_the_terminal_shows_it(experiment: Make, here: Path) -> None:
    from fednlp import config

    (here / "tiny.toml").write_text(config.dump(experiment(ONE | {"evaluation.every": 1})))
    words = ["run", "tiny.toml", "--out", "run"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    memory = json.loads((here / "run" / "summary.json").read_text())["client_memory_bytes"]
    line = next(line for line in result.output.splitlines() if line.startswith("memory a client"))
    assert line.split() == [
        "memory",
        "a",
        "client",
        *fednlp.formatting.units.human_bytes(memory).split(),
        "(predicted)",
    ]
