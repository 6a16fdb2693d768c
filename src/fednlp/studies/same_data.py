"""Runs whose scores are compared are trained on the same data: the digests that they keep say whether they are."""

import json
import threading
from collections.abc import Callable
from pathlib import Path

from fednlp.checked_json import read_json
from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.simulation.components import open_data
from fednlp.simulation.run_dir import RunDir

DIGITS = 8
"""Hex digits of a digest of the content of data."""
_ONE_KIND = ("text-classification", "prompt-classification")
"""Tasks that read the same rows; where no task is given, one of them is guessed, or another."""


class SameData:
    """Checks the data of runs against that of the first whose settings name the same files.

    Others are not comparable: a variant may have data of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # runs at once check their data in threads of their own
        self._first: dict[str, tuple[str, str]] = {}
        self._opened: dict[str, str] = {}

    def agrees(self, files: str, digest: str, where: str) -> bool:
        """Return whether data are those of the first run on the same files, which this one is if there is none.

        Args:
            files: What names the files (:func:`files_of`).
            digest: Of the data (:func:`digest_of`).
        """
        with self._lock:
            return self._first.setdefault(files, (where, digest))[1] == digest

    def add(self, experiment: Experiment, folder: Path) -> None:
        """Check the data of the run in a folder, if something was trained there.

        Args:
            experiment: Its configuration, resolved.

        Raises:
            RunError: It was trained on other data than an earlier one, or one of its files is damaged.
        """
        digest = digest_of(folder)
        if digest and not self.agrees(files_of(experiment), digest, str(folder)):
            first = self._first[files_of(experiment)][0]
            raise RunError(
                f"{folder} was trained on other data than {first}: the data have changed in between. Remove one of "
                "them, or choose another --out"
            )

    def require(self, experiment: Experiment, log: Callable[[str], None] = lambda text: None) -> None:
        """Check the data that a run is about to be trained on; the files are opened once.

        Args:
            experiment: Its configuration, resolved.
            log: Called with a message before each slow step.

        Raises:
            RunError: They are other data than those of an earlier run.
            DataError: They cannot be loaded.
        """
        files = files_of(experiment)
        if files not in self._first:
            return
        with self._lock:
            if files not in self._opened:
                self._opened[files] = open_data(experiment, log).content[:DIGITS]
        first, digest = self._first[files]
        if self._opened[files] != digest:
            raise RunError(
                f"the data are not those that {first} was trained on: choose another --out, or remove the earlier runs"
            )


def digest_of(folder: Path) -> str:
    """Return eight hex digits that tell the data of a run from others.

    They are empty where nothing was trained, and of a run of before they were kept.

    Raises:
        RunError: A file of the run is damaged.
    """
    run, path = RunDir(folder), folder / "environment.json"
    if not path.is_file() or not (run.state.is_file() or run.round_lines() or run.finished):
        return ""
    known = read_json(path, "remove the folder, and run the command again")
    found: str | None = known.get("data", {}).get("content")
    return (found or "")[:DIGITS]


def files_of(experiment: Experiment) -> str:
    """Return what decides which files an experiment's data are, and which of their rows are examples.

    Args:
        experiment: Resolved.
    """
    task = experiment.task.configured
    chosen = [experiment.data.model_dump(), None if task in _ONE_KIND else task]
    return json.dumps(chosen, sort_keys=True, default=str)
