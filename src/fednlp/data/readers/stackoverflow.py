"""StackOverflow as TensorFlow Federated stores it: one group a user, and in it one list a field."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fednlp.data.readers import h5
from fednlp.data.store import Row
from fednlp.errors import DataError

COLUMNS = ("text", "tags", "title", "user", "type", "score", "creation_date")


def stackoverflow(path: Path) -> Iterator[Row]:
    """Read ``stackoverflow_train.h5`` and its like: ``examples/<user>/tokens`` and so on.

    The users come in the order of their names, and a user's examples in that of the file. ``tags`` is as in the
    file, ``python|regex``. Fields other than the tokens may be missing.
    Source: TensorFlow Federated, tff.simulation.datasets.stackoverflow.

    Raises:
        DataError: It is no such file, or a user's lists are of unequal length.
        MissingDependency: ``h5py`` is not installed.
    """
    with h5.opened(path) as file:
        users = h5.child(file, "examples", "group", str(path))
        for user in users:
            yield from _examples(h5.child(users, user, "group", str(path)), user, path)


def _examples(group: Any, user: str, path: Path) -> Iterator[Row]:
    found = {name: h5.child(group, name, "dataset", str(path)) for name in _FIELDS if name in group}
    if "tokens" not in found:
        raise DataError(f"{path}:/examples/{user[:80]}/tokens is missing: is this TFF's StackOverflow?")
    if len({dataset.shape for dataset in found.values()}) > 1:
        raise DataError(
            f"{path}:/examples/{user[:80]}: lists of unequal length: the file is damaged, get it again"
        )
    columns = {name: _values(dataset) for name, dataset in found.items()}
    for text in columns.pop("tokens"):
        rest = {name: next(values) for name, values in columns.items()}
        yield (
            text,
            rest.get("tags"),
            rest.get("title"),
            user,
            rest.get("type"),
            rest.get("score"),
            rest.get("creation_date"),
        )


_FIELDS = ("tokens", "tags", "title", "type", "score", "creation_date")


def _values(dataset: Any) -> Iterator[str]:
    if dataset.dtype.kind in "iu":
        return (str(value) for value in h5.whole_numbers(dataset).tolist())
    return h5.texts(dataset)
