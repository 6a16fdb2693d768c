"""Splits in the names of files and folders: which are for training, test or validation, and which belong together.

``Nord_train.csv`` and ``nord-test.csv`` are the two splits of one silo, ``train-00000-of-00002.parquet`` a part of a
training set. What a name leaves open is refused: a test set must not be trained on.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from fednlp.errors import DataError

SplitWord = Literal["", "train", "test", "validation"]
Validation = Literal["train", "test"]
"""What validation sets are joined to, or taken for."""

_WORDS: dict[str, SplitWord] = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("test", "tests", "testing", "eval", "evaluation", "heldout", "holdout"), "test"),
    **dict.fromkeys(("dev", "devel", "development", "val", "valid", "validation"), "validation"),
}
_CALLED = {"train": "training", "test": "test", "validation": "validation"}
# Words of letters or of digits; "NordTest" is two.
_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|[^\W\d_]+|\d+")
_SHARD = re.compile(r"(?:^|[-_. ])(\d{1,6})[-_]of[-_](\d{1,6})$")
_SET = re.compile(r"(?<=.)(set|data)$")
_BETWEEN = "-_. "


@dataclass(frozen=True)
class SplitName:
    """What a name says.

    Attributes:
        group: The name without the split and the number of a part: what the splits of one data set share.
        splits: What it says of splits, each once; empty where it says nothing.
        shard: The number of a part, and of how many; None where it is not a part.
    """

    group: str
    splits: tuple[SplitWord, ...]
    shard: tuple[int, int] | None

    @property
    def key(self) -> tuple[str, ...]:
        """What is equal for the names of one group, however they are written."""
        return tuple(_TOKEN.findall(self.group.casefold()))


@dataclass(frozen=True)
class SplitPaths:
    """The files or folders of one data set: several of a split are its parts, in order.

    Attributes:
        name: What they are called without their splits, or what holds them is where nothing is left.
        train: At least one.
        test: Of the test set; empty where there is none.
        validation: Of the validation set; empty where there is none.
        note: What a name says that was not followed, for people; empty where there is nothing.
    """

    name: str
    train: tuple[Path, ...]
    test: tuple[Path, ...] = ()
    validation: tuple[Path, ...] = ()
    note: str = ""


def silo_name(path: Path) -> str:
    """Return the name of a silo: that of the folder, or of the file without its ending and ``.gz``, in Unicode's NFC.

    Raises:
        DataError: The name is not UTF-8.

    >>> silo_name(Path("silos/Süd.csv.gz"))
    'Süd'
    """
    name = path.name.removesuffix(".gz")
    stem = path.name if path.is_dir() else name.removesuffix(Path(name).suffix)
    found = unicodedata.normalize("NFC", stem)
    try:
        found.encode()
    except UnicodeEncodeError:
        raise DataError(f"{str(path)!r}: the name is not UTF-8: rename it") from None
    return found


def split_name(stem: str) -> SplitName:
    """Return what a name without its ending says of splits.

    >>> split_name("nord_train"), split_name("test-00000-of-00001").splits
    (SplitName(group='nord', splits=('train',), shard=None), ('test',))
    >>> split_name("HeldOut.2024").group, split_name("contest").splits
    ('2024', ())
    """
    shard = _SHARD.search(stem)
    rest = stem[: shard.start()] if shard else stem
    tokens = list(_TOKEN.finditer(rest))
    splits: list[SplitWord] = []
    cut: list[tuple[int, int]] = []
    for number, token in enumerate(tokens):
        word, end = token[0].casefold(), token.end()
        following = tokens[number + 1] if number + 1 < len(tokens) else None
        if word in ("held", "hold") and following is not None and following[0].casefold() == "out":
            word, end = "heldout", following.end()
        split = _WORDS.get(word) or _WORDS.get(_SET.sub("", word))
        if split:
            splits.append(split)
            cut.append((token.start(), end))
    for start, end in reversed(cut):
        before, after = rest[:start], rest[end:]
        between = before[-1:] if before and after and before[-1] in _BETWEEN else ""
        rest = before.rstrip(_BETWEEN) + between + after.lstrip(_BETWEEN)
    return SplitName(rest, tuple(dict.fromkeys(splits)), (int(shard[1]), int(shard[2])) if shard else None)


def validation_note(names: Sequence[str], used: Validation | None, has_test: bool) -> str:
    """Return what is done with validation sets, for people; empty where there are none.

    Args:
        used: What they are used for; None where they are left out.
        has_test: Whether there is a test set.

    >>> validation_note(["dev.csv"], None, True)
    'not read: dev.csv, the validation set (data.validation = "train" joins it to the training set)'
    """
    if not names:
        return ""
    several = len(names) > 1
    shown, sets = f"{names[0]} to {names[-1]}" if several else names[0], "sets" if several else "set"
    if used == "train":
        return f"{shown}: the validation {sets}, joined to training (data.validation)"
    if used == "test":
        return f"{shown}: the validation {sets}, used for testing (data.validation)"
    its = f'data.validation = "train" joins {"them" if several else "it"} to the training {sets}'
    other = "" if has_test else f', and "test" makes {"them" if several else "it"} the test {sets}'
    return f"not read: {shown}, the validation {sets} ({its}{other})"


def is_test_name(path: Path) -> bool:
    """Say whether a name says that a file or folder is a test or validation set, and not that it is for training."""
    splits = split_name(silo_name(path)).splits
    return bool(splits) and "train" not in splits


def grouped_splits(paths: Sequence[Path], where: Path, *, named: bool = False) -> list[SplitPaths]:
    """Return the data sets that files or folders are, by their names: the splits and parts of each together.

    Where no name speaks of a test set, of a validation set or of a part, each is one by itself, under its whole name.

    Args:
        paths: Files or folders, at least one.
        where: What holds them, for messages.
        named: Whether the user named each of them: a test set without a training set is then a data set by itself,
            with a note.

    Raises:
        DataError: Something is ambiguous: two files are one split, a test set has no training set, a part is missing.
    """
    names = {path: split_name(silo_name(path)) for path in paths}
    training = Counter((path.parent, name.key) for path, name in names.items() if name.splits)
    speaking = any(name.shard or set(name.splits) - {"train"} for name in names.values())
    if not speaking and max(training.values(), default=1) == 1:
        return [SplitPaths(silo_name(path), (path,)) for path in paths]
    groups: dict[tuple[str, ...], dict[SplitWord, list[Path]]] = {}
    for path, name in names.items():
        if len(name.splits) > 1 and not named:
            refuse_splits(
                where, paths, f"the name of {path.name} says {' and '.join(map(_called, name.splits))}"
            )
        group = groups.setdefault(name.key or (str(path.parent),), {})
        group.setdefault(name.splits[0] if len(name.splits) == 1 else "", []).append(path)
    found = [one for group in groups.values() for one in _of_group(group, names, where, paths, named)]
    numbered = [one for one in found if one.name.isdigit()]
    if (
        not named
        and len(numbered) == len(found) > 1
        and any(one.test for one in found)
        and not all(one.test for one in found)
    ):
        refuse_splits(
            where,
            paths,
            f"the files of training and test have other numbers, from {found[0].train[0].name} on: call the parts of "
            f"one set train-00000-of-{len(found):05}, or",
        )
    return found


def _of_group(
    group: dict[SplitWord, list[Path]],
    names: dict[Path, SplitName],
    where: Path,
    paths: Sequence[Path],
    named: bool,
) -> list[SplitPaths]:
    plain = group.pop("", [])
    shards = [path for path in plain if names[path].shard]
    if not group and not shards:
        return [SplitPaths(silo_name(path), (path,)) for path in plain]
    if plain and "train" in group:
        both = f"{plain[0].name} and {group['train'][0].name}"
        refuse_splits(where, paths, f"{both} may both be the training set")
    train = group.get("train") or plain
    if not train:
        held = [path for split in group.values() for path in split]
        if not named:
            kind = _called(next(iter(group)))
            refuse_splits(
                where,
                paths,
                f"{held[0].name} is called a {kind} set, and no training set goes with it by name",
            )
        return [
            SplitPaths(
                silo_name(path), (path,), note=f"the name of {path.name} says that it is no training set"
            )
            for path in held
        ]
    parts = {split: _parts(there, names, where) for split, there in {**group, "train": train}.items()}
    shown = names[train[0]].group or silo_name(train[0].parent)
    return [SplitPaths(shown, parts["train"], parts.get("test", ()), parts.get("validation", ()))]


def _parts(paths: Sequence[Path], names: dict[Path, SplitName], where: Path) -> tuple[Path, ...]:
    """Return the one file of a split, or all its parts in order."""
    if len(paths) == 1 and not names[paths[0]].shard:
        return tuple(paths)
    shards = sorted((names[path].shard or (-1, -1), path) for path in paths)
    numbers, totals = [number for (number, _), _ in shards], {total for (_, total), _ in shards}
    if -1 in numbers or len(set(numbers)) < len(numbers) or len(totals) > 1:
        raise DataError(
            f"{where} holds {' and '.join(sorted(path.name for path in paths)[:2])}: give the one to use as path"
        )
    total = totals.pop()
    first = min(numbers[0], 1)  # some programs count from 1
    if numbers != list(range(first, first + total)):
        lacking = next((one for one in range(first, first + total) if one not in numbers), numbers[-1])
        raise DataError(
            f"{where}: of the {total} parts of {shards[0][1].name}, number {lacking} is missing: get it, or rename "
            "the others"
        )
    return tuple(path for _, path in shards)


def refuse_splits(where: Path, paths: Sequence[Path], why: str) -> NoReturn:
    """Refuse names that leave open what is a test set, with what to type.

    Raises:
        DataError: Always.
    """
    said = {path: split_name(silo_name(path)).splits for path in paths}
    train = [path for path in paths if "train" in said[path]] or [path for path in paths if not said[path]]
    tests = [path for path in paths if said[path] == ("test",)] or [path for path in paths if said[path]]
    typed = [f'"{path}"' for path in (train or paths)]
    if len(train) == 1 and tests and tests[0] not in train:
        say = f'path = {typed[0]} and test_path = "{tests[0]}"'
    else:
        say = f"path = [{', '.join(typed[:2])}{', ...' if len(typed) > 2 else ''}], the files to train on"
    raise DataError(f"{where}: {why}{'' if why.endswith(' or') else ':'} say {say}")


def _called(split: SplitWord) -> str:
    return _CALLED[split]
