"""Folders of text files for each class as rows of strings."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from fednlp.data.columns import check_columns
from fednlp.data.files import OTHER_FORMATS, SUFFIXES
from fednlp.data.readers.text_io import Encodings, read_text
from fednlp.data.store import Fault, Located, Rows, file_identity
from fednlp.errors import DataError

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
        raise DataError(f"{brat.parent}: holds {OTHER_FORMATS['.ann']}")


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
