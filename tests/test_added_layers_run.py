"""Controllers through the public functions: an engine is trained, layers are put into it, silos exchange these."""

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import parse
from fednlp.errors import ModelError
from fednlp.inference.export import export
from fednlp.simulation.callback import NullCallback

pytestmark = pytest.mark.whole

SIZES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
CONTROLLERS = ["encoder.layer.0,2", "decoder.layer.0,2"]


@pytest.fixture
def silos(tmp_path: Path) -> list[str]:
    files = []
    for name in ("php", "ubuntu"):
        path = tmp_path / f"{name}.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            rows = [[f"{name} {n} eins", f"{name} {n} one"] for n in range(20)]
            csv.writer(file).writerows([["source", "target"], *rows])
        files.append(str(path))
    return files


def document(silos: list[str], model: dict[str, Any], algorithm: str = "fedavg") -> dict[str, Any]:
    return {
        "num_rounds": 1,
        "data": {"path": silos, "columns": {"source": "source", "target": "target"}},
        "task": {"name": "sequence-to-sequence", "max_target_length": 16},
        "model": {"max_length": 16, **model},
        "algorithm": {"name": algorithm},
        "client": {"max_steps": 2, "learning_rate": 0.01},
        "runtime": {"workers": 1},
    }


def test_silos_exchange_the_added_layers_alone(silos: list[str], tmp_path: Path) -> None:
    scratch = {"name_or_path": "transformer", "vocabulary_size": 300, "config": SIZES}
    quiet: Any = {"callback": NullCallback()}
    engine = fednlp.run(parse(document(silos, scratch, "centralised")), tmp_path / "engine", **quiet)
    train = {"shared": CONTROLLERS, "rest": "personal"}
    deeper = {
        "name_or_path": str(engine.folder),
        "added_layers": {"at": CONTROLLERS, "initial": "random"},
        "train": train,
    }
    run = fednlp.run(parse(document(silos, deeper)), tmp_path / "run", **quiet)
    assert run.experiment().model.added_layers is not None
    before, after = load_file(engine.model / "model.safetensors"), load_file(run.model / "model.safetensors")
    around = [name for name in before if ".layers." not in name]
    assert all(torch.equal(before[name], after[name]) for name in around)
    for side in ("encoder", "decoder"):
        for place, origin in ((1, 0), (3, 1)):
            name = f"model.{side}.layers.{{}}.fc1.weight"
            assert torch.equal(after[name.format(place)], before[name.format(origin)])
    sent = sum(t.numel() for n, t in after.items() if ".layers.0." in n or ".layers.2." in n)
    (bytes_up,) = run.rounds["bytes_up"]
    assert 4 * sent <= bytes_up / 2 < 4 * sent + 9000
    for client in ("php", "ubuntu"):
        export(run.folder, tmp_path / client, client=client)
        own = load_file(tmp_path / client / "model.safetensors")
        name = "model.encoder.layers.1.fc1.weight"
        assert not torch.equal(own[name], after[name])
        assert torch.equal(
            own["model.encoder.layers.0.fc1.weight"], after["model.encoder.layers.0.fc1.weight"]
        )


def test_a_model_from_scratch_takes_no_added_layers(silos: list[str], tmp_path: Path) -> None:
    model = {
        "name_or_path": "transformer",
        "vocabulary_size": 300,
        "added_layers": {"at": ["encoder.layer.0"]},
    }
    with pytest.raises(
        Exception, match=r"trained from nothing: set the number of layers in \[model.config\]"
    ):
        fednlp.run(parse(document(silos, model)), tmp_path / "run", callback=NullCallback())
    empty = {"name_or_path": "bert-tiny", "added_layers": {"at": ["encoder.layer.0"]}}
    with pytest.raises(ModelError, match=r"has no list of encoder\.layer"):
        fednlp.run(parse(document(silos, empty)), tmp_path / "other", callback=NullCallback())
