"""Task formulations: features, loss, predictions, metrics. A task knows nothing of federation."""

import dataclasses
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from fednlp.errors import ConfigError, RunError
from fednlp.formulations import OWN_METRIC, TASKS
from fednlp.plugins import load, require_typed

if TYPE_CHECKING:
    from torch import nn

    from fednlp.tasks.base import Task

__all__ = ["agreed_fields", "generation_of", "require_trusted", "task_at", "task_class", "task_from"]

_PLACE = "tokenizer"
"""The field of a task with the folder of its tokenizer, which each machine has at a place of its own."""


def task_class(name: str) -> "type[Task]":
    """Return the class of a formulation by its name in ``TASKS``, or by ``"module:Class"``, imported only now.

    Args:
        name: It; with a metric of the user's own, ``"text-classification+module:function"``.

    Raises:
        ConfigError: There is no such module or class, or it is no task.
    """
    from fednlp.tasks.fields import lacks
    from fednlp.tasks.own_metric import scored_by

    name, _, metric = name.partition(OWN_METRIC)
    found = load(TASKS[name].place if name in TASKS else name, "task.name")
    lacking = lacks(found)
    if lacking is not None:
        raise ConfigError(f'task.name = "{name}" is no task: {lacking}; see docs/add-a-task.md')
    kind: type[Task] = scored_by(found, metric) if metric else found
    return kind


def generation_of(task: "Task", model: "nn.Module") -> Any | None:
    """Return transformers' ``GenerationConfig`` that a task generates texts with; None where it makes none."""
    generation = getattr(task, "generation", None)
    return None if generation is None else generation(model)


def task_from(place: str, fields: Mapping[str, Any]) -> "Task":
    """Build a task again from its fields as JSON holds them: ``dataclasses.asdict``, with lists for tuples.

    The fields are compared with those of the class before it is called.

    Raises:
        ConfigError: There is no such task, or these are not its fields.
    """
    from fednlp.tasks.fields import misfit

    kind = task_class(place)
    wrong = misfit(kind, fields)
    if wrong is not None:
        raise ConfigError(f"the fields of the task {place} do not fit it: {wrong}")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})


def task_at(folder: str, place: str, known: Mapping[str, Any]) -> "Task":
    """Build a task again, as :func:`task_from` does, with the tokenizer of a model's folder on this machine.

    Args:
        place: As for :func:`task_from`.
        known: Its fields; that of its tokenizer's folder may be another machine's, or left out.
    """
    there = {field.name for field in dataclasses.fields(task_class(place))}  # type: ignore[arg-type]
    return task_from(place, {**known, _PLACE: folder} if _PLACE in there else known)


def agreed_fields(task: "Task") -> dict[str, Any]:
    """Return the fields of a task that all machines of a federation have alike, as JSON holds them."""
    found: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(task)))  # type: ignore[call-overload]
    found.pop(_PLACE, None)
    return found


def require_trusted(folder: object, named: str, task: str | None) -> None:
    """Refuse to import what only a run directory names: it may be a stranger's.

    Args:
        named: The task that it names.
        task: The task that the user named, if any.

    Raises:
        RunError: The two differ, or the run directory names a class and the user does not.
    """
    if task is not None and task != named:
        raise RunError(f'{folder} is a run of the task "{named}", not of "{task}": leave out --task')
    known = named in TASKS or named in {one.place for one in TASKS.values()}
    require_typed(folder, [] if known or task is not None else [("task", named)], f"add --task {named}")
