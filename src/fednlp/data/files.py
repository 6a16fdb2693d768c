"""Users' own files as rows of strings: tables, JSON lines, CoNLL columns, SQuAD JSON, texts in two languages."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from fednlp.data.csvfile import DELIMITERS, csv_names, csv_rows
from fednlp.data.jsonl import JSON_LINES, json_names, json_rows
from fednlp.data.readers import conll, parallel, squad
from fednlp.data.readers.exchange import read_data
from fednlp.data.readers.opening import chunks, filled
from fednlp.data.store import Fault, Placed, Row, Rows
from fednlp.errors import DataError

CONLL = (".conll", ".bio", ".iob", ".iob2")
SUFFIXES = (*DELIMITERS, *JSON_LINES, *CONLL, ".txt")
TEXTS = (".txt",)

_HEAD = 1 << 16
_SQUAD = re.compile(rb'"data"\s*:\s*\['), re.compile(rb'"paragraphs"\s*:\s*\[')
_TAG = re.compile(r"(O|[BIESLU]-\S+)")


def suffix_of(path: Path) -> str:
    """Return the ending that tells what kind of file this is, in lower case, without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def file_rows(path: Path) -> Rows:
    """Return the rows of a file, told apart by the ending of its name; every column is kept.

    ``.txt`` is words and tags where its first line ends in a tag, else a text a line; ``.json`` is SQuAD's
    where it begins so, else JSON lines.

    Raises:
        DataError: It is no such file; or, when the rows are read, what is wrong in which line.
    """
    suffix = suffix_of(path)
    if suffix in DELIMITERS:
        delimiter = DELIMITERS[suffix]
        return Rows(
            ("csv", str(path.resolve())),
            identity([path]),
            str(path),
            lambda: csv_names(path, delimiter),
            lambda roles: csv_rows(path, delimiter),
            f"{path}:1 (taken for the column names)",
        )
    if suffix in CONLL or (suffix in TEXTS and _is_tagged(path)):
        return reader_rows(path, conll.conll, conll.COLUMNS)
    if suffix in TEXTS:
        return reader_rows(path, _texts, ("text",))
    if suffix == ".json" and _is_squad(path):
        return reader_rows(path, squad.squad, squad.COLUMNS)
    if suffix in JSON_LINES:
        return Rows(
            ("json lines", str(path.resolve())),
            identity([path]),
            str(path),
            lambda: json_names(path),
            lambda roles: json_rows(path, roles),
        )
    raise DataError(f"{path}: cannot tell what kind of file this is: name it {', '.join(SUFFIXES)}")


def identity(paths: Sequence[Path]) -> str:
    """Return what changes when a file of these is written: their sizes and times."""
    statuses = [path.stat() for path in paths]
    return " ".join(f"{status.st_size}:{status.st_mtime_ns}" for status in statuses)


def reader_rows(
    path: Path,
    reader: Callable[..., Iterator[Row]],
    columns: Sequence[str],
    *,
    known: str | None = None,
    also: Sequence[Path] = (),
    options: Mapping[str, str | int | bool] = MappingProxyType({}),
) -> Rows:
    """Return the rows that a reader of a format makes of a file.

    Args:
        path: The file.
        reader: Called with the path, those beside it, and the options.
        columns: What it yields.
        known: SHA-256 of the content where it is pinned; else sizes and times stand for it.
        also: Further files that belong to it.
        options: Of the reader.
    """
    paths = [path, *also]
    shown = f"{path.name} (sha256 {known[:12]})" if known else " and ".join(map(str, paths))
    return Rows(
        (
            f"{reader.__module__}.{reader.__qualname__}",
            *(str(one.resolve()) for one in paths),
            json.dumps(sorted(options.items())),
        ),
        known or identity(paths),
        shown,
        lambda: columns,
        lambda roles: (columns, placed(path, partial(reader, *paths, **options))),
    )


def placed(path: Path, read: Callable[[], Iterator[Row]]) -> Iterator[Placed]:
    """Yield a reader's rows with their numbers; there is at least one.

    Raises:
        DataError: There is none, or whatever the reader finds.
    """
    number = 0
    for number, row in enumerate(read(), 1):
        yield f"{path}: row {number}", row
    if number == 0:
        raise DataError(f"{path}: the file is empty: it holds no example")


def _texts(path: Path) -> Iterator[Row]:
    for _, line in filled(path):
        yield (line,)


def _is_tagged(path: Path) -> bool:
    """Say whether a text file has words and tags in columns: its first line ends in a tag."""
    _, line = next(filled(path), (0, ""))
    cells = line.split()
    return len(cells) > 1 and (_TAG.fullmatch(cells[-1]) is not None or cells[0] == "-DOCSTART-")


def _is_squad(path: Path) -> bool:
    """Say whether a JSON file is SQuAD's: one object with articles, which hold paragraphs."""
    head = next(chunks(path, _HEAD), b"").lstrip()
    return head.startswith(b"{") and all(key.search(head) for key in _SQUAD)


def exchange_rows(path: Path) -> tuple[Rows, Rows | None, str]:
    """Return the training and test rows of a data file of the original FedNLP, and its task.

    Raises:
        DataError: It is no such file.
        MissingDependency: ``h5py`` is not installed.
    """
    data = read_data(path)

    def rows(split: Literal["train", "test"]) -> Rows:
        return Rows(
            ("exchange", str(path.resolve()), split),
            identity([path]),
            f"{path}, {split}",
            lambda: data.columns,
            lambda roles: (data.columns, placed(path, partial(data.rows, split))),
        )

    return rows("train"), rows("test") if data.test is not None else None, data.task


def parallel_files(path: Path, languages: Sequence[str]) -> list[Path] | None:
    """Return the files of a text in some languages, or None where they are not all there.

    Args:
        path: What comes before the language in their names (``folder/train`` for ``folder/train.de.gz``), or
            a folder with ``train.de`` and the others.
        languages: Endings of their names.
    """
    stem = path / "train" if path.is_dir() else path
    found = [
        next((one for ending in ("", ".gz") if (one := Path(f"{stem}.{language}{ending}")).is_file()), None)
        for language in languages
    ]
    return None if None in found else [one for one in found if one is not None]


def parallel_rows(paths: Sequence[Path], languages: Sequence[str]) -> Rows:
    """Return the rows of a text in two languages, a line an example, a column a language.

    Raises:
        DataError: When the rows are read: the files differ in their number of lines.
    """
    return reader_rows(
        paths[0], parallel.parallel, tuple(languages), also=paths[1:], options={"keep_blank": True}
    )


def joined_rows(parts: Sequence[tuple[str, Rows]], field: str | None = None) -> Rows:
    """Return rows of the same columns one after the other.

    Args:
        parts: Of each its name and its rows.
        field: A further column that says which part a row is of; none if left out.
    """
    names = (*parts[0][1].names(), *([field] if field else []))
    first, last = parts[0][1].shown, parts[-1][1].shown
    return Rows(
        ("joined", field or "", *(item for name, part in parts for item in (name, *part.what))),
        json.dumps([part.identity for _, part in parts]),
        first if len(parts) == 1 else f"{len(parts)} files from {first} to {last}",
        lambda: names,
        lambda roles: (names, _one_after_the_other(parts, roles, field)),
    )


def _one_after_the_other(
    parts: Sequence[tuple[str, Rows]], roles: Mapping[str, str], field: str | None
) -> Iterator[Placed]:
    for name, part in parts:
        for where, row in part.read(roles)[1]:
            yield where, row if field is None or isinstance(row, Fault) else (*row, name)
