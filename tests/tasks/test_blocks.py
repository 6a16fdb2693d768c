"""Blocks hold every token; logits at some places are those of all places there."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.tasks import blocks
from fednlp.tasks.blocks import logits_at, no_cache, pad_rows, split_batch, split_into_rows

from .models import bert, gpt2


@given(
    lists=st.lists(st.tuples(st.integers(1, 40), st.integers(3, 9)), min_size=1, max_size=6),
    overlap=st.integers(0, 2),
)
def test_rows_put_together_are_the_lists(lists: list[tuple[int, int]], overlap: int) -> None:
    lengths, sizes = np.array(lists).T
    starts, widths, owners = split_into_rows(lengths, sizes, overlap)
    flat = np.arange(lengths.sum())
    rows = pad_rows(flat, starts, widths, -1)
    assert rows.shape == (len(owners), widths.max())
    assert bool((widths <= sizes[owners]).all())
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    for owner in range(len(lengths)):
        mine = [row[row >= 0] for row in rows[owners == owner]]
        joined = np.concatenate([mine[0], *(row[overlap:] for row in mine[1:])])
        np.testing.assert_array_equal(joined, flat[offsets[owner] : offsets[owner + 1]])
        for before, after in itertools.pairwise(mine):
            np.testing.assert_array_equal(before[len(before) - overlap :], after[:overlap])
            assert len(after) > overlap  # every row but the first has something new


def models() -> dict[str, tuple[str, Any]]:
    import transformers

    small = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    small |= {"intermediate_size": 64}
    return {
        "bert": ("AutoModelForMaskedLM", bert(31)),
        "roberta": ("AutoModelForMaskedLM", transformers.RobertaConfig(**small, max_position_embeddings=32)),
        "distilbert": (
            "AutoModelForMaskedLM",
            transformers.DistilBertConfig(vocab_size=31, dim=32, n_layers=1, n_heads=4, hidden_dim=64),
        ),
        "albert": ("AutoModelForMaskedLM", transformers.AlbertConfig(**small, embedding_size=16)),
        "electra": ("AutoModelForMaskedLM", transformers.ElectraConfig(**small, embedding_size=16)),
        "mobilebert": (
            "AutoModelForMaskedLM",
            transformers.MobileBertConfig(vocab_size=31, num_hidden_layers=1),
        ),
        "gpt2": ("AutoModelForCausalLM", gpt2(31)),
        "llama": ("AutoModelForCausalLM", transformers.LlamaConfig(**small, num_key_value_heads=2)),
        "opt": (
            "AutoModelForCausalLM",
            transformers.OPTConfig(
                vocab_size=31,
                hidden_size=32,
                word_embed_proj_dim=32,
                ffn_dim=64,
                num_hidden_layers=1,
                num_attention_heads=4,
            ),
        ),
    }


NAMES = ("bert", "roberta", "distilbert", "albert", "electra", "mobilebert", "gpt2", "llama", "opt")


@pytest.mark.parametrize("name", NAMES)
def test_logits_at_some_places_are_those_of_all_places_there(name: str) -> None:
    import transformers

    kind, config = models()[name]
    model = getattr(transformers, kind).from_config(config).eval()
    ids = torch.randint(3, 31, (3, 7), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    places = torch.tensor([0, 5, 6, 7, 20])
    expected = model(**inputs).logits.flatten(0, 1)[places]
    found = logits_at(
        model, inputs | (no_cache(model) if kind.endswith("CausalLM") else {}), places, ids.shape
    )
    torch.testing.assert_close(found, expected)
    everything = model(**inputs).logits
    assert everything.shape == (3, 7, 31)  # the model is left as it was
    assert logits_at(model, inputs, places[:0], ids.shape).shape == (0, 31)


def test_the_last_layer_reads_no_other_places(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    model = transformers.AutoModelForMaskedLM.from_config(bert(31)).eval()
    seen: list[torch.Size] = []
    inner = torch.nn.functional.linear
    monkeypatch.setattr(
        torch.nn.functional, "linear", lambda x, *rest: seen.append(x.shape) or inner(x, *rest)
    )
    ids = torch.full((2, 5), 7)
    logits_at(model, {"input_ids": ids}, torch.tensor([3]), ids.shape)
    assert seen[-1] == (1, 32)


def test_a_model_that_fails_is_left_as_it_was() -> None:
    import transformers

    model = transformers.AutoModelForMaskedLM.from_config(bert(31)).eval()
    ids = torch.full((2, 5), 7)
    with pytest.raises(IndexError):
        logits_at(model, {"input_ids": ids + 99}, torch.tensor([3]), ids.shape)
    assert model(input_ids=ids).logits.shape == (2, 5, 31)


@given(rows=st.integers(1, 20), width=st.integers(1, 5), most=st.integers(1, 7), data=st.data())
@pytest.mark.whole
def test_pieces_hold_each_row_and_place_once(rows: int, width: int, most: int, data: Any) -> None:
    places = sorted(data.draw(st.sets(st.integers(0, rows * width - 1))))
    ids = torch.arange(rows * width).view(rows, width)
    batch = {"input_ids": ids, "places": torch.tensor(places, dtype=torch.int64)}
    batch["labels"] = batch["places"] * 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MAX_LOGITS", most * width * 11)
        parts = list(split_batch(batch, 11, width))
    assert torch.equal(torch.cat([part["input_ids"] for part in parts]), ids)
    assert torch.equal(torch.cat([part["labels"] for part in parts]), batch["labels"])
    for part in parts:
        assert len(part["input_ids"]) <= most
        assert torch.equal(part["input_ids"].flatten()[part["places"]] * 10, part["labels"])
