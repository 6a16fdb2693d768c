"""Words with tags: named entities."""

from pathlib import Path

from fednlp.data.catalogue.entries import Entry, Hub, Pair, files, first_of, found
from fednlp.data.files import joined_rows, reader_rows
from fednlp.data.readers.conll import COLUMNS, conll, inline
from fednlp.data.store import Rows

_TASK = "token-classification"


def _ploner_flat(path: Path) -> Pair | None:
    """Open PLONER's published files, a train, dev and test file for each sub-data-set; dev is a part of training."""
    names = (
        sorted(one.name.removesuffix("_train.txt") for one in path.glob("*_train.txt"))
        if path.is_dir()
        else []
    )
    train, test = (
        [
            (name, reader_rows(file, conll, COLUMNS))
            for name in names
            for split in splits
            if (file := path / f"{name}_{split}.txt").is_file()
        ]
        for splits in (("train", "dev"), ("test",))
    )
    return (joined_rows(train, "domain"), joined_rows(test, "domain") if test else None) if train else None


def _ploner_folder(path: Path) -> Pair | None:
    """Open a folder that holds a folder for each sub-data-set; their name becomes the column ``domain``."""
    parts: dict[str, list[tuple[str, Rows]]] = {"train": [], "test": []}
    folders = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    for folder in folders:
        for split, there in parts.items():
            file = found(folder, [f"{split}{ending}" for ending in (".txt", ".conll", ".bio", "")])
            if file is not None:
                there.append((folder.name, reader_rows(file, conll, COLUMNS)))
    train, test = (joined_rows(there, "domain") if there else None for there in parts.values())
    return (train, test) if train is not None else None


TAGGING = (
    Entry(
        "conll2003",
        "CoNLL-2003, English: persons, places, organisations and more",
        _TASK,
        9,
        14_041,
        3_453,
        "Tjong Kim Sang and De Meulder (2003)",
        "research; the text is Reuters' RCV1, under its own agreement",
        "eng.train and eng.testb, or train.txt and test.txt (columns; the word first, the tag last)",
        _from_folder=files(["eng.train", "train.txt"], ["eng.testb", "test.txt"], conll, COLUMNS),
        _hub=Hub(
            "eriktks/conll2003", {"tokens": "words", "ner_tags": "tags"}, revision="refs/convert/parquet"
        ),
    ),
    Entry(
        "ontonotes",
        "OntoNotes 5, 18 kinds of entities",
        _TASK,
        37,
        59_924,
        8_262,
        "Weischedel et al. (2013), split of CoNLL-2012 (Pradhan et al., 2013)",
        "of the Linguistic Data Consortium, LDC2013T19",
        "train.txt or onto.train.ner, and test.txt or onto.test.ner (columns; the word first, the tag last)",
        _from_folder=files(
            ["train.txt", "train.conll", "train.bio", "onto.train.ner"],
            ["test.txt", "test.conll", "test.bio", "onto.test.ner"],
            conll,
            COLUMNS,
        ),
    ),
    Entry(
        "wnut17",
        "W-NUT 2017: new and rare entities",
        _TASK,
        13,
        3_394,
        1_287,
        "Derczynski, Nichols, van Erp and Limsopatham (2017)",
        "CC BY 4.0",
        "wnut17train.conll and emerging.test.annotated",
        _from_folder=files(
            ["wnut17train.conll"], ["emerging.test.annotated", "emerging.dev.conll"], conll, COLUMNS
        ),
    ),
    Entry(
        "wikiner",
        "WikiNER: entities by Wikipedia's links",
        _TASK,
        9,
        None,
        None,
        "Nothman, Ringland, Radford, Murphy and Curran (2013)",
        "CC BY",
        "aij-wikiner-en-wp3 or -wp2, unpacked from .bz2 (a sentence a line, word|POS|tag)",
        _from_folder=files(["aij-wikiner-en-wp3", "aij-wikiner-en-wp2"], [], inline, COLUMNS),
    ),
    Entry(
        "wikiann",
        "WikiANN, English: entities by Wikipedia's links",
        _TASK,
        7,
        20_000,
        10_000,
        "Pan et al. (2017), split of Rahimi, Li and Cohn (2019)",
        "unstated; the text is Wikipedia's, CC BY-SA",
        "train and test (en:word<TAB>tag)",
        _from_folder=first_of(
            files(["train"], ["test"], conll, COLUMNS, prefix="en:"),
            files(["train.txt"], ["test.txt"], conll, COLUMNS, prefix="en:"),
        ),
        _hub=Hub("unimelb-nlp/wikiann", {"tokens": "words", "ner_tags": "tags"}, "en"),
    ),
    Entry(
        "ploner",
        "PLONER: persons, places and organisations from several sets",
        _TASK,
        7,
        14_000,
        3_501,
        "Fu, Liu and Zhang (2020)",
        "per set",
        "NAME_train.txt, NAME_dev.txt (joined to training) and NAME_test.txt for each sub-data-set; or a folder for "
        "each, with train.txt and test.txt (columns; the word first, the tag last)",
        "domain",
        _from_folder=first_of(_ploner_flat, _ploner_folder),
    ),
)
"""The data sets for tagging."""
