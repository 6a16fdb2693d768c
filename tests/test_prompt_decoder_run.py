"""Whole runs of a tiny decoder with a prompt and few labels."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
import transformers
from typer.testing import CliRunner

import fednlp
from fednlp.cli import app
from fednlp.config import Experiment
from fednlp.data.features import Features
from fednlp.errors import ConfigError, FednlpError, ModelError
from fednlp.inference.model import open_trained
from fednlp.training.activation_cache import ActivationCache

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
Outcome = Callable[[Any], dict[str, Any]]
LABELS = ("arts", "economy", "science", "sports")
WORDS = {label: f"{label}0" for label in LABELS}
FEW: dict[str, Any] = {"gold": 24, "gamma": 1.0, "f": 1, "n": 3, "k": 20.0}
UPPER = {"shared": ["layer.1", "head"], "rest": "frozen"}


def save_decoder(tiny_model: Path, folder: Path, kind: str = "LlamaForCausalLM", **changes: Any) -> Path:
    """Save a LLaMA of two small layers, whose word embedding is its head's too, with the tiny model's tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
        initializer_range=0.1,
        **({"tie_word_embeddings": True} | changes),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        getattr(transformers, kind)(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def decoder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tiny_model, tmp_path_factory.mktemp("decoder"))


@pytest.fixture(scope="module")
def prompted(decoder: Path) -> dict[str, Any]:
    """Changes that ask the decoder for one word a label."""
    return {
        "model": {"name_or_path": str(decoder), "max_length": 32},
        "task": {
            "name": "prompt-classification",
            "pattern": "{text} word0 {mask} word1",
            "verbalizer": WORDS,
        },
    }


METHODS: dict[str, dict[str, Any]] = {
    "one layer": {"fewshot": FEW | {"gold": 0}, "model.train": UPPER, "algorithm.name": "fedopt"},
    "adapters": {
        "fewshot": FEW | {"pacing": "static", "per_client": 5, "class_balanced": True},
        "model.peft": {"method": "lora", "r": 2},
        "algorithm.name": "fedprox",
    },
    "search": {
        "fewshot": FEW | {"pacing": "search", "trial_rounds": 2, "gold": 60, "gamma": 100.0},
        "partition.clients": 40,
        "model.train": UPPER,
        "num_rounds": 4,
    },
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.slow
def test_runs_are_the_same_with_two_workers_and_after_a_stop(
    method: str, prompted: dict[str, Any], same_for_two_workers_and_a_resume: Callable[[dict[str, Any]], None]
) -> None:
    own = METHODS[method]
    model = {key.removeprefix("model."): value for key, value in own.items() if key.startswith("model.")}
    rest = {key: value for key, value in own.items() if not key.startswith("model.")}
    changes = prompted | {"model": prompted["model"] | model, "num_rounds": 3} | rest
    same_for_two_workers_and_a_resume(changes)


def test_a_run_learns_and_its_saved_model_predicts_as_plain_transformers_do(
    experiment: Make, prompted: dict[str, Any], tmp_path: Path, texts: Path
) -> None:
    changes = {"fewshot": {"gold": 120, "pacing": "none"}, "num_rounds": 8, "clients_per_round": 8}
    run = fednlp.run(experiment(prompted | changes), tmp_path / "run")
    summary = run.read_json("summary.json")
    found = summary["evaluation"]["global"]["accuracy"]
    assert found > summary["trivial_baseline"]["accuracy"] + 0.2
    assert "AutoModelForCausalLM.from_pretrained" in (run.model / "README.md").read_text()
    assert "pipeline_tag: text-generation" in (run.model / "README.md").read_text()
    trained = open_trained(run.folder)
    rows: list[dict[str, str | None]] = [
        {"text": text, "label": "arts"}
        for text in ("arts1 word3", "sports2 word5 word6 sports1", "science0", "")
    ]
    features = Features.in_memory(trained.encode(rows))
    ((outcome, probabilities),) = trained.predict_with_probabilities(features)
    model = transformers.AutoModelForCausalLM.from_pretrained(run.model).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.model)
    words = tokenizer.convert_tokens_to_ids([WORDS[label] for label in LABELS])
    for place, number in enumerate(outcome.indices):
        ids = tokenizer(f"[CLS] {rows[number]['text']} word0", add_special_tokens=False, return_tensors="pt")
        with torch.inference_mode():
            logits = model(input_ids=ids["input_ids"]).logits[0, -1, words]
        assert np.allclose(torch.softmax(logits, 0).numpy(), probabilities[place], atol=1e-4)
        assert outcome.predictions[place] == int(logits.argmax())
    evaluated = CliRunner().invoke(app, ["evaluate", str(run.folder), "--json"])
    assert json.loads(evaluated.stdout)["accuracy"] == pytest.approx(found)
    again = fednlp.run(
        experiment(prompted | {"model.name_or_path": str(run.folder), "fewshot": FEW, "num_rounds": 1}),
        tmp_path / "again",
    )
    assert again.read_json("task.json")["fields"]["model_class"] == "AutoModelForCausalLM"


def test_frozen_layers_run_once_and_change_no_bit(
    experiment: Make,
    outcome: Outcome,
    prompted: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Labelling and training read the cached states; without the cache the run is the same."""
    computed: list[int] = []
    fill = ActivationCache._fill

    def counted(self: Any, into: np.ndarray, key: bytes, alone: Any) -> None:
        computed.append(self.store is not None and self.store.find(key) is None)
        fill(self, into, key, alone)

    monkeypatch.setattr(ActivationCache, "_fill", counted)
    changes = prompted | {"fewshot": FEW, "model": prompted["model"] | {"train": UPPER}}
    run = fednlp.run(experiment(changes), tmp_path / "cached")
    assert 0 < sum(computed) <= 200 < len(computed)
    plain = fednlp.run(experiment(changes | {"runtime.cache_activations": False}), tmp_path / "plain")
    ours, theirs = outcome(run), outcome(plain)
    assert ours["weights"] == theirs["weights"]
    assert ours["rounds"] == theirs["rounds"]


def test_the_tied_matrix_is_of_the_embeddings_and_the_head_is_the_last_norm(
    experiment: Make, tiny_model: Path, prompted: dict[str, Any], tmp_path: Path
) -> None:
    apart = save_decoder(tiny_model, tmp_path / "apart", tie_word_embeddings=False)
    for folder, own in ((prompted["model"]["name_or_path"], 16), (str(apart), 16 + 16 * 51)):
        model = prompted["model"] | {"name_or_path": folder, "train": ["head"]}
        run = fednlp.run(
            experiment(prompted | {"model": model, "fewshot": FEW, "num_rounds": 1}),
            tmp_path / f"run-{own}",
        )
        assert run.read_json("summary.json")["parameters"] == own


def test_planning_and_memory(experiment: Make, prompted: dict[str, Any], tmp_path: Path) -> None:
    """The logits of one position count, as for a masked language model, and not those of every token."""
    from fednlp.simulation.inspect import inspect_model
    from fednlp.simulation.resource_estimation import model_sizes

    made = experiment(prompted | {"fewshot": FEW}).resolved()
    rows, message = inspect_model(made)
    assert message > 4 * sum(row.parameters for row in rows) > 0
    run = fednlp.run(made, tmp_path / "run")
    trained = open_trained(run.folder)
    assert model_sizes(trained.task, trained.model, 32).logits == trained.model.config.vocab_size  # type: ignore[union-attr]


REFUSED: dict[str, tuple[dict[str, Any], type[FednlpError], str]] = {
    "no biases": ({"model": {"train": ["bias"]}}, ConfigError, '"bias" fits no parameter'),
    "mask first": ({"task": {"pattern": "{mask} {text}"}}, ConfigError, "has a text behind {mask}"),
    "long word": ({"task": {"verbalizer": WORDS | {"arts": "nosuch"}}}, ModelError, "is not one token"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_suit_is_refused(
    case: str, experiment: Make, prompted: dict[str, Any], tmp_path: Path
) -> None:
    changes, kind, says = REFUSED[case]
    merged = prompted | {key: prompted[key] | value for key, value in changes.items()}
    with pytest.raises(kind, match=says):
        fednlp.run(experiment(merged | {"fewshot": FEW}), tmp_path / "run")


def test_a_body_without_a_head_is_refused(
    experiment: Make, tiny_model: Path, prompted: dict[str, Any], tmp_path: Path
) -> None:
    bare = save_decoder(tiny_model, tmp_path / "bare", "LlamaModel", tie_word_embeddings=False)
    model = prompted["model"] | {"name_or_path": str(bare)}
    with pytest.raises(ModelError, match="has no causal-LM head"):
        fednlp.run(experiment(prompted | {"model": model, "fewshot": FEW}), tmp_path / "run")


def test_patterns_are_checked(prompted: dict[str, Any], texts: Path, here: Path) -> None:
    patterns = ["{mask} {text}", "{text} word0 {mask}", "word2 {text} {mask} word1"]
    table = {"name": "mine", "source": "a test", "patterns": patterns, "words": [WORDS]}
    (here / "mine.toml").write_text(tomli_w.dumps(table))
    model = prompted["model"]["name_or_path"]
    checked = CliRunner().invoke(
        app, ["prompts", "check", "mine.toml", "--model", model, "--path", str(texts), "--json"]
    )
    first, *others = json.loads(checked.stdout)["patterns"]
    assert "has a text behind {mask}" in first["problem"]
    assert first["score"] is None
    for one, tail in zip(others, ("word0", ""), strict=True):
        assert (one["problem"], one["score"]["examples"]) == (None, 40)
        assert one["reads"].endswith(tail)
    assert [one["tokens"] for one in others] == [2, 2]
