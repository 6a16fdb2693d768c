"""Bytes, time, energy and memory: what a round cost, priced with bandwidths and the profile of a device."""

from fednlp.costs.devices import Device, Speed, load_profile, profile_names
from fednlp.costs.ledger import (
    COUNTED,
    Prices,
    Spent,
    both,
    client_joules,
    client_seconds,
    prices,
    round_line,
    round_seconds,
    totals,
)
from fednlp.costs.memory import HELD, Shape, Sizes, client_memory, peak_memory, shape_of
from fednlp.costs.plans import BACKWARD, Plan, seconds_per_example

__all__ = [
    "BACKWARD",
    "COUNTED",
    "HELD",
    "Device",
    "Plan",
    "Prices",
    "Shape",
    "Sizes",
    "Speed",
    "Spent",
    "both",
    "client_joules",
    "client_memory",
    "client_seconds",
    "load_profile",
    "peak_memory",
    "prices",
    "profile_names",
    "round_line",
    "round_seconds",
    "seconds_per_example",
    "shape_of",
    "totals",
]
