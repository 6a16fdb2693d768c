"""A model is numbers and words: code that comes with one is never run. It is written as it was loaded."""

import errno
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fednlp.errors import ModelError
from fednlp.models.pretrained import (
    load_tokenizer,
    longest_text,
    pretrained_model,
    save_model,
    save_tokenizers,
)

CLASSIFIER = "AutoModelForSequenceClassification"
EVIL = """
from pathlib import Path
Path(__file__).with_name("PWNED").touch()
Path({marker!r}).touch()
class Evil:
    pass
"""


@pytest.fixture
def consent(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """Standard input that says yes to everything."""
    said = io.StringIO("y\n" * 9)
    monkeypatch.setattr("sys.stdin", said)
    return said


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny model with a module of its own that leaves a file behind when it is imported."""
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    copied = shutil.copytree(tiny_model, tmp_path / "evil")
    (copied / "code.py").write_text(EVIL.format(marker=str(tmp_path / "MARK")))
    return copied


def change(path: Path, **settings: Any) -> None:
    """Set keys of a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


def load(folder: Path) -> None:
    """Load all that a run loads."""
    tokenizer = load_tokenizer(str(folder))
    longest_text(str(folder), tokenizer)
    pretrained_model(str(folder), CLASSIFIER, {"num_labels": 2}, {}, seed=0)


def nothing_ran(folder: Path, consent: io.StringIO, out: str) -> bool:
    """Say whether the code was not run, and nobody was asked for consent."""
    return not [*folder.parent.rglob("PWNED"), *folder.parent.rglob("MARK")] and (consent.tell(), out) == (
        0,
        "",
    )


def test_a_model_of_its_own_code_is_refused_in_one_line(
    folder: Path, consent: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    auto = {"AutoConfig": "code.Evil", CLASSIFIER: "code.Evil", "AutoTokenizer": ["code.Evil", "code.Evil"]}
    change(folder / "config.json", model_type="evil", auto_map=auto)
    for step in (lambda: load(folder), lambda: pretrained_model(str(folder), CLASSIFIER, {}, {}, seed=0)):
        with pytest.raises(ModelError, match=r"needs code of its own .* fednlp runs no code") as caught:
            step()
        assert "\n" not in str(caught.value)
    assert nothing_ran(folder, consent, capsys.readouterr().out)


def test_a_tokenizer_of_its_own_code_is_refused(
    folder: Path, consent: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    auto = {"AutoTokenizer": ["code.Evil", "code.Evil"]}
    change(folder / "tokenizer_config.json", tokenizer_class="Evil", auto_map=auto)
    change(folder / "config.json", model_type="evil", auto_map={"AutoConfig": "code.Evil"})
    with pytest.raises(ModelError, match="needs code of its own"):
        load_tokenizer(str(folder))
    assert nothing_ran(folder, consent, capsys.readouterr().out)


def test_code_beside_a_known_architecture_is_left_alone(
    folder: Path, consent: io.StringIO, capsys: pytest.CaptureFixture[str]
) -> None:
    auto = {"AutoConfig": "code.Evil", "AutoModel": "code.Evil", CLASSIFIER: "code.Evil"}
    change(folder / "config.json", auto_map=auto)
    change(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["code.Evil", "code.Evil"]})
    load(folder)
    assert nothing_ran(folder, consent, capsys.readouterr().out)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_kernels_of_a_hub_repository_are_refused(folder: Path, key: str) -> None:
    change(folder / "config.json", **{key: "kernels-community/flash-attn2"})
    with pytest.raises(ModelError, match="attention kernels kernels-community/flash-attn2"):
        load(folder)


@pytest.mark.parametrize("key", ["_attn_implementation", "_experts_implementation", "to_dict"])
def test_settings_of_a_run_name_no_kernels(tiny_model: Path, key: str) -> None:
    """[model.config] may come from a run directory: what transformers keeps to itself is no setting."""
    settings = {"num_labels": 2}
    with pytest.raises(ModelError, match="no such setting"):
        pretrained_model(
            str(tiny_model), "AutoModelForSequenceClassification", settings, {key: "theirs/kernels"}, 0
        )


@pytest.mark.parametrize("kind", ["longformer", "fnet", "bert"])
def test_what_a_checkpoint_lacks_is_never_memory_that_nobody_set(
    kind: str, random_model: Callable[..., Path]
) -> None:
    """PyTorch fills memory with NaN where it is asked to; transformers leaves the biases of some heads as they are."""
    source = str(random_model(kind))
    torch.use_deterministic_algorithms(True)
    try:
        model = pretrained_model(source, "AutoModelForMaskedLM", {}, {}, seed=0)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize("kept", [{}, {"truncation": 9, "padding": 5}], ids=["plain", "cutting"])
def test_a_tokenizer_is_written_as_it_was_loaded_whatever_was_tokenised(
    kept: dict[str, int], tiny_model: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    first = load_tokenizer(str(tiny_model))
    if kept:
        first.backend_tokenizer.enable_truncation(kept["truncation"], stride=2, direction="left")
        first.backend_tokenizer.enable_padding(length=kept["padding"], pad_token="[PAD]")
    first.save_pretrained(source)
    used, unused = load_tokenizer(str(source)), load_tokenizer(str(source))
    used(["some words of a text"], truncation=True, max_length=3, padding=True)
    for name, one in (("used", used), ("unused", unused)):
        save_tokenizers(one, None, tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "unused").iterdir()}
    assert {path.name: path.read_bytes() for path in (tmp_path / "used").iterdir()} == files
    assert ('"max_length": 9' in files["tokenizer.json"].decode()) is bool(kept)


def test_a_model_on_a_full_disk_is_an_error_of_the_system(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors
    import transformers.modeling_utils as loading

    def full(*given: object, **more: object) -> None:
        raise safetensors.SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    monkeypatch.setattr(loading, "safe_save_file", full)
    model = pretrained_model(str(tiny_model), CLASSIFIER, {"num_labels": 2}, {}, seed=0)
    with pytest.raises(OSError, match="os error 28") as caught:
        save_model(model, load_tokenizer(str(tiny_model)), tmp_path / "out", "card")
    assert caught.value.errno == errno.ENOSPC
