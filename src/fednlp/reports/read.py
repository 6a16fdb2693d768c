"""A run directory, read: everything that tables, plots and pages show comes from here."""

import csv
import io
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import RunError

REFERENCES = ("centralised", "chained", "local")


@dataclass(frozen=True, eq=False)
class ClientTable:
    """The clients after the last evaluation, one position each; the score is NaN without test examples."""

    ids: NDArray[np.int64]
    names: tuple[str, ...]
    train_examples: NDArray[np.int64]
    test_examples: NDArray[np.int64]
    scores: NDArray[np.float64]

    def __repr__(self) -> str:
        return f"<ClientTable of {len(self):,} clients>"

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, eq=False)
class LabelCounts:
    """How many examples of each label each client holds: client x label."""

    names: tuple[str, ...]
    train: NDArray[np.int64]
    test: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Run:
    """One run directory; ``summary`` is None while the run is under way."""

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    rounds: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None
    clients: ClientTable

    def __repr__(self) -> str:
        return (
            f"<Run {self.name} in {self.folder}: {len(self.rounds):,} rounds, {len(self.clients):,} clients>"
        )

    def setting(self, key: str, default: Any = None) -> Any:
        """Return a setting by its dotted key, e.g. ``"algorithm.name"``."""
        return lookup(self.config, key, default)

    @property
    def name(self) -> str:
        """The experiment's name."""
        return str(self.setting("name", self.folder.name))

    @property
    def algorithm(self) -> str:
        """The algorithm's name as in the configuration."""
        return str(self.setting("algorithm.name", "unknown"))

    @property
    def seed(self) -> int:
        """The experiment's seed."""
        return int(self.setting("seed", 0))

    @property
    def reference(self) -> str | None:
        """``"centralised"`` or ``"local"`` for a reference point, else None."""
        named = self.summary.get("reference") if self.summary else None
        return named or (self.algorithm if self.algorithm in REFERENCES else None)

    @property
    def metric(self) -> str:
        """The metric that stands for the run's task."""
        return str(lookup(self.environment, "data.metric", "accuracy"))

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.summary and self.summary.get("finished"))

    @cached_property
    def evaluation(self) -> Mapping[str, Any]:
        """The last evaluation: ``{"global": {...}, "personal": {...}}``, empty before the first."""
        if self.summary and self.summary.get("evaluation"):
            return dict(self.summary["evaluation"])
        done = [line["evaluation"] for line in self.rounds if line.get("evaluation")]
        return dict(done[-1]) if done else {}

    def scores(self, part: str) -> Mapping[str, Any]:
        """Return the last evaluation's ``"global"``, ``"personal"`` or ``"final"`` metrics, empty if there are none."""
        return self.evaluation.get(part) or {}

    def total(self, key: str) -> float:
        """Return the whole run's ``bytes_up``, ``seconds`` or another count of its lines, 0 where it has none."""
        if self.summary and self.summary.get(key) is not None:
            return float(self.summary[key])
        return float(sum(line.get(key) or 0 for line in self.rounds))

    def counted(self, key: str) -> bool:
        """Tell whether the run counted this: older runs, and references, did not count everything."""
        return any(line.get(key) is not None for line in self.rounds)


def read_run(folder: str | Path) -> Run:
    """Read a run directory, finished or still under way.

    Args:
        folder: The directory that ``fednlp run --out`` was given.

    Raises:
        RunError: The folder is not a run directory, or one of its files is damaged. A last line
            that is cut short belongs to a round being written and is no damage.
    """
    folder = Path(folder)
    if not (folder / "resolved.toml").is_file():
        what = "has no resolved.toml" if folder.is_dir() else "does not exist"
        raise RunError(
            f"{folder} is not a run directory ({what}); give the folder that fednlp run --out made"
        )
    return Run(
        folder=folder,
        config=_read_config(folder / "resolved.toml"),
        environment=_read_json(folder / "environment.json") or {},
        rounds=_read_rounds(folder / "rounds.jsonl"),
        summary=_read_json(folder / "summary.json"),
        clients=_read_clients(folder / "clients.csv"),
    )


def read_labels(run: Run) -> LabelCounts | None:
    """Return the label counts of every client, or None where the run did not write them.

    Raises:
        RunError: ``labels.json`` is damaged.
    """
    path = run.folder / "labels.json"
    data = _read_json(path)
    if data is None:
        return None
    try:
        names = tuple(str(name) for name in data["labels"])
        train, test = (
            np.array(data[split], dtype=np.int64).reshape(-1, len(names)) for split in ("train", "test")
        )
        return LabelCounts(names, train, test)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise RunError(f"{path} is damaged ({error}); run the experiment again") from error


def lookup(data: Mapping[str, Any], key: str, default: Any = None) -> Any:
    """Return the value at a dotted key of nested tables.

    >>> lookup({"a": {"b": 1}}, "a.b"), lookup({"a": {"b": 1}}, "a.c.d")
    (1, None)
    """
    value: Any = data
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return default
        value = value[part]
    return value


def curve(run: Run, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rounds on which a metric was measured, and its values.

    Args:
        run: A run.
        metric: ``"train_loss"``, ``"seconds"``, ``"bytes_up"`` ... of every round, or
            ``"global.accuracy"``, ``"personal.accuracy"`` ... of the rounds that evaluate.

    Both are empty where nothing was measured.
    """
    key = f"evaluation.{metric}" if metric.split(".")[0] in ("global", "personal") else metric
    points = [(line["round"], lookup(line, key)) for line in run.rounds]
    known = [(number, value) for number, value in points if isinstance(value, int | float)]
    return (
        np.array([number for number, _ in known], dtype=np.int64),
        np.array([value for _, value in known], dtype=np.float64),
    )


def running_total(run: Run, *keys: str) -> dict[int, float]:
    """Return, for each round, the sum of these numbers from the first round to it (inclusive)."""
    total, sums = 0.0, {}
    for line in run.rounds:
        total += sum(float(line.get(key) or 0) for key in keys)
        sums[int(line["round"])] = total
    return sums


def _read_config(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}); run the experiment again") from error


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}); run the experiment again") from error
    if not isinstance(data, dict):
        raise RunError(f"{path} is damaged (not a JSON object); run the experiment again")
    return data


def _read_rounds(path: Path) -> tuple[dict[str, Any], ...]:
    lines = path.read_bytes().splitlines() if path.is_file() else []
    rounds: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            data = json.loads(line)
            # A round that a resumed run did again stands in for the earlier line.
            rounds[int(data["round"])] = data
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise RunError(
                f"{path}:{number} is damaged ({error}); resume from a copy, or run again"
            ) from error
    return tuple(rounds[number] for number in sorted(rounds))


def _read_clients(path: Path) -> ClientTable:
    text = path.read_bytes().decode("utf-8", "replace") if path.is_file() else ""
    # A row without its line end is still being written.
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    rows = []
    try:
        for row in reader:
            counts = int(row["client"]), int(row["train_examples"]), int(row["test_examples"])
            rows.append((*counts, row["name"] or "", float(list(row.values())[4] or "nan")))
    except (KeyError, IndexError, ValueError, TypeError, csv.Error) as error:
        raise RunError(f"{path}:{reader.line_num} is damaged ({error}); run the experiment again") from error
    ids, train, test = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    scores = np.array([row[4] for row in rows], dtype=np.float64)
    return ClientTable(ids, tuple(row[3] for row in rows), train, test, scores)
