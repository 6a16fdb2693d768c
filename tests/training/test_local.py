"""One client's local steps: the same as a loop over the same batches in plain PyTorch."""

import copy
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednlp.federated.client import Gradient
from fednlp.seeds import torch_stream
from fednlp.training.client_record import ClientInit
from fednlp.training.kernels.dropout import cheap_dropout
from fednlp.training.local import LocalTrainer
from fednlp.training.local_training import LocalTraining
from fednlp.training.model_layout import flat_weights
from fednlp.training.replica import Replica

from .small import FEATURES, TEXTS, WORDS, Classes, changed, small

SEED, ROUND, CLIENT = 3, 2, 5
SGD = LocalTraining(optimizer="sgd", learning_rate=0.3, per_device_train_batch_size=4)
ADAMW = changed(SGD, optimizer="adamw", learning_rate=0.05)


@dataclass
class Done:
    """What came of one client's local steps."""

    local: LocalTrainer
    weights: dict[str, torch.Tensor]
    batches: list[list[int]]
    modes: list[tuple[bool, bool]]


def trainer(
    options: LocalTraining = SGD,
    examples: int = TEXTS,
    dropout: float = 0.0,
    by_rows: bool = True,
    **more: Any,
) -> LocalTrainer:
    """Return the local trainer of a client with the first examples."""
    model = small(dropout)
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), by_rows and options.leaves_zero_gradients_alone)
    seeds = {"seed": SEED, "round_number": ROUND, "client": CLIENT} | more
    return LocalTrainer(replica, Classes(), FEATURES, np.arange(examples), options, x, **seeds)  # type: ignore[arg-type]


def pull(mu: float) -> Gradient:
    """FedProx's part of the gradient."""
    return lambda g, y, x: g.add_(y - x, alpha=mu)


def trained(
    options: LocalTraining, examples: int = TEXTS, dropout: float = 0.0, mu: float = 0.0, **more: Any
) -> Done:
    """Train one client on its first examples; the weights come back by name."""
    local = trainer(options, examples, dropout, **more)
    y = local.steps(local.x, pull(mu), local.x, sparse=True) if mu else local.steps(local.x)
    task: Any = local.task
    return Done(local, local.replica.layout.views(y.flat()), task.batches, task.modes)


def by_hand(
    options: LocalTraining, done: Done, dropout: float = 0.0, mu: float = 0.0
) -> tuple[dict[str, torch.Tensor], float]:
    """Train on the same batches as everybody writes it, with the schedule of transformers; return the summed loss."""
    from transformers import get_scheduler

    model, task = small(dropout).train(), Classes()
    start = copy.deepcopy(dict(model.named_parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    steps, warmup = len(done.batches), options.warmup_steps
    warmup = int(warmup) if warmup >= 1 else math.ceil(warmup * steps)
    scheduler = get_scheduler(options.lr_scheduler_type, optimizer, warmup, steps)
    total = 0.0
    with torch_stream(SEED, "dropout", ROUND, CLIENT), cheap_dropout():
        for numbers in done.batches:
            loss = task.loss(model, task.collate(FEATURES, np.array(numbers), torch.device("cpu")))
            total += float(loss.detach()) * len(numbers)
            gap = sum(((p - start[n].detach()) ** 2).sum() for n, p in model.named_parameters())
            optimizer.zero_grad()
            (loss + mu / 2 * gap).backward()
            if options.max_grad_norm:
                nn.utils.clip_grad_norm_(model.parameters(), options.max_grad_norm)
            optimizer.step()
            scheduler.step()
    return {name: tensor.detach() for name, tensor in model.named_parameters()}, total


def assert_same(done: Done, expected: dict[str, torch.Tensor]) -> None:
    for name, value in done.weights.items():
        torch.testing.assert_close(value, expected[name], rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize(
    ("schedule", "warmup"),
    [("constant", 0), ("linear", 0), ("cosine", 0.3), ("constant_with_warmup", 4), ("polynomial", 1)],
)
def test_each_step_has_the_learning_rate_of_the_schedule(schedule: str, warmup: float) -> None:
    options = changed(SGD, num_train_epochs=2, lr_scheduler_type=schedule, warmup_steps=warmup)
    done = trained(options)
    expected, loss = by_hand(options, done)
    assert_same(done, expected)
    assert done.local.total_loss == pytest.approx(loss)


@pytest.mark.parametrize("limit", [0.0, 0.01, 1e6])
def test_gradients_are_cut_to_the_norm(limit: float) -> None:
    """All parameters have one norm together, as in PyTorch; steps of SGD are then no longer than rate times limit."""
    options = changed(SGD, max_grad_norm=limit)
    done = trained(options)
    assert_same(done, by_hand(options, done)[0])
    if limit == 0.01:
        start = flat_weights(small())
        moved = torch.cat([value.flatten() for value in done.weights.values()]) - start
        assert 0 < float(moved.norm()) <= options.learning_rate * limit * done.local.num_steps * 1.0001


@pytest.mark.parametrize("limit", [0.0, 0.01])
def test_the_pull_is_the_gradient_of_its_penalty_and_is_cut_with_the_rest(limit: float) -> None:
    options = changed(SGD, num_train_epochs=2, max_grad_norm=limit)
    done = trained(options, mu=0.7, by_rows=False)
    assert_same(done, by_hand(options, done, mu=0.7)[0])


def test_a_pull_of_nothing_is_none() -> None:
    """Bit for bit; and a pull holds a client nearer to the global model."""
    start = flat_weights(small())

    def way(mu: float) -> tuple[bytes, float]:
        flat = torch.cat(
            [value.flatten() for value in trained(changed(SGD, num_train_epochs=3), mu=mu).weights.values()]
        )
        return flat.numpy().tobytes(), float((flat - start).norm())

    assert way(0.0) == way(-0.0) == way(1e-300)
    assert way(1.0)[1] < way(0.0)[1]


def test_dropout_follows_seed_round_and_client() -> None:
    options = changed(SGD, num_train_epochs=2)
    done = trained(options, dropout=0.5)
    assert_same(done, by_hand(options, done, dropout=0.5)[0])
    for place in ({"seed": SEED + 1}, {"round_number": ROUND + 1}, {"client": CLIENT + 1}):
        other = trained(options, dropout=0.5, **place)
        assert other.batches != done.batches
        assert not torch.equal(other.weights["out.weight"], done.weights["out.weight"])
    assert torch.equal(trained(options, dropout=0.5).weights["out.weight"], done.weights["out.weight"])


@settings(max_examples=30)
@given(
    examples=st.integers(1, TEXTS),
    batch=st.integers(1, 9),
    epochs=st.integers(1, 3),
    max_steps=st.just(-1) | st.integers(1, 7),
    by_length=st.booleans(),
)
def test_batches_cover_every_example_once_an_epoch(
    examples: int, batch: int, epochs: int, max_steps: int, by_length: bool
) -> None:
    options = changed(
        SGD,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        max_steps=max_steps,
        group_by_length=by_length,
    )
    done = trained(options, examples)
    an_epoch = math.ceil(examples / batch)
    assert done.local.num_steps == len(done.batches) == (max_steps if max_steps > 0 else epochs * an_epoch)
    assert done.local.total_examples == sum(map(len, done.batches))
    for first in range(0, len(done.batches), an_epoch):
        numbers = [number for one in done.batches[first : first + an_epoch] for number in one]
        assert len(set(numbers)) == len(numbers)
        if first + an_epoch <= len(done.batches):
            assert sorted(numbers) == list(range(examples))
    assert set(done.modes) == {(True, True)}


def test_epochs_differ_in_their_order() -> None:
    done = trained(changed(SGD, num_train_epochs=2))
    assert done.batches[:6] != done.batches[6:]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
def test_memory_is_kept_where_it_is_asked_for(optimizer: str) -> None:
    """A client that gets its memory back takes other steps than one that begins with none."""
    momentum = 0.9 if optimizer == "sgd" else 0.0
    options = changed(SGD, optimizer=optimizer, learning_rate=0.05, momentum=momentum)
    assert trained(options).local.memory == {}
    kept = changed(options, keep_optimizer=True)
    first = trained(kept)
    assert_same(trained(options, by_rows=False), first.weights)
    assert first.local.memory
    again = trained(kept, init=ClientInit(optimizer=first.local.memory))
    assert not torch.equal(again.weights["out.weight"], first.weights["out.weight"])


@pytest.mark.parametrize("all_words", [False, True])
def test_words_that_a_client_does_not_use_are_loaded_only_if_asked_for(all_words: bool) -> None:
    local = trainer(examples=1, all_words=all_words)
    local.steps(local.x)
    used = set(FEATURES.words(np.array([0])).tolist())
    loaded: Any = local.replica.model.words.weight
    assert len(loaded) == (WORDS if all_words else len(used | {0}))


def test_begins_from_what_the_client_has() -> None:
    """From its own version of the shared tensors; an update is measured from the global model all the same."""
    x = flat_weights(small())
    done = trained(
        changed(SGD, max_steps=1, learning_rate=1e-9), init=ClientInit(shared=x + 1.0), all_words=True
    )
    flat = torch.cat([value.flatten() for value in done.weights.values()])
    torch.testing.assert_close(flat, x + 1.0, rtol=1e-5, atol=1e-5)
    assert done.local.x is not x
    change = done.local.steps(done.local.x) - done.local.x
    torch.testing.assert_close(change.flat(), torch.ones_like(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_second_call_begins_elsewhere_with_a_fresh_optimiser_and_streams_of_its_own(keeps: bool) -> None:
    """As Ditto asks for: two models in one round. The first keeps its weights; nothing of it is in the second.

    Nor is the optimiser's state, where the client keeps it until its next round.
    """
    options = changed(ADAMW, keep_optimizer=keeps)
    local = trainer(options, dropout=0.5)
    start = local.x + 0.1
    first = local.steps(local.x)
    flat = first.flat()
    task: Any = local.task
    batches = list(task.batches)
    second = local.steps(start)
    assert torch.equal(first.flat(), flat)
    assert task.batches[len(batches) :] != batches
    numbers = sorted(number for batch in batches for number in batch)
    assert sorted(number for batch in task.batches[len(batches) :] for number in batch) == numbers
    assert (local.num_steps, local.total_steps, local.total_examples) == (6, 12, 2 * TEXTS)

    assert bool(local.memory) is keeps
    other = trainer(options, dropout=0.5, by_rows=False)
    other.steps(other.x + 7.0)  # another first call: the second is the same all the same
    assert torch.equal(other.steps(start).flat(), second.flat())
    third = other.steps(start).flat()
    assert not torch.equal(third, second.flat())  # a third has other batches and other dropout


def test_a_later_call_is_plain_pytorch_from_where_it_starts() -> None:
    local = trainer()
    local.steps(local.x)
    task: Any = local.task
    before, start = len(task.batches), local.x + 0.25
    found = local.replica.layout.views(local.steps(start).flat())
    later, model, plain = task.batches[before:], small(), Classes()
    for name, value in local.replica.layout.views(start).items():
        model.get_parameter(name).data.copy_(value)
    optimizer = torch.optim.SGD(model.parameters(), lr=SGD.learning_rate)
    for numbers in later:
        optimizer.zero_grad()
        plain.loss(model, plain.collate(FEATURES, np.array(numbers), torch.device("cpu"))).backward()
        optimizer.step()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.detach(), rtol=2e-5, atol=2e-6, msg=name)


@pytest.mark.parametrize("options", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_a_gradient_that_leaves_unused_words_alone_is_the_same_by_rows(options: LocalTraining) -> None:
    """Bit for bit: ``sparse`` is about what is loaded, not about what is computed."""
    found = []
    for by_rows in (True, False):
        local = trainer(options, examples=3, by_rows=by_rows)
        drift = torch.linspace(-1, 1, len(local.x))

        def change(g: torch.Tensor, y: torch.Tensor, x: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
            return g + 0.3 * (y - x) * (1 + d)

        y = local.steps(local.x, change, local.x, drift, sparse=True)
        loaded: Any = local.replica.model.words.weight
        assert (len(loaded) < WORDS) is by_rows
        found.append((y - local.x).flat())
    assert torch.equal(*found)
    assert found[0].any()


def test_a_gradient_that_reaches_every_word_moves_every_word() -> None:
    """Without ``sparse`` all rows are loaded, and words that no batch uses are changed by the method alone."""
    local = trainer(examples=1)
    y = local.steps(local.x, lambda g, y, d: g + d, torch.ones_like(local.x))
    change = local.replica.layout.rows((y - local.x).flat())
    unused = sorted(set(range(1, WORDS)) - set(FEATURES.words(np.array([0])).tolist()))
    assert unused
    expected = torch.full((len(unused), 4), -0.3 * local.num_steps)
    torch.testing.assert_close(change[unused], expected)


def test_trained_weights_are_vectors() -> None:
    """y - x, x - y, y less another vector, and the change divided, before and after the replica is used again."""
    for detached in (False, True):
        local = trainer()
        x, other = local.x, torch.randn(len(local.x), generator=torch.Generator().manual_seed(0))
        y = local.steps(x)
        if detached:
            local.steps(x + 1.0)
        flat = y.flat()
        torch.testing.assert_close((y - x).flat(), flat - x, rtol=1e-4, atol=1e-6)
        assert torch.equal(x - y, -(y - x).flat())
        assert torch.equal(other - y, other - flat)
        assert torch.equal(((y - x) / 4.0).flat(), (y - x).flat() / 4.0)
        assert torch.equal(((y - x) / 4.0 / 0.5).flat(), (y - x).flat() / 2.0)
        with pytest.raises(TypeError, match=r"say y\.flat\(\) - vector"):
            y - other
        divided = (y - x) / 4.0
        wanted = divided.flat()
        update = divided.take()  # the weights are used up by it
        assert torch.equal(update.flat(local.replica.layout), wanted)
        assert (update.rows is None) is detached


@pytest.mark.parametrize("by_rows", [True, False])
def test_the_gradient_of_all_examples_is_that_of_autograd(by_rows: bool) -> None:
    """Of the mean loss over the client's examples, without dropout, wherever it is asked for."""
    local = trainer(examples=7, dropout=0.5, by_rows=by_rows)  # 7 examples in batches of 4
    y = local.steps(local.x)
    flat = y.flat()
    for at in (local.x, local.x + 0.5):
        found = local.gradient(at)
        model, plain = small().eval(), Classes()
        for name, value in local.replica.layout.views(at).items():
            model.get_parameter(name).data.copy_(value)
        batches = [
            plain.collate(FEATURES, some, torch.device("cpu")) for some in (np.arange(4), np.arange(4, 7))
        ]
        sums = [plain.loss(model, batch) * len(batch["labels"]) for batch in batches]
        (sum(sums) / 7).backward()
        for name, value in local.replica.layout.views(found).items():
            expected = model.get_parameter(name).grad
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-6, msg=name)
    assert torch.equal(y.flat(), flat)
    assert local.total_steps == local.num_steps == 2  # a gradient is no step


@pytest.mark.parametrize(("schedule", "warmup"), [("constant", 0), ("linear", 2)])
def test_the_round_s_factor_multiplies_every_rate(schedule: str, warmup: int) -> None:
    """As a client whose learning rate is that much lower."""
    slow = changed(SGD, lr_scheduler_type=schedule, warmup_steps=warmup)
    done = trained(slow, rate=0.25)
    other = trained(changed(slow, learning_rate=0.25 * SGD.learning_rate))
    for name, value in done.weights.items():
        torch.testing.assert_close(value, other.weights[name], rtol=1e-6, atol=1e-7)
    assert done.local.rate_sum == pytest.approx(other.local.rate_sum)
    if schedule == "constant":
        assert done.local.rate_sum == pytest.approx(0.25 * 0.3 * 6)
        assert trained(slow).local.rate_sum == pytest.approx(0.3 * 6)
    else:
        assert done.local.rate_sum == pytest.approx(0.25 * 0.3 * (0 + 0.5 + 1 + 0.75 + 0.5 + 0.25))
