"""A model's folder may be a stranger's: it is loaded alone, and its sizes are bounded before it is built."""

import base64
import json
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from fednlp.errors import ModelError
from fednlp.models import folder_bounds
from fednlp.models.folder_bounds import require_bounded, within_bounds
from fednlp.models.loading import has_weights, without_memory
from fednlp.models.pretrained import load_tokenizer, longest_text, new_model, pretrained_model
from fednlp.models.prompt_tuning import with_saved_prompt

CLASSIFIER = "AutoModelForSequenceClassification"
EVIL = "evil/backbone"
VISION = {"hidden_size": 16, "architectures": ["DetrForObjectDetection"]}
BERT = {"model_type": "bert", "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}

NAMING: dict[str, dict[str, dict[str, Any] | None]] = {
    "backbone": {
        "config.json": {"model_type": "detr", "backbone": EVIL, "use_timm_backbone": False, **VISION}
    },
    "backbone of timm": {"config.json": {"model_type": "detr", "backbone": EVIL, "use_timm_backbone": True}},
    "backbone of a default": {"config.json": {"model_type": "detr", "architectures": None}},
    "backbone of depth": {"config.json": {"model_type": "dpt", "backbone": EVIL, "backbone_config": None}},
    "backbone in a text model": {"config.json": {"backbone": EVIL, "use_pretrained_backbone": True}},
    "decoder with a backbone": {
        "config.json": {
            "model_type": "encoder-decoder",
            "encoder": BERT,
            "decoder": {"model_type": "detr", "backbone": EVIL, "use_timm_backbone": False},
        }
    },
    "parts in a list": {"config.json": {"parts": [[{"model_type": "dpt", "backbone": EVIL}]]}},
    "wrapped": {"config.json": {"model_type": "timm_wrapper", "architecture": EVIL}},
    "encoders of sound": {
        "config.json": {
            "model_type": "musicgen",
            "text_encoder": {"model_type": "t5", "_name_or_path": EVIL},
            "audio_encoder": {"model_type": "encodec", "_name_or_path": EVIL},
            "decoder": {"model_type": "musicgen_decoder", "_name_or_path": EVIL},
        }
    },
    "retrieval": {
        "config.json": {
            "model_type": "rag",
            "index_path": EVIL,
            "dataset": EVIL,
            "question_encoder": {"model_type": "dpr", "_name_or_path": EVIL},
            "generator": {"model_type": "bart", "_name_or_path": EVIL},
        }
    },
    "name of itself": {
        "config.json": {"_name_or_path": EVIL, "name_or_path": EVIL, "_commit_hash": "0" * 40}
    },
    "adapters": {"adapter_config.json": {"base_model_name_or_path": EVIL, "peft_type": "LORA"}},
    "adapters in the configuration": {
        "config.json": {"_adapter_model_path": EVIL, "base_model_name_or_path": EVIL}
    },
    "tokenizer": {
        "tokenizer_config.json": {"name_or_path": EVIL, "tokenizer_file": EVIL, "vocab_file": EVIL},
    },
    "class of a tokenizer": {
        "tokenizer_config.json": {"tokenizer_class": "RagTokenizer", "name_or_path": EVIL}
    },
    "tokenizer without a class": {
        "tokenizer_config.json": {"tokenizer_class": None, "processor_class": "BarkProcessor"},
        "config.json": {"model_type": "detr", "backbone": EVIL, "tokenizer_class": None},
    },
    "no tokenizer": {"tokenizer.json": None, "tokenizer_config.json": None},
    "generation": {
        "generation_config.json": {
            "custom_generate": EVIL,
            "assistant_model": EVIL,
            "transformers_version": "5.0",
        }
    },
    "processor": {
        "processor_config.json": {
            "speaker_embeddings": {"repo_or_path": EVIL},
            "processor_class": "BarkProcessor",
        },
        "preprocessor_config.json": {
            "image_processor_type": EVIL,
            "auto_map": {"AutoProcessor": f"{EVIL}--a.B"},
        },
    },
    "code": {"config.json": {"auto_map": {"AutoConfig": f"{EVIL}--a.B", CLASSIFIER: f"{EVIL}--a.C"}}},
    "kernels": {"config.json": {"attn_implementation": f"{EVIL}:flash", "_attn_implementation": EVIL}},
    "quantised": {
        "config.json": {
            "quantization_config": {"quant_method": "gptq", "bits": 4, "dataset": EVIL, "tokenizer": EVIL}
        }
    },
    "weights elsewhere": {"config.json": {"transformers_weights": f"https://hub/{EVIL}"}},
    "no weights": {"model.safetensors": None},
}
"""Files of a folder that name what lies elsewhere: their keys are set, or the file is removed."""


@pytest.fixture
def sockets(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was looked up or connected to, other than by threads of earlier tests, and those that they start."""
    asked: list[Any] = []
    earlier, start = set(threading.enumerate()) - {threading.current_thread()}, threading.Thread.start

    def started(thread: threading.Thread) -> None:
        if threading.current_thread() in earlier:
            earlier.add(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", started)

    def refusing(original: Callable[..., Any]) -> Callable[..., Any]:
        def refuse(*where: Any, **how: Any) -> Any:
            if threading.current_thread() in earlier:
                return original(*where, **how)
            asked.append(where)
            raise OSError("no network")

        return refuse

    for owner, names in (
        (socket.socket, ("connect", "connect_ex")),
        (socket, ("getaddrinfo", "gethostbyname", "create_connection")),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, refusing(getattr(owner, name)))
    return asked


def change(folder: Path, files: dict[str, dict[str, Any] | None]) -> Path:
    """Set keys of a folder's JSON files, or remove them."""
    for name, settings in files.items():
        path = folder / name
        if settings is None:
            path.unlink(missing_ok=True)
        else:
            before = json.loads(path.read_text()) if path.exists() else {}
            path.write_text(json.dumps(before | settings))
    return folder


@pytest.mark.parametrize("case", NAMING)
def test_a_folder_is_loaded_without_the_network(
    case: str, tiny_model: Path, tmp_path: Path, sockets: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it names is refused or ignored by each way in which a folder is read."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    folder = str(change(Path(shutil.copytree(tiny_model, tmp_path / "model")), NAMING[case]))
    ways: list[Callable[[], Any]] = [
        lambda: longest_text(folder, load_tokenizer(folder)),
        lambda: pretrained_model(folder, CLASSIFIER, {"num_labels": 2}, {}, seed=0),
        lambda: pretrained_model(folder, "AutoModel", {}, {}, seed=0),
        lambda: new_model(folder, "AutoModelForSeq2SeqLM", {}, {}),
    ]
    for way in ways:
        with suppress(ModelError):
            way()
    assert sockets == []


LAYERS = "num_hidden_layers"
SIZES: dict[str, tuple[dict[str, Any], str]] = {
    "many layers": ({LAYERS: 20_000}, "num_hidden_layers = 20000"),
    "more layers": ({LAYERS: 10**7}, "num_hidden_layers = 10000000"),
    "layers below nothing": ({LAYERS: -1}, "num_hidden_layers = -1"),
    "layers as a text": ({LAYERS: "20000"}, "num_hidden_layers = 20000"),
    "layers as a fraction": ({LAYERS: 2e4}, "num_hidden_layers = 20000.0"),
    "layers without end": ({LAYERS: 1e400}, "num_hidden_layers = inf"),
    "layers in digits": ({LAYERS: 10**400}, "num_hidden_layers = 1000"),
    "layers in parts": ({"encoder": {"text": {"n_layer": 10**6}}}, "n_layer = 1000000"),
    "layers in a list": ({"parts": [{"depths": [2, 10**6]}]}, "depths = 1000000"),
    "kinds of layers": ({"layer_types": ["full_attention"] * 20_000}, "layer_types has more than"),
    "layers in lists of lists": (
        {"attention_types": [[["global"], 10**9]]},
        "attention_types has a number beyond",
    ),
    "groups": ({"num_hidden_groups": 10**6}, "num_hidden_groups = 1000000"),
    "labels": ({"num_labels": 10**12}, "num_labels = 1000000000000"),
    "positions": ({"max_position_embeddings": 10**9}, "max_position_embeddings = 1000000000"),
    "width": ({"hidden_size": 10**9}, "numbers, and its files have"),
    "computed positions": (
        {"model_type": "distilbert", "dim": 1024, "n_heads": 2, "max_position_embeddings": 10**6},
        "a table of 1000000 positions of 1024 numbers",
    ),
    "words": ({"vocab_size": 10**12}, "numbers, and its files have|cannot be loaded"),
    "type": ({"type_vocab_size": 10**12}, "numbers, and its files have|cannot be loaded"),
}


@pytest.mark.parametrize("case", SIZES)
def test_sizes_are_bounded_before_a_model_is_built(case: str, random_model: Any, tmp_path: Path) -> None:
    settings, message = SIZES[case]
    folder = change(
        Path(shutil.copytree(random_model("bert"), tmp_path / "model")), {"config.json": settings}
    )
    with pytest.raises(ModelError, match=message) as caught:
        pretrained_model(str(folder), CLASSIFIER, {"num_labels": 2}, {}, seed=0)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_sizes_of_the_experiment_are_bounded_too(random_model: Any) -> None:
    for overrides in ({LAYERS: 10**7}, {"max_position_embeddings": 10**10}):
        with pytest.raises(ModelError, match=r"\[model.config\]: .* a model has 0 to"):
            new_model(str(random_model("bert")), CLASSIFIER, {"num_labels": 2}, overrides)


def test_modules_are_counted_whatever_their_number_is_called(
    random_model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_bounds, "MOST_MODULES", 20)
    with pytest.raises(ModelError, match="a model of more than 20 modules"):
        new_model(str(random_model("bert")), CLASSIFIER, {"num_labels": 2}, {})
    with within_bounds():
        pass


def test_a_deep_model_is_built(random_model: Any, tmp_path: Path) -> None:
    folder = change(
        Path(shutil.copytree(random_model("gpt2", None), tmp_path / "deep")),
        {"config.json": {"n_layer": 500}},
    )
    assert not has_weights(str(folder))
    with without_memory():
        model = new_model(str(folder), "AutoModelForCausalLM", {}, {})
    assert sum(1 for name, _ in model.named_modules() if name.endswith(".mlp")) == 500


@pytest.mark.parametrize(("name", "length"), [("config.json", 65 << 20), ("tokenizer.json", 257 << 20)])
def test_files_are_bounded_before_they_are_read(
    name: str, length: int, random_model: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(random_model("bert"), tmp_path / "model"))
    with (folder / name).open("r+b") as file:
        file.truncate(length)  # no room is taken on the disk
    with pytest.raises(ModelError, match=rf"{name} has [0-9,]+ bytes, and such a file of a model at most"):
        load_tokenizer(str(folder))


DOUBLED = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BETWEEN = {"type": "Replace", "pattern": {"Regex": "(?:)"}, "content": "b"}
MARK = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
TEMPLATE = {"type": "TemplateProcessing", "single": [MARK], "pair": [MARK]}
LONG_TABLE = base64.b64encode((4).to_bytes(4, "little") + bytes(4) + b"a" * 90_000).decode()
GROWS, NO_TOKENIZER = "makes more than 65,536 characters of one", "is no tokenizer"
TOKENIZERS: dict[str, tuple[dict[str, Any], str]] = {
    "forty steps": ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLED] * 40}}, GROWS),
    "between characters": ({"normalizer": {"type": "Sequence", "normalizers": [BETWEEN] * 40}}, GROWS),
    "bytes of bytes": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 40}},
        GROWS,
    ),
    "as it is written": ({"decoder": {"type": "Sequence", "decoders": [DOUBLED] * 40}}, GROWS),
    "a long beginning": ({"normalizer": {"type": "Prepend", "prepend": "a" * 10**6}}, GROWS),
    "a table cut short": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}},
        NO_TOKENIZER,
    ),
    "a table of long texts": (
        {"normalizer": {"type": "Precompiled", "precompiled_charsmap": LONG_TABLE}},
        GROWS,
    ),
    "many marks": (
        {
            "post_processor": TEMPLATE
            | {"single": [MARK] * 65, "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2]}}}
        },
        "more than 64 tokens around a text",
    ),
    "a long mark": (
        {"post_processor": TEMPLATE | {"special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2] * 65}}}},
        "more than 64 tokens around a text",
    ),
    "a mark of no model": (
        {"post_processor": TEMPLATE | {"special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2**31]}}}},
        "a token has the number 2147483648",
    ),
    "a word of no model": (
        {"model": {"type": "WordPiece", "vocab": {"a": 2**31}}},
        "a token has the number 2147483648",
    ),
    "no model": ({"model": None}, NO_TOKENIZER),
    "a table that panics": (
        {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}},
        "the tokenizer in .* fails",
    ),
}
TOKENIZERS["a table that panics"][0]["model"]["continuing_subword_prefix"] = "zzzzzz"
BACKTRACKING = {"type": "Split", "pattern": {"Regex": "(a+a+)+$"}, "behavior": "Isolated", "invert": False}


def with_tokenizer(folder: Path, changes: dict[str, Any]) -> str:
    """Change a tokenizer, and have transformers take it as it stands in the file."""
    as_it_stands = {"tokenizer_class": "PreTrainedTokenizerFast"}
    return str(change(folder, {"tokenizer.json": changes, "tokenizer_config.json": as_it_stands}))


@pytest.mark.parametrize("case", TOKENIZERS)
def test_steps_of_a_tokenizer_are_bounded(case: str, tiny_model: Path, tmp_path: Path) -> None:
    changes, message = TOKENIZERS[case]
    folder = with_tokenizer(Path(shutil.copytree(tiny_model, tmp_path / "model")), changes)
    with pytest.raises(ModelError, match=message) as caught:
        load_tokenizer(folder)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_that_panics_at_a_text_is_an_error(tiny_model: Path, tmp_path: Path) -> None:
    folder = with_tokenizer(
        Path(shutil.copytree(tiny_model, tmp_path / "model")), {"pre_tokenizer": BACKTRACKING}
    )
    tokenizer = load_tokenizer(folder)
    with pytest.raises(ModelError, match=r"the tokenizer in .* fails \(Onig: Regex search error"):
        tokenizer("a" * 60 + "b")
    tokenizer.save_pretrained(tmp_path / "saved")
    saved = json.loads((tmp_path / "saved" / "tokenizer_config.json").read_text())
    assert "Guarded" not in saved["tokenizer_class"]
    assert load_tokenizer(str(tmp_path / "saved"))("a")["input_ids"] == tokenizer("a")["input_ids"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[]", "", "{", "\xff", "{}" + "x"])
def test_a_configuration_that_is_none_is_said(text: str, random_model: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(random_model("bert"), tmp_path / "model"))
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelError, match=r"config\.json"):
        longest_text(str(folder), object())


@pytest.mark.parametrize(
    "changes",
    [
        {"num_virtual_tokens": 10**9},
        {"num_virtual_tokens": 2, "token_dim": 10**9},
        {"num_virtual_tokens": 2, "token_dim": 8, "num_transformer_submodules": 10**9},
        {"num_virtual_tokens": -1},
    ],
)
def test_a_prompt_is_as_large_as_its_file(changes: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_model.safetensors").write_bytes(bytes(100))
    saved = {"peft_type": "PROMPT_TUNING", "task_type": "SEQ_CLS"} | changes
    (tmp_path / "adapter" / "adapter_config.json").write_text(json.dumps(saved))
    with pytest.raises(ModelError, match="numbers, and its file has 100 bytes"):
        with_saved_prompt(object(), tmp_path)  # type: ignore[arg-type]


@hypothesis_settings(max_examples=30)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.just(LAYERS), inner),
    )
)
@pytest.mark.whole
def test_any_settings_are_taken_or_refused(value: Any) -> None:
    with suppress(ModelError):
        require_bounded({"a": value}, "config.json")
