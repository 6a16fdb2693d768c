"""The run directory of a federation: made once, opened again, with the name and the secret that are drawn for it."""

import json
import secrets
from pathlib import Path

from fednlp import config
from fednlp.checked_json import damaged
from fednlp.config import Experiment
from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.deployment.identity.site_registry import Register
from fednlp.deployment.server.label_agreement import with_agreed
from fednlp.deployment.session.servable import require_servable
from fednlp.disk import atomic, regular, write_private
from fednlp.errors import RunError
from fednlp.simulation.precision import with_precision
from fednlp.simulation.run_dir import RunDir, new_run_dir, saving


def open_directory(experiment: Experiment, out: Path) -> RunDir:
    """Make the run directory of a federation, or open that of one that was stopped.

    Args:
        experiment: Resolved.

    Raises:
        ConfigError: A server without training examples cannot run the experiment.
        RunError: The folder holds something else, or a run of other settings.
    """
    require_servable(experiment)
    directory = RunDir(out)
    if not (out / "resolved.toml").is_file():
        for path in out.glob(".resolved.toml.*"):  # of a start that was killed
            path.unlink()
        directory = new_run_dir(with_precision(experiment), out)
    changed = config.differences(
        *(with_agreed(one, out / FOLDER) for one in (directory.experiment(), experiment))
    )
    if changed and _untouched(directory):  # an earlier start came to nothing
        directory.write_experiment(with_precision(experiment))
    elif changed:
        raise RunError(
            f"{out} is a federation of other settings ({'; '.join(changed[:5])}): start it with these, or choose "
            "another --out"
        )
    if not (out / FOLDER).is_dir() and directory.state.is_file():
        raise RunError(f"{out} is a run of a simulation: choose another --out")
    with saving(out):
        (out / FOLDER).mkdir(mode=0o700, exist_ok=True)
    return directory


def _untouched(directory: RunDir) -> bool:
    """Return whether no site has joined and nothing was trained: its settings bind nobody yet."""
    folder = directory.folder / FOLDER
    begun = directory.partition.is_file() or directory.state.is_file() or any(folder.glob("inbox/*"))
    return (
        folder.is_dir()
        and not begun
        and all(site.certificate_expires is None for site in Register(folder).sites())
    )


def run_name(directory: RunDir) -> str:
    """Return the name that a federation's messages carry, drawn once."""
    path = directory.folder / FOLDER / "run.json"
    if not path.exists():
        with atomic(path, "then start it again") as file:
            file.write(json.dumps({"run": secrets.token_hex(16)}).encode())
    try:
        run = json.loads(regular(path).read_text())["run"]
        if not isinstance(run, str):
            raise ValueError("it names no run")
    except (ValueError, LookupError, TypeError, OSError, RecursionError) as error:
        raise damaged(path, error, "restore it from a backup") from None
    return run


def noise_secret(folder: Path) -> int:
    """Return the number that a federation's noise is drawn by: from the operating system, once."""
    path = folder / "noise.key"
    if not path.is_file():
        write_private(path, secrets.token_hex(32).encode(), "choose another --out")
    return int(path.read_text(), 16)
