"""Remembered states: the same as the plain model's, whoever computed them, and nothing where they cannot be."""

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fednlp.training import activation_store as module
from fednlp.training.activation_cache import ActivationCache, _lengths, activation_cache_folder
from fednlp.training.activation_store import ActivationStore
from fednlp.training.frozen_prefix import FrozenPrefix, find_frozen_prefix

WORDS, LAYERS, PADDING = 40, 3, 0
SMALL: dict[str, Any] = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": PADDING,
}
PAIR: dict[str, Any] = {
    "vocab_size": WORDS,
    "d_model": 16,
    "encoder_layers": LAYERS,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "pad_token_id": PADDING,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "bert": SMALL,
    "roberta": SMALL,
    "modernbert": SMALL | {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    "deberta-v2": SMALL | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "conv_kernel_size": 3},
    "mpnet": SMALL,
    "llama": SMALL | {"num_key_value_heads": 1},
    "distilbert": {
        "vocab_size": WORDS,
        "dim": 16,
        "n_layers": LAYERS,
        "n_heads": 2,
        "hidden_dim": 32,
        "pad_token_id": PADDING,
    },
    "gpt2": {"vocab_size": WORDS, "n_embd": 16, "n_layer": LAYERS, "n_head": 2, "pad_token_id": PADDING},
    "bart": PAIR | {"encoder_layerdrop": 0.5},
    "marian": PAIR,
}
PAIRS = ("bart", "marian", "t5")


class Watched(NamedTuple):
    """A model, the frozen prefix of it, and how often its lowest block really ran (in a list of one number)."""

    model: nn.Module
    prefix: FrozenPrefix
    runs: list[int]


def built(kind: str, head: str | None = None, seed: int = 0, **changes: Any) -> nn.Module:
    """A small model with random weights, none of them zero."""
    import transformers

    sizes = KINDS.get(kind, SMALL) | changes
    head = head or ("AutoModelForSeq2SeqLM" if kind in PAIRS else "AutoModelForSequenceClassification")
    torch.manual_seed(seed)
    model: nn.Module = getattr(transformers, head).from_config(
        transformers.AutoConfig.for_model(kind, **sizes)
    )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def body_of(model: Any) -> Any:
    """The part of a model that reads tokens."""
    return model.get_encoder() if model.config.is_encoder_decoder else model.base_model


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """The blocks of a model's stack."""
    lists = [m for m in body_of(model).modules() if isinstance(m, nn.ModuleList) and len(m) == LAYERS]
    return list(lists[0])


def freeze(model: nn.Module, depth: int) -> nn.Module:
    """Freeze everything in the body but the blocks from ``depth`` up; a head of the body is trained."""
    body = body_of(model)
    body.requires_grad_(False)
    for block in blocks_of(model)[depth:]:
        block.requires_grad_(True)
    for name in ("pooler", "ln_f", "norm", "final_norm"):
        if isinstance(getattr(body, name, None), nn.Module):
            getattr(body, name).requires_grad_(True)
    return model


def watched(kind: str, depth: int = 2, **changes: Any) -> Watched:
    """A model with a frozen prefix."""
    model = freeze(built(kind, **changes), depth)
    prefix = find_frozen_prefix(model)
    assert prefix is not None
    assert prefix.blocks == blocks_of(model)[:depth]
    return Watched(model, prefix, counted(prefix))


def counted(prefix: FrozenPrefix) -> list[int]:
    """Count how often the lowest block runs, from now on."""
    runs = [0]
    inner = next(part for part in prefix.blocks[0].modules() if not list(part.children()))

    def count(called: nn.Module, args: Any) -> None:
        runs[0] += 1

    inner.register_forward_pre_hook(count)
    return runs


def batch_of(
    lengths: tuple[int, ...], left: bool = False, seed: int = 0, types: bool = False
) -> dict[str, Tensor]:
    """Rows of random tokens, padded."""
    rng = torch.Generator().manual_seed(seed)
    longest = max(lengths)
    ids = torch.randint(3, WORDS, (len(lengths), longest), generator=rng)
    place = torch.arange(longest)[None]
    length = torch.tensor(lengths)[:, None]
    mask = (place >= longest - length if left else place < length).long()
    batch = {"input_ids": ids.masked_fill(mask == 0, PADDING), "attention_mask": mask}
    if types:
        batch["token_type_ids"] = torch.randint(0, 2, ids.shape, generator=rng) * mask
    return batch


@pytest.fixture
def make_cache(tmp_path: Path) -> Iterator[Callable[..., ActivationCache]]:
    """Make memories in the test's folder, and close them after it."""
    made: list[ActivationCache] = []

    def make(prefix: FrozenPrefix, writer: int = 0) -> ActivationCache:
        made.append(ActivationCache(prefix, activation_cache_folder(prefix, tmp_path), writer))
        return made[-1]

    yield make
    for each in made:
        each.store.close()


def step(model: nn.Module, batch: dict[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """Logits and all gradients of one step, with dropout drawn from a seed."""
    model.zero_grad()
    torch.manual_seed(seed)
    more = {"decoder_input_ids": batch["input_ids"][:, :4]} if hasattr(model.config, "d_model") else {}
    logits = model(**batch, **more).logits
    logits.square().sum().backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return gradients | {"logits": logits.detach()}


def no_work(prefix: FrozenPrefix) -> None:
    """Let the prefix's computing fail from now on."""

    def refuse(inputs: Any) -> Tensor:
        raise AssertionError("computed again")

    prefix.compute = refuse  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("depth", [1, 2, LAYERS])
def test_remembering_changes_neither_outputs_nor_gradients(
    kind: str, depth: int, make_cache: Callable[..., ActivationCache]
) -> None:
    model, prefix, runs = watched(kind, depth)
    cache = make_cache(prefix)
    model.train()
    prefix.eval_mode()
    for left in (False, True):
        batch = batch_of((7, 3, 5, 7), left)
        plain = step(model, batch)
        with cache.attached():
            first = step(model, batch)
            runs[0] = 0
            again = step(model, batch)
        assert not runs[0]
        assert plain.keys() == first.keys()
        for name, expected in plain.items():
            largest = max(float(expected.abs().max()), 1.0)
            torch.testing.assert_close(first[name], expected, rtol=1e-5, atol=1e-5 * largest, msg=name)
            assert torch.equal(first[name], again[name])
    assert len(cache.store) == 6  # the two rows of 7 tokens without padding are the same both times


@pytest.mark.parametrize("kind", ["bert", "distilbert", "bart", "gpt2"])
def test_what_is_not_frozen_still_drops_and_the_bottom_never_does(
    kind: str, make_cache: Callable[..., ActivationCache]
) -> None:
    model, prefix, _ = watched(kind)
    cache, batch = make_cache(prefix), batch_of((6, 4))
    model.train()
    prefix.eval_mode()
    with cache.attached():
        one, other = step(model, batch, 1)["logits"], step(model, batch, 2)["logits"]
    assert not torch.allclose(one, other)
    below = [part.training for block in prefix.blocks for part in block.modules()]
    above = [part.training for block in blocks_of(model)[2:] for part in block.modules()]
    assert not any(below)
    assert all(above)
    torch.manual_seed(1)
    states = prefix.compute(batch)
    torch.manual_seed(2)
    assert torch.equal(states, prefix.compute(batch))


def test_token_types_tell_rows_apart(make_cache: Callable[..., ActivationCache]) -> None:
    model, prefix, _ = watched("bert")
    cache, batch = make_cache(prefix), batch_of((6, 4), types=True)
    other = batch | {"token_type_ids": (1 - batch["token_type_ids"]) * batch["attention_mask"]}
    model.eval()
    for typed in (batch, other):
        plain = step(model, typed)["logits"]
        with cache.attached():
            torch.testing.assert_close(step(model, typed)["logits"], plain, rtol=1e-5, atol=1e-5)
    assert len(cache.store) == 4


@settings(max_examples=15)
@given(order=st.permutations(range(6)), cuts=st.sets(st.integers(1, 5)), seed=st.integers(0, 3))
@pytest.mark.whole
def test_states_do_not_depend_on_the_batch_that_met_them_first(
    order: list[int], cuts: set[int], seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    model, prefix, _ = watched("bert")
    batch = batch_of((9, 2, 5, 7, 1, 8), seed=seed)
    cache = ActivationCache(prefix, tmp_path_factory.mktemp("states"), 0)
    model.eval()
    edges = [0, *sorted(cuts), 6]
    with cache.attached(), torch.inference_mode():
        for start, stop in pairwise(edges):
            model(**{name: tensor[order[start:stop]] for name, tensor in batch.items()})
    states = cache._states_of(batch)
    assert states is not None
    for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
        alone = prefix.compute({name: tensor[row : row + 1, :length] for name, tensor in batch.items()})
        assert torch.equal(states[row, :length], alone[0])
        assert not states[row, length:].any()
    cache.store.close()


@pytest.mark.parametrize("numbers", [(0, 1), (0, 0)])
def test_two_writers_share_what_they_compute(
    numbers: tuple[int, int], make_cache: Callable[..., ActivationCache]
) -> None:
    model, prefix, _ = watched("bert")
    first, second = (make_cache(prefix, number) for number in numbers)
    batches = [batch_of((5, 3), seed=seed) for seed in range(2)]
    model.eval()
    made = []
    for cache, batch in zip((first, second), batches, strict=True):
        with cache.attached():
            made.append(step(model, batch)["logits"])
    assert len(list(first.store.folder.glob("states-*.f32"))) == 2
    no_work(prefix)
    with first.attached(), pytest.raises(AssertionError, match="computed again"):
        step(model, batches[1])
    for cache in (first, second):
        cache.refresh()
        with cache.attached():
            for batch, expected in zip(batches, made, strict=True):
                assert torch.equal(step(model, batch)["logits"], expected)
    with make_cache(prefix, 7).attached():  # a later run
        step(model, batches[0])


def test_what_was_cut_off_is_computed_again(make_cache: Callable[..., ActivationCache]) -> None:
    model, prefix, runs = watched("bert")
    cache, batch = make_cache(prefix), batch_of((5, 3))
    model.eval()
    with cache.attached():
        expected = step(model, batch)["logits"]
    cache.store.close()
    index, states = (cache.store.folder / name for name in ("index-0.bin", "states-0.f32"))
    whole = index.read_bytes()
    index.write_bytes(whole[:-5])
    torn = make_cache(prefix)
    assert len(torn.store) == 1
    with torn.attached():
        assert torch.equal(step(model, batch)["logits"], expected)
    torn.store.close()
    later = make_cache(prefix)
    assert len(later.store) == 2  # the torn record is gone, and the new one is in its place
    states.write_bytes(states.read_bytes()[:-4])
    runs[0] = 0
    with later.attached():  # it knew of the states before they were cut
        assert torch.equal(step(model, batch)["logits"], expected)
    assert runs[0] == 1
    later.store.close()
    index.write_bytes(index.read_bytes()[: 2 * 32] + b"\xff" * 32)
    states.write_bytes(states.read_bytes()[: 5 * prefix.width * 4 - 1])
    assert len(make_cache(prefix).store) == 0


def test_folders_differ_where_states_might(tmp_path: Path) -> None:
    def folder(kind: str = "bert", depth: int = 2, **changes: Any) -> Path:
        return activation_cache_folder(watched(kind, depth, **changes).prefix, tmp_path)

    usual = folder()
    assert usual.parent == tmp_path / "states"
    same = freeze(built("bert", num_labels=5, seed=1), 2)
    body_of(same).load_state_dict(body_of(built("bert")).state_dict())
    found = find_frozen_prefix(same)
    assert found is not None
    assert activation_cache_folder(found, tmp_path) == usual
    others = [folder(depth=1), folder(seed=1), folder(layer_norm_eps=1e-6), folder("roberta")]
    assert len({usual, *others}) == 5
    changed = watched("bert")
    with torch.no_grad():
        blocks_of(changed.model)[2].output.dense.weight.add_(1)
    assert activation_cache_folder(changed.prefix, tmp_path) == usual
    with torch.no_grad():
        blocks_of(changed.model)[1].output.dense.bias[3] += 1e-6
    assert activation_cache_folder(changed.prefix, tmp_path) != usual


def test_no_bottom_where_it_is_trained() -> None:
    assert find_frozen_prefix(built("bert")) is None
    assert find_frozen_prefix(freeze(built("bert"), 0)) is None
    for part in ("word_embeddings", "position_embeddings", "LayerNorm"):
        model = freeze(built("bert"), 2)
        getattr(body_of(model).embeddings, part).requires_grad_(True)
        assert find_frozen_prefix(model) is None, part
    gap = freeze(built("bert"), 3)
    blocks_of(gap)[1].requires_grad_(True)
    found = find_frozen_prefix(gap)
    assert found is not None
    assert found.blocks == blocks_of(gap)[:1]
    model = freeze(built("mpnet"), 2)
    body_of(model).encoder.relative_attention_bias.requires_grad_(True)
    assert find_frozen_prefix(model) is None


def test_no_bottom_where_the_architecture_has_none() -> None:
    import fednlp.models.lstm  # noqa: F401

    t5 = built("t5", d_model=16, d_kv=8, d_ff=32, num_layers=LAYERS, num_heads=2, decoder_start_token_id=0)
    bloom = built("bloom", n_layer=LAYERS, n_head=2)
    for model in (t5, bloom, built("albert", embedding_size=8), built("fednlp-lstm", embedding_size=8)):
        model.requires_grad_(False)
        modes = [part.training for part in model.modules()]
        assert find_frozen_prefix(model) is None
        assert [part.training for part in model.modules()] == modes
    assert find_frozen_prefix(nn.Linear(2, 2)) is None


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # PEFT asks by the old name
def test_adapters_above_the_bottom_are_seen_through(make_cache: Callable[..., ActivationCache]) -> None:
    peft = pytest.importorskip("peft")

    def adapted(layers: str) -> nn.Module:
        torch.manual_seed(0)
        config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=rf".*layer\.{layers}\..*(query|value)")
        model: nn.Module = peft.get_peft_model(built("bert"), config)
        return model

    assert find_frozen_prefix(adapted(r"\d")) is None
    model = adapted("2")
    prefix = find_frozen_prefix(model)
    assert prefix is not None
    assert len(prefix.blocks) == 2
    cache, batch = make_cache(prefix), batch_of((6, 4))
    model.train()
    prefix.eval_mode()
    plain = step(model, batch)
    with cache.attached():
        for name, value in step(model, batch).items():
            torch.testing.assert_close(value, plain[name], rtol=1e-4, atol=1e-5)
    assert len(cache.store) == 2


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("method", ["PromptTuningConfig", "PrefixTuningConfig"])
def test_no_bottom_below_a_trained_prompt(method: str) -> None:
    peft = pytest.importorskip("peft")
    config = getattr(peft, method)(task_type="SEQ_CLS", num_virtual_tokens=2)
    assert find_frozen_prefix(peft.get_peft_model(built("bert"), config)) is None


def test_calls_with_anything_else_run_as_usual(make_cache: Callable[..., ActivationCache]) -> None:
    model, prefix, _ = watched("llama")
    cache, batch = make_cache(prefix), batch_of((6, 4))
    ids, mask = batch["input_ids"], batch["attention_mask"]
    holes = mask.clone()
    holes[1] = 0
    vectors = model.get_input_embeddings()(ids)
    calls: list[dict[str, Any]] = [
        {"input_ids": ids},
        {"input_ids": ids, "attention_mask": holes},
        {"input_ids": ids, "attention_mask": mask * 2},
        {"inputs_embeds": vectors, "attention_mask": mask},
        {"input_ids": ids, "attention_mask": mask, "position_ids": torch.arange(6)[None] + 1},
        {"input_ids": ids, "attention_mask": mask, "use_cache": True},
        {"input_ids": ids, "attention_mask": mask, "output_hidden_states": True},
    ]
    body = body_of(model).eval()
    for call in calls:
        plain = body(**call)
        with cache.attached():
            made = body(**call)
        assert torch.equal(made[0], plain[0])
        assert (made.past_key_values is None) == (plain.past_key_values is None)
    assert not len(cache.store)
    with cache.attached():
        body(ids, mask)
    assert len(cache.store) == 2


def test_generating_is_the_same(make_cache: Callable[..., ActivationCache]) -> None:
    for kind, head, kept in (("gpt2", "AutoModelForCausalLM", 0), ("bart", None, 3)):
        model, prefix, runs = watched(kind, head=head)
        cache, batch = make_cache(prefix), batch_of((6, 4, 5), left=kind == "gpt2")
        model.eval()
        for beams in (1, 2):
            options = {"max_new_tokens": 5, "num_beams": beams, "do_sample": False}
            plain = model.generate(**batch, **options)
            runs[0] = 0
            with cache.attached():
                assert torch.equal(model.generate(**batch, **options), plain)
            assert len(cache.store) == kept
        assert bool(runs[0]) == (kind == "gpt2")


def test_a_full_disk_ends_the_keeping_and_nothing_else(
    make_cache: Callable[..., ActivationCache],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is computed is the same to the bit as what is kept elsewhere, or is not kept at all."""
    model, prefix, runs = watched("bert")
    cache, known, new = make_cache(prefix), batch_of((5, 3)), batch_of((4, 6), seed=1)
    model.eval()
    with cache.attached():
        step(model, known)
    usage = module.shutil.disk_usage(cache.store.folder)
    monkeypatch.setattr(module.shutil, "disk_usage", lambda folder: usage._replace(free=2**31 - 1))
    with ActivationCache(prefix, None, 0).attached():
        plain = step(model, new)["logits"]
    with caplog.at_level(logging.WARNING), cache.attached():
        for _ in range(2):
            assert torch.equal(step(model, new)["logits"], plain)
        runs[0] = 0
        step(model, known)
    assert not runs[0]
    assert len(cache.store) == 2
    assert [record.message.endswith("2 GiB are free") for record in caplog.records] == [True]
    monkeypatch.undo()
    with make_cache(prefix, 1).attached():
        assert all(torch.equal(step(model, new)["logits"], plain) for _ in range(2))


def test_a_failed_call_leaves_the_model_as_it_was(make_cache: Callable[..., ActivationCache]) -> None:
    model, prefix, _ = watched("bert")
    cache, batch = make_cache(prefix), batch_of((5, 3))
    model.eval()
    plain = step(model, batch)["logits"]
    names = list(model.state_dict())
    boom = blocks_of(model)[2].register_forward_pre_hook(lambda *_: 1 / 0)
    with suppress(ZeroDivisionError), cache.attached():
        step(model, batch)
    boom.remove()
    assert torch.equal(step(model, batch)["logits"], plain)
    assert list(model.state_dict()) == names
    assert not any("forward" in vars(part) for part in model.modules())
    assert not any(part._forward_pre_hooks for part in model.modules() if part is body_of(model))


@settings(max_examples=40)
@given(
    rows=st.lists(st.tuples(st.integers(0, 1), st.binary(min_size=1, max_size=2)), max_size=40),
    unknown=st.binary(min_size=3, max_size=3),
)
def test_states_are_found_among_many(
    rows: list[tuple[int, bytes]], unknown: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_SORTED_IN", 3)
        sides = [ActivationStore(folder, number, 2) for number in range(2)]
        model: dict[bytes, np.ndarray] = {}
        for number, (side, short) in enumerate(rows):
            key = short.ljust(16, b"\0")  # digests may end in zeros
            if sides[side].find(key) is None:
                kept = model.get(key, np.full((1 + number % 3, 2), number, np.float32))
                sides[side].add(key, kept)
                model[key] = kept
        for side in sides:
            side.flush()
        for side in sides:
            side.refresh()
            assert len(side) == len(model)
            for key, states in model.items():
                place = side.find(key)
                assert place is not None
                into = np.empty_like(states)
                assert side.read(place, into)
                assert (into == states).all()
            assert side.find(unknown.ljust(16, b"\1")) is None
        for side in sides:
            side.close()


def test_rows_of_another_shape_cannot_be_told_from_padding() -> None:
    ids, mask = np.zeros((2, 3), np.int64), np.array([[1, 1, 0], [1, 1, 1]])
    assert _lengths({"input_ids": ids, "attention_mask": mask, "token_type_ids": ids}) == [2, 3]
    for other in ((1, 3), (2, 2), (3, 3), (2,)):
        rows = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros(other, np.int64)}
        assert _lengths(rows) is None
