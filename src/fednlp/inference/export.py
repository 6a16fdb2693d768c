"""Write models of a run as Hugging Face folders: the shared one, or clients' own."""

import csv
import os
import re
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fednlp.checked_json import damaged
from fednlp.disk import folder_made_whole
from fednlp.errors import RunError
from fednlp.formatting.units import HIDDEN, plural
from fednlp.inference.client_models import NoClientModel, client_name, client_number
from fednlp.inference.model import open_trained
from fednlp.models.pretrained import save_model
from fednlp.partition import Partition
from fednlp.reports.modelcard import client_card
from fednlp.simulation.run_dir import RunDir
from fednlp.tasks import generation_of

_REMEDY = "choose another --out"
_LONGEST_NAME = 100
"""Bytes of a folder's name at most; file systems allow 255."""


def export(
    run: str | os.PathLike[str],
    out: str | Path,
    client: str | int | None = None,
    task: str | None = None,
    own: bool = False,
) -> Path:
    """Write the model of a run, or of one of its clients, as a folder that ``from_pretrained`` loads.

    A client's model is the one after its fine-tuning steps, where these are kept; else its personal layers in the
    shared model. Adapters are merged. The folder has the tokenizer and a model card.

    Args:
        out: The folder to make.
        client: Name or number of a client; None for the shared model.
        task: The run's task, as in :func:`fednlp.inference.model.open_trained`.
        own: Whether it is a site's own model, as there.

    Returns:
        The folder.

    Raises:
        RunError: ``out`` is not empty; the client has no model of its own; ``client`` is None, and no client uses the
            shared model; or ``task`` is not the run's, or is missing where it is a user's own class.
    """
    directory, folder = RunDir(Path(run)), Path(out).resolve()
    _refuse_taken(folder)
    trained = open_trained(run, client, task, "cpu", own)
    with folder_made_whole(folder, _REMEDY) as made:
        if client is None:
            _copy(directory.own_model if own else directory.model, made)
        else:
            partition = Partition.load(directory.partition)
            number = client_number(partition, client)
            card = client_card(
                _read(directory, "summary.json"),
                trained.experiment.model_dump(exclude_none=True),
                _read(directory, "environment.json"),
                _facts(directory, number, client_name(partition, number)),
            )
            generation = generation_of(trained.task, trained.model)
            base = trained.experiment.model.name_or_path
            save_model(trained.model, trained.tokenizer, made, card, generation=generation, base=base)
    return Path(out)


def export_clients(
    run: str | os.PathLike[str],
    out: str | Path,
    limit: int = 100,
    log: Callable[[str], None] = lambda text: None,
    task: str | None = None,
) -> list[Path]:
    """Write the models of all clients of a run, a folder each, named after the client.

    Args:
        out: The folder to make them in.
        limit: Maximum number of clients.
        log: Called with a message for each client without a model of its own, which is left out.
        task: The run's task, as in :func:`fednlp.inference.model.open_trained`.

    Returns:
        The folders.

    Raises:
        RunError: There are more than ``limit`` clients, or :func:`export` raises it.
    """
    directory = RunDir(Path(run))
    directory.experiment()  # refuses what is no run directory
    partition = Partition.load(directory.partition)
    if partition.num_clients > limit:
        raise RunError(
            f"{run} has {plural(partition.num_clients, 'client')}, more than --limit {limit}: raise it, or export one "
            "with --client"
        )
    _refuse_taken(Path(out))
    made = []
    for client, name in enumerate(
        folder_names([client_name(partition, c) for c in range(partition.num_clients)])
    ):
        try:
            made.append(export(run, Path(out) / name, client_name(partition, client), task))
        except NoClientModel as error:
            log(str(error))
    return made


def folder_names(names: list[str]) -> list[str]:
    """Return a folder's name for each client: safe on any file system, and different from each other.

    >>> folder_names(["Nord", "Süd / West", "../x", "nord", ""])
    ['Nord', 'Süd-West', 'x', 'nord-3', 'client-4']
    """
    found: dict[str, str] = {}
    for number, name in enumerate(names):
        composed = unicodedata.normalize("NFC", name)  # a letter and its accent are one
        safe = re.sub(r"[^\w.+-]+", "-", composed).encode()[:_LONGEST_NAME]
        plain = safe.decode(errors="ignore").strip(".-")
        plain = plain or f"client-{number}"
        while plain.casefold() in found:
            plain += f"-{number}"
        found[plain.casefold()] = plain
    return list(found.values())


def _facts(run: RunDir, client: int, name: str) -> dict[str, Any]:
    """Return a client's line of clients.csv, for its card; its sizes and scores are absent without the file."""
    facts: dict[str, Any] = {"client": client, "name": name, "finetuned": run.client_models.is_file()}
    path = run.folder / "clients.csv"
    if path.is_file():
        try:
            with path.open(encoding="utf-8", newline="") as file:
                reader = csv.DictReader(file, restkey="")
                row = _checked(next((row for row in reader if row["client"] == str(client)), {}))
        except (KeyError, ValueError, TypeError, csv.Error) as error:
            raise damaged(path, error) from None
        facts |= {key: value for key, value in row.items() if key not in facts}
    return facts


def _checked(row: dict[str, str]) -> dict[str, str]:
    """Return a row of clients.csv, whose cells are numbers, or sizes not told, but for the name.

    Raises:
        ValueError: One is something else.
        TypeError: There are more cells than columns.
    """
    for key, value in row.items():
        if key not in ("client", "name") and (value != HIDDEN or not key.endswith("_examples")):
            (int if key.endswith("_examples") else float)(value or "0")
    return row


def _read(run: RunDir, name: str) -> dict[str, Any]:
    found: dict[str, Any] = run.read_json(name)
    return found


def _copy(model: Path, made: Path) -> None:
    """Copy a model's files, and nothing of this machine to which a link of a stranger's folder leads.

    Raises:
        RunError: Something in the folder is a link, a pipe or a device.
    """
    for path in sorted(model.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise RunError(f"{path} is no file of its own, and would be copied: remove it")
    shutil.copytree(model, made, dirs_exist_ok=True)


def _refuse_taken(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunError(f"{folder} holds something already and is never overwritten: {_REMEDY}")
