"""A profile is made of the machine at hand, and read back."""

import tomllib
from pathlib import Path

import pytest
from transformers import BartConfig, BertConfig, GPT2Config, PretrainedConfig
from typer.testing import CliRunner

from fednlp.cli.device import app
from fednlp.config import parse
from fednlp.costs import TrainingDepth, load_profile, seconds_per_example
from fednlp.costs.measure import measure_device
from fednlp.errors import ConfigError, ModelError

BERT = BertConfig(
    hidden_size=16, num_hidden_layers=3, num_attention_heads=2, intermediate_size=32, vocab_size=50
)
GPT2 = GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=1)


def _saved(folder: Path, config: PretrainedConfig) -> str:
    config.save_pretrained(folder)
    return str(folder)


@pytest.mark.whole
def test_a_profile_says_what_training_and_labelling_take_by_depth(tmp_path: Path) -> None:
    models = [_saved(tmp_path / "small", BERT), _saved(tmp_path / "decoder", GPT2)]
    out = tmp_path / "mine.toml"
    options = ["--out", str(out), "--name", "mine", "--batch", "2", "--length", "8"]
    told = CliRunner().invoke(app, ["measure", "--model", models[0], "--model", models[1], *options])
    assert told.exit_code == 0, told.output
    device = load_profile(out)
    assert device.name == "mine"
    for said in ("measured on 2", "PyTorch", "cores", "small, decoder", "batches of 2 texts of 8 tokens"):
        assert said in device.source
    assert device.memory is not None
    assert device.memory > 100_000_000
    assert device.training.bias is not None
    assert 0 < device.training.bias <= 1
    for speed in (device.training, device.inference):
        assert set(speed.models) == {"small", "decoder"}
        assert set(speed.depths["small"]) == {0, 1, 2}
        assert set(speed.depths["decoder"]) == {0, 1}
        assert all(0 < seconds < 60 for depths in speed.depths.values() for seconds in depths.values())
    plan = TrainingDepth(3, 1, 1)
    both = [seconds_per_example(device, models[0], 1, plan, training) for training in (True, False)]
    assert both[1] == device.inference.depths["small"][2]
    assert both[0] is not None


@pytest.mark.whole
def test_the_steps_of_a_measurement_are_told_in_order(tmp_path: Path) -> None:
    steps: list[tuple[int, int, str]] = []
    model = _saved(tmp_path / "small", BERT)
    table = measure_device(
        [model], "mine", batch=1, length=4, on_progress=lambda done, of, what: steps.append((done, of, what))
    )
    assert [done for done, _, _ in steps] == list(range(6))
    assert {of for _, of, _ in steps} == {5}
    assert steps[0][2] == "small, whole"
    assert "latency" not in table
    assert "watts" not in table


@pytest.mark.whole
def test_without_a_file_the_profile_is_printed(tmp_path: Path) -> None:
    model = _saved(tmp_path / "small", BERT)
    told = CliRunner().invoke(app, ["measure", "--model", model, "--batch", "1", "--length", "4"])
    assert tomllib.loads(told.stdout)["name"] == "this-machine"


def test_what_cannot_be_measured_is_told(tmp_path: Path) -> None:
    small = _saved(tmp_path / "small", BERT)
    with pytest.raises(ConfigError, match="this model reads 1 to 512, and a batch has 1 text or more"):
        measure_device([small], "mine", length=513)
    with pytest.raises(ConfigError, match="this model reads 1 to 512"):
        measure_device([small], "mine", batch=0)
    pair = BartConfig(
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        vocab_size=50,
    )
    with pytest.raises(ConfigError, match="has no single stack of layers to measure"):
        measure_device([_saved(tmp_path / "pair", pair)], "mine")
    with pytest.raises(ModelError, match="there is no model folder"):
        measure_device([str(tmp_path / "nothing")], "mine")


def test_the_list_names_every_profile_with_its_source() -> None:
    told = CliRunner().invoke(app, [])
    assert told.exit_code == 0
    assert "jetson-tx2" in told.stdout
    assert told.stdout == CliRunner().invoke(app, ["list"]).stdout
    sources = CliRunner().invoke(app, ["list", "--sources"]).stdout
    assert "MobileBERT: a Compact Task-Agnostic BERT" in " ".join(sources.split())


@pytest.mark.whole
def test_a_profile_that_is_saved_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDNLP_HOME", str(tmp_path / "home"))
    model = _saved(tmp_path / "small", BERT)
    options = ["--model", model, "--batch", "1", "--length", "4", "--save", "--name"]
    told = CliRunner().invoke(app, ["measure", *options, "my-board"])
    assert told.exit_code == 0, told.output
    assert "kept: use it with" in told.output
    assert load_profile("my-board").name == "my-board"
    costs = {"device": {"my-board": 0.5, "pixel-4": 0.5}}
    made = parse({"data": {"name": "bbc"}, "costs": costs}).resolved()
    path = str(tmp_path / "home" / "devices" / "my-board.toml")
    assert made.costs.device == {path: 0.5, "pixel-4": 0.5}
    assert "my-board" in CliRunner().invoke(app, ["list"]).output
    for name in ("pixel-4", "../mine", ""):
        told = CliRunner().invoke(app, ["measure", *options, name])
        assert isinstance(told.exception, ConfigError)
        assert "cannot name a profile of this machine" in str(told.exception)
