"""The command line as a child that does not outlive its parent: ``python -m fednlp.cli.tied PARENT COMMAND``."""

import ctypes
import os
import signal
import sys

from fednlp.cli import main

_PR_SET_PDEATHSIG = 1


def tie(parent: int) -> None:
    """Have the kernel kill this process when its parent ends, whatever ends it.

    Args:
        parent: The number of the process that started this one.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already
        sys.exit(1)


if __name__ == "__main__":
    tie(int(sys.argv.pop(1)))
    main()
