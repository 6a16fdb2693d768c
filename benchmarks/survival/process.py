"""A process of a trial: a ``fednlp`` command that keeps a log of its work, and may kill itself at a call.

The log of a site is its own. It has a line before each training, and one after each answer that is on its disk:

    trains 3 1
    stored 3.1.train

Nothing of it goes through the server or the outbox, so it says who worked twice even where these are wrong.
"""

import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def command(
    arguments: list[str],
    home: Path,
    log: Path,
    fatal: Sequence[tuple[str, bool]] = (),
    hook: Callable[[Path], None] | None = None,
) -> None:
    """Be a ``fednlp`` command: the work of a process.

    Args:
        arguments: Of the command line.
        home: What a site keeps.
        log: Where it prints to.
        fatal: (a call, whether its answer is in the outbox): the process kills itself there, once.
        hook: Called with ``home`` before the command begins.
    """
    from fednlp.cli import main

    home.joinpath("clock.txt").touch()
    off = round(
        time.time() - home.joinpath("clock.txt").stat().st_mtime
    )  # the disk has the machine's own time
    home.joinpath("clock.txt").write_text(str(off))
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    _watch(home, fatal)
    if hook is not None:
        hook(home)
    os.environ |= {"FEDNLP_HOME": str(home), "OMP_NUM_THREADS": "1"}
    sys.argv = ["fednlp", *arguments]
    main()


def _watch(home: Path, fatal: Sequence[tuple[str, bool]]) -> None:
    """Have this process write its log, and die where it has to."""
    from fednlp.deployment.session.replies import RunOutbox
    from fednlp.training.local import LocalTrainer

    hold, steps = RunOutbox.hold, LocalTrainer.steps

    def note(line: str) -> None:
        with (home / "worked.txt").open("a") as file:
            file.write(f"{line}\n")

    def noted_hold(self: RunOutbox, reply: Any, body: Path | None) -> None:
        for stored in (False, True):
            if stored:
                hold(self, reply, body)
                note(f"stored {reply.id}")
            death = home / f"killed.{reply.id}.{stored}"
            if (reply.id, stored) in fatal and not death.exists():
                death.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    def noted_steps(self: LocalTrainer, *given: Any, **options: Any) -> Any:
        note(f"trains {self.round} {self.client}")
        return steps(self, *given, **options)

    RunOutbox.hold = noted_hold  # type: ignore[method-assign]
    LocalTrainer.steps = noted_steps  # type: ignore[method-assign]


@dataclass
class Work:
    """What sites have done.

    Attributes:
        begun: How often each (round, client) was begun to be trained: again where a kill came before the answer was in
            the outbox, and twice at once by a method that trains two models.
        twice: Calls that were answered twice, and trainings that were begun after their answer was in the outbox.
    """

    begun: Counter[tuple[int, int]] = field(default_factory=Counter)
    twice: list[str] = field(default_factory=list)


def trained_by(logs: Iterable[Path]) -> Work:
    """Read the sites' logs."""
    work = Work()
    for log in logs:
        stored = set[str]()
        for line in log.read_text().splitlines():
            kind, _, what = line.partition(" ")
            if kind == "stored":
                work.twice += [what] if what in stored else []
                stored.add(what)
                continue
            number, client = (int(one) for one in what.split())
            work.begun[number, client] += 1
            work.twice += [what] if f"{number}.{client}.train" in stored else []
    return work
