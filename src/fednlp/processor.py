"""What the system says of this machine's processor."""

import os
import platform
from functools import cache


@cache
def processor(field: str = "model name") -> str:
    """Return a field of ``/proc/cpuinfo``, such as ``"model name"`` or ``"vendor_id"``.

    Where the system has no such file, or it lacks the field, Python's word for the processor; empty if it has none.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            found = next((line.partition(":")[2].strip() for line in file if line.startswith(field)), "")
    except OSError:
        found = ""
    return found or platform.processor()


def cores() -> list[int]:
    """Return the numbers of the cores that this process may use; of all where the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))
