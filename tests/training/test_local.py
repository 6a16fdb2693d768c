"""One client's local steps: the same as a loop over the same batches in plain PyTorch."""

import copy
import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednlp.seeds import torch_stream
from fednlp.training.local import Begin, Trained, train_client
from fednlp.training.optimizers import LocalTraining
from fednlp.training.replica import Replica, flat_weights

from .small import FEATURES, TEXTS, WORDS, Classes, small

SEED, ROUND, CLIENT = 3, 2, 5
SGD = LocalTraining("sgd", 0.3, batch_size=4)


@dataclass
class Done:
    """What came of one client's local steps."""

    trained: Trained
    weights: dict[str, torch.Tensor]
    batches: list[list[int]]
    modes: list[tuple[bool, bool]]


def trained(
    options: LocalTraining, examples: int = TEXTS, dropout: float = 0.0, by_rows: bool = True, **more: Any
) -> Done:
    """Train one client on its first examples; the weights come back by name."""
    model, task = small(dropout), Classes()
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), by_rows and options.leaves_zero_gradients_alone)
    place = {"seed": SEED, "round_number": ROUND, "client": CLIENT} | more
    result = train_client(replica, task, FEATURES, np.arange(examples), options, x, **place)  # type: ignore[arg-type]
    return Done(result, replica.layout.views(x + replica.update()), task.batches, task.modes)


def by_hand(
    options: LocalTraining, done: Done, dropout: float = 0.0
) -> tuple[dict[str, torch.Tensor], float]:
    """Train on the same batches as everybody writes it, with the schedule of transformers; return the summed loss."""
    from transformers import get_scheduler

    model, task = small(dropout).train(), Classes()
    start = copy.deepcopy(dict(model.named_parameters()))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    steps, warmup = len(done.batches), options.warmup_steps
    warmup = int(warmup) if warmup >= 1 else math.ceil(warmup * steps)
    scheduler = get_scheduler(options.schedule, optimizer, warmup, steps)
    total = 0.0
    with torch_stream(SEED, "dropout", ROUND, CLIENT):
        for numbers in done.batches:
            loss = task.loss(model, task.collate(FEATURES, np.array(numbers), torch.device("cpu")))
            total += float(loss.detach()) * len(numbers)
            gap = sum(((p - start[n].detach()) ** 2).sum() for n, p in model.named_parameters())
            optimizer.zero_grad()
            (loss + options.mu / 2 * gap).backward()
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
    options = replace(SGD, epochs=2, schedule=schedule, warmup_steps=warmup)
    done = trained(options)
    expected, loss = by_hand(options, done)
    assert_same(done, expected)
    assert done.trained.loss == pytest.approx(loss)


@pytest.mark.parametrize("limit", [0.0, 0.01, 1e6])
def test_gradients_are_cut_to_the_norm(limit: float) -> None:
    """All parameters have one norm together, as in PyTorch; steps of SGD are then no longer than rate times limit."""
    options = replace(SGD, max_grad_norm=limit)
    done = trained(options)
    assert_same(done, by_hand(options, done)[0])
    if limit == 0.01:
        start = flat_weights(small())
        moved = torch.cat([value.flatten() for value in done.weights.values()]) - start
        assert 0 < float(moved.norm()) <= options.learning_rate * limit * done.trained.steps * 1.0001


@pytest.mark.parametrize("limit", [0.0, 0.01])
def test_the_pull_is_the_gradient_of_its_penalty_and_is_cut_with_the_rest(limit: float) -> None:
    options = replace(SGD, epochs=2, mu=0.7, max_grad_norm=limit)
    done = trained(options, by_rows=False)
    assert_same(done, by_hand(options, done)[0])


def test_a_pull_of_nothing_is_none() -> None:
    """Bit for bit; and a pull holds a client nearer to the global model."""
    start = flat_weights(small())

    def way(mu: float) -> tuple[bytes, float]:
        flat = torch.cat(
            [value.flatten() for value in trained(replace(SGD, epochs=3, mu=mu)).weights.values()]
        )
        return flat.numpy().tobytes(), float((flat - start).norm())

    assert way(0.0) == way(-0.0) == way(1e-300)
    assert way(1.0)[1] < way(0.0)[1]


def test_dropout_follows_seed_round_and_client() -> None:
    options = replace(SGD, epochs=2)
    done = trained(options, dropout=0.5)
    assert_same(done, by_hand(options, done, dropout=0.5)[0])
    for changed in ({"seed": SEED + 1}, {"round_number": ROUND + 1}, {"client": CLIENT + 1}):
        other = trained(options, dropout=0.5, **changed)
        assert other.batches != done.batches
        assert not torch.equal(other.weights["out.weight"], done.weights["out.weight"])
    assert torch.equal(trained(options, dropout=0.5).weights["out.weight"], done.weights["out.weight"])


@settings(max_examples=30)
@given(
    examples=st.integers(1, TEXTS),
    batch=st.integers(1, 9),
    epochs=st.integers(1, 3),
    max_steps=st.integers(-1, 7),
    by_length=st.booleans(),
)
def test_batches_cover_every_example_once_an_epoch(
    examples: int, batch: int, epochs: int, max_steps: int, by_length: bool
) -> None:
    options = replace(SGD, epochs=epochs, batch_size=batch, max_steps=max_steps, by_length=by_length)
    done = trained(options, examples)
    an_epoch = math.ceil(examples / batch)
    assert done.trained.steps == len(done.batches) == (max_steps if max_steps > 0 else epochs * an_epoch)
    assert done.trained.examples == sum(map(len, done.batches))
    for first in range(0, len(done.batches), an_epoch):
        numbers = [number for one in done.batches[first : first + an_epoch] for number in one]
        assert len(set(numbers)) == len(numbers)
        if first + an_epoch <= len(done.batches):
            assert sorted(numbers) == list(range(examples))
    assert set(done.modes) == {(True, True)}


def test_epochs_differ_in_their_order() -> None:
    done = trained(replace(SGD, epochs=2))
    assert done.batches[:6] != done.batches[6:]


@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "adagrad"])
def test_memory_is_kept_where_it_is_asked_for(optimizer: str) -> None:
    """A client that gets its memory back takes other steps than one that begins with none."""
    options = LocalTraining(optimizer, 0.05, momentum=0.9 if optimizer == "sgd" else 0.0, batch_size=4)
    assert trained(options).trained.memory == {}
    kept = replace(options, keep_memory=True)
    first = trained(kept)
    assert_same(trained(options, by_rows=False), first.weights)
    assert first.trained.memory
    again = trained(kept, begin=Begin(memory=first.trained.memory))
    assert not torch.equal(again.weights["out.weight"], first.weights["out.weight"])


@pytest.mark.parametrize("all_words", [False, True])
def test_words_that_a_client_does_not_use_are_loaded_only_if_asked_for(all_words: bool) -> None:
    model = small()
    replica = Replica(model, torch.device("cpu"), True)
    x = flat_weights(model)
    some = np.array([0])
    train_client(replica, Classes(), FEATURES, some, SGD, x, SEED, ROUND, CLIENT, all_words=all_words)  # type: ignore[arg-type]
    used = set(FEATURES.words(some).tolist())
    assert len(model.words.weight) == (WORDS if all_words else len(used | {0}))


def test_begins_from_what_the_client_has() -> None:
    """From its own version of the shared tensors; an update is measured from the global model all the same."""
    x = flat_weights(small())
    done = trained(replace(SGD, max_steps=1, learning_rate=1e-9), begin=Begin(shared=x + 1.0), all_words=True)
    flat = torch.cat([value.flatten() for value in done.weights.values()])
    torch.testing.assert_close(flat, x + 1.0, rtol=1e-5, atol=1e-5)
