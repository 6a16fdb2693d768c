"""Task formulations: features, loss, predictions, metrics. A task knows nothing of federation."""

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fednlp.errors import ConfigError
from fednlp.tasks.names import TASKS

if TYPE_CHECKING:
    from fednlp.tasks.base import Task

__all__ = ["TASKS", "task_class", "task_from"]


def task_class(name: str) -> "type[Task]":
    """Return the class of a formulation by its name in ``TASKS``, or by ``"module:Class"``, imported only now.

    Raises:
        ConfigError: There is no such module or class.
    """
    place = TASKS[name].place if name in TASKS else name
    module, _, inside = place.partition(":")
    try:
        found: type[Task] = getattr(import_module(module), inside)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f'task.name = "{name}" cannot be imported ({error}): write "module:Class"'
        ) from None
    return found


def task_from(place: str, fields: Mapping[str, Any]) -> "Task":
    """Build a task again from its fields as JSON holds them: ``dataclasses.asdict``, with lists for tuples."""
    made = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    return task_class(place)(**made)
