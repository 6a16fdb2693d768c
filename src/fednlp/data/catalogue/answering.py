"""Questions whose answers stand in a text."""

import re
from pathlib import Path

from fednlp.data.catalogue.entries import Entry, Hub, Pair, files
from fednlp.data.files import joined_rows, reader_rows
from fednlp.data.readers import squad

_TASK = "question-answering"
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
    return (joined_rows(parts, "domain"), None) if parts else None


def _xquad_folder(path: Path) -> Pair | None:
    """Open ``xquad.en.json`` and its like; the language becomes the column ``language``."""
    parts = [
        (one.name.split(".")[1], reader_rows(one, squad.squad, squad.COLUMNS))
        for one in _files_of(path)
        if one.name.startswith("xquad.") and _JSON.search(one.name)
    ]
    return (joined_rows(parts, "language"), None) if parts else None


def _mrqa_folder(path: Path) -> Pair | None:
    """Open the sub-data-sets in the folders ``train`` and ``dev``; each file's header names its own."""
    if path.is_file():
        return reader_rows(path, squad.mrqa, squad.MRQA_COLUMNS), None
    found = []
    for folders in (("train", "in_domain_train"), ("dev", "test", "in_domain_dev")):
        parts = [
            (one.name, reader_rows(one, squad.mrqa, squad.MRQA_COLUMNS))
            for folder in folders
            for one in _files_of(path / folder)
            if _MRQA.search(one.name)
        ]
        found.append(joined_rows(parts) if parts else None)
    train, test = found
    return (train, test) if train is not None else None


def _files_of(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else []


ANSWERING = (
    Entry(
        "squad",
        "SQuAD 1.1",
        _TASK,
        None,
        87_599,
        10_570,
        "Rajpurkar, Zhang, Lopyrev and Liang (2016)",
        "CC BY-SA 4.0",
        "train-v1.1.json and dev-v1.1.json",
        "title",
        _from_folder=files(["train-v1.1.json"], ["dev-v1.1.json"], squad.squad, squad.COLUMNS),
        _hub=Hub("rajpurkar/squad"),
    ),
    Entry(
        "squadshifts",
        "SQuADShifts: new Wikipedia, New York Times, Reddit, Amazon",
        _TASK,
        None,
        37_691,
        None,
        "Miller, Krauth, Recht and Schmidt (2020)",
        "CC BY 4.0; the texts per source",
        "new_wiki_v1.0.json, nyt_v1.0.json, reddit_v1.0.json and amazon_reviews_v1.0.json, plain or as .gz",
        "domain",
        _from_folder=_shifts_folder,
    ),
    Entry(
        "xquad",
        "XQuAD: SQuAD in further languages",
        _TASK,
        None,
        1_190,
        None,
        "Artetxe, Ruder and Yogatama (2020); as many in each language",
        "CC BY-SA 4.0",
        "xquad.en.json and those of other languages, or one of them as path",
        "language",
        _from_folder=_xquad_folder,
        _hub=Hub("google/xquad", config="xquad.en"),
    ),
    Entry(
        "mrqa",
        "MRQA 2019: SQuAD, NewsQA, TriviaQA, SearchQA, HotpotQA, Natural Questions",
        _TASK,
        None,
        516_819,
        58_221,
        "Fisch et al. (2019); tested on the in-domain development files",
        "per set",
        "folders train and dev with the six files SQuAD.jsonl.gz, NewsQA.jsonl.gz and so on",
        "dataset",
        _from_folder=_mrqa_folder,
    ),
)
"""The data sets for question answering."""
