"""Questions whose answers stand in a text."""

import re
from pathlib import Path

from fednlp.data.catalogue.entries import Opener, Pair, files, joined
from fednlp.data.files import reader_rows
from fednlp.data.readers import squad

_JSON = re.compile(r"\.json(\.gz)?")
_MRQA = re.compile(r"\.jsonl(\.gz)?")
_SHIFT = re.compile(r"(.+?)_v[0-9.]+\.json(\.gz)?")
_SHIFTS = {"squaddev": "squad", "new_wiki": "wikipedia", "amazon_reviews": "amazon"}


def _shifts_folder(path: Path) -> Pair | None:
    """Open every file of SQuADShifts; the first part of its name becomes the column ``domain``."""
    names = ((one, _SHIFT.fullmatch(one.name)) for one in _files_of(path))
    parts = [
        (_SHIFTS.get(name[1], name[1]), reader_rows(one, squad.squad, squad.COLUMNS))
        for one, name in names
        if name
    ]
    return joined(parts, field="domain")


def _xquad_folder(path: Path) -> Pair | None:
    """Open ``xquad.en.json`` and its like; the language becomes the column ``language``."""
    parts = [
        (one.name.split(".")[1], reader_rows(one, squad.squad, squad.COLUMNS))
        for one in _files_of(path)
        if one.name.startswith("xquad.") and _JSON.search(one.name)
    ]
    return joined(parts, field="language")


def _mrqa_folder(path: Path) -> Pair | None:
    """Open the sub-data-sets in the folders ``train`` and ``dev``; each file's header names its own."""
    if path.is_file():
        return reader_rows(path, squad.mrqa, squad.MRQA_COLUMNS), None
    train, test = (
        [
            (one.name, reader_rows(one, squad.mrqa, squad.MRQA_COLUMNS))
            for folder in folders
            for one in _files_of(path / folder)
            if _MRQA.search(one.name)
        ]
        for folders in (("train", "in_domain_train"), ("dev", "test", "in_domain_dev"))
    )
    return joined(train, test)


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else []


ANSWERING: dict[str, Opener] = {
    "squad": Opener(files(["train-v1.1.json"], ["dev-v1.1.json"], squad.squad, squad.COLUMNS)),
    "squadshifts": Opener(_shifts_folder),
    "xquad": Opener(_xquad_folder),
    "mrqa": Opener(_mrqa_folder),
}
"""The data sets for question answering."""
