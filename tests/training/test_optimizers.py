"""How many steps a client takes."""

import pytest

from fednlp.training.optimizers import LocalTraining


@pytest.mark.parametrize(
    ("epochs", "max_steps", "examples", "steps"),
    [(1, -1, 8, 1), (1, -1, 9, 2), (2, -1, 9, 4), (2, -1, 0, 0), (2, 3, 9, 3), (1, 5, 1, 5)],
)
def test_steps_are_whole_epochs_of_batches_or_as_asked(
    epochs: int, max_steps: int, examples: int, steps: int
) -> None:
    options = LocalTraining(epochs=epochs, max_steps=max_steps, batch_size=8)
    assert options.steps(examples) == steps
