"""What the system says of this machine's processor."""

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
