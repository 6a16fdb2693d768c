"""GGUF files become ordinary folders: the same numbers, once."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fednlp.errors import MissingDependency, ModelError
from fednlp.hubs.checksums import SMOLLM2
from fednlp.models.pretrained import load_tokenizer, longest_text, new_model, pretrained_model
from fednlp.models.resolve import resolve_model
from fednlp.training.model_layout import layout_of

WORDS = ["<unk>", "<s>", "</s>", *(chr(code) for code in range(97, 123)), "Ġ", "ab", "Ġa"]
WIDTH, HEADS, INNER = 32, 2, 64


def interleaved(weight: np.ndarray) -> np.ndarray:
    """Return a query or key projection as GGUF orders it for llama: rotary halves interleaved, head by head."""
    rows, columns = weight.shape
    halves = weight.reshape(HEADS, 2, rows // HEADS // 2, columns)
    return halves.swapaxes(1, 2).reshape(rows, columns)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """Write a one-layer llama as GGUF; return the file and what transformers should call its tensors."""
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    path = tmp_path_factory.mktemp("gguf") / "small.gguf"
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return rng.normal(size=shape).astype(np.float32)

    layer = "model.layers.0"
    named = {
        "token_embd.weight": ("model.embed_tokens.weight", draw(len(WORDS), WIDTH)),
        "output_norm.weight": ("model.norm.weight", draw(WIDTH)),
        "blk.0.attn_norm.weight": (f"{layer}.input_layernorm.weight", draw(WIDTH)),
        "blk.0.ffn_norm.weight": (f"{layer}.post_attention_layernorm.weight", draw(WIDTH)),
        "blk.0.attn_q.weight": (f"{layer}.self_attn.q_proj.weight", draw(WIDTH, WIDTH)),
        "blk.0.attn_k.weight": (f"{layer}.self_attn.k_proj.weight", draw(WIDTH, WIDTH)),
        "blk.0.attn_v.weight": (f"{layer}.self_attn.v_proj.weight", draw(WIDTH, WIDTH)),
        "blk.0.attn_output.weight": (f"{layer}.self_attn.o_proj.weight", draw(WIDTH, WIDTH)),
        "blk.0.ffn_gate.weight": (f"{layer}.mlp.gate_proj.weight", draw(INNER, WIDTH)),
        "blk.0.ffn_up.weight": (f"{layer}.mlp.up_proj.weight", draw(INNER, WIDTH)),
        "blk.0.ffn_down.weight": (f"{layer}.mlp.down_proj.weight", draw(WIDTH, INNER)),
    }
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(WORDS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3, 3, 3] + [1] * (len(WORDS) - 3))
    writer.add_token_merges(["a b", "Ġ a"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, (_, weight) in named.items():
        writer.add_tensor(name, interleaved(weight) if "attn_q" in name or "attn_k" in name else weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path, dict(named.values())


def test_a_file_becomes_a_folder_with_the_same_numbers(
    written: tuple[Path, dict[str, np.ndarray]], capfd: pytest.CaptureFixture[str]
) -> None:
    import transformers

    path, expected = written
    folder = resolve_model(str(path))
    assert "converting small.gguf (once" in capfd.readouterr().err
    assert resolve_model(str(path)) == folder
    assert capfd.readouterr().err == ""
    for model in (
        pretrained_model(folder, "AutoModelForCausalLM", {}, {}, 0),
        transformers.AutoModelForCausalLM.from_pretrained(folder),
    ):
        tensors = model.state_dict()
        for name, weight in expected.items():
            np.testing.assert_array_equal(tensors[name].numpy(), weight, err_msg=name)
        assert model.lm_head.weight is model.model.embed_tokens.weight
        assert getattr(model.config, "quantization_config", None) is None
    assert layout_of(new_model(folder, "AutoModelForCausalLM", {}, {})) == layout_of(model)


def test_its_tokenizer_comes_with_it(written: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder = resolve_model(str(written[0]))
    tokenizer = load_tokenizer(folder)
    assert tokenizer("ab a", add_special_tokens=False).input_ids == [WORDS.index("ab"), WORDS.index("Ġa")]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2)
    assert longest_text(folder, tokenizer) == 64


def test_files_that_are_none(tmp_path: Path, written: tuple[Path, dict[str, np.ndarray]]) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ModelError, match="no GGUF file"):
        resolve_model(str(tmp_path / "text.gguf"))
    whole = written[0].read_bytes()
    (tmp_path / "short.gguf").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match=r"short\.gguf cannot be loaded") as caught:
        resolve_model(str(tmp_path / "short.gguf"))
    assert "\n" not in str(caught.value)


def test_a_missing_library_names_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "some.gguf").write_bytes(b"GGUF and more")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependency, match=r"needs gguf.*pip install .*\[gguf\]"):
        resolve_model(str(tmp_path / "some.gguf"))


def test_a_missing_library_is_named_before_a_model_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDNLP_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependency, match=r"reading smollm2 needs gguf"):
        resolve_model("smollm2")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_smollm2_knows_the_capital_of_france() -> None:
    folder = resolve_model("smollm2")
    model, tokenizer = pretrained_model(folder, "AutoModelForCausalLM", {}, {}, 0), load_tokenizer(folder)
    assert layout_of(model).numel == 134_515_008
    ids = tokenizer("The capital of France is", return_tensors="pt")
    with torch.no_grad():
        assert tokenizer.decode(model(**ids).logits[0, -1].argmax()) == " Paris"


def test_the_pin_names_one_file() -> None:
    assert len(SMOLLM2.files) == 1
    assert next(iter(SMOLLM2.files)).endswith(".gguf")
