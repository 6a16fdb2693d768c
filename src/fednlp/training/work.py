"""How much work a request is, predicted before it is answered: only the order of requests depends on it."""

import numpy as np

from fednlp.training.local_training import LocalTraining

_STEP = 250.0
"""A training step costs as much as this many tokens more: the optimiser, and what PyTorch needs for each operation."""
_FORWARD = 1 / 3
"""A token that is only predicted costs this share of one that is trained on: the backward pass is two forward ones."""


def training_work(options: LocalTraining, lengths: np.ndarray) -> float:
    """Return a client's work in a round, in tokens that are trained on.

    Args:
        options: Of its training.
        lengths: Tokens of each of its examples.
    """
    if not len(lengths):
        return 0.0
    steps = options.steps(len(lengths))
    seen = (
        steps * options.examples_per_step
        if options.max_steps > 0
        else options.num_train_epochs * len(lengths)
    )
    return float(lengths.mean()) * seen + _STEP * steps


def prediction_work(tokens: float) -> float:
    """Return the work of predicting texts of so many tokens, in tokens that are trained on."""
    return _FORWARD * tokens
