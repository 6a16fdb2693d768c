"""The model card beside a trained model: what it is, what it was trained on and how, what to expect."""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fednlp.reports.groups import algorithm_title
from fednlp.reports.hub import HUB_METRICS, TASKS, use
from fednlp.reports.markdown_text import escape, fence, table
from fednlp.reports.read import REFERENCES, lookup
from fednlp.reports.travel import has_personal, keeps_tensors
from fednlp.reports.units import (
    capital,
    clean,
    human_bytes,
    human_number,
    human_seconds,
    metric_title,
    metric_value,
)
from fednlp.reports.words import count_words, environment_facts, method_words, partition_words

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
Table = Mapping[str, Any]


def model_card(summary: Table, config: Table, environment: Table) -> str:
    """Return a Hugging Face model card: front matter, data, partition, method, results and limits.

    Args:
        summary: A run's ``summary.json``.
        config: Its ``resolved.toml``.
        environment: Its ``environment.json``.
    """
    sections = [
        _front_matter(summary, config),
        f"# {escape(summary.get('name') or config.get('name') or 'A federated model')}\n",
        _intro(summary, config),
        f"## Use\n\n{fence(use(_task(summary)), 'python')}",
        f"## Data\n\n{_data(summary, config)}",
        f"## Partition\n\n{escape(_sentence(partition_words(config)))}\n",
        f"## Training\n\n{_training(summary, config)}",
        f"## Results\n\n{_results(summary, config)}",
        "## Limits\n\n" + "".join(f"- {escape(limit)}\n" for limit in _limits(summary, config)),
        f"## Made with\n\n{table(['', ''], list(environment_facts(environment).items()))}",
    ]
    return "\n".join(sections)


def _task(summary: Table) -> str:
    """Return the run's task; one of the user's own is told by its name."""
    return str(summary.get("task", "text-classification"))


def _front_matter(summary: Table, config: Table) -> str:
    """Return the YAML header; every string is quoted as JSON, which YAML reads as it stands."""
    name = clean(summary.get("name") or config.get("name") or "model")
    kind = TASKS.get(_task(summary), (None,))[0]
    lines = ["---", "library_name: transformers", *([f"pipeline_tag: {kind}"] if kind else [])]
    base = str(lookup(config, "model.name_or_path", ""))
    if _HUB_NAME.fullmatch(base):
        lines.append(f"base_model: {_quoted(base)}")
    lines += ["tags:", *([f"- {kind}"] if kind else []), "- federated-learning", "- fednlp"]
    metrics = _hub_metrics(summary)
    if metrics and kind:
        dataset = clean(_data_name(summary, config))
        lines += ["metrics:", *(f"- {kind}" for kind, _ in metrics)]
        lines += ["model-index:", f"- name: {_quoted(name)}", "  results:"]
        lines += ["  - task:", f"      type: {kind}", "    dataset:"]
        lines += [
            f"      name: {_quoted(dataset)}",
            f"      type: {_quoted(_slug(dataset))}",
            "      split: test",
        ]
        lines += ["    metrics:"]
        lines += [
            line for kind, value in metrics for line in (f"    - type: {kind}", f"      value: {value!r}")
        ]
    return "\n".join([*lines, "---", ""])


def _intro(summary: Table, config: Table) -> str:
    base = clean(summary.get("model") or lookup(config, "model.name_or_path", "a language model"))
    size = summary.get("parameters")
    counted = f" ({size:,} {_counted(config)})" if isinstance(size, int) else ""
    task = _task(summary)
    what = TASKS[task][2] if task in TASKS else f"for the task {clean(task)}"
    what = what.format(labels=count_words(lookup(summary, "data.labels")))
    name = str(summary.get("algorithm") or lookup(config, "algorithm.name", "unknown"))
    how = f"federated learning with {algorithm_title(name)}"
    if name in REFERENCES:
        how = {
            "centralised": "centralised training",
            "chained": "training on one client after the other",
            "local": "one client's own training",
        }[name]
    if config.get("variant"):
        how += f" (variant {clean(config['variant'])})"
    data = clean(_data_name(summary, config))
    return escape(f"{base}{counted}, trained on {data} {what}, by {how}.") + "\n"


def _counted(config: Table) -> str:
    """Say what is counted: a run counts the parameters that travel."""
    whole = lookup(config, "model.train", "all") == "all" and not lookup(config, "model.peft")
    return "parameters" if whole else "shared parameters"


def _data(summary: Table, config: Table) -> str:
    data = summary.get("data") or {}
    rows = [
        ("Data set", clean(_data_name(summary, config))),
        ("Source", clean(data.get("source", "unknown"))),
        *((said, count_words(data.get(key))) for key, said in _COUNTS if key in data),
    ]
    return table(["", ""], rows)


_COUNTS = (("train", "Training examples"), ("test", "Test examples"), ("labels", "Labels"))


def _training(summary: Table, config: Table) -> str:
    rows = [
        ("Rounds done", human_number(summary.get("rounds"))),
        ("Seed", str(summary.get("seed", config.get("seed", "unknown")))),
        ("Text cut after", f"{lookup(config, 'model.max_length', 'unknown')} tokens"),
        *((said, human_bytes(summary[key])) for key, said in _BYTES if key in summary),
    ]
    if "seconds" in summary:
        rows.append(("Time, evaluation included", human_seconds(summary["seconds"])))
    return f"{escape(method_words(config, summary.get('reference')))}\n\n{table(['', ''], rows)}"


_BYTES = (("bytes_up", "Sent by the clients"), ("bytes_down", "Sent to the clients"))


def _results(summary: Table, config: Table) -> str:
    rows = [
        (f"{said} {metric_title(key)}", count_words(value) if key == "clients" else metric_value(key, value))
        for part, said in _PARTS
        for key, value in (lookup(summary, f"evaluation.{part}") or {}).items()
    ]
    if not rows:
        return "The run ended before its first evaluation.\n"
    own = "The whole test set was tried with some clients' own models: the mean of these."
    note = summary.get("note") or (own if _personalised(summary, config) else None)
    return table(["After the last round", ""], rows) + (f"\n{escape(note)}\n" if note else "")


_PARTS = (
    ("global", "Whole test set,"),
    ("personal", "Clients' own test sets,"),
    ("final", "Clients' own test sets after own steps,"),
)


def _personalised(summary: Table, config: Table) -> bool:
    """Tell whether clients kept tensors to themselves; the references have nothing of the kind."""
    told = summary.get("personalised")
    if told is not None or summary.get("algorithm") in REFERENCES:
        return bool(told)
    return keeps_tensors(config)


def _own_tensors(summary: Table, config: Table) -> Iterator[str]:
    """Say what this model is where clients have models of their own."""
    if not _personalised(summary, config):
        return
    if has_personal(config):
        yield (
            "The clients kept some tensors to themselves. This model has the common tensors, and in the personal "
            "places the first ones, those that every client began with: by itself it is not what any client uses."
        )
    else:
        yield (
            "The clients kept tensors that they did not send, so that each has a model of its own; this is the "
            "server's."
        )
    if not lookup(config, "model.peft"):
        yield "A client's own model is loaded from the run directory: fednlp evaluate RUN --client N."


def _limits(summary: Table, config: Table) -> Iterator[str]:
    stopped = summary.get("stopped")
    if stopped:
        yield f"The run stopped early: {_sentence(clean(stopped))}"
    elif not summary.get("finished"):
        yield "The run is unfinished; this is the model of its last complete round."
    yield from _own_tensors(summary, config)
    yield (
        f"It knows the kind of text of {clean(_data_name(summary, config))}, its labels if it has any, and nothing "
        "else; on other text, other languages or other labels it is untested."
    )
    metric = str(summary.get("metric", "accuracy"))
    worst = lookup(summary, f"evaluation.personal.{metric}_worst_decile")
    if isinstance(worst, int | float) and math.isfinite(worst):
        yield (
            f"It does not serve every client alike: for the worst tenth of the clients the {metric_title(metric)} is "
            f"{metric_value(metric, worst)}."
        )
    best = summary.get("best") or {}
    tests = "the clients' own tests" if _personalised(summary, config) else "the test set"
    if best.get("round") not in (None, summary.get("rounds")):
        yield (
            f"The results are those of the last round. Round {best['round']} reached "
            f"{metric_title(metric)} {metric_value(metric, best.get(metric))} on {tests}; it was not chosen, since "
            "that would be choosing by the test examples."
        )
    yield (
        "The clients were simulated. Keeping texts on the clients does not by itself keep them secret: "
        "models can give away what they were trained on."
    )
    yield "What the base model and the data allow (their licences) and what biases they carry hold here too."


def _hub_metrics(summary: Table) -> list[tuple[str, float]]:
    results = lookup(summary, "evaluation.global") or {}
    return [
        (kind, float(results[key]))
        for key, kind in HUB_METRICS.items()
        if isinstance(results.get(key), int | float) and math.isfinite(results[key])
    ]


def _data_name(summary: Table, config: Table) -> str:
    known = lookup(summary, "data.name") or lookup(config, "data.name") or lookup(config, "data.path")
    return str(known or "unknown data")


def _sentence(text: str) -> str:
    return capital(text) + ("" if text.endswith(".") else ".")


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "data"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
