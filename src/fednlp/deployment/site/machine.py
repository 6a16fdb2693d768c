"""What this machine has."""

import os
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def machine_memory() -> tuple[int | None, int | None]:
    """Return the bytes of memory that this process may have, and how many of them are free; None if unknown."""
    try:
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        known = {row[0]: int(row[1]) * 1024 for row in rows}
    except (OSError, ValueError, IndexError):
        return None, None
    total, free = known.get("MemTotal:"), known.get("MemAvailable:")
    try:
        limit = int(_CONTAINER.read_text())  # "max" where there is none
    except (OSError, ValueError):
        return total, free
    return min(limit, total or limit), min(limit, free or limit)


def process_memory() -> int | None:
    """Return the bytes of memory that this process has; None if unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None
