"""Seconds per example by training depth: top layers in full, some by their biases, the others frozen."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fednlp.costs.devices import DeviceProfile, Speed, of_model
from fednlp.errors import ConfigError
from fednlp.formatting.units import plural

BACKWARD = 2.0
"""Time of a layer's backward pass over that of its forward pass, where a profile does not state it.

Each matrix product of the forward pass has two in the backward pass: one for the gradient of the weights, one for
that of the inputs (Kaplan et al. 2020, "Scaling Laws for Neural Language Models", section 2.1).
"""


@dataclass(frozen=True)
class TrainingDepth:
    """The trained layers of a stack, counted from the top; the head is always trained.

    Attributes:
        layers: Number of layers of the model.
        trained_layers: Number of top layers that are trained in full.
        bias_layers: Number of layers below these of which only the biases are trained.
        cached: True if the outputs of the frozen layers below are cached, so that they take no time.

    >>> TrainingDepth(24, trained_layers=2, bias_layers=4).frozen_layers
    18
    """

    layers: int
    trained_layers: int
    bias_layers: int = 0
    cached: bool = True

    def __post_init__(self) -> None:
        counts = (self.layers, self.trained_layers, self.bias_layers)
        if min(counts) < 0 or self.trained_layers + self.bias_layers > self.layers or self.layers < 1:
            raise ConfigError(
                f"a plan with {plural(self.trained_layers, 'layer')} trained whole and {self.bias_layers} by their "
                f"biases does not fit a model of {plural(self.layers, 'layer')}: together they are at most as many"
            )

    @property
    def frozen_layers(self) -> int:
        """Number of layers at the bottom that are not trained."""
        return self.layers - self.trained_layers - self.bias_layers


def seconds_per_example(
    profile: DeviceProfile, model: str, parameters: int, depth: TrainingDepth | None, training: bool
) -> float | None:
    """Return the seconds per example on a device, None where its profile does not state them.

    Let ``D(d)`` be the seconds with the top ``d`` layers active. The seconds of a plan with ``t`` layers trained in
    full and ``b`` by their biases are ::

        training   D(t) + s (D(t + b) - D(t))      s = (1 + r / 2) / (1 + r)
        inference  D(t + b)

    * ``D`` is interpolated linearly between the profile's values under ``depths`` and the seconds of the whole model.
      Where the profile has no depths, ``D(d)`` is ``d / layers`` of the whole: embeddings and head take no time.
    * ``r`` is the time of the backward pass over that of the forward pass: the profile's value, else seconds of
      training over those of inference, less one, else 2. A layer of which only the biases are trained takes the forward
      pass and half of the backward pass: gradients of its inputs, none of its weights. The profile may state ``s``
      itself, as ``bias``.
    * Where the profile has only seconds of training or of inference, the others follow: training takes ``1 + r``
      times inference.
    * Frozen layers take no time if cached, but once (:func:`first_pass_seconds`); else their forward pass each time.

    Args:
        profile: The device's profile.
        model: A name, hub name or folder.
        parameters: Number of parameters of the whole model, trained or not.
        depth: The trained layers; None for the whole model.
        training: True for a forward and a backward pass; False for a forward pass only.

    Raises:
        ConfigError: The profile names a depth that a model with so many layers does not have.

    >>> device = DeviceProfile("mine", "stated", training=Speed({"m": 3.0}))
    >>> seconds_per_example(device, "m", 1, TrainingDepth(12, 2, 3), training=True)  # 2/12 of 3 s, 3/12 of 3 s at 2/3
    1.0
    >>> seconds_per_example(device, "m", 1, TrainingDepth(12, 2, 4), training=False)  # 6/12 of 3/3 s
    0.5
    """
    whole, forward = _whole(profile, model, parameters)
    if depth is None:
        return whole if training else forward
    active = depth.trained_layers + depth.bias_layers
    forwards = _points(profile, profile.inference, model, forward, depth.layers)
    if not training:
        return _between(forwards, active if depth.cached else depth.layers)
    steps = _points(profile, profile.training, model, whole, depth.layers)
    low, high = _between(steps, depth.trained_layers), _between(steps, active)
    if low is None or high is None:
        return None
    seconds = low + _bias_share(profile, model, parameters) * (high - low)
    if depth.cached or not depth.frozen_layers:
        return seconds
    upper, every = _between(forwards, active), _between(forwards, depth.layers)
    return None if upper is None or every is None else seconds + every - upper


def first_pass_seconds(
    profile: DeviceProfile, model: str, parameters: int, depth: TrainingDepth | None
) -> float | None:
    """Return the seconds per example of a forward pass through the frozen layers, which caching saves later.

    None where no layer is frozen, where nothing is cached (each pass is then in :func:`seconds_per_example`), or where
    the profile does not state the seconds.

    Args:
        profile: The device's profile.
        model: A name, hub name or folder.
        parameters: Number of parameters of the whole model, trained or not.
        depth: The trained layers; None for the whole model.

    >>> device = DeviceProfile("mine", "stated", training=Speed({"m": 3.0}))
    >>> first_pass_seconds(device, "m", 1, TrainingDepth(12, 2, 4))  # 6/12 of 3/3 s
    0.5
    """
    if depth is None or not depth.cached or not depth.frozen_layers:
        return None
    cached = seconds_per_example(profile, model, parameters, depth, training=False)
    whole = seconds_per_example(profile, model, parameters, replace(depth, cached=False), training=False)
    return None if cached is None or whole is None else whole - cached


def _whole(profile: DeviceProfile, model: str, parameters: int) -> tuple[float | None, float | None]:
    """Return the seconds of the whole model in training and in inference; a missing one is derived from the other."""
    training = profile.training.seconds(model, parameters)
    forward = profile.inference.seconds(model, parameters)
    ratio = 1 + _backward(profile, model, parameters)
    if training is None and forward is not None:
        training = forward * ratio
    elif forward is None and training is not None:
        forward = training / ratio
    return training, forward


def _backward(profile: DeviceProfile, model: str, parameters: int) -> float:
    if profile.training.backward is not None:
        return profile.training.backward
    training = profile.training.seconds(model, parameters)
    forward = profile.inference.seconds(model, parameters)
    if training and forward and training > forward:
        return training / forward - 1
    return BACKWARD


def _bias_share(profile: DeviceProfile, model: str, parameters: int) -> float:
    """Return the time of a layer of which only biases are trained, over that of one trained in full."""
    if profile.training.bias is not None:
        return profile.training.bias
    backward = _backward(profile, model, parameters)
    return (1 + backward / 2) / (1 + backward)


def _points(
    profile: DeviceProfile, speed: Speed, model: str, whole: float | None, layers: int
) -> dict[int, float]:
    """Return the known seconds by depth: 0.0 at 0, the whole model's at its number of layers."""
    stated: Mapping[int, float] = of_model(speed.depths, model) or {}
    deepest = max(stated, default=0)
    if deepest > layers:
        raise ConfigError(
            f"the profile {profile.name} says what {model} takes at a depth of {deepest}, which has "
            f"{plural(layers, 'layer')}"
        )
    return {0: 0.0} | ({} if whole is None else {layers: whole}) | dict(stated)


def _between(points: Mapping[int, float], depth: int) -> float | None:
    """Return the linear interpolation between the nearest points; None beyond the last.

    >>> _between({0: 1.0, 4: 3.0}, 1), _between({0: 1.0}, 1)
    (1.5, None)
    """
    below = max(point for point in points if point <= depth)
    above = min((point for point in points if point >= depth), default=None)
    if above is None:
        return None
    low, high = points[below], points[above]
    return low if above == below else low + (high - low) * (depth - below) / (above - below)
