"""The YAML header of a model card, which the Hugging Face Hub reads."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fednlp.formatting.safe_text import clean
from fednlp.reports.hub import HUB_METRICS, TASKS
from fednlp.reports.read import lookup

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
Table = Mapping[str, Any]


def front_matter(
    summary: Table, config: Table, metrics: Sequence[tuple[str, float]], tests: str, usable: bool = True
) -> str:
    """Return the YAML header; every string is quoted as JSON, which YAML reads as it stands.

    Args:
        summary: The run's.
        config: The run's.
        metrics: What the model itself scored, in the Hub's names.
        tests: Which of the data set's test examples it was scored on, to go behind its name.
        usable: Whether a pipeline of the task can use the model.
    """
    name = clean(summary.get("name") or config.get("name") or "model")
    kind = TASKS.get(task_of(summary), (None,))[0]
    lines = ["---", "library_name: transformers", *([f"pipeline_tag: {kind}"] if kind and usable else [])]
    base = str(lookup(config, "model.name_or_path", ""))
    if _HUB_NAME.fullmatch(base):
        lines.append(f"base_model: {_quoted(base)}")
    lines += ["tags:", *([f"- {kind}"] if kind else []), "- federated-learning", "- fednlp"]
    if metrics and kind:
        dataset = clean(data_name(summary, config))
        lines += ["metrics:", *(f"- {kind}" for kind, _ in metrics)]
        lines += ["model-index:", f"- name: {_quoted(name)}", "  results:"]
        lines += ["  - task:", f"      type: {kind}", "    dataset:"]
        lines += [
            f"      name: {_quoted(dataset + tests)}",
            f"      type: {_quoted(_slug(dataset))}",
            "      split: test",
        ]
        lines += ["    metrics:"]
        lines += [
            line for kind, value in metrics for line in (f"    - type: {kind}", f"      value: {value!r}")
        ]
    return "\n".join([*lines, "---", ""])


def hub_metrics(results: Table | None) -> list[tuple[str, float]]:
    """Return the scores of which the Hub has a name, under that name."""
    results = results or {}
    return [
        (kind, float(results[key]))
        for key, kind in HUB_METRICS.items()
        if isinstance(results.get(key), int | float) and math.isfinite(results[key])
    ]


def data_name(summary: Table, config: Table) -> str:
    """Return the name of a run's data set, or its path."""
    known = lookup(summary, "data.name") or lookup(config, "data.name") or lookup(config, "data.path")
    return str(known or "unknown data")


def task_of(summary: Table) -> str:
    """Return the run's task; one of the user's own is told by its name."""
    return str(summary.get("task", "text-classification"))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "data"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
