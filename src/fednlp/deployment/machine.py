"""What this machine has."""

from pathlib import Path

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
