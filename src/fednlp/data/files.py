"""Users' own files as rows of strings: tables, JSON, Parquet, CoNLL columns, SQuAD, texts in two languages."""

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from fednlp.data.columns import check_columns
from fednlp.data.fednlp_h5.reader import read_data
from fednlp.data.readers import parallel, squad
from fednlp.data.readers.annotations import (
    annotated_names,
    annotated_rows,
    annotation_kind,
    fasttext_rows,
    is_fasttext,
)
from fednlp.data.readers.conll import (
    COLUMNS,
    conll,
    inline,
    inline_marks,
    is_column_number,
    is_tagged,
    layout_of,
)
from fednlp.data.readers.csv_files import (
    DELIMITERS,
    Quoting,
    csv_names,
    csv_rows,
    delimiter_name,
    find_delimiter,
    unnamed_columns,
)
from fednlp.data.readers.excel import EXCEL, excel_names, excel_rows
from fednlp.data.readers.json_files import JSON_LINES, json_names, json_rows
from fednlp.data.readers.parquet import PARQUET, parquet_names, parquet_rows
from fednlp.data.readers.text_io import Encodings, data_errors, filled_lines, read_chunks, read_text
from fednlp.data.store import Fault, Located, Row, Rows, file_identity
from fednlp.disk import POINTED, POINTER, regular
from fednlp.errors import DataError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formatting.units import plural

_CONLL = (".conll", ".conllu", ".conllup", ".bio", ".iob", ".iob2")
TABLES = (*DELIMITERS, *JSON_LINES, *PARQUET, *EXCEL, *_CONLL)
"""Endings of files that hold several examples for certain."""
TEXTS = (".txt",)
SUFFIXES = (*TABLES, *TEXTS)
_PERHAPS_TAGGED = (*TEXTS, ".tsv", ".tab")

_UNPACK = "a packed file, of which fednlp reads .gz alone: unpack it ({}), and give what is in it"
_WRITE = "{}, which fednlp does not read: write it as .csv, .jsonl or .parquet, such as with {}"
_OTHER_FORMATS = {
    ".zip": _UNPACK.format("unzip"),
    ".bz2": _UNPACK.format("bunzip2 -k"),
    ".xz": _UNPACK.format("unxz -k"),
    ".zst": _UNPACK.format("unzstd"),
    ".7z": _UNPACK.format("7z x"),
    ".tar": _UNPACK.format("tar xf"),
    ".tgz": _UNPACK.format("tar xzf"),
    ".feather": _WRITE.format("a Feather file", "pandas.read_feather(FILE).to_parquet"),
    ".arrow": _WRITE.format("an Arrow file", "pandas.read_feather(FILE).to_parquet"),
    ".orc": _WRITE.format("an ORC file", "pandas.read_orc(FILE).to_parquet"),
    ".xls": _WRITE.format("an old Excel workbook", "Excel or LibreOffice: save it as .xlsx"),
    ".ods": _WRITE.format("a workbook of LibreOffice", "LibreOffice: save it as .xlsx"),
    **dict.fromkeys(
        (".sqlite", ".sqlite3", ".db"),
        _WRITE.format("a database", 'sqlite3 -header -csv FILE "SELECT * FROM table" > data.csv'),
    ),
    **dict.fromkeys(
        (".pkl", ".pickle"),
        "a pickle, which may run code when it is opened, so fednlp does not: write it as .csv, .jsonl or .parquet",
    ),
    ".ann": "BRAT's annotations, which fednlp does not read: write them as words and tags in columns (.conll)",
    ".spacy": "spaCy's documents, which fednlp does not read: write them as words and tags in columns (.conll)",
    ".pdf": "a PDF, of which fednlp does not read the text: write the texts as .csv, .jsonl or text files",
    **dict.fromkeys(
        (".doc", ".docx", ".odt", ".rtf"), "a document, which fednlp does not read: save it as text"
    ),
    **dict.fromkeys((".html", ".htm"), "HTML, which fednlp does not read: write its texts as .csv or .jsonl"),
    **dict.fromkeys(
        (".tmx", ".xlf", ".xliff", ".sgm"),
        "XML, which fednlp does not read: write its texts as .csv or .jsonl",
    ),
    **dict.fromkeys(
        (".sav", ".dta", ".rds", ".rdata", ".arff", ".npy", ".npz", ".mat"),
        "a file of other software, which fednlp does not read: write it as .csv, .jsonl or .parquet",
    ),
    ".xml": "XML, which fednlp does not read: write it as .csv or .jsonl",
    ".yaml": "YAML, which fednlp does not read: write it as .jsonl",
}
"""What other files are, by the endings of their names, and what to do with them."""

_HEAD, _GLANCE = 1 << 16, 1 << 10
_CONTENTS: tuple[tuple[re.Pattern[bytes], Sequence[str], str], ...] = (
    (re.compile(POINTER), (), POINTED),
    (
        re.compile(rb"<!doctype html|<html", re.IGNORECASE),
        (),
        "an HTML page, as a server shows in place of a file: download the file itself",
    ),
    (re.compile(rb"<\?xml|<!doctype "), TEXTS, _OTHER_FORMATS[".xml"]),
    (re.compile(b"%PDF-"), (), _OTHER_FORMATS[".pdf"]),
    (re.compile(b"PAR1"), PARQUET, "a Parquet file by its content: name it .parquet"),
    (
        re.compile(b"PK\x03\x04"),
        EXCEL,
        "a ZIP archive or a workbook by its content: name it .xlsx, or unpack it",
    ),
    (re.compile(b"SQLite format 3\x00"), (), _OTHER_FORMATS[".db"]),
    (
        re.compile(rb'\[\s*[{\["]|\{\s*"[^"]*"\s*:'),
        JSON_LINES,
        "JSON by its content: name it .json or .jsonl",
    ),
)
"""What begins files of other kinds, the endings that such content may have, and what the files are."""
_SQUAD = re.compile(rb'"data"\s*:\s*\['), re.compile(rb'"paragraphs"\s*:\s*\[')
_LEAF = re.compile(rb'\{\s*"users"\s*:\s*\[[^]]*(\]\s*,\s*"(num_samples|hierarchies)"|$)')
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")
"""A path may have lost one of the two slashes; a single letter before the colon is a drive."""


def suffix_of(path: Path) -> str:
    """Return the ending that tells what kind of file this is, in lower case, without ``.gz``."""
    suffix = Path(path.name.lower().removesuffix(".gz")).suffix
    return ".conll" if suffix.endswith("_conll") else suffix  # .v4_gold_conll, as CoNLL-2012 has it


def refuse_address(path: Path) -> None:
    """Refuse an address, such as ``s3://bucket/x.csv``, in the place of a path.

    Raises:
        DataError: It is one; the message says how to fetch what is there.
    """
    found = _ADDRESS.match(str(path))
    if found is None:
        return
    scheme, rest = found[1].lower(), found[2]
    if scheme in ("hf", "datasets"):
        name = "/".join(rest.removeprefix("datasets/").split("/")[:2])
        how = f"hf download --repo-type dataset {name} --local-dir FOLDER"
    else:
        how = {"s3": f"aws s3 cp s3://{rest} .", "gs": f"gcloud storage cp gs://{rest} ."}.get(
            scheme, f"curl -LO {scheme}://{rest}"
        )
    raise DataError(
        f"{scheme}://{rest} is an address, and data are read from this machine's disk: fetch them first ({how}), and "
        "give the path of the file or folder"
    )


def file_rows(
    path: Path,
    delimiter: str | None = None,
    configured: Mapping[str, str] = MappingProxyType({}),
    quoting: Quoting = "double",
) -> Rows:
    """Return the rows of a file, told apart by the ending of its name; every column is kept.

    ``.txt`` and ``.tsv`` are words and tags where :func:`is_tagged` says so; any other ``.txt`` is a text a line;
    ``.json`` is SQuAD's where it begins so, else JSON lines or an array.

    Args:
        path: The file.
        delimiter: What separates the cells of a CSV file; found by :func:`find_delimiter` if left out.
        configured: The user's own names of columns, by the canonical ones.
        quoting: Whether the cells of a CSV file may be in quotes.

    Raises:
        DataError: It is no such file; or, when the rows are read, what is wrong in which line.
    """
    with data_errors(path):
        regular(path)  # whatever library opens it
    suffix = suffix_of(path)
    _refuse_content(path, suffix)
    own = [configured[name] for name in ("words", "tags") if name in configured]
    tagged = suffix in _CONLL or (suffix in TEXTS and bool(own))
    tagged = tagged or (suffix in _PERHAPS_TAGGED and bool(own) and all(map(is_column_number, own)))
    if tagged or (suffix in _PERHAPS_TAGGED and delimiter is None and is_tagged(path)):
        return _tagged(path, configured)
    if suffix in _PERHAPS_TAGGED and delimiter is None and (marks := inline_marks(path)) is not None:
        return _inline(path, *marks)
    if suffix in DELIMITERS:
        return _csv(path, DELIMITERS[suffix], delimiter, quoting)
    if delimiter is not None:
        raise DataError(f"{path}: data.delimiter is for {', '.join(DELIMITERS)} files: leave it out")
    if suffix in TEXTS and is_fasttext(path):
        return _table(path, "fasttext", lambda _: ("text", "label"), lambda file, _: fasttext_rows(file))
    if suffix in TEXTS:
        return reader_rows(path, _texts, ("text",))
    if suffix == ".json" and _is_squad(path):
        return reader_rows(path, squad.squad, squad.COLUMNS)
    if suffix in JSON_LINES:
        if _is_leaf(path):
            raise DataError(
                f'{path}: in the format of LEAF, which is read by a name: say data.name = "shakespeare" or '
                '"reddit", and data.path for the folder that holds the folders train and test'
            )
        return _annotated(path, configured) or _table(path, "json lines", json_names, json_rows)
    if suffix in PARQUET:
        return _table(path, "parquet", parquet_names, parquet_rows)
    if suffix in EXCEL:
        return _table(path, "excel", excel_names, excel_rows)
    if suffix in _OTHER_FORMATS:
        raise DataError(f"{path}: {_OTHER_FORMATS[suffix]}")
    raise DataError(f"{path}: cannot tell what kind of file this is: name it {', '.join(SUFFIXES)}")


def _refuse_content(path: Path, suffix: str) -> None:
    """Refuse a file whose first bytes are those of another kind than the ending of its name says.

    Raises:
        DataError: It is one.
    """
    head = next(read_chunks(path, _GLANCE, as_utf8=False), b"").removeprefix(codecs.BOM_UTF8).lstrip()
    for begins, kinds, message in _CONTENTS:
        if begins.match(head) and suffix in SUFFIXES and suffix not in kinds:
            raise DataError(f"{path}: {message}")


def _tagged(path: Path, configured: Mapping[str, str]) -> Rows:
    layout = layout_of(path, configured)
    return replace(reader_rows(path, conll, layout.columns, options=layout.options), note=layout.note)


def _inline(path: Path, mark: str, parts: int) -> Rows:
    rows = reader_rows(path, inline, COLUMNS, options={"mark": mark, "parts": parts})
    tags = "tag" if parts == 2 else "last tag"
    return replace(rows, note=f"a sentence a line, each word with its {tags} after {mark!r}")


def _annotated(path: Path, configured: Mapping[str, str]) -> Rows | None:
    """Return the rows of an annotation tool's JSON, unless the user says what its columns are."""
    text = configured.get("text", "text")
    kind = annotation_kind(path, text) if configured.keys() <= {"text"} else None
    if kind is None:
        return None
    rows = _table(
        path,
        f"annotated {kind} {text}",
        lambda file: annotated_names(file, text, kind),
        lambda file, roles: annotated_rows(file, roles, text, kind),
    )
    spans = "spans of characters are read as words and their tags"
    return replace(rows, note=spans if kind == "spans" else "an annotation tool's answers are the labels")


def _place(path: Path) -> str:
    """Return what names a file in the cache: where it is, and its encoding where it is not UTF-8."""
    encoding = getattr(path, "encoding", None)
    return str(path.resolve()) if encoding is None else f"{path.resolve()} as {encoding}"


def _csv(path: Path, usual: str, given: str | None, quoting: Quoting) -> Rows:
    delimiter = given or find_delimiter(path, usual, quoting)
    return Rows(
        ("csv", _place(path), delimiter, *([] if quoting == "double" else [quoting])),
        file_identity([path]),
        str(path),
        lambda: csv_names(path, delimiter, quoting),
        lambda roles: csv_rows(path, delimiter, quoting),
        f"{path}:1 (taken for the column names)",
        "; ".join(_csv_notes(path, delimiter, quoting, delimiter in (usual, given))),
        delimiter if usual == DELIMITERS[".csv"] else None,
    )


def _csv_notes(path: Path, delimiter: str, quoting: Quoting, usual: bool) -> Iterator[str]:
    if not usual:
        yield f"a {delimiter_name(delimiter)} separates the cells"
    try:
        unnamed = unnamed_columns(path, delimiter, quoting)
    except DataError:
        return  # said when the names are asked for
    if unnamed:
        yield f"{plural(unnamed, 'column')} without a name left out"


def _table(
    path: Path,
    kind: str,
    names: Callable[[Path], Sequence[str]],
    read: Callable[[Path, Mapping[str, str]], tuple[Sequence[str], Iterator[Located]]],
) -> Rows:
    return Rows(
        (kind, _place(path)),
        file_identity([path]),
        str(path),
        lambda: names(path),
        lambda roles: read(path, roles),
    )


def reader_rows(
    path: Path,
    reader: Callable[..., Iterator[Row | Fault]],
    columns: Sequence[str],
    *,
    known: str | None = None,
    also: Sequence[Path] = (),
    options: Mapping[str, str | int | bool] = MappingProxyType({}),
) -> Rows:
    """Return the rows that a reader of a format makes of a file.

    Args:
        path: The file.
        reader: Called with the path, the paths ``also``, and the options.
        known: SHA-256 of the content where it is pinned; else sizes and times stand for it.
        also: Further files that belong to it.
    """
    paths = [path, *also]
    shown = f"{path.name} (sha256 {known[:12]})" if known else " and ".join(map(str, paths))
    return Rows(
        (
            f"{reader.__module__}.{reader.__qualname__}",
            *map(_place, paths),
            json.dumps(sorted(options.items())),
        ),
        known or file_identity(paths),
        shown,
        lambda: columns,
        lambda roles: (columns, located(path, partial(reader, *paths, **options))),
    )


def located(path: Path, read: Callable[[], Iterator[Row | Fault]]) -> Iterator[Located]:
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
    for _, line in filled_lines(path):
        yield (line,)


def _is_squad(path: Path) -> bool:
    """Say whether a JSON file is SQuAD's: one object with articles, which hold paragraphs."""
    head = next(read_chunks(path, _HEAD), b"").lstrip()
    return head.startswith(b"{") and all(key.search(head) for key in _SQUAD)


def _is_leaf(path: Path) -> bool:
    """Say whether a JSON file is LEAF's: one object with the examples of many users."""
    return _LEAF.match(next(read_chunks(path, _HEAD), b"").lstrip()) is not None


def h5_rows(path: Path) -> tuple[Rows, Rows | None, str]:
    """Return the training and test rows of a data file of the original FedNLP, and its task.

    Raises:
        DataError: It is no such file.
        MissingDependency: ``h5py`` is not installed.
    """
    data = read_data(path)

    def rows(split: Literal["train", "test"]) -> Rows:
        return Rows(
            ("exchange", str(path.resolve()), split),
            file_identity([path]),
            f"{path}, {split}",
            lambda: data.columns,
            lambda roles: (data.columns, located(path, partial(data.rows, split))),
        )

    return rows("train"), rows("test") if data.test is not None else None, data.task


def parallel_files(path: Path, languages: Sequence[str]) -> list[Path] | None:
    """Return the files of a text in some languages, or None where they are not all there.

    Args:
        path: What comes before the language in their names (``folder/train`` for ``folder/train.de.gz``), or
            a folder with ``train.de`` and the others.
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
    """Return rows one after the other, of the columns that all parts have, in whatever order.

    A column that some parts lack is left out, with a note, unless the task reads it.

    Args:
        parts: Of each its name and its rows.
        field: A further column with the name of the part that a row is of; none if left out.

    Raises:
        DataError: When the rows are read: a part lacks a column that the task reads.
    """
    added = [field] if field else []
    first, last = parts[0][1].shown, parts[-1][1].shown
    delimiters = {part.delimiter for _, part in parts}
    named = [part.names() for _, part in parts]
    union = list(dict.fromkeys(name for names in named for name in names))
    partial_columns = [name for name in union if not all(name in names for names in named)]

    def read(roles: Mapping[str, str]) -> tuple[Sequence[str], Iterator[Located]]:
        opened = parts[0][1].read({own: role for own, role in roles.items() if own in named[0]})
        left_out = set(partial_columns) - roles.keys()
        names = [name for name in opened[0] if name not in left_out]
        names += [name for name in roles if name not in names]
        rest = (
            part.read({own: role for own, role in roles.items() if own in there})
            for (_, part), there in zip(parts[1:], named[1:], strict=True)
        )
        return (*names, *added), _one_after_the_other(parts, chain([opened], rest), names, bool(field))

    return Rows(
        ("joined", field or "", *(item for name, part in parts for item in (name, *part.what))),
        json.dumps([part.identity for _, part in parts]),
        first if len(parts) == 1 else f"{len(parts)} files from {first} to {last}",
        lambda: (*union, *added),
        read,
        parts[0][1].names_at,
        "; ".join(
            note
            for note in (
                _joined_note([part.note for _, part in parts]),
                _left_out_note(parts, named, partial_columns),
            )
            if note
        ),
        delimiters.pop() if len(delimiters) == 1 else None,
    )


def _left_out_note(
    parts: Sequence[tuple[str, Rows]], named: Sequence[Sequence[str]], columns: Sequence[str]
) -> str:
    """Return which columns some parts lack, for people."""
    if not columns:
        return ""
    first = columns[0]
    having = [part for (_, part), names in zip(parts, named, strict=True) if first in names]
    count = f"{len(having)} of {len(parts)} files" if len(having) > 1 else having[0].shown
    more = f", and of {', '.join(map(repr, columns[1:4]))}" if len(columns) > 1 else ""
    return f"a column of {count} alone is left out unless the task reads it: {first!r}{more}"


def _one_after_the_other(
    parts: Sequence[tuple[str, Rows]],
    opened: Iterable[tuple[Sequence[str], Iterator[Located]]],
    names: Sequence[str],
    named: bool,
) -> Iterator[Located]:
    for (name, part), (columns, rows) in zip(parts, opened, strict=True):
        check_columns(part.names_at or part.shown, columns)
        _require_columns(parts, part, columns, names)
        places = [columns.index(column) for column in names]
        added = [name] if named else []
        for where, row in rows:
            yield where, row if isinstance(row, Fault) else [*(row[place] for place in places), *added]


def _require_columns(
    parts: Sequence[tuple[str, Rows]], part: Rows, columns: Sequence[str], names: Sequence[str]
) -> None:
    """Refuse a part that lacks a column.

    Raises:
        DataError: It does.
    """
    lacking = next((column for column in names if column not in columns), None)
    if lacking is None:
        return
    other = next((one for _, one in parts if one is not part and lacking in one.names()), parts[0][1])
    raise DataError(
        f"{part.names_at or part.shown}: no column {lacking!r}, which {other.shown} has: "
        f"{did_you_mean(lacking, columns)}files of one data set must have the same columns"
    )


def _joined_note(notes: Sequence[str]) -> str:
    counts = Counter(note for note in notes if note)
    return "; ".join(
        note if count == len(notes) else f"in {count} of {len(notes)} files {note}"
        for note, count in counts.items()
    )


_UTF8 = Encodings()


def folder_rows(
    folder: Path,
    text: str = "text",
    label: str = "label",
    *,
    latin1: bool = False,
    known: str | None = None,
    encodings: Encodings = _UTF8,
) -> Rows:
    """Return the rows of a folder of text files a class: the name of a folder is the label of its files.

    The examples are in the order of the labels, then of the file names; the column ``file`` names the file.

    Args:
        folder: Holds a folder a class; hidden files, and files outside the class folders, are left out.
        text: What to call the column of texts.
        label: What to call the column of labels.
        latin1: As for :func:`fednlp.data.readers.text_io.lines`.
        known: Identity of the content where it is known better than by sizes and times.
        encodings: Of files that are not UTF-8.

    Raises:
        DataError: There are no such files; or, when the rows are read, what is wrong in which file.
    """
    paths = list(map(encodings.of, _class_files(folder)))
    if not paths:
        raise DataError(
            f"{folder}: no examples: give a file ({', '.join(SUFFIXES)}) or a folder "
            f"that holds a folder of text files for each class"
        )
    refuse_brat(paths)
    notices = [path for path in paths if _NOTICE.fullmatch(path.name)]
    if len(notices) < len(paths):
        paths = [path for path in paths if path not in notices]
    names = [f"{path.parent.name}/{path.name}" for path in paths]
    if known is None:
        known = json.dumps([names, file_identity(paths)])
    columns = (text, label, "file")
    check_columns(str(folder), columns)
    return Rows(
        ("folder", str(folder.resolve()), text, label, str(latin1), *_named(encodings)),
        known,
        str(folder),
        lambda: columns,
        lambda roles: (columns, _rows(paths, names, latin1)),
        note=f"left out as no example: {notices[0].parent.name}/{notices[0].name}{' ...' if notices[1:] else ''}"
        if len(notices) > 0
        else "",
    )


def refuse_brat(paths: Sequence[Path]) -> None:
    """Refuse texts with BRAT's annotations beside them, which would be read as texts alone.

    Raises:
        DataError: They have some.
    """
    if brat := next((path for path in paths if path.suffix == ".ann"), None):
        raise DataError(f"{brat.parent}: holds {_OTHER_FORMATS['.ann']}")


_NOTICE = re.compile(r"(readme|licen[cs]e|copying|changelog)(\.(txt|md|rst|html))?", re.IGNORECASE)
"""Names of files that say something of the others, and are no examples of a class."""
_SYSTEM = frozenset({"desktop.ini", "thumbs.db", "ehthumbs.db", "__macosx", "$recycle.bin", "icon\r"})
_BACKUPS = ("~", ".bak", ".swp", ".tmp", ".orig", ".lock", ".part", ".crdownload")


def is_system_entry(path: Path) -> bool:
    """Say whether a system or an editor put a file or folder there, hidden, locked or as a backup.

    >>> [is_system_entry(Path(name)) for name in (".DS_Store", "Thumbs.db", "1.txt~", "~$a.docx", "1.txt")]
    [True, True, True, True, False]
    """
    name = path.name.lower()
    return name in _SYSTEM or name.startswith((".", "~$", "._")) or name.endswith(_BACKUPS)


def _named(encodings: Encodings) -> tuple[str, ...]:
    """Return what names encodings in the cache; nothing for UTF-8."""
    return () if encodings == _UTF8 else (json.dumps([encodings.default, sorted(encodings.by_name.items())]),)


def _class_files(folder: Path) -> list[Path]:
    try:
        classes = sorted(entry for entry in folder.iterdir() if entry.is_dir() and not is_system_entry(entry))
        return [
            path
            for entry in classes
            for path in sorted(entry.iterdir())
            if path.is_file() and not is_system_entry(path)
        ]
    except OSError as error:
        raise DataError(f"cannot read {folder}: {error.strerror}") from None


def _rows(paths: Sequence[Path], names: Sequence[str], latin1: bool) -> Iterator[Located]:
    for path, name in zip(paths, names, strict=True):
        text = read_text(path, latin1)
        if text.strip():
            yield str(path), (text, path.parent.name, name)
        else:
            yield str(path), Fault("the file is empty: write its text")
