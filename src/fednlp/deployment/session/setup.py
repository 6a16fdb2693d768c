"""What a site is told before the first round, and what it answers: plain JSON, checked on both sides."""

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from fednlp.config import Experiment
from fednlp.deployment.session.servable import unsupported
from fednlp.disk import sha256_of
from fednlp.errors import ConfigError, RunError

MODEL_FILES, ENCODER_FILES = "start:", "encoder:"
"""Objects of these prefixes are the files of the starting model's folder, and of the model's that filters texts."""
SERVER_FILES = frozenset({"test_path", "validation_path"})
"""Keys of ``[data]`` that name files of the server in an experiment of sites."""
MOST_EXAMPLES = 10_000_000
"""Examples of one site, for which the server keeps a number each."""
MOST_SITES = 1_000_000
"""Sites of a federation."""
_MOST_TOKENS = 1 << 24
"""Tokens of a text."""
_SUFFIXES = frozenset({".json", ".jinja", ".model", ".safetensors", ".txt"})
"""Files of a model's folder that travel: no code, and nothing that loading would run."""
_NAME = re.compile(r"setup(?:-([1-9][0-9]{0,5}))?")
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class _Checked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Again(_Checked):
    """What a site is told that has lost what it was set up for.

    Attributes:
        train: How many training examples it said that it has; None if it never did.
        test: How many test examples; None if it never did.
        counted: The last round in which its update counted; 0 for none.
    """

    train: int | None = Field(default=None, ge=1, le=MOST_EXAMPLES)
    test: int | None = Field(default=None, ge=0, le=MOST_EXAMPLES)
    counted: int = Field(ge=0, lt=2**31)


class Setup(_Checked):
    """What a site is told first.

    Attributes:
        experiment: The sections of the resolved experiment.
        task: The name of the task.
        longest: Tokens that the model reads of a text at most.
        client: The site's number.
        clients: How many sites there are.
        run: The run's name, which no other run has.
        asked_labels: Whether the sites were asked for the names of their labels.
        again: What it said before; None for a site that is set up for the first time.
    """

    experiment: dict[str, JsonValue]
    task: str
    task_fields: dict[str, JsonValue]
    longest: int = Field(ge=1, le=_MOST_TOKENS)
    client: int = Field(ge=0, lt=MOST_SITES)
    clients: int = Field(ge=1, le=MOST_SITES)
    run: str = Field(min_length=1, max_length=64)
    asked_labels: bool = False
    again: Again | None = None


class Ready(_Checked):
    """What a site answers to it.

    Attributes:
        train: How many training examples it has; 1 where it does not tell.
        test: How many test examples of its own.
        gold: How many of its training examples have a label; None where all have, and stay as they are.
        candidates: How many texts may be given a pseudo label; None where all have, and stay as they are.
        clients: How many sites it was told that there are.
        hidden: Which of the first two numbers are not what it has, since it does not tell; None for neither.
    """

    train: int = Field(ge=1, le=MOST_EXAMPLES)
    test: int = Field(ge=0, le=MOST_EXAMPLES)
    gold: int | None = Field(default=None, ge=0, lt=2**31)
    candidates: int | None = Field(default=None, ge=0, lt=2**31)
    clients: int = Field(default=1, ge=1, le=MOST_SITES, repr=False)
    hidden: list[Literal["train", "test"]] | None = Field(default=None, max_length=2)


def setup_attempt(name: str) -> int | None:
    """Return the how-manieth setup of a site a call is, by its name; None for another call.

    >>> setup_attempt("setup"), setup_attempt("setup-3"), setup_attempt("train-3")
    (1, 3, None)
    """
    found = _NAME.fullmatch(name)
    return int(found[1] or 1) if found else None


def is_setup(call_id: str) -> bool:
    """Return whether a call is to set a site up."""
    return setup_attempt(call_id.rpartition(".")[2]) is not None


def read_setup(value: Any) -> Setup:
    """Return the setup that a server sent.

    Raises:
        RunError: It is none.
    """
    try:
        return Setup.model_validate(value)
    except ValidationError as error:
        raise RunError(f"the server's setup does not fit: {_first(error)}") from None


def read_ready(value: Any) -> Ready:
    """Return what a site answered to its setup.

    Raises:
        RunError: It is no such answer.
    """
    try:
        return Ready.model_validate(value)
    except ValidationError as error:
        raise RunError(f"the answer does not fit: {_first(error)}") from None


def sections_for_sites(experiment: Experiment) -> dict[str, Any]:
    """Return the sections of an experiment as its sites are told: of the server's own files, the names alone.

    Args:
        experiment: Resolved.
    """
    sections = experiment.model_dump(exclude_none=True)
    for key in SERVER_FILES & sections["data"].keys():
        sections["data"][key] = Path(sections["data"][key]).name
    return sections


def experiment_of(setup: Setup) -> Experiment:
    """Return the experiment of a setup. Code that it names is not imported here: the site's policy comes first.

    Raises:
        RunError: It is no experiment of this version.
    """
    return read_experiment(setup.experiment)


def read_experiment(sections: Mapping[str, Any]) -> Experiment:
    """Return an experiment that a server sent, as :func:`experiment_of`.

    Raises:
        RunError: It is no experiment of this version, or has what no federation between machines has.
    """
    try:
        experiment = Experiment(**sections)
    except ConfigError as error:
        raise RunError(f"the server's experiment does not fit this version of fednlp: {error}") from None
    problems = unsupported(experiment)
    if problems:
        raise RunError(f"the server's experiment is not one of sites: {'; '.join(problems)}")
    return experiment


def model_files(folder: Path, prefix: str = MODEL_FILES) -> dict[str, Path]:
    """Return the files of a model's folder that travel to the sites, by the names of their objects.

    Args:
        folder: Of the model; a folder in it may hold a tokenizer of targets.
    """
    found = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in _SUFFIXES)
    return {prefix + path.relative_to(folder).as_posix().replace("/", ":"): path for path in found}


def place_models(objects: Mapping[str, Path], folders: Mapping[str, Path]) -> None:
    """Put the files of models into folders, under the names that they have at the server, in place of all others.

    Args:
        objects: That came with the setup: file by name.
        folders: The site's own, by the prefix of the names of the files that belong there.

    Raises:
        RunError: A name leads out of the folder, or is of a kind of file that does not travel.
    """
    named = [(*_checked_name(name, folders), path) for name, path in objects.items()]
    for folder in folders.values():
        if folder.is_dir():
            shutil.rmtree(folder)
    for prefix, plain, path in named:
        target = folders[prefix] / plain
        target.parent.mkdir(parents=True, exist_ok=True)
        target.hardlink_to(path)


def require_names(names: Iterable[str], prefixes: Iterable[str]) -> None:
    """Check that objects have names of files that have a place in a model.

    Raises:
        RunError: A name leads out of the folder, or is of a kind of file that does not travel.
    """
    for name in names:
        _checked_name(name, prefixes)


def require_placed(objects: Mapping[str, Path], folders: Mapping[str, Path]) -> None:
    """Check that files of models which came again are those that are in the folders, byte for byte.

    Args:
        objects: That came with the setup: file by name.
        folders: As in :func:`place_models`.

    Raises:
        RunError: They are not.
    """
    sent = {}
    for name, path in objects.items():
        prefix, plain = _checked_name(name, folders)
        sent[folders[prefix] / plain] = path
    there = {path for folder in folders.values() for path in folder.rglob("*") if path.is_file()}
    for target in sorted(there ^ sent.keys()) or sent:
        if target not in sent or target not in there or sha256_of(target) != sha256_of(sent[target]):
            raise RunError(f"the server has changed the model of this run: {target.name}")


def _checked_name(name: str, prefixes: Iterable[str]) -> tuple[str, PurePosixPath]:
    prefix = next((prefix for prefix in prefixes if name.startswith(prefix)), "")
    parts = name.removeprefix(prefix).split(":")
    path = PurePosixPath(*parts)
    plain = len(parts) <= 2 and all(_PLAIN.fullmatch(part) for part in parts)
    if not prefix or not plain or path.suffix not in _SUFFIXES:
        raise RunError(f"the server sent a file that has no place in a model: {name[:80]!r}")
    return prefix, path


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part)[:40] for part in first['loc'])}: {first['msg']}"
