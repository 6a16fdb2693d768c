"""``fednlp partition``: shows the figures of an experiment's partition, and writes index and plots."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from fednlp.config import Experiment
from fednlp.config.sections import Partition as PartitionOptions
from fednlp.data import TextData
from fednlp.data.profiling import profile
from fednlp.data.split import Numbers
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import plural
from fednlp.partition.entities import entity_labels
from fednlp.partition.make import check_options
from fednlp.simulation.assignment import BY_LABEL, build_partition, entities
from fednlp.simulation.components import Log, open_data
from fednlp.simulation.facts import holders_of
from fednlp.simulation.partition_file import check_partition_name, write_partition_file

_NAMED = 20
"""Maximum number of clients that are named one by one."""


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
        FednlpError: The data cannot be loaded, the partition cannot be built, or the name of ``out`` is no file's of a
            partition.
    """
    from fednlp.partition import overview, save_plots, summary

    if out is not None:
        check_partition_name(out)
    experiment = experiment.settled()
    check_options(experiment.partition.spec())
    data = open_data(experiment, log)
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
        **({"content": data.content} if data.content else {}),
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
    profiled = profile(data, holders_of(data, partition))
    for line in (*profiled.lines(), *profiled.silo_lines()):
        log(line)
    return report


def _labels(data: TextData, configured: PartitionOptions) -> tuple[Numbers, tuple[str, ...]]:
    """Return the label of every row of the training table that figures and plots are of, and the labels' names.

    Tagged texts have the type of an entity where they are shared out by it; data without labels have one for all.
    """
    if data.schema.kind == "class":
        return data.labels("train"), data.label_names
    labels = data.labels("train")
    if data.schema.kind != "tags" or configured.method not in BY_LABEL:
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
