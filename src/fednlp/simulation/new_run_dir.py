"""Make the run directory of a new run: its name, and whether its place is free."""

import hashlib
import json
from pathlib import Path

from fednlp import config
from fednlp.config import Experiment
from fednlp.disk import atomic, cannot_write, writing
from fednlp.errors import RunError
from fednlp.simulation.run_dir import RunDir


def settings_hash(experiment: Experiment) -> str:
    """Return eight hex digits that identify the settings which affect the result.

    >>> from fednlp.config import parse
    >>> a = parse({"data": {"name": "20news"}, "runtime": {"workers": 1}})
    >>> b = parse({"data": {"name": "20news"}, "runtime": {"workers": 2}})
    >>> settings_hash(a) == settings_hash(b)
    True
    """
    document = config.canonical(experiment)
    document["runtime"].pop("onednn", None)  # a machine decides it, and a run has one name on all machines
    text = json.dumps(document, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def create(experiment: Experiment, out: Path | None) -> RunDir:
    """Make a new run directory with its configuration.

    Args:
        experiment: Resolved.
        out: The folder; by default ``runs/<name>-<hash>``, with a number appended if it exists.

    Raises:
        RunError: ``out`` is not empty, or cannot be written.
    """
    refuse_taken(out)
    if out is None:
        stem = Path("runs") / f"{experiment.name}-{settings_hash(experiment)}"
        candidates = (stem if n == 1 else stem.with_name(f"{stem.name}-{n}") for n in range(1, 1_000_000))
        out = next(path for path in candidates if not path.exists())
    with writing(out, "choose another place with --out"):
        with atomic(out / "resolved.toml", "choose another place with --out") as file:
            file.write(config.dump(experiment).encode())
        (out / "checkpoint").mkdir(exist_ok=True)
    return RunDir(out)


def refuse_taken(out: Path | None) -> None:
    """Check that a folder is free for a run.

    Raises:
        RunError: The folder is not empty, is a file, or cannot be read.
    """
    try:
        if out is None or not out.exists():
            return
        if not out.is_dir():
            raise RunError(f"{out} is a file: give a folder to --out")
        taken = any(out.iterdir())
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise cannot_write(
            Path(str(out)[:80]), error.strerror or str(error), "choose another --out"
        ) from None
    if not taken:
        return
    if not (out / "resolved.toml").is_file():
        raise RunError(f"{out} holds files of something else: choose another --out")
    finished = (out / "summary.json").is_file()
    hint = "choose another --out" if finished else f"go on with: fednlp run --resume {out}"
    raise RunError(f"{out} holds a run already and is never overwritten: {hint}")
