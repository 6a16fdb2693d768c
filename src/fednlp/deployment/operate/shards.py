"""Split a data set into one folder of files for each client of a partition, as its own site would hold them."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fednlp import config
from fednlp.config import Experiment
from fednlp.config.sections import SITES
from fednlp.data.textdata import Split, TextData
from fednlp.deployment.session.servable import servable, unsupported
from fednlp.disk import atomic, writing
from fednlp.errors import ConfigError
from fednlp.partition import Partition
from fednlp.simulation.assignment import build_partition
from fednlp.simulation.components import Log, open_data

TRAIN, TEST, VALIDATION = "train.parquet", "test.parquet", "validation.parquet"
FEDERATION = "federation.toml"
SIMULATION = "simulation.toml"
"""The experiment that was split."""
NAMES = "sites.txt"
"""The clients' names, a line each, in the order of their numbers."""
_UNDERWAY = ".splitting"
_REMEDY = "choose another folder"


@dataclass(frozen=True)
class Shards:
    """A data set that was split.

    Attributes:
        folder: Holds a folder for each client, the global test set, and the server's experiment.
        names: The clients' names, which are those of their folders.
        experiment: The experiment as the server of a deployment has it: its data are at the sites.
    """

    folder: Path
    names: tuple[str, ...]
    experiment: Experiment

    def files(self, name: str) -> tuple[Path, Path | None]:
        """Return a client's file of training examples, and that of its own test examples if it has any."""
        test = self.folder / name / TEST
        return self.folder / name / TRAIN, test if test.is_file() else None


def split_out(experiment: Experiment, folder: Path, log: Log) -> Shards:
    """Write each client's examples into a folder of its own, and the global test set beside them.

    Args:
        experiment: Resolved, with data and partition of a simulation.
        folder: New or empty, or that of a split which was killed.
        log: Called with a message before each slow step.

    Raises:
        ConfigError: The folder is not empty, the experiment's data are at sites already, or no federation can run it.
        DataError: The data cannot be loaded.
        PartitionError: The partition does not fit the data.
    """
    if experiment.data.at_sites:
        raise ConfigError(
            'data.name = "sites": the examples are at the sites already, there is nothing to split'
        )
    experiment = servable(experiment, log)
    problems = unsupported(experiment)
    if problems:
        raise ConfigError("\n".join(problems), problems)
    if (folder / _UNDERWAY).is_file():
        shutil.rmtree(folder)
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} is not empty: choose another folder")
    data = open_data(experiment, log)
    partition = build_partition(experiment, data, log)
    gold = None
    for split_labels in experiment.parts("split"):
        gold = split_labels(experiment, data, partition)
    names = folder_names(partition)
    with writing(folder, _REMEDY):
        (folder / _UNDERWAY).touch()
        for client, name in enumerate(names):
            (folder / name).mkdir(parents=True)
            own = partition.train(client)
            numbers, labels = (own, None) if gold is None else gold.of_site(own, client)
            _write(data, "train", numbers, folder / name / TRAIN, labels)
            if len(partition.test(client)):
                _write(data, "test", partition.test(client), folder / name / TEST)
        if len(data.test_numbers):
            _write(data, "test", data.test_numbers, folder / TEST)
        if gold is not None and len(gold.validation[0]):
            _write(data, "train", gold.validation[0], folder / VALIDATION)
        served = served_experiment(experiment, data, folder / TEST, folder / VALIDATION, len(names))
        contents = {
            SIMULATION: config.dump(experiment),
            NAMES: "\n".join(names),
            FEDERATION: config.dump(served),
        }
        for name, content in contents.items():
            (folder / name).write_text(f"{content.rstrip()}\n", encoding="utf-8")
        (folder / _UNDERWAY).unlink()
    return Shards(folder, names, served)


def opened(experiment: Experiment, folder: Path) -> Shards | None:
    """Return an experiment's data set that was split before; None if the folder holds none.

    Args:
        experiment: Resolved, as it was split.
        folder: Where it was split to.

    Raises:
        ConfigError: Another experiment was.
    """
    if not (folder / FEDERATION).is_file() or (folder / _UNDERWAY).is_file():
        return None
    split = config.load(folder / SIMULATION).resolved(real_clients=True)
    changed = config.differences(split, experiment)
    if changed:
        raise ConfigError(
            f"{folder} holds the data of other settings ({'; '.join(changed[:5])}): start with these, or choose "
            "another --out"
        )
    names = tuple((folder / NAMES).read_text(encoding="utf-8").splitlines())
    return Shards(folder, names, config.load(folder / FEDERATION).resolved())


def served_experiment(
    experiment: Experiment, data: TextData, test: Path, validation: Path, clients: int
) -> Experiment:
    """Return an experiment as the server of a deployment has it.

    Args:
        data: Its data: their task and their labels.
        test: File of the global test set, if there is one.
        validation: File of the labelled texts that a search for a pace has, if there is one.
        clients: Number of clients, which a round has at most.
    """
    sections: dict[str, Any] = experiment.model_dump(exclude_none=True)
    sections |= {name: section.served() for name, section in experiment.sections()}
    sections["data"] = {"name": SITES}
    if data.label_names:
        sections["data"]["labels"] = list(data.label_names)
    if len(data.test_numbers):
        sections["data"]["test_path"] = str(test.absolute())
    sections["task"] = {**sections.get("task", {}), "name": experiment.task.configured or data.task}
    sections.pop("partition", None)
    if validation.is_file():
        sections["data"]["validation_path"] = str(validation.absolute())
    sections["clients_per_round"] = min(experiment.clients_per_round, clients)
    return config.parse(sections, experiment.name).resolved()


def folder_names(partition: Partition) -> tuple[str, ...]:
    """Return a name for each client that can be a folder's: its own where it has one that can.

    >>> folder_names(Partition([0, 1, 2], [0, 1], [0, 0, 0], [], [0, 1]))
    ('client-0', 'client-1')
    """
    digits = len(str(partition.num_clients - 1))
    numbered = tuple(f"client-{client:0{digits}}" for client in range(partition.num_clients))
    own = partition.client_names
    if own is None or len({*map(_plain, own)}) < len(own) or not all(map(_plain, own)):
        return numbered
    return tuple(map(_plain, own))


def _plain(name: str) -> str:
    """Return a name as a folder can have it; empty where nothing of it is left."""
    kept = "".join(c if c.isalnum() or c in "._-" else "-" for c in Path(name).stem.strip())
    return kept.strip(".-")[:64]


def _write(
    data: TextData,
    split: Split,
    numbers: Sequence[int] | np.ndarray,
    path: Path,
    labels: Sequence[str] | None = None,
) -> None:
    """Write rows of a table under the task's canonical names of columns, with labels of their own if given."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = data.columns_in(split)
    table = (data.train if split == "train" else data.test).select(list(columns.values()))
    rows = table.take(np.asarray(numbers, dtype=np.int64)).rename_columns(list(columns))
    if labels is not None:
        place = rows.column_names.index("label")
        rows = rows.set_column(place, "label", pa.array(labels, pa.string()))
    with atomic(path, _REMEDY) as file:
        pq.write_table(rows.replace_schema_metadata({"fednlp": json.dumps({"task": data.task})}), file)
