"""Costs of rounds: bytes, and time, energy and memory by bandwidths and the profiles of the clients' devices."""

from fednlp.costs.accounting import COUNTED, ClientCost, merge, round_line, round_seconds, totals
from fednlp.costs.cost_model import CostModel, device_cost_model
from fednlp.costs.devices import DeviceProfile, Speed, load_profile, profile_names
from fednlp.costs.fleet import (
    Fleet,
    assign_kinds,
    client_seconds,
    local_examples,
    make_fleet,
    uniform_fleet,
)
from fednlp.costs.memory_estimate import (
    ALLOCATOR_OVERHEAD,
    LayerSizes,
    ModelSizes,
    client_memory,
    layer_sizes,
    peak_memory,
)
from fednlp.costs.training_time import BACKWARD, TrainingDepth, seconds_per_example

__all__ = [
    "ALLOCATOR_OVERHEAD",
    "BACKWARD",
    "COUNTED",
    "ClientCost",
    "CostModel",
    "DeviceProfile",
    "Fleet",
    "LayerSizes",
    "ModelSizes",
    "Speed",
    "TrainingDepth",
    "assign_kinds",
    "client_memory",
    "client_seconds",
    "device_cost_model",
    "layer_sizes",
    "load_profile",
    "local_examples",
    "make_fleet",
    "merge",
    "peak_memory",
    "profile_names",
    "round_line",
    "round_seconds",
    "seconds_per_example",
    "totals",
    "uniform_fleet",
]
