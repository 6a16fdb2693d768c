"""Bytes and time: what a round cost, priced with bandwidths and the profile of a device."""

from fednlp.costs.devices import Device, Speed, load_profile, profile_names
from fednlp.costs.ledger import (
    COUNTED,
    Prices,
    Spent,
    client_seconds,
    prices,
    round_line,
    round_seconds,
    totals,
)

__all__ = [
    "COUNTED",
    "Device",
    "Prices",
    "Speed",
    "Spent",
    "client_seconds",
    "load_profile",
    "prices",
    "profile_names",
    "round_line",
    "round_seconds",
    "totals",
]
