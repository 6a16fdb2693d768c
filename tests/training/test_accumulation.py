"""Gradient accumulation: passes over parts of a step's examples make the step of one pass over all of them."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fednlp.training.local import LocalTrainer
from fednlp.training.local_training import LocalTraining
from fednlp.training.model_layout import flat_weights
from fednlp.training.replica import Replica

from .small import FEATURES, TEXTS, Classes, Small, changed, small

SGD = LocalTraining(optimizer="sgd", learning_rate=0.3, per_device_train_batch_size=2)


class Averaged(Small):
    """The small model, which leaves padding out of its means, so that a text counts the same in any batch."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.out(self.drop(self.words(ids).sum(1) / (ids > 0).sum(1, keepdim=True)))


def trained(
    options: LocalTraining, examples: int = TEXTS, mu: float = 0.0, dropout: float = 0.0
) -> tuple[LocalTrainer, torch.Tensor]:
    """Train one client on its first examples; return its trainer and its weights."""
    model = Averaged(dropout)
    model.load_state_dict(small().state_dict())
    x = flat_weights(model)
    replica = Replica(model, torch.device("cpu"), options.leaves_zero_gradients_alone)
    local = LocalTrainer(replica, Classes(), FEATURES, np.arange(examples), options, x, 0, 1, 2)  # type: ignore[arg-type]
    if mu:
        return local, local.steps(x, lambda g, y, x: g.add_(y - x, alpha=mu), x, sparse=True).flat()
    return local, local.steps(x).flat()


@settings(max_examples=60)
@given(
    examples=st.integers(1, TEXTS),
    batch=st.integers(1, 5),
    passes=st.integers(2, 5),
    changes=st.fixed_dictionaries(
        {
            "num_train_epochs": st.integers(1, 3),
            "max_steps": st.just(-1) | st.integers(1, 7),
            "max_grad_norm": st.sampled_from([0.0, 0.05]),
            "group_by_length": st.booleans(),
            "lr_scheduler_type": st.sampled_from(["constant", "linear"]),
            "weight_decay": st.sampled_from([0.0, 0.1]),
            "momentum": st.sampled_from([0.0, 0.9]),
        }
    ),
    mu=st.sampled_from([0.0, 0.5]),
)
@pytest.mark.whole
def test_a_step_in_passes_is_the_step_of_a_batch_that_many_times_larger(
    examples: int, batch: int, passes: int, changes: dict[str, Any], mu: float
) -> None:
    large, expected = trained(
        changed(SGD, per_device_train_batch_size=batch * passes, **changes), examples, mu
    )
    accumulating = changed(
        SGD, per_device_train_batch_size=batch, gradient_accumulation_steps=passes, **changes
    )
    local, found = trained(accumulating, examples, mu)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * max(1, local.num_steps))
    assert local.num_steps == large.num_steps == accumulating.steps(examples)
    assert (local.total_steps, local.total_examples) == (large.total_steps, large.total_examples)
    assert (local.total_loss, local.rate_sum) == pytest.approx((large.total_loss, large.rate_sum), rel=1e-5)
    task: Any = local.task
    assert max(map(len, task.batches)) <= batch
    if changes["max_steps"] == -1:  # the last step of an epoch has the passes that are left
        assert local.num_steps == changes["num_train_epochs"] * math.ceil(
            math.ceil(examples / batch) / passes
        )
        assert len(task.batches) == changes["num_train_epochs"] * math.ceil(examples / batch)


def test_one_pass_a_step_is_what_it_is_without() -> None:
    """Bit for bit, with dropout."""
    found = [
        trained(changed(SGD, **more), dropout=0.5)[1] for more in ({}, {"gradient_accumulation_steps": 1})
    ]
    assert torch.equal(*found)


def test_passes_have_dropout_of_their_own() -> None:
    options = changed(SGD, gradient_accumulation_steps=4)
    (_, one), (_, other), (_, plain) = (trained(options, dropout=rate) for rate in (0.5, 0.5, 0.0))
    assert torch.equal(one, other)
    assert not torch.equal(one, plain)


class Tagged(Classes):
    """Texts with one to three labels each."""

    def collate(
        self, features: Any, numbers: np.ndarray, *place: Any, **mode: Any
    ) -> dict[str, torch.Tensor]:
        batch = super().collate(features, numbers, *place, **mode)
        labels = batch["labels"][:, None].repeat(1, 3)
        labels[torch.arange(3) > torch.from_numpy(numbers)[:, None] % 3] = -100
        return batch | {"labels": labels}

    def loss(self, model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        logits = model(batch["ids"]).repeat_interleave(3, 0)
        return nn.functional.cross_entropy(logits, batch["labels"].flatten())


def test_the_gradient_of_all_examples_does_not_depend_on_how_they_are_cut() -> None:
    """Each pass counts by its labels, as in a step."""
    found, passes = [], []
    for cut in ({"per_device_train_batch_size": TEXTS}, {}, {"max_tokens_per_batch": 12}):
        replica = Replica(Averaged(), torch.device("cpu"), True)
        x, task = flat_weights(small()), Tagged()
        local = LocalTrainer(replica, task, FEATURES, np.arange(TEXTS), changed(SGD, **cut), x, 0, 1, 2)  # type: ignore[arg-type]
        found.append(local.gradient(x))
        passes.append(len(task.batches))
    assert passes[0] == 1 < min(passes[1:])
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=1e-4, atol=1e-6)
