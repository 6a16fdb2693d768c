"""``fednlp partition``: share a data set out over clients, show the figures, write index and plots."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednlp.assembly import open_data, share_out
from fednlp.config import Experiment
from fednlp.data.look import look
from fednlp.data.schema import SCHEMAS
from fednlp.looking import holders_of
from fednlp.partitionfile import write_partition_file
from fednlp.reports.units import plural


def partition_source(
    experiment: Experiment, out: Path | None, plots: Path | None, say: Callable[[str], None]
) -> dict[str, Any]:
    """Make the partition an experiment asks for and return it in figures.

    Args:
        experiment: Its ``[data]``, ``[partition]`` and seed are used.
        out: Where to write the index, if anywhere.
        plots: Folder for the four pictures and their tables, if wanted.
        say: Told what takes time, how the data were read, and what is odd about them.

    Raises:
        FednlpError: The data or the partition cannot be had; the message says why.
    """
    from fednlp.partition import overview, save_plots, summary

    experiment = experiment.settled()
    data = open_data(experiment)
    for note in data.notes:
        say(note)
    partition = share_out(experiment, data, say)
    classes = SCHEMAS[data.task].kind == "class"
    labels, names = data.labels("train"), data.label_names if classes else ("any",)
    figures = summary(partition, labels, len(names)) if classes else summary(partition)
    wanted = experiment.partition.model_dump(exclude_none=True)
    wanted |= wanted.pop("options")
    report = {
        "data": data.name,
        "source": data.source,
        "method": wanted.pop("method"),
        "options": wanted,
        **figures,
    }
    if out is not None:
        report["written"] = write_partition_file(out, partition, experiment.partition, data)
    if plots is not None:
        files = save_plots(plots, overview(partition, labels, names))
        report["plots"] = [str(path) for path in files]
    for line in look(data, holders_of(data, partition)).lines():
        say(line)
    return report


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
    lines += [f"written {path}" for path in [report.get("written"), *report.get("plots", [])] if path]
    return "\n".join(lines)
