"""A run directory, read: everything that tables, plots and pages show comes from here."""

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.checked_json import damaged, no_run_directory, parse_json, read_json, read_lines, read_toml
from fednlp.checked_json.shapes import Round
from fednlp.config.sections import BASELINES
from fednlp.config.tables import lookup
from fednlp.errors import ConfigError, RunError
from fednlp.formatting.safe_text import text_of_csv
from fednlp.formatting.units import HIDDEN, plural

COUNTS = frozenset({"clients", "examples", "bytes"})
"""Entries of an evaluation that are counts, and no scores."""
_CLIENT_COLUMNS = ("client", "name", "train_examples", "test_examples")


@dataclass(frozen=True, eq=False)
class ClientTable:
    """The clients after the last evaluation, one position each; a score that was not measured is NaN.

    Scores are those of the model that the client would use, fine-tuned scores those after its own fine-tuning steps.
    Numbers of examples that a site does not tell are -1.
    """

    ids: NDArray[np.int64]
    names: tuple[str, ...]
    train_examples: NDArray[np.int64]
    test_examples: NDArray[np.int64]
    scores: NDArray[np.float64]
    finetuned_scores: NDArray[np.float64]

    def __repr__(self) -> str:
        return f"<ClientTable of {plural(len(self), 'client')}>"

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
        sizes = f"{plural(len(self.rounds), 'round')}, {plural(len(self.clients), 'client')}"
        return f"<Run {self.name} in {self.folder}: {sizes}>"

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
    def baseline(self) -> str | None:
        """``"centralised"``, ``"chained"``, ``"local"`` or ``"majority"`` for a baseline, else None."""
        named = self.summary.get("reference") if self.summary else None
        return named or (self.algorithm if self.algorithm in BASELINES else None)

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
        """Return the last evaluation's ``"global"``, ``"personal"`` or ``"finetuned"`` metrics, empty without any."""
        return self.evaluation.get(part) or {}

    def total(self, key: str) -> float:
        """Return the whole run's ``bytes_up``, ``seconds`` or another count of its lines, 0 where it has none."""
        if self.summary and self.summary.get(key) is not None:
            return float(self.summary[key])
        return float(sum(line.get(key) or 0 for line in self.rounds))

    def counted(self, key: str) -> bool:
        """Return whether the run counted this: older runs, and baselines, did not count everything."""
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
        raise no_run_directory(folder)
    return Run(
        folder=folder,
        config=_read_config(folder / "resolved.toml"),
        environment=read_file(folder / "environment.json") or {},
        rounds=_read_rounds(folder / "rounds.jsonl"),
        summary=read_file(folder / "summary.json"),
        clients=_read_clients(folder / "clients.csv"),
    )


def read_labels(run: Run) -> LabelCounts | None:
    """Return the label counts of every client, or None where the run did not write them.

    Raises:
        RunError: ``labels.json`` is damaged.
    """
    path = run.folder / "labels.json"
    data = read_file(path)
    if data is None:
        return None
    names = tuple(data["labels"])
    try:
        train, test = (
            np.array(data[split], dtype=np.int64).reshape(-1, len(names)) for split in ("train", "test")
        )
    except ValueError as error:  # rows of other lengths
        raise damaged(path, error) from error
    return LabelCounts(names, train, test)


def trivial_baseline(summary: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """Return the scores of a prediction without a model, and what it does as ``name``; empty without any.

    Args:
        summary: ``summary.json``; earlier versions called the entry ``baseline``.

    >>> trivial_baseline({"baseline": {"name": "the mean score", "mse": 0.5}})["mse"]
    0.5
    """
    found = summary or {}
    return found.get("trivial_baseline") or found.get("baseline") or {}


def curve(run: Run, metric: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rounds on which a metric was measured, and its values.

    Args:
        metric: ``"train_loss"``, ``"seconds"``, ``"client_metrics.drift"`` ... of every round, or
            ``"global.accuracy"``, ``"personal.accuracy"`` ... of the rounds that evaluate.

    Both are empty where nothing was measured.
    """
    evaluated = metric.split(".")[0] in ("global", "federated", "personal")
    key = f"evaluation.{metric}" if evaluated else metric
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
    """Read the configuration; keys that are unknown here may stand there, but none that has been renamed."""
    from fednlp.config.renamed import require_new_names

    try:
        config = read_toml(path)
        require_new_names(path, config)
        _require_types(config)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from error
    return config


def _require_types(config: dict[str, Any]) -> None:
    """Refuse a setting of another type than it has; those that are unknown here, and words that are, may stay."""
    from pydantic import ValidationError

    from fednlp.config import Experiment

    try:
        Experiment(**config)
    except ConfigError as error:
        known = error.__cause__
        for detail in known.errors(include_url=False) if isinstance(known, ValidationError) else ():
            unknown_word = detail["type"] == "literal_error" and isinstance(detail["input"], str)
            if detail["type"].endswith(("_type", "literal_error")) and not unknown_word:
                place = ".".join(map(str, detail["loc"]))
                raise ValueError(f"{place}: {detail['msg']}") from None


def read_file(path: Path) -> dict[str, Any] | None:
    """Read one of the JSON files of a run directory; None where the run did not write it.

    Raises:
        RunError: It is damaged.
    """
    return read_json(path) if path.is_file() else None


def _read_rounds(path: Path) -> tuple[dict[str, Any], ...]:
    lines = read_lines(path).splitlines()
    rounds: dict[int, dict[str, Any]] = {}
    for number, line in enumerate(lines, start=1):
        try:
            data = parse_json(line, Round)
        except ValueError as error:
            if number == len(lines):
                break
            raise RunError(
                f"{path}:{number} is damaged ({error}); resume from a copy, or run again"
            ) from error
        # A round that a resumed run did again stands in for the earlier line.
        rounds[data["round"]] = data
    return tuple(rounds[number] for number in sorted(rounds))


def _count_of(text: str) -> int:
    """Return a number of examples, or of a client.

    Raises:
        ValueError: It is none.
    """
    count = int(text)
    if not 0 <= count < 2**63:
        raise ValueError("a number out of range")
    return count


def _read_clients(path: Path) -> ClientTable:
    text = read_lines(path).decode("utf-8", "replace")
    # A row without its line end is still being written.
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    metric = next((name for name in reader.fieldnames or () if name not in _CLIENT_COLUMNS), "")
    rows = []
    try:
        for row in reader:
            train, test = (
                -1 if size == HIDDEN else _count_of(size)
                for size in (row["train_examples"], row["test_examples"])
            )
            own, finetuned = (float(row.get(key) or "nan") for key in (metric, f"{metric}_finetuned"))
            rows.append(
                (_count_of(row["client"]), train, test, text_of_csv(row["name"] or ""), own, finetuned)
            )
    except (KeyError, IndexError, ValueError, TypeError, csv.Error) as error:
        raise RunError(f"{path}:{reader.line_num} is damaged ({error}); run the experiment again") from error
    ids, trains, tests = (np.array([row[i] for row in rows], dtype=np.int64) for i in range(3))
    scores, finetuned_scores = (np.array([row[i] for row in rows], dtype=np.float64) for i in (4, 5))
    return ClientTable(ids, tuple(row[3] for row in rows), trains, tests, scores, finetuned_scores)
