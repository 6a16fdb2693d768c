"""The profile of a run: where the time of each worker went until the end of the run.

It begins with the worker's process, or with the run where the process has served another one before.
"""

import time

from fednlp.clock import Clock, in_seconds
from fednlp.runtime.engine import Engine, Measured
from fednlp.simulation.run_dir import RunDir, saving


def profiled(directory: RunDir, clock: Clock, pool: Engine) -> RunDir:
    """Write the profile of a run that is at its end, and return its directory.

    Args:
        pool: The engine; where it is not :class:`fednlp.runtime.engine.Measured`, only this process is in the profile.
    """
    until = time.monotonic_ns()
    others = pool.spent(until) if isinstance(pool, Measured) else []
    workers = [in_seconds(spent) for spent in (clock.spent(until), *others)]
    with saving(directory.folder):
        directory.write_json("profile.json", {"workers": workers})
    return directory
