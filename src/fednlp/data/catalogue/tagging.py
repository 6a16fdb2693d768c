"""Words with tags: named entities."""

from pathlib import Path

from fednlp.data.catalogue.entries import Opener, Pair, Part, files, first_of, found, joined
from fednlp.data.files import reader_rows
from fednlp.data.readers.conll import COLUMNS, conll, inline


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
    return joined(train, test, "domain")


def _ploner_folder(path: Path) -> Pair | None:
    """Open a folder that holds a folder for each sub-data-set; their name becomes the column ``domain``."""
    parts: dict[str, list[Part]] = {"train": [], "test": []}
    folders = sorted(one for one in path.iterdir() if one.is_dir()) if path.is_dir() else []
    for folder in folders:
        for split, there in parts.items():
            file = found(folder, [f"{split}{ending}" for ending in (".txt", ".conll", ".bio", "")])
            if file is not None:
                there.append((folder.name, reader_rows(file, conll, COLUMNS)))
    return joined(parts["train"], parts["test"], "domain")


TAGGING: dict[str, Opener] = {
    "conll2003": Opener(files(["eng.train", "train.txt"], ["eng.testb", "test.txt"], conll, COLUMNS)),
    "ontonotes": Opener(
        files(
            ["train.txt", "train.conll", "train.bio", "onto.train.ner"],
            ["test.txt", "test.conll", "test.bio", "onto.test.ner"],
            conll,
            COLUMNS,
        )
    ),
    "wnut17": Opener(
        files(["wnut17train.conll"], ["emerging.test.annotated", "emerging.dev.conll"], conll, COLUMNS)
    ),
    "wikiner": Opener(files(["aij-wikiner-en-wp3", "aij-wikiner-en-wp2"], [], inline, COLUMNS)),
    "wikiann": Opener(
        first_of(
            files(["train"], ["test"], conll, COLUMNS, prefix="en:"),
            files(["train.txt"], ["test.txt"], conll, COLUMNS, prefix="en:"),
        )
    ),
    "ploner": Opener(first_of(_ploner_flat, _ploner_folder)),
}
"""The data sets for tagging."""
