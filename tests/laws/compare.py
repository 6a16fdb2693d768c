"""Whether two commits of fednlp compute the same: weights, server states and round lines of every configuration.

    python -m tests.laws.compare main HEAD                  # commits, or "." for the files as they are
    python -m tests.laws.compare main . --only fedprox,lora
    python -m tests.laws.compare --facts                    # after a change of who takes part, or of what is sent

A change of the code's shape changes no result. Each configuration runs once with each commit, on this machine. Prints
a line for each that differs, and exits with 1 if any does. The time that things took is not compared. What no processor
changes is stored (``facts.json``), and compared by the tests.
"""

import argparse
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fednlp.simulation.run_dir import RunDir

FACTS = Path(__file__).with_name("facts.json")
_ROOT = Path(__file__).parents[2]


def facts_of(run: "RunDir") -> dict[str, Any]:
    """Return who took part in each round of a run, what was sent, and what its lines say, as JSON values."""
    lines = [
        json.loads(line) for line in (run.folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    kept = ("cohort", "bytes_up", "bytes_down")
    facts: dict[str, Any] = {key: [line[key] for line in lines if key in line] for key in kept}
    return facts | {"keys": sorted({key for line in lines for key in _keys("", line)})}


def _keys(place: str, value: Any) -> list[str]:
    if not isinstance(value, dict):
        return [place.lstrip(".")]
    return [key for name, one in value.items() for key in _keys(f"{place}.{name}", one)]


def results(names: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Return what each configuration gives with the fednlp that is imported: digests, and the lines of its rounds."""
    import fednlp
    from fednlp.config import parse
    from tests.conftest import timeless
    from tests.laws.configurations import CONFIGURATIONS
    from tests.laws.material import Material

    material, found = Material(folder / "material"), dict[str, dict[str, Any]]()
    material.folder.mkdir(parents=True)
    for number, name in enumerate(names or CONFIGURATIONS):
        try:
            run = fednlp.run(parse(material.document(CONFIGURATIONS[name])), folder / str(number))
        except fednlp.FednlpError as error:
            found[name] = {"error": str(error)}
            continue
        files = [*run.model.rglob("*.safetensors"), run.state]
        lines = (run.folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        found[name] = {
            "files": {
                str(path.relative_to(run.folder)): _digest(path) for path in sorted(files) if path.exists()
            },
            "facts": facts_of(run),
            "lines": [timeless(json.loads(line)) for line in lines],
        }
        print(f"{name}: {len(lines)} rounds", file=sys.stderr, flush=True)
    return found


def differences(base: dict[str, Any], head: dict[str, Any]) -> list[str]:
    """Return what differs between a configuration's results, by dotted key."""
    return sorted(_differences("", base, head))


def _differences(place: str, base: Any, head: Any) -> list[str]:
    if isinstance(base, dict) and isinstance(head, dict):
        keys = sorted({*base, *head})
        return [
            found for key in keys for found in _differences(f"{place}.{key}", base.get(key), head.get(key))
        ]
    if isinstance(base, list) and isinstance(head, list) and len(base) == len(head):
        pairs = enumerate(zip(base, head, strict=True))
        return [found for number, pair in pairs for found in _differences(f"{place}[{number}]", *pair)]
    return [] if base == head else [f"{place.lstrip('.')}: {str(base)[:60]} -> {str(head)[:60]}"]


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _source(commit: str, folder: Path) -> Path:
    """Return the folder of a commit's modules, unpacked into a folder; of the files as they are for "."."""
    if commit == ".":
        return _ROOT / "src"
    whole = subprocess.run(
        ["git", "archive", commit, "src"], cwd=_ROOT, check=True, stdout=subprocess.PIPE
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(whole)) as packed:
        packed.extractall(folder, filter="data")
    return folder / "src"


def _results_of(commit: str, names: list[str], folder: Path) -> dict[str, Any]:
    path = os.pathsep.join([str(_source(commit, folder)), str(_ROOT)])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.laws.compare", "--write", str(folder), "--only", ",".join(names)]
    subprocess.run(command, env=environment, cwd=folder, check=True)
    whole: dict[str, Any] = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return whole


def main() -> None:
    """Compare two commits, or, with ``--write``, note what one computes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("commits", nargs="*")
    parser.add_argument("--only", default="", help="names of configurations, with commas between them")
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--facts", action="store_true", help="store what no processor changes")
    given = parser.parse_args()
    if given.facts:
        with tempfile.TemporaryDirectory() as folder:
            whole = {name: one["facts"] for name, one in results([], Path(folder)).items()}
        rows = [f"{json.dumps(name)}: {json.dumps(facts)}" for name, facts in whole.items()]
        FACTS.write_text("{" + ",\n ".join(rows) + "}\n", encoding="utf-8")
        return
    names = [name for name in given.only.split(",") if name]
    if given.write:
        (given.write / "results.json").write_text(json.dumps(results(names, given.write)), encoding="utf-8")
        return
    base, head = given.commits
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        before, after = (
            _results_of(side, names, Path(folder)) for side, folder in ((base, one), (head, other))
        )
    changed = 0
    for name in {**before, **after}:
        found = differences(before.get(name, {}), after.get(name, {}))
        changed += bool(found)
        for line in found[:8]:
            print(f"{name}: {line}")
    print(f"{len(after) - changed} of {len(after)} configurations are equal")
    sys.exit(bool(changed))


if __name__ == "__main__":
    main()
