"""How a rank that failed stops all others."""

import subprocess
import sys

_RANK = """
import os
from fednlp.runtime.mpi import end_all

class Comm:
    def Abort(self, code: int) -> None:
        os._exit(40 + code)

print("lost")
os.close(1)
end_all(Comm())
"""


def test_ranks_are_stopped_even_where_nobody_takes_what_was_printed() -> None:
    """Its standard output is closed, or its disk is full: the other ranks would wait for ever."""
    assert subprocess.run([sys.executable, "-c", _RANK], stderr=subprocess.DEVNULL).returncode == 41
