"""Tasks that are scored by a function of the user's own, which an experiment names as ``task.metric``."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fednlp.data.features import Features
from fednlp.errors import ConfigError
from fednlp.plugins import load, raised
from fednlp.tasks.inputs import ratio
from fednlp.tasks.label_scores import defined_together_in
from fednlp.tasks.whole_sums import fraction, quotient, total_steps

_KEPT = ("by_label", "predict_with_probabilities")


@functools.cache
def scored_by(kind: type[Any], place: str) -> type[Any]:
    """Return a task's class whose metric is the mean of a function's values over the examples.

    The function is called with a prediction and with what is right (the task's ``truths``), and returns a number from 0
    to 1.

    Args:
        kind: The class of a task with the method ``truths``.
        place: The function, ``"module:function"``; its name is that of the metric.

    Raises:
        ConfigError: There is no such function, or the task has nothing that it could compare.
    """
    function, name = load(place, "task.metric"), place.partition(":")[2]
    setting = f'task.metric = "{place}"'
    if not callable(function) or isinstance(function, type):
        raise ConfigError(f"{setting} is no function of a prediction and of what is right")
    if not hasattr(kind, "truths"):
        raise ConfigError(
            f"{setting}: {kind.__name__} has no single truth of an example that a prediction can be compared with"
        )

    class Scored(kind):  # type: ignore[misc]
        metric = name

        def __post_init__(self) -> None:
            if any(field.name == "metric" for field in dataclasses.fields(self)):
                object.__setattr__(self, "metric", name)

        @functools.cached_property
        def plain(self) -> Any:
            """The task as it is without the function."""
            return kind(**{field.name: getattr(self, field.name) for field in dataclasses.fields(self)})

        def metrics(
            self, predictions: Sequence[Any], features: Features, indices: np.ndarray
        ) -> dict[str, float]:
            """Return the task's metrics, and the mean of the function's values."""
            known: dict[str, float] = self.plain.metrics(predictions, features, indices)
            if name in known:
                raise ConfigError(f"{setting} has the name of a score of the task: rename the function")
            values = self.values(predictions, features, indices)
            return known | {name: float(ratio(values.sum(), len(values)))}

        def values(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> np.ndarray:
            """Return the function's value of each example, float64 (examples)."""
            pairs = zip(predictions, self.truths(features, indices), strict=True)
            return np.array(
                [_value(function, setting, self.compared(one), true) for one, true in pairs], np.float64
            )

        def statistics(
            self, predictions: Sequence[Any], features: Features, indices: np.ndarray
        ) -> np.ndarray:
            """Return each example's value and a count of 1."""
            values = self.values(predictions, features, indices)
            return np.stack([values, np.ones(len(values))], axis=1)

        def score(self, sums: np.ndarray) -> np.ndarray:
            """Return the mean value."""
            return ratio(sums[..., 0], sums[..., 1])

        def compared(self, prediction: Any) -> Any:
            """Return a prediction in the form of what it is compared with."""
            return prediction if isinstance(prediction, list) else self.format_prediction(prediction)

    class Summed(Scored):
        @property
        def num_sums(self) -> int:
            """Those of the task, the number of examples, and the sum of the values."""
            return int(self.plain.num_sums) + 2

        def sums(self, predictions: Sequence[Any], features: Features, indices: np.ndarray) -> list[int]:
            """Return the sums of the task, the number of examples, and the sum of the values in steps."""
            values = self.values(predictions, features, indices)
            return [*self.plain.sums(predictions, features, indices), len(values), total_steps(values)]

        def metrics_of_sums(self, sums: Sequence[int]) -> dict[str, float]:
            """Return the metrics from their sums."""
            *known, count, total = sums
            return {**self.plain.metrics_of_sums(known), name: quotient(fraction(total), count)}

    made = Summed if defined_together_in(kind, "sums", "metrics") else Scored
    for optional in _KEPT:
        if defined_together_in(kind, optional, "metrics"):
            setattr(made, optional, getattr(kind, optional))
    made.__name__ = made.__qualname__ = f"{kind.__name__}+{name}"
    return dataclasses.dataclass(frozen=True)(made)


def _value(function: Callable[[Any, Any], Any], setting: str, prediction: Any, truth: Any) -> float:
    """Return a function's value of one example.

    Raises:
        ConfigError: It failed, or its value is no number from 0 to 1.
    """
    try:
        value = function(prediction, truth)
    except Exception as error:  # of the user's own function
        raise ConfigError(f"{setting} failed: {raised(error)}") from error
    if not isinstance(value, bool | int | float | np.number | np.bool_) or not 0 <= float(value) <= 1:
        raise ConfigError(f"{setting} returned {value!r:.60}: it has to be a number from 0 to 1")
    return float(value)
