"""Runs whose scores are compared are trained on the same data: the fingerprints that they keep say whether they are."""

import json
from pathlib import Path

from fednlp.checked_json import read_json
from fednlp.config import Experiment
from fednlp.errors import RunError
from fednlp.simulation.components import open_data


class SameData:
    """Checks runs against the first one whose examples are chosen by the same settings.

    Others are not comparable: a variant may have data of its own.
    """

    def __init__(self) -> None:
        self._first: dict[str, tuple[Path, str]] = {}
        self._checked: set[str] = set()

    @property
    def known(self) -> dict[str, str]:
        """The fingerprints of the data by choice of examples (:func:`choice_of`)."""
        return {choice: fingerprint for choice, (_, fingerprint) in self._first.items()}

    def add(self, experiment: Experiment, folder: Path) -> None:
        """Check the data of a run that lies in a folder, if one does.

        Args:
            experiment: Its configuration, resolved.
            folder: The run directory.

        Raises:
            RunError: It was trained on other data than an earlier one, or its ``environment.json`` is damaged.
        """
        found = fingerprint_of(folder)
        if found is None:
            return
        first, expected = self._first.setdefault(choice_of(experiment), (folder, found))
        if found != expected:
            raise RunError(
                f"{folder} was trained on other data than {first}: the files have changed in between. Remove one of "
                "them, or choose another --out"
            )

    def require(self, experiment: Experiment) -> None:
        """Check the data that a run is about to be trained on; they are opened at most once.

        Args:
            experiment: Its configuration, resolved.

        Raises:
            RunError: They are other data than those of an earlier run.
            DataError: They cannot be loaded.
        """
        choice = choice_of(experiment)
        if choice in self._checked or choice not in self._first:
            return
        first, expected = self._first[choice]
        if open_data(experiment).fingerprint != expected:
            raise RunError(
                f"the data have changed since {first} was trained: choose another --out, or remove the runs of before"
            )
        self._checked.add(choice)


def fingerprint_of(folder: Path) -> str | None:
    """Return the fingerprint of the data that a run was begun with; None where there is no run.

    Raises:
        RunError: ``environment.json`` is damaged.
    """
    path = folder / "environment.json"
    if not path.is_file():
        return None
    found: str | None = read_json(path, "remove the folder").get("data", {}).get("fingerprint")
    return found


def choice_of(experiment: Experiment) -> str:
    """Return what decides, beside the files, which examples a run has and which of them are tests.

    Args:
        experiment: Resolved.
    """
    own = experiment.partition.test_sets == "own-split"
    chosen = [
        experiment.data.model_dump(),
        experiment.task.configured,
        experiment.partition.given().get("field"),
        [experiment.partition.model_dump(), experiment.seed] if own else None,
    ]
    return json.dumps(chosen, sort_keys=True, default=str)
