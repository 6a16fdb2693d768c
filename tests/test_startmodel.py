"""A resumed run has the model and the tokenizer that it began with, or says that it does not."""

import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import fednlp
from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.simulation.callback import Callback, NullCallback
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]
Outcome = Callable[[Path | RunDir], dict[str, Any]]
Stopping = Callable[..., AbstractContextManager[Callback]]
FROZEN = {"model.train": ["layer.1", "head"]}
PERSONAL = {"model.train": {"personal": "layer.1"}}


def shift(folder: Path, prefix: str) -> None:
    """Change the weights of a part of a model's folder."""
    weights = load_file(folder / "model.safetensors")
    chosen = [name for name in weights if name.startswith(prefix)]
    assert chosen
    for name in chosen:
        weights[name] = weights[name] + 0.5
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def reword(folder: Path) -> None:
    """Swap two words of a tokenizer."""
    path = folder / "tokenizer.json"
    made = json.loads(path.read_text())
    words = made["model"]["vocab"]
    words["word1"], words["word2"] = words["word2"], words["word1"]
    path.write_text(json.dumps(made))


def quieten(folder: Path) -> None:
    """Change the dropout of a model's configuration."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_dropout_prob": 0.3}))


@pytest.mark.parametrize(
    ("changes", "change", "said"),
    [
        (FROZEN, lambda folder: shift(folder, "encoder.layer.0."), "its frozen and personal weights)"),
        (PERSONAL, lambda folder: shift(folder, "encoder.layer.1."), "its frozen and personal weights)"),
        ({}, reword, "its tokenizer)"),
        ({}, quieten, "its configuration)"),
        (PERSONAL, lambda folder: shift(folder, "encoder.layer.0."), None),
        ({}, lambda folder: shift(folder, "encoder"), None),
    ],
    ids=["frozen", "personal", "tokenizer", "configuration", "shared", "all shared"],
)
@pytest.mark.variants(3)
def test_another_model_than_the_run_began_with(
    changes: dict[str, Any],
    change: Callable[[Path], None],
    said: str | None,
    experiment: Make,
    outcome: Outcome,
    stopping: Stopping,
    tiny_model: Path,
    tmp_path: Path,
) -> None:
    """It is refused, unless what changed lies in the checkpoint: then the result is the same."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    settings = experiment(changes | {"model.name_or_path": str(model), "num_rounds": 2})
    with stopping(rounds=1) as callback:
        fednlp.run(settings, tmp_path / "run", callback=callback)
    if said is None:
        fednlp.run(settings, tmp_path / "whole")
        change(model)
        assert outcome(fednlp.resume(tmp_path / "run")) == outcome(tmp_path / "whole")
        return
    before = shutil.copytree(model, tmp_path / "before")
    change(model)
    with pytest.raises(RunError, match="has changed since") as caught:
        fednlp.resume(tmp_path / "run")
    assert said in str(caught.value)
    assert "put the earlier files back, or start again with another --out" in str(caught.value)
    shutil.rmtree(model)
    before.rename(model)
    assert fednlp.resume(tmp_path / "run").finished


def test_a_run_directory_that_does_not_say_what_it_began_with(
    experiment: Make, stopping: Stopping, tmp_path: Path
) -> None:
    class Said(NullCallback):
        text = ""

        def log(self, text: str) -> None:
            self.text += text

    with stopping(rounds=1) as callback:
        fednlp.run(experiment({"num_rounds": 2}), tmp_path / "run", callback=callback)
    path = tmp_path / "run" / "environment.json"
    known = json.loads(path.read_text())
    del known["start"]
    known["instruction_sets"] = ["avx2"]
    path.write_text(json.dumps(known))
    heard = Said()
    assert fednlp.resume(tmp_path / "run", callback=heard).finished
    assert "does not say which model it began with" in heard.text
    assert "was begun elsewhere (instruction_sets avx2, now " in heard.text
