"""The cost model of one device: seconds and energy of bytes and examples.

A client's part in a round (FeS, Cai et al. 2023, section 4.1: measured times put into an emulation) takes

    latency + bytes_down / bandwidth_down + bytes_up / bandwidth_up
            + examples * seconds per example of training + labelled * seconds per example of inference

seconds. Its energy is the device's watts times these seconds; latency draws no power. A part whose cost is not known
counts as 0.
"""

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from fednlp.costs.devices import load_profile
from fednlp.costs.training_time import TrainingDepth, first_pass_seconds, seconds_per_example
from fednlp.partition.index import FloatArray

ENCODER, ENCODER_PARAMETERS = "minilm", 22_713_216
"""The model whose embeddings filter texts, all-MiniLM-L6-v2."""
_Amount = TypeVar("_Amount", float, FloatArray)


@dataclass(frozen=True)
class CostModel:
    """The cost model of one device; None for unknown figures.

    Attributes:
        bandwidth_up: Bytes per second from a client to the server.
        bandwidth_down: Bytes per second from the server to a client.
        training: Seconds per example of a local step.
        latency: Seconds per client and round.
        inference: Seconds per labelled example.
        watts_computing: Power in watts while a client trains or labels.
        watts_sending: Power in watts while it sends or receives.
        first_pass: Seconds per example that runs through the frozen layers for the first time; later their cached
            outputs are read.
        embedding: Seconds per text that is embedded, to filter the client's texts.
    """

    bandwidth_up: float | None = None
    bandwidth_down: float | None = None
    training: float | None = None
    latency: float | None = None
    inference: float | None = None
    watts_computing: float | None = None
    watts_sending: float | None = None
    first_pass: float | None = None
    embedding: float | None = None

    def seconds(
        self, bytes_down: _Amount, bytes_up: _Amount, examples: _Amount, labelled: _Amount | float = 0.0
    ) -> _Amount:
        """Return the seconds of a client's part in a round.

        Args:
            bytes_down: Length of the server's message in bytes.
            bytes_up: Length of the client's message in bytes.
            examples: Number of examples of its local steps, once per epoch.
            labelled: Number of examples that it labels.

        >>> CostModel(1e6, 2e6, training=0.5, latency=0.25).seconds(10_000_000, 5_000_000, 100)
        60.25
        >>> CostModel(bandwidth_up=1e6).seconds(10_000_000, 5_000_000, 100)
        5.0
        """
        latency = self.latency or 0.0
        return latency + self._sending(bytes_down, bytes_up) + self._computing(examples, labelled)

    def joules(self, bytes_down: int, bytes_up: int, examples: int, labelled: int = 0) -> float | None:
        """Return the energy of a client's part in a round in joules, None where no watts are known.

        Source: Cai et al. 2023 (FeS), Figure 12; 75.9 s of training at 12 W are the 910.8 J of its introduction.

        Args:
            bytes_down: Length of the server's message in bytes.
            bytes_up: Length of the client's message in bytes.
            examples: Number of examples of its local steps, once per epoch.
            labelled: Number of examples that it labels.

        >>> round(CostModel(training=75.9, watts_computing=12.0).joules(0, 0, examples=1), 3)
        910.8
        """
        if not self.knows_power:
            return None
        computing = (self.watts_computing or 0.0) * self._computing(float(examples), float(labelled))
        return computing + (self.watts_sending or 0.0) * self._sending(float(bytes_down), float(bytes_up))

    @property
    def knows_power(self) -> bool:
        """True if the device's watts of computing or of sending are known."""
        return self.watts_computing is not None or self.watts_sending is not None

    def _computing(self, examples: _Amount, labelled: _Amount | float) -> _Amount:
        return examples * (self.training or 0.0) + labelled * (self.inference or 0.0)

    def _sending(self, bytes_down: _Amount, bytes_up: _Amount) -> _Amount:
        unlimited = math.inf  # any number of bytes in 0.0 seconds
        down = unlimited if self.bandwidth_down is None else self.bandwidth_down
        up = unlimited if self.bandwidth_up is None else self.bandwidth_up
        return bytes_down / down + bytes_up / up


def device_cost_model(
    bandwidth_up: float | None,
    bandwidth_down: float | None,
    device: str | None,
    *,
    model: str,
    parameters: int,
    depth: TrainingDepth | None = None,
) -> CostModel | None:
    """Return the cost model of one device, None where no figure is known.

    Args:
        bandwidth_up: Bandwidth from a client to the server, in MB/s (10^6 bytes a second).
        bandwidth_down: Bandwidth from the server to a client, in MB/s.
        device: Name or path of a device profile.
        model: Name or folder of the model, which is looked up in the profile.
        parameters: Number of parameters of the whole model, trained or not.
        depth: The trained layers; None for the whole model.

    Raises:
        ConfigError: The profile cannot be read, or does not fit the depth.

    >>> device_cost_model(1.0, 2.0, None, model="bert-tiny", parameters=4_386_178).bandwidth_down
    2000000.0
    """
    found = CostModel(
        None if bandwidth_up is None else 1e6 * bandwidth_up,
        None if bandwidth_down is None else 1e6 * bandwidth_down,
    )
    if device is not None:
        profile = load_profile(device)
        found = replace(
            found,
            training=seconds_per_example(profile, model, parameters, depth, training=True),
            inference=seconds_per_example(profile, model, parameters, depth, training=False),
            latency=profile.latency,
            first_pass=first_pass_seconds(profile, model, parameters, depth),
            embedding=profile.inference.seconds(ENCODER, ENCODER_PARAMETERS),
        )
        if found != CostModel():  # power without a time is no energy
            found = replace(
                found, watts_computing=profile.watts_computing, watts_sending=profile.watts_sending
            )
    return None if found == CostModel() else found
