"""What the Hugging Face Hub reads of a model card: the YAML header, and its names of metrics and tasks."""

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from fednlp.config.tables import lookup
from fednlp.formatting.safe_text import clean
from fednlp.formulations import TASKS
from fednlp.models.origins import hub_names
from fednlp.models.registry import LSTM

Values = Mapping[str, Any]


def front_matter(
    summary: Values, config: Values, metrics: Sequence[tuple[str, float]], tests: str, usable: bool = True
) -> str:
    """Return the YAML header; every string is quoted as JSON, which YAML reads as it stands.

    Args:
        metrics: What the model itself scored, in the Hub's names.
        tests: Which of the data set's test examples it was scored on, to go behind its name.
        usable: Whether a pipeline of the task can use the model.
    """
    name = clean(summary.get("name") or config.get("name") or "model")
    task = TASKS.get(task_of(summary))
    kind = None if task is None else _pipeline_of_head(summary) or task.pipeline
    library = "fednlp" if summary.get("model_type") == LSTM else "transformers"
    lines = ["---", f"library_name: {library}", *([f"pipeline_tag: {kind}"] if kind and usable else [])]
    bases = hub_names(str(lookup(config, "model.name_or_path", "")))
    if bases:
        lines.append(f"base_model: {json.dumps(bases if bases[1:] else bases[0])}")
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


def hub_metrics(results: Values | None) -> list[tuple[str, float]]:
    """Return the scores of which the Hub has a name, under that name."""
    results = results or {}
    return [
        (kind, float(results[key]))
        for key, kind in _HUB_METRICS.items()
        if isinstance(results.get(key), int | float) and math.isfinite(results[key])
    ]


def data_name(summary: Values, config: Values) -> str:
    """Return the name of a run's data set, or its path."""
    known = lookup(summary, "data.name") or lookup(config, "data.name")
    return str(known or PurePath(str(lookup(config, "data.path", ""))).name or "unknown data")


def task_of(summary: Values) -> str:
    """Return the run's task; a task of the user's own is given by its name."""
    return str(summary.get("task", "text-classification"))


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "data"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


_HUB_METRICS = {
    "accuracy": "accuracy",
    "macro_f1": "f1",
    "mcc": "matthews_correlation",
    "f1": "f1",
    "exact_match": "exact_match",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "rouge_l": "rouge",
    "bleu": "bleu",
    "perplexity": "perplexity",
}
"""The Hub's name of each metric that it knows."""

_PIPELINES = ("text-classification", "token-classification")


def _pipeline_of_head(summary: Values) -> str | None:
    """Return the pipeline of a model whose head is not that of its task: a decoder for prompts; None for others."""
    given_head = TASKS[task_of(summary)].head
    return "text-generation" if _head(summary) == "CausalLM" and given_head != "CausalLM" else None


def _head(summary: Values) -> str:
    """Return the auto class of a run's model, behind ``AutoModelFor``; nothing for a task of the user's own."""
    task = TASKS.get(task_of(summary))
    if task is None:
        return ""
    return "CausalLM" if summary.get("model_class") == "AutoModelForCausalLM" else task.head


def use(summary: Values, config: Values) -> str:
    """Return Python that loads the model of a run and asks it something, with what was put around texts in training."""
    task, head = task_of(summary), _head(summary)
    lines = ["import fednlp.models.lstm  # has transformers know the model"] * (
        summary.get("model_type") == LSTM
    )
    if task in _PIPELINES:
        lines += [
            "from transformers import pipeline\n",
            f'ask = pipeline("{task}", model="{_FOLDER}")',
            'print(ask("Some text"))',
        ]
        return "\n".join(lines)
    if task in TASKS and "messages" in TASKS[task].schema.inputs:
        lines += [
            "from transformers import pipeline\n",
            f'ask = pipeline("text-generation", model="{_FOLDER}")',
            'messages = [{"role": "user", "content": "Some text"}]',
            'print(ask(messages)[0]["generated_text"][-1]["content"])',
        ]
        return "\n".join(lines)
    auto = f"AutoModelFor{head}" if head else "AutoModel"
    lines += [
        f"from transformers import {auto}, AutoTokenizer\n",
        f'model = {auto}.from_pretrained("{_FOLDER}")',
        f'tokenizer = AutoTokenizer.from_pretrained("{_FOLDER}")',
    ]
    return "\n".join([*lines, *(_WRITING[task](config) if task in _WRITING else ())])


_FOLDER = "path/to/this/folder"


def _continued(config: Values) -> Iterator[str]:
    """Yield how a decoder alone is asked: the blanks that end its template begin the target."""
    given = lookup(config, "task.template", "{source}\n\n")
    yield f"template = {_quoted(given.rstrip(' '))}"
    yield from _moses(config)
    yield 'inputs = tokenizer(template.format(source="Some text"), return_tensors="pt")'
    yield "made = model.generate(**inputs)"
    yield 'print(tokenizer.decode(made[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))'


def _written(config: Values) -> Iterator[str]:
    """Yield how an encoder-decoder is asked."""
    writes, prefix = "tokenizer", lookup(config, "task.source_prefix", "")
    if lookup(config, "model.vocabulary") == "separate":
        writes = "targets"
        yield f'targets = AutoTokenizer.from_pretrained("{_FOLDER}/target")'
    yield from _moses(config)
    yield f'inputs = tokenizer({_quoted(prefix + "Some text")}, return_tensors="pt")'
    yield "made = model.generate(**inputs)"
    yield f"print({writes}.decode(made[0], skip_special_tokens=True))"


def _moses(config: Values) -> Iterator[str]:
    step = lookup(config, "task.moses", "none")
    if step != "none":
        yield f"# Texts were prepared by Moses (sacremoses), {clean(step)}, before the tokenizer."


_WRITING: Mapping[str, Callable[[Values], Iterable[str]]] = {
    "text-generation": _continued,
    "sequence-to-sequence": _written,
}
"""How the models of tasks that make texts are asked; they find the length and the beams in generation_config.json."""
