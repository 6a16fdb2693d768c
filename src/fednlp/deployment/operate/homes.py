"""Where a machine keeps the federations that it has joined."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from fednlp.deployment.identity.access import access_of, has_joined
from fednlp.deployment.site.data import read_own
from fednlp.deployment.site.policy import load_policy
from fednlp.disk import home
from fednlp.errors import DataError, RunError
from fednlp.simulation.run_dir import RunDir

if TYPE_CHECKING:
    from fednlp.data import TextData


def joined_folder(name: str, root: Path | None = None) -> Path:
    """Return the folder of a federation that this machine has joined.

    Args:
        name: That an earlier join has printed.
        root: Of all federations; :func:`fednlp.disk.home` if left out.

    Raises:
        IdentityError: An organisation's file of certificates cannot be read or does not fit.
        RunError: There is no such federation, or joining it was stopped on the way.
    """
    root = home() if root is None else root
    folder = root / name
    if not has_joined(folder):
        known = sorted(path.name for path in root.glob("*") if has_joined(path))
        raise RunError(
            f"this machine has not joined a federation called {name} "
            f"({'it has joined ' + ', '.join(known) if known else 'nor any other'}): fednlp join and the token"
        )
    if access_of(folder) is None:
        raise RunError(f"{name} was stopped before it had joined: fednlp join and the token again")
    return folder


def used_folder(run: Path, root: Path | None = None) -> Path:
    """Return the folder whose model is used: a run directory, or that of a federation by the name that join takes.

    Args:
        run: A path, or the name of a federation.
        root: Of all federations; :func:`fednlp.disk.home` if left out.

    Raises:
        RunError: It is a federation of which this machine has no final model.
    """
    root = home() if root is None else root
    folder = run if run.exists() or len(run.parts) != 1 else root / run
    if not has_joined(folder):
        return run
    if not (folder / "resolved.toml").is_file():
        raise RunError(
            f"{folder.name} has no final model: it comes when the federation ends and fednlp join {folder.name} is at "
            "work, unless the server (rounds.send_model) or this site (allow.final_model) forbids it"
        )
    return folder


def own_examples(folder: Path, path: Path | None, columns: Mapping[str, str]) -> "TextData":
    """Return a site's own test examples, or those of a file, by its own names of columns and labels.

    Args:
        folder: Of a federation whose final model is here.
        path: A file; None for the test examples that this site had in the federation.
        columns: The file's own names of columns by the canonical ones, where they are others than the site's.

    Raises:
        FednlpError: The site's file or the examples cannot be read, or it has no test examples.
    """
    policy, experiment = load_policy((folder / "site.toml").resolve()), RunDir(folder).experiment()
    data = read_own(policy, experiment, path, columns)
    if path is None and not len(data.test_numbers):
        raise DataError("this site holds no test examples: name a file with --data FILE")
    return data


def models_here(folder: Path) -> list[str]:
    """Return the lines that say which models of a federation are here, and what to type next."""
    run = RunDir(folder)
    if not run.is_at_site:
        return ["its final model did not come to this site"]
    found = {"the final model": run.model, "this site's own model": run.own_model}
    flag = " --own" if run.own_model.is_dir() else ""
    return [
        *(f"{what}: {path}" for what, path in found.items() if path.is_dir()),
        f"use it: fednlp predict {folder.name}{flag} TEXT, or fednlp evaluate {folder.name}{flag}",
    ]
