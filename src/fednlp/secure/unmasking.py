"""The request by which workers add up the masks that are left in a sum."""

from dataclasses import dataclass
from typing import Any

from fednlp.runtime.messages import declare


@dataclass(frozen=True)
class UnmaskRequest:
    """Have masks added to a stretch of the sum of masked updates: work of the server's own.

    Attributes:
        start: The stretch's first element, a multiple of 4.
        seeds: Masks: a seed in hexadecimal digits and a sign each.
    """

    start: int
    stop: int
    seeds: list[list[Any]]


declare(UnmaskRequest, None)
