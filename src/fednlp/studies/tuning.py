"""Find the fastest workers, threads and precision for an experiment on this machine, by short runs with each."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fednlp import config
from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.processor import cores
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.precision import with_precision
from fednlp.simulation.run import run

ONEDNN, BF16 = "runtime.onednn", "client.bf16"
"""Settings that are tried last, each with the fastest of the others: unlike these they change the weights."""
_MEASURED = 2
"""The round of a trial that is measured: the first warms up."""

Changes = Mapping[str, Any]
"""Settings by their dotted keys."""


@dataclass(frozen=True)
class Trial:
    """Settings that were tried, and the seconds of a warm round with them; None where they did not run, with why."""

    changes: Changes
    seconds: float | None
    error: str | None = None


def choices(cores: int, clients: int) -> list[Changes]:
    """Return the settings to try, those that use all cores first.

    Args:
        clients: In a round: more workers than these would have nothing to do.

    >>> [tuple(one.values()) for one in choices(4, 10)]
    [(4, 1), (2, 2), (1, 4), (1, 1)]
    """
    threads = [1 << power for power in range(cores.bit_length()) if 1 << power <= cores]
    pairs = [(min(cores // each, clients), each) for each in threads]
    return [
        {"runtime.workers": workers, "runtime.threads": each}
        for workers, each in dict.fromkeys([*pairs, (1, 1)])
    ]


def tried(experiment: Experiment, seconds: float) -> Iterator[Trial]:
    """Yield a trial of each choice, then of the fastest with oneDNN and with bfloat16; none is begun once time is over.

    Args:
        experiment: Its rounds are run as they are, without evaluation, trackers or a report.
        seconds: Roughly how long the trials may take together.
    """
    begun = time.monotonic()
    trials: list[Trial] = []
    for changes in choices(len(cores()), experiment.clients_per_round):
        if trials and time.monotonic() - begun > seconds:
            return
        trials.append(_trial(experiment, changes))
        yield trials[-1]
    if (
        experiment.client.bf16 is not False
        or experiment.client.fp16
        or not any(one.seconds for one in trials)
    ):
        return
    taken = with_precision(experiment).runtime.onednn
    for key in (BF16,) if taken else (ONEDNN, BF16):
        if time.monotonic() - begun <= seconds:
            yield _trial(experiment, {**fastest(trials).changes, key: True})


def as_text(changes: Changes) -> str:
    """Return settings as a person reads them.

    >>> as_text({"runtime.workers": 2, "runtime.threads": 1, "client.bf16": True})
    'workers = 2, threads = 1, bf16 = true'
    """
    return ", ".join(f"{key.rpartition('.')[2]} = {str(value).lower()}" for key, value in changes.items())


def fastest(trials: list[Trial]) -> Trial:
    """Return the trial with the shortest round.

    Raises:
        RunError: No trial ran to its end.
    """
    done = [one for one in trials if one.seconds is not None]
    if not done:
        why = f": {trials[0].error}" if trials else ""
        raise RunError(f"no trial ran to its end{why}")
    return min(done, key=lambda one: one.seconds or 0.0)


def as_toml(changes: Changes) -> str:
    """Return settings as lines of an experiment file.

    >>> print(as_toml({"runtime.workers": 2, "runtime.threads": 1}))
    [runtime]
    workers = 2
    threads = 1
    """
    return tomli_w.dumps(_nested(changes)).strip()


def _nested(changes: Changes) -> dict[str, dict[str, Any]]:
    """Return settings by section."""
    sections: dict[str, dict[str, Any]] = {}
    for key, value in changes.items():
        section, _, name = key.partition(".")
        sections.setdefault(section, {})[name] = value
    return sections


class _Done(Exception):
    """The round that was to be measured is done."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class _Stop(NullCallback):
    """Stops a run after the round that is measured."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """End the run, with the seconds of its last round."""
        if line["round"] == _MEASURED:
            raise _Done(line["seconds"])


def _trial(experiment: Experiment, changes: Changes) -> Trial:
    """Run some rounds with changed settings, in a folder that is removed."""
    rounds = _MEASURED + 1
    fixed = {"evaluation.every": rounds + 1, "report.report_to": []}
    settings = experiment.model_dump(exclude_none=True) | {"num_rounds": rounds}
    for section, values in _nested({**fixed, **changes}).items():
        settings[section] = settings.get(section, {}) | values
    with tempfile.TemporaryDirectory(prefix="fednlp-") as folder:
        try:
            run(config.parse(settings, experiment.name), Path(folder) / "run", callback=_Stop())
        except _Done as found:
            return Trial(changes, found.seconds)
        except RunError as error:
            return Trial(changes, None, str(error))
    raise RunError(f"{experiment.name} ends before its second round: nothing can be measured")
