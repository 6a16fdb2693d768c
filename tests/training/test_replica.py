"""The replica: one flat buffer, words by rows, and the same steps as plain PyTorch."""

import copy
import math
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednlp.federated.client import Gradient
from fednlp.federated.sums import ExactSum, NonFiniteUpdate, check_finite
from fednlp.models.pretrained import new_model, pretrained_model
from fednlp.training.local_training import LocalTraining
from fednlp.training.model_layout import decayed_names, flat_weights, layout_of
from fednlp.training.optimizers import make_optimizer
from fednlp.training.replica import Replica

WORDS = 23


class Toy(nn.Module):
    """An embedding, a norm with statistics, biases, and an integer buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 4, padding_idx=3)
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)
        self.register_buffer("positions", torch.arange(5))

    def get_input_embeddings(self) -> nn.Embedding:
        return self.words

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.words(ids).mean(1)))


def toy(seed: int = 0) -> Toy:
    torch.manual_seed(seed)
    return Toy()


def steps(ids: torch.Tensor, labels: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(ids.split(4), labels.split(4), strict=True))


def pull(mu: float) -> Gradient:
    """FedProx's part of the gradient."""
    return lambda g, y, x: g.add_(y - x, alpha=mu)


def add_update(replica: Replica, total: ExactSum, weight: float = 1.0) -> None:
    """Add what a replica was trained by to a sum."""
    check_finite(replica.own())
    update = replica.take_update()
    total.add(weight, update.dense, update.rows, update.table)


def plain(
    model: Toy, options: LocalTraining, ids: torch.Tensor, labels: torch.Tensor, mu: float = 0.0
) -> dict[str, torch.Tensor]:
    """The same training in PyTorch as everybody writes it."""
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    decay = [p for n, p in trained.items() if not (n.endswith("bias") or n.startswith("norm."))]
    rest = [p for n, p in trained.items() if n.endswith("bias") or n.startswith("norm.")]
    groups = [{"params": decay, "weight_decay": options.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    makers = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    more = {"momentum": options.momentum} if options.optimizer == "sgd" else {}
    if options.optimizer == "adagrad":
        optimizer: torch.optim.Optimizer = torch.optim.Adagrad(groups, lr=options.learning_rate)
    else:
        optimizer = makers[options.optimizer](groups, lr=options.learning_rate, **more)
    start = copy.deepcopy(trained)
    model.train()
    for batch, label in steps(ids, labels):
        loss = nn.functional.cross_entropy(model(batch), label)
        if mu:
            gap = sum(((p - start[n].detach()) ** 2).sum() for n, p in trained.items())
            loss = loss + mu / 2 * gap
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {n: t.detach().clone() for n, t in model.state_dict().items()}


def same(value: torch.Tensor, expected: torch.Tensor, exact: torch.Tensor, name: str) -> None:
    """Compare with what PyTorch gives, to within what it loses itself in 32 bits.

    Adam divides a gradient by its size: one that is nothing but rounding moves a weight all the same.
    """
    noise = float((expected.double() - exact).abs().max())
    torch.testing.assert_close(value, expected, rtol=2e-5, atol=2e-6 + 10 * noise, msg=name)


def federated(
    model: Toy,
    options: LocalTraining,
    ids: torch.Tensor,
    labels: torch.Tensor,
    by_rows: bool,
    mu: float = 0.0,
) -> torch.Tensor:
    """The same training through the replica; returns the flat update by way of an exact sum."""
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), by_rows)
    replica.load(x, ids.flatten() if by_rows else None)
    optimizer = make_optimizer(options, replica.groups)
    replica.model.train()
    for batch, label in steps(ids, labels):
        loss = nn.functional.cross_entropy(replica.model(batch), label)
        replica.zero_grad()
        loss.backward()
        if mu:
            replica.change_gradient(pull(mu), replica.stretches([x]), sparse=True)
        optimizer.step()
    total = ExactSum(replica.layout)
    add_update(replica, total)
    return x + total.mean(1.0)[0]


OPTIONS = [
    (LocalTraining(optimizer="sgd", learning_rate=0.3), 0.0),
    (LocalTraining(optimizer="sgd", learning_rate=0.1, momentum=0.9), 0.0),
    (LocalTraining(optimizer="adam", learning_rate=0.01), 0.0),
    (LocalTraining(optimizer="adamw", learning_rate=0.01), 0.0),
    (LocalTraining(optimizer="adagrad", learning_rate=0.05), 0.0),
    (LocalTraining(optimizer="sgd", learning_rate=0.3), 0.5),
    (LocalTraining(optimizer="adamw", learning_rate=0.01, weight_decay=0.1), 0.0),
]
NAMES = [f"{o.optimizer}-{o.momentum}-{mu}-{o.weight_decay}" for o, mu in OPTIONS]
"""Each with FedProx's mu."""


@pytest.mark.parametrize(("options", "mu"), OPTIONS, ids=NAMES)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000), used=st.integers(6, WORDS))
def test_training_equals_plain_pytorch(options: LocalTraining, mu: float, seed: int, used: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    words = torch.randperm(WORDS, generator=rng)[:used]
    ids = words[torch.randint(0, used, (16, 5), generator=rng)]
    labels = torch.randint(0, 2, (16,), generator=rng)
    expected = plain(toy(seed), options, ids, labels, mu)
    exact = plain(toy(seed).double(), options, ids, labels, mu)
    for by_rows in {False, options.leaves_zero_gradients_alone}:
        model = toy(seed)
        layout = layout_of(model)
        got = layout.views(federated(model, options, ids, labels, by_rows, mu))
        for name, value in got.items():
            same(value, expected[name], exact[name], f"{name}, by rows {by_rows}")


class Idle(Toy):
    """A toy with one layer that nothing reaches, and one that only every second batch does."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.sometimes, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        mean = self.norm(self.words(ids).mean(1))
        return self.out(self.sometimes(mean) if self.calls % 2 else mean)


def test_weight_decay_leaves_alone_what_has_no_gradient() -> None:
    """As PyTorch does, where such a parameter's gradient is None."""
    options = LocalTraining(optimizer="sgd", learning_rate=0.3, weight_decay=0.5)
    draw = torch.Generator().manual_seed(0)
    ids, labels = torch.randint(0, WORDS, (16, 5), generator=draw), torch.randint(0, 2, (16,), generator=draw)
    torch.manual_seed(0)
    model = Idle()
    start, by_hand = copy.deepcopy(model.state_dict()), copy.deepcopy(model)
    expected, exact = (
        plain(by_hand, options, ids, labels),
        plain(copy.deepcopy(model).double(), options, ids, labels),
    )
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), False, decaying=True)
    replica.load(x)
    optimizer = make_optimizer(options, replica.groups)
    replica.model.train()
    for batch, label in steps(ids, labels):
        replica.zero_grad()
        nn.functional.cross_entropy(replica.model(batch), label).backward()
        with replica.flat.unreached_kept():
            optimizer.step()
    replica.store(x)
    for name, value in replica.layout.views(x).items():
        same(value, expected[name], exact[name], name)
    assert torch.equal(replica.layout.views(x)["unused.weight"], start["unused.weight"])


def test_a_pull_reaches_shared_parameters_alone() -> None:
    """Without FedProx's pull, as in fine-tuning, and in personal layers, no gradient still means no weight decay."""
    options = LocalTraining(optimizer="sgd", learning_rate=0.3, weight_decay=0.5)
    ids, labels = torch.zeros(4, 5, dtype=torch.long), torch.zeros(4, dtype=torch.long)
    moved = {}
    for personal in (frozenset[str](), frozenset({"unused.weight"})):
        for mu in (0.0, 0.5):
            model = Idle()
            replica = Replica(model, torch.device("cpu"), False, personal, decaying=True)
            replica.load(flat_weights(Idle(), personal))
            before = model.unused.weight.detach().clone()
            replica.zero_grad()
            nn.functional.cross_entropy(replica.model(ids), labels).backward()
            if mu:
                hook = pull(mu)
                replica.change_gradient(
                    hook, replica.stretches([flat_weights(Idle(), personal)]), sparse=True
                )
            with replica.flat.unreached_kept():
                make_optimizer(options, replica.groups).step()
            moved[bool(personal), mu] = not torch.equal(model.unused.weight, before)
    assert moved == {(False, 0.0): False, (False, 0.5): True, (True, 0.0): False, (True, 0.5): False}


def test_untouched_words_do_not_move_and_are_not_reported() -> None:
    model = toy()
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), True)
    replica.load(x, torch.tensor([7, 9]))
    assert torch.equal(replica.model.words(torch.tensor([7, 9, 3])), replica.layout.rows(x)[[7, 9, 3]])
    assert replica.model.words.weight.shape == (3, 4)
    total = ExactSum(replica.layout)
    add_update(replica, total)
    assert total.touched_rows.nonzero().flatten().tolist() == [3, 7, 9]


def test_special_words_are_always_loaded() -> None:
    """Those of the model's own configuration, number 0 too, that the embedding has."""
    model = toy()
    model.config = SimpleNamespace(  # type: ignore[assignment]
        cls_token_id=0,
        sep_token_id=5,
        bos_token_id=WORDS,
        eos_token_id=-1,
        mask_token_id=None,
        pad_token_id=3,
    )
    replica = Replica(model, torch.device("cpu"), True)
    x = flat_weights(toy())
    replica.load(x, torch.tensor([7]))
    assert model.words.weight.shape == (4, 4)
    assert torch.equal(model.words(torch.tensor([0, 3, 5, 7])), replica.layout.rows(x)[[0, 3, 5, 7]])


def test_no_word_of_an_earlier_client_points_past_the_rows() -> None:
    model = toy()
    replica, x = Replica(model, torch.device("cpu"), True), flat_weights(toy())
    replica.load(x, torch.arange(WORDS))
    replica.load(x, torch.tensor([7]))
    assert model.words(torch.arange(WORDS)).shape == (WORDS, 4)


def test_an_embedding_that_scales_its_words_down_is_not_taken_by_rows() -> None:
    model = toy()
    assert layout_of(model).table == "words.weight"
    model.words.max_norm = 1.0
    assert layout_of(model).table is None


def test_training_begins_where_it_is_told_and_updates_are_measured_from_the_global_model() -> None:
    """All tensors, the words too, and a client's own."""
    own = frozenset({"out.weight"})
    replica = Replica(toy(), torch.device("cpu"), True, own)
    x = flat_weights(toy(1), own)
    replica.load(x, None, torch.full((8,), 7.0), x + 0.5)
    torch.testing.assert_close(replica.update(), torch.full_like(x, 0.5))
    assert torch.equal(replica.own(), torch.full((8,), 7.0))
    replica.load(x)
    assert torch.equal(replica.own(), replica.flat.first_own)
    assert not replica.update().any()


def test_a_pull_is_towards_what_was_loaded_and_of_parameters_alone() -> None:
    """A norm's statistics have no gradient, and words without one get none."""
    replica, x = Replica(toy(), torch.device("cpu"), True), flat_weights(toy(1))
    replica.load(x, None, None, x + 0.5)
    replica.zero_grad()
    pulled = pull(0.1), replica.stretches([x])
    replica.change_gradient(*pulled, sparse=True)
    layout = replica.layout
    for entry in layout.entries[:-1]:
        expected = 0.05 if entry.kind == "parameter" else 0.0
        gradient = replica.flat.gradient[entry.start : entry.stop]
        torch.testing.assert_close(gradient, torch.full_like(gradient, expected), msg=entry.name)
    assert replica.model.words.weight.grad is None
    replica.model.words.weight.grad = torch.ones(WORDS, 4)
    replica.change_gradient(*pulled, sparse=True)
    torch.testing.assert_close(replica.model.words.weight.grad, torch.full((WORDS, 4), 1.05))
    replica.zero_grad()
    replica.change_gradient(*pulled, sparse=False)  # a hook that is not zero there reaches every word
    torch.testing.assert_close(replica.model.words.weight.grad, torch.full((WORDS, 4), 0.05))


def test_a_hook_sees_the_rows_that_are_loaded_and_may_return_a_new_tensor() -> None:
    """(g, y, *vectors) of one stretch at a time: all have one shape, and belong together."""
    replica, x = Replica(toy(), torch.device("cpu"), True), flat_weights(toy(1))
    one, other = torch.arange(len(x)).float(), torch.ones(len(x))
    replica.load(x, torch.tensor([7, 9]))
    replica.zero_grad()
    replica.model.words.weight.grad = torch.zeros(3, 4)
    seen: list[tuple[int, ...]] = []

    def hook(g: torch.Tensor, y: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(y.shape))
        assert {g.shape, *(part.shape for part in parts)} == {y.shape}
        return g + parts[0] * parts[1]

    replica.change_gradient(hook, replica.stretches([one, other]), sparse=True)
    layout = replica.layout
    trained = layout.buffers.start
    assert seen == [(trained,), (3, 4)]
    assert torch.equal(replica.flat.gradient[:trained], one[:trained])
    assert not replica.flat.gradient[layout.buffers].any()
    assert torch.equal(replica.model.words.weight.grad, layout.rows(one)[[3, 7, 9]])


def test_bad_numbers_are_counted_wherever_they_are() -> None:
    """In shared tensors, in a client's own, and in words; an update with any of them is refused."""
    own = frozenset({"out.weight"})
    replica = Replica(toy(), torch.device("cpu"), True, own)
    x = flat_weights(toy(), own)
    for number, (name, count) in enumerate(
        [("norm.weight", 4), ("out.weight", 8), ("words.weight", WORDS * 4)]
    ):
        replica.load(x)
        assert replica.count_nonfinite() == 0
        replica.model.get_parameter(name).data.fill_([math.nan, math.inf, 1e30][number])
        assert replica.count_nonfinite() == count
        total = ExactSum(replica.layout)
        with pytest.raises(NonFiniteUpdate):
            add_update(replica, total)
        assert not total.storage.any()


def test_statistics_travel_only_from_parts_that_are_trained_as_a_whole() -> None:
    model = toy()
    assert "norm.running_mean" in {entry.name for entry in layout_of(model).entries}
    model.norm.bias.requires_grad_(False)
    assert "norm.running_mean" not in {entry.name for entry in layout_of(model).entries}


def test_layout_handles_every_tensor_by_name() -> None:
    layout = layout_of(toy())
    kinds = {entry.name: entry.kind for entry in layout.entries}
    assert kinds == {
        "norm.weight": "parameter",
        "out.weight": "parameter",
        "norm.bias": "parameter",
        "out.bias": "parameter",
        "norm.running_mean": "buffer",
        "norm.running_var": "buffer",
        "words.weight": "parameter",
    }
    assert layout.entries[-1].name == layout.table == "words.weight"


@pytest.mark.parametrize(
    "kind", ["bert", "distilbert", "roberta", "gpt2", "llama", "mpt", "t5", "bart", "lstm"]
)
def test_weight_decay_is_that_of_the_trainer_of_transformers(kind: str) -> None:
    import transformers
    from transformers.trainer_pt_utils import get_parameter_names

    from fednlp.models.lstm import LstmConfig

    small = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8, "vocab_size": 9}
    if kind == "bart":
        small = {"encoder_layers": 1, "decoder_layers": 1, "d_model": 16, "vocab_size": 9}
    made = LstmConfig if kind == "lstm" else partial(transformers.AutoConfig.for_model, kind)
    config = made(**({"vocab_size": 9} if kind == "lstm" else small))
    model = transformers.AutoModel.from_config(config)
    # Trainer.get_decay_parameter_names
    patterns = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]
    expected = set(get_parameter_names(model, [nn.LayerNorm], patterns))
    assert decayed_names(model) == expected


def test_a_tied_embedding_is_never_taken_by_rows() -> None:
    class Tied(Toy):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, WORDS, bias=False)
            self.head.weight = self.words.weight

    torch.manual_seed(0)
    assert layout_of(Tied()).table is None


def test_evaluation_sees_the_global_model() -> None:
    model, other = toy(1), toy(2)
    ids = torch.randint(0, WORDS, (6, 5))
    expected = copy.deepcopy(other).eval()(ids)
    replica = Replica(model, torch.device("cpu"), True)
    replica.load(flat_weights(other), torch.tensor([1, 2]))
    replica.load_for_evaluation(flat_weights(other))
    assert torch.equal(replica.model.eval()(ids), expected)


FROZEN = [
    ["norm.weight", "norm.bias"],
    ["words.weight"],
    ["words.weight", "norm.weight", "norm.bias"],
    ["out.weight"],
    ["out.bias", "norm.bias"],
    ["norm.weight", "norm.bias", "out.weight", "out.bias"],
]


def partly_frozen(frozen: list[str], seed: int) -> Toy:
    model = toy(seed)
    for name in frozen:
        model.get_parameter(name).requires_grad_(False)
    return model


@pytest.mark.parametrize("frozen", FROZEN, ids=",".join)
@pytest.mark.parametrize(("options", "mu"), OPTIONS, ids=NAMES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_frozen_parts_stay_and_the_others_train_as_in_plain_pytorch(
    options: LocalTraining, mu: float, frozen: list[str], seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, WORDS, (16, 5), generator=rng)
    labels = torch.randint(0, 2, (16,), generator=rng)
    expected = plain(partly_frozen(frozen, seed), options, ids, labels, mu)
    exact = plain(partly_frozen(frozen, seed).double(), options, ids, labels, mu)
    start = {name: tensor.clone() for name, tensor in toy(seed).state_dict().items()}
    for by_rows in {False, options.leaves_zero_gradients_alone and "words.weight" not in frozen}:
        model = partly_frozen(frozen, seed)
        layout = layout_of(model)
        names = {entry.name for entry in layout.entries}
        still = set(frozen) | ({"norm.running_mean", "norm.running_var"} if "norm.bias" in frozen else set())
        assert names == {n for n in start if n not in still and "positions" not in n and "num_b" not in n}
        assert (layout.table is None) is ("words.weight" in frozen)
        for name, value in layout.views(federated(model, options, ids, labels, by_rows, mu)).items():
            same(value, expected[name], exact[name], name)
        for name in frozen:
            assert torch.equal(model.get_parameter(name), start[name])
            assert model.get_parameter(name).grad is None


def test_statistics_of_a_frozen_part_do_not_pass_from_client_to_client() -> None:
    model = partly_frozen(["norm.weight", "norm.bias"], 0)
    before = model.norm.running_mean.clone()
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), True)
    replica.load(x)
    for again in (lambda: replica.load(x), lambda: replica.load_for_evaluation(x)):
        replica.train(True)
        replica.model(torch.randint(0, WORDS, (8, 5)))
        assert not torch.equal(model.norm.running_mean, before)
        again()
        assert torch.equal(model.norm.running_mean, before)


def test_every_module_is_switched_whatever_mode_its_parts_were_in() -> None:
    model = toy()
    model.norm.eval()
    replica = Replica(model, torch.device("cpu"), True)
    for training in (True, False):
        replica.train(training)
        assert {module.training for module in model.modules()} == {training}


LORA = {"method": "lora", "r": 2, "lora_alpha": 4}
HEAD = {"num_labels": 2, "pad_token_id": 0}


def lora_bert(folder: Path, build: object = pretrained_model) -> nn.Module:
    settings_ = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return build(str(folder), "AutoModelForSequenceClassification", HEAD, settings_, seed=5, peft=LORA)


@pytest.mark.whole
def test_a_federated_round_of_adapters_is_that_of_peft(tiny_model: Path) -> None:
    pytest.importorskip("peft")
    options = LocalTraining(optimizer="adamw", learning_rate=0.01, weight_decay=0.1)
    model = lora_bert(tiny_model, new_model)
    frozen = {n: p.clone() for n, p in model.named_parameters() if not p.requires_grad}
    x = flat_weights(lora_bert(tiny_model))
    replica = Replica(model, torch.device("cpu"), True)
    assert not replica.by_rows
    assert frozen
    total = ExactSum(replica.layout)
    rng = torch.Generator().manual_seed(0)
    expected = torch.zeros_like(x)
    for factor in (0.25, 0.75):
        ids = torch.randint(4, 30, (8, 6), generator=rng)
        labels = torch.randint(0, 2, (8,), generator=rng)
        replica.load(x)
        optimizer = make_optimizer(options, replica.groups)
        replica.train(True)
        by_hand = lora_bert(tiny_model).train()
        start = {n: p.detach().clone() for n, p in by_hand.named_parameters()}
        trained = {n: p for n, p in by_hand.named_parameters() if p.requires_grad}
        decayed = [p for n, p in trained.items() if not n.endswith("bias")]
        rest = [p for n, p in trained.items() if n.endswith("bias")]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
        usual = torch.optim.AdamW(groups, lr=0.01)
        for batch, label in steps(ids, labels):
            replica.zero_grad()
            nn.functional.cross_entropy(replica.model(input_ids=batch).logits, label).backward()
            replica.change_gradient(pull(0.1), replica.stretches([x]), sparse=True)
            optimizer.step()
            usual.zero_grad()
            gap = sum(((p - start[n]) ** 2).sum() for n, p in trained.items())
            (nn.functional.cross_entropy(by_hand(input_ids=batch).logits, label) + 0.05 * gap).backward()
            usual.step()
        add_update(replica, total, factor)
        expected += factor * (flat_weights(by_hand) - x)
    torch.testing.assert_close(total.mean(1.0)[0], expected, rtol=1e-3, atol=2e-5)
    assert expected.abs().max() > 0.01
    for entry in replica.layout.entries:
        assert "lora_" in entry.name or "modules_to_save" in entry.name
    replica.load(x)
    now = dict(model.named_parameters())
    assert all(torch.equal(now[n], p) and now[n].grad is None for n, p in frozen.items())


@pytest.mark.parametrize(
    ("kind", "model_class"),
    [("gpt2", "AutoModelForCausalLM"), ("bert", "AutoModelForMaskedLM"), ("t5", "AutoModelForSeq2SeqLM")],
)
def test_tied_weights_are_laid_out_once_and_stay_tied(kind: str, model_class: str, tmp_path: Path) -> None:
    import transformers

    sizes = {
        "gpt2": {"n_embd": 8, "n_layer": 1, "n_head": 2},
        "bert": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
        "t5": {"d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2},
    }[kind]
    config = transformers.AutoConfig.for_model(kind, vocab_size=19, **sizes)
    config.decoder_start_token_id = 0
    torch.manual_seed(0)
    model = getattr(transformers, model_class).from_config(config)
    words, out = model.get_input_embeddings(), model.get_output_embeddings()
    assert out.weight is words.weight
    layout = layout_of(model)
    assert layout.numel == sum(p.numel() for p in model.parameters())
    assert layout.table is None
    x = flat_weights(model) + 0.5
    replica = Replica(model, torch.device("cpu"), True)
    replica.load(x)
    assert out.weight is words.weight
    ids = torch.tensor([[3, 4, 5]])
    replica.train(False)
    expected = model(input_ids=ids, **({"labels": ids} if kind == "t5" else {})).logits
    stored = torch.empty_like(x)
    replica.store(stored)
    assert torch.equal(stored, x)
    model.save_pretrained(tmp_path)
    loaded = getattr(transformers, model_class).from_pretrained(tmp_path)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    again = loaded(input_ids=ids, **({"labels": ids} if kind == "t5" else {})).logits
    torch.testing.assert_close(again, expected)
    torch.testing.assert_close(flat_weights(loaded), x)
