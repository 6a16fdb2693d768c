"""The partition of an experiment; and ``fednlp partition``, which shows its figures and writes index and plots."""

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fednlp.config import Experiment
from fednlp.config.sections import Partition as PartitionOptions
from fednlp.data import TextData
from fednlp.data.profiling import profile
from fednlp.data.split import Numbers
from fednlp.data.textdata import Split
from fednlp.errors import PartitionError
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import plural
from fednlp.partition import Partition, make_partition
from fednlp.partition.entities import entity_labels
from fednlp.partition.methods import METHODS
from fednlp.partition.validation import hold_out_validation
from fednlp.plugins import is_own
from fednlp.simulation.components import Log, open_data
from fednlp.simulation.data_profile import holders_of
from fednlp.simulation.partition_file import read_partition_file, write_partition_file
from fednlp.tasks.spans import spans

_NAMED = 20
"""Maximum number of clients that are named one by one."""
_BY_LABEL = ("label", "label+quantity")
"""The methods that share tagged texts out by the types of their entities."""


def build_partition(experiment: Experiment, data: TextData, log: Log) -> Partition:
    """Build the experiment's partition, a function of labels, options and seed only.

    With ``evaluation.validation_fraction`` the clients' tests are a part of their own training examples.

    Args:
        experiment: Resolved.
        data: The data set whose examples are assigned to clients.
        log: Called with a message before each slow step.

    Raises:
        PartitionError: The method does not fit the data.
    """
    partition = _whole_partition(experiment, data, log)
    fraction, seed = experiment.evaluation.validation_fraction, experiment.partition.seed
    if fraction is None:
        return partition
    return hold_out_validation(partition, fraction, experiment.seed if seed is None else seed)


def _whole_partition(experiment: Experiment, data: TextData, log: Log) -> Partition:
    configured, kind = experiment.partition, data.schema.kind
    if configured.method == "file":
        return read_partition_file(configured, data, experiment.data.path)
    train, test = data.train_numbers, data.test_numbers
    if configured.method == "proportions" and kind not in ("class", "score"):
        raise PartitionError(
            f"{data.name} has neither labels nor scores, which proportions speak of: "
            'say partition.method = "uniform", "quantity", "cluster" or "natural"'
        )
    fields: dict[str, Any] = {}
    field = _client_field(configured, data, log)
    if field is not None:
        train_field, names = data.groups("train", field)
        test_field, _ = data.groups("test", field, names)
        fields = {"train_field": train_field[train], "test_field": test_field[test], "field_names": names}
    if configured.method == "cluster":
        log(f"embedding the texts of {data.name} for cluster shift (once; kept in the cache)")
    if is_own(configured.method) or METHODS.find(configured.method).reads_texts:
        fields |= {
            "train_texts": data.input_texts("train", train),
            "test_texts": data.input_texts("test", test),
        }
    if kind == "tags" and (configured.method in _BY_LABEL or is_own(configured.method)):
        fields |= {"train_entities": entities(data, "train"), "test_entities": entities(data, "test")}
    labels = data.scores if kind == "score" else data.labels
    return make_partition(
        configured.spec(),
        labels("train")[train],
        labels("test")[test],
        num_labels=len(data.label_names) if kind == "class" else None,
        train_numbers=train,
        test_numbers=test,
        label_names=data.label_names if kind == "class" else None,
        **fields,
    )


def entities(data: TextData, split: Split) -> list[Counter[str]]:
    """Return how many entities of each type each training or test example of a data set with tags has."""
    numbers = data.train_numbers if split == "train" else data.test_numbers
    rows = data.column(split, data.columns["tags"]).take(numbers).to_pylist()
    return [Counter(kind for kind, _, _ in spans(json.loads(tags))) for tags in rows]


def _client_field(configured: PartitionOptions, data: TextData, log: Log) -> str | None:
    """Return the column whose values are the clients, None for methods that use none."""
    if configured.method == "silos":
        if data.silo is None:
            raise PartitionError(
                f'{data.name} is one data set, and partition.method = "silos" makes a client of each of several: give '
                'data.path a folder of files or of folders, a pattern such as "silos/*.csv" or a list; or, where a '
                'column says whose an example is, say partition.method = "natural" and partition.field'
            )
        return data.silo
    if data.silo is not None and configured.method != "natural":
        log(
            f'the silos are pooled and shared out again by "{configured.method}"; "silos" has each as a client'
        )
    field: str | None = configured.given().get("field")
    return field


def partition_source(
    experiment: Experiment, out: Path | None, plots: Path | None, log: Log
) -> dict[str, Any]:
    """Build the partition of an experiment and return its figures.

    Args:
        experiment: The configuration, of which ``[data]``, ``[partition]`` and the seed are used.
        out: File for the index; None for no file.
        plots: Folder for the four plots and their tables; None for no plots.
        log: Called with a message before each slow step, and with notes on the data.

    Raises:
        FednlpError: The data cannot be loaded, or the partition cannot be built.
    """
    from fednlp.partition import overview, save_plots, summary

    experiment = experiment.settled()
    data = open_data(experiment)
    for note in data.notes:
        log(note)
    partition = build_partition(experiment, data, log)
    configured = experiment.partition
    labels, names = _labels(data, configured)
    figures = summary(partition, labels, len(names)) if len(names) > 1 else summary(partition)
    seed = {} if configured.seed is None else {"seed": configured.seed}
    report = {
        "data": data.name,
        "source": data.source,
        "method": configured.method,
        "options": configured.given() | seed,
        **figures,
    }
    if partition.client_names is not None:
        sizes = np.diff(partition.train_offsets).tolist(), np.diff(partition.test_offsets).tolist()
        columns = zip(partition.client_names, *sizes, strict=True)
        report["named"] = [
            {"name": name, "train": train, "test": test} for name, train, test in islice(columns, _NAMED)
        ]
    if out is not None:
        report["written"] = write_partition_file(out, partition, configured, data)
    if plots is not None:
        files = save_plots(plots, overview(partition, labels, names))
        report["plots"] = [str(path) for path in files]
    for line in profile(data, holders_of(data, partition)).lines():
        log(line)
    return report


def _labels(data: TextData, configured: PartitionOptions) -> tuple[Numbers, tuple[str, ...]]:
    """Return the label of every row of the training table that figures and plots are of, and the labels' names.

    Tagged texts have the type of an entity where they are shared out by it; data without labels have one for all.
    """
    if data.schema.kind == "class":
        return data.labels("train"), data.label_names
    labels = data.labels("train")
    if data.schema.kind != "tags" or configured.method not in _BY_LABEL:
        return labels, ("any",)
    rule = configured.given().get("entity", "majority")
    labels[data.train_numbers], _, names = entity_labels(entities(data, "train"), (), rule)
    return labels, names


def describe(report: dict[str, Any]) -> str:
    """Return a partition's figures as a few lines of text."""

    def line(name: str, part: dict[str, Any]) -> str:
        sizes, divergence = part["sizes"], part.get("mean_divergence")
        text = f"{name:<14} sizes {sizes['min']} / {sizes['median']:g} / {sizes['max']} (min / median / max)"
        return text if divergence is None else f"{text}, divergence from the prior {divergence:.4f}"

    options = ", ".join(f"{key} {value}" for key, value in report["options"].items() if key != "clients")
    lines = [
        f"{report['data']}: {report['source']}",
        f"{report['method']} ({options}): {plural(report['clients'], 'client')}, {report['train_examples']:,} training "
        f"and {plural(report['test_examples'], 'test example')}",
        line("all clients", report),
        line("first tenth", report["first_tenth"]),
        line("last tenth", report["last_tenth"]),
    ]
    lines += _named(report.get("named", []), report["clients"])
    lines += [f"written {path}" for path in [report.get("written"), *report.get("plots", [])] if path]
    return "\n".join(lines)


def _named(clients: list[dict[str, Any]], of: int) -> list[str]:
    """Return a line for each named client with its training and test examples."""
    names = [clean(client["name"]) for client in clients]
    width = max(map(len, names), default=0)
    lines = [
        f"{name:<{width}}  {client['train']:,} training and {plural(client['test'], 'test example')}"
        for name, client in zip(names, clients, strict=True)
    ]
    return lines + ([f"and {plural(of - len(clients), 'client')} more"] if 0 < len(clients) < of else [])
