"""Reader of Hugging Face ``datasets``: a folder that ``save_to_disk`` wrote, or a name at the hub."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fednlp.data.columns import TARGETS
from fednlp.data.readers.class_names import named_class
from fednlp.data.readers.json_files import value_row
from fednlp.data.split_names import split_name
from fednlp.data.store import Located, Rows, file_identity
from fednlp.errors import DataError
from fednlp.hubs.huggingface import datasets_library, first_line, load_hub_dataset

_ROWS_AT_ONCE = 1000
_TEST_SPLITS = ("test", "validation", "dev")


def is_saved(folder: Path) -> bool:
    """Say whether a folder was written by ``save_to_disk``."""
    return (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file()


def saved_rows(folder: Path, targets: Sequence[str] = TARGETS) -> tuple[Rows, Rows | None, dict[str, Rows]]:
    """Return the rows of a folder of ``save_to_disk``: training, test where there are any, and validation by split.

    Class labels become their names. A validation split is the test set where no other states what is to be predicted.

    Args:
        folder: As :func:`is_saved` accepts it.
        targets: Columns to be predicted, those of them that there are; a test split must state them.

    Raises:
        DataError: It cannot be loaded, or has no training split.
        MissingDependency: ``datasets`` is not installed.
    """
    datasets = datasets_library(f"{folder} was written by datasets", "give a CSV or JSONL file")
    try:
        loaded = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise DataError(f"{folder}: not a whole data set of save_to_disk ({first_line(error)})") from None
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    names = [str(path.relative_to(folder)) for path in paths]
    known = json.dumps([names, file_identity(paths)])
    splits = loaded if isinstance(loaded, Mapping) else {}
    held = [name for name in splits if split_name(name).splits == ("validation",) and len(splits[name])]
    train, test = _pair(loaded, str(folder), known, targets)
    return train, test, {name: _split_rows(splits[name], str(folder), name, known) for name in held}


def hub_rows(
    name: str,
    targets: Sequence[str] = TARGETS,
    *,
    rename: Mapping[str, str] | None = None,
    config: str | None = None,
    revision: str | None = None,
) -> tuple[Rows, Rows | None]:
    """Return the training rows and, where there are any, the test rows of a data set of the hub.

    Args:
        name: ``owner/name``.
        targets: As for :func:`saved_rows`.
        rename: New names of columns, by the names at the hub; ``a.b`` is the field b of the column a.
        config: Which of the data sets under the name.
        revision: Branch or commit at the hub.

    Raises:
        DataError: The hub cannot be reached and has not been before, or has no such data set.
        MissingDependency: ``datasets`` is not installed.
    """
    loaded = load_hub_dataset(name, rename or {}, config, revision)
    shown = f"hub data set {name}" if config is None else f"hub data set {name}, {config}"
    return _pair(loaded, shown, "", targets)


def _pair(loaded: Any, where: str, known: str, targets: Sequence[str]) -> tuple[Rows, Rows | None]:
    if not isinstance(loaded, Mapping):
        return _split_rows(loaded, where, "", known), None
    name = "train" if "train" in loaded else next(iter(loaded))
    if name != "train" and len(loaded) > 1:
        raise DataError(f"{where}: no split 'train': the splits are {', '.join(loaded)}")
    train = _split_rows(loaded[name], where, name, known)
    stated = [target for target in targets if target in loaded[name].column_names]
    for test in _TEST_SPLITS:
        split = loaded.get(test, ()) if test != name else ()
        if len(split) and all(_is_stated(split, target) for target in stated):
            note = "" if test == "test" else "the validation split is the test set"
            return train, replace(_split_rows(split, where, test, known), note=note)
    return train, None


def _is_stated(split: Any, target: str) -> bool:
    """Say whether a test split states what is to be predicted; shared tasks publish -1 instead."""
    return target in split.column_names and split[0][target] not in (None, -1, "")


def _split_rows(split: Any, where: str, name: str, known: str) -> Rows:
    place = f"{where}, split {name}" if name else where
    columns = list(split.column_names)
    if len(split) == 0:
        raise DataError(f"{place}: no examples")
    return Rows(
        ("datasets", where, name),
        f"{known} {split._fingerprint} {len(split)}",
        place,
        lambda: columns,
        lambda roles: (columns, _read(split, place, columns, roles)),
    )


def _read(split: Any, place: str, columns: Sequence[str], roles: Mapping[str, str]) -> Iterator[Located]:
    classes = {column: names for column in columns if (names := _class_names(split.features[column]))}
    number = 0
    for batch in split.with_format("arrow").iter(batch_size=_ROWS_AT_ONCE):
        for item in batch.to_pylist():
            for column, names in classes.items():
                item[column] = named_class(item[column], names)
            yield f"{place}: row {number}", value_row(item, columns, roles)
            number += 1


def _class_names(feature: Any) -> Sequence[str] | None:
    """Return the names of a column of classes, or of lists of them."""
    names: Sequence[str] | None = getattr(getattr(feature, "feature", feature), "names", None)
    return names
