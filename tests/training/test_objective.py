"""The objective of a method: what it sees of a batch, and that looking changes nothing."""

from typing import Any

import pytest
import torch

from fednlp.errors import ConfigError
from fednlp.training.local import LocalTrainer

from .small import changed
from .test_local import ADAMW, SGD, trainer


def weights(local: LocalTrainer, **how: Any) -> torch.Tensor:
    return local.steps(local.x, **how).flat()


@pytest.mark.parametrize("options", [SGD, ADAMW, changed(SGD, gradient_accumulation_steps=3)], ids=str)
def test_an_objective_that_looks_and_returns_the_loss_changes_no_bit(options: Any) -> None:
    """With dropout, also by the words that a client uses alone; what it sees at other weights is without dropout."""
    plain = weights(trainer(options, examples=9, dropout=0.3))
    local = trainer(options, examples=9, dropout=0.3)
    seen: list[torch.Tensor] = []

    def objective(loss: Any, out: Any, batch: Any, at: Any) -> Any:
        once, again = at(local.x), at(local.x)
        assert torch.equal(once.logits, again.logits)
        assert not once.logits.requires_grad
        assert not torch.equal(once.logits, at(local.x + 1).logits)
        assert torch.equal(out.loss, loss)
        seen.append(out.logits)
        assert out.logits.shape == (len(batch["labels"]), 2)
        return loss

    assert torch.equal(weights(local, objective=objective), plain)
    assert seen


def test_other_weights_are_the_model_s_own_where_they_are_the_same() -> None:
    local = trainer(changed(SGD, max_steps=1))

    def objective(loss: Any, out: Any, batch: Any, at: Any) -> Any:
        assert torch.equal(at(local.x).logits, out.logits)
        assert torch.equal(at(local.x).loss, loss)
        return loss

    local.steps(local.x, objective=objective)


def test_twice_the_loss_is_twice_the_rate() -> None:
    plain = weights(trainer(changed(SGD, learning_rate=0.5)))
    local = trainer(changed(SGD, learning_rate=0.25))
    torch.testing.assert_close(weights(local, objective=lambda loss, out, batch, at: 2 * loss), plain)
    assert local.total_loss == pytest.approx(_loss_of(changed(SGD, learning_rate=0.5)), rel=1e-5)


def _loss_of(options: Any) -> float:
    """Return what is reported of steps, which is the task's loss whatever is minimised."""
    local = trainer(options)
    local.steps(local.x)
    return local.total_loss


def test_the_gradient_s_change_comes_after_the_objective() -> None:
    """FedProx's pull as a term of the loss, and as a gradient."""
    by_gradient = trainer(changed(SGD, max_steps=2))
    expected = by_gradient.steps(by_gradient.x, lambda g, y: g * 2).flat()
    both = trainer(changed(SGD, max_steps=2))
    found = weights(both, gradient=lambda g, y: g * 4, objective=lambda loss, out, batch, at: loss / 2)
    torch.testing.assert_close(found, expected)


def test_an_objective_that_returns_no_loss_is_refused() -> None:
    local = trainer()
    with pytest.raises(ConfigError, match="returned a tensor of shape"):
        local.steps(local.x, objective=lambda loss, out, batch, at: out.logits)
    with pytest.raises(ConfigError, match="returned no tensor: return one number, the loss to minimise"):
        local.steps(local.x, objective=lambda loss, out, batch, at: None)  # type: ignore[arg-type,return-value]


def test_features_of_a_model_without_known_layers_are_refused() -> None:
    local = trainer()
    local.task.name = "toy"  # type: ignore[misc]
    with pytest.raises(
        ConfigError, match="reads the features of a batch's texts, and toy with this model does not"
    ):
        local.steps(local.x, objective=lambda loss, out, batch, at: out.features.mean())


def test_named_views_of_a_vector() -> None:
    local = trainer()
    views = local.layout.views(local.x.clone())
    assert {*views} == {"words.weight", "out.weight", "out.bias"}
    views["out.bias"].fill_(7.0)
    assert local.layout.flatten(views)[local.layout.entries[-1].start - 1].isfinite()


def test_steps_that_were_taken_already_are_given_back_once_and_only_as_they_were_taken() -> None:
    """A second call takes steps of its own; a call with another start, gradient or loss is an error."""
    donor, local = trainer(), trainer()
    end = weights(donor)
    for how in ({"gradient": lambda g, y: g}, {"objective": lambda loss, out, batch, at: loss}):
        _take(local, end)
        with pytest.raises(ConfigError, match="leave clients_at_once out"):
            local.steps(local.x, **how)
    with pytest.raises(ConfigError, match="leave clients_at_once out"):
        local.steps(local.x + 1)
    assert torch.equal(weights(local), end)
    assert not torch.equal(weights(local), end), "another order of batches"


def _take(local: LocalTrainer, end: torch.Tensor) -> None:
    """Have a client's steps be taken elsewhere."""
    from fednlp.training.optimizers import Descent

    descent = Descent(local.options, local.replica.groups, 1)
    local.taken(local.next_batches()[:1], [torch.zeros(())], descent, end, torch.zeros(0))
