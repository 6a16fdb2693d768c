"""What the system says of this machine's processor."""

import os
import platform
import re
from functools import cache

_SETS = re.compile(r"avx\w*|amx\w*|fma|asimd\w*|sve\w*|bf16|i8mm")
"""Instruction sets that numbers are computed with: which of them there are decides the order of sums."""


@cache
def instruction_sets() -> list[str]:
    """Return which of a processor's instruction sets compute with vectors or matrices; empty where nothing says so."""
    flags = _field("flags") or _field("Features")
    return sorted({one for one in flags.split() if _SETS.fullmatch(one)})


@cache
def processor(field: str = "model name") -> str:
    """Return a field of ``/proc/cpuinfo``, such as ``"model name"`` or ``"vendor_id"``.

    Where the system has no such file, or it lacks the field, Python's word for the processor; empty if it has none.
    """
    return _field(field) or platform.processor()


def _field(name: str) -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith(name)), "")
    except OSError:
        return ""


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use; of all where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
