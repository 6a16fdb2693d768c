"""Whether two checkouts of fednlp train the same: weights and round lines of 17 small runs, bit for bit.

    python benchmarks/same_weights.py BASE HEAD              # two checkouts; the libraries are those of this Python
    python benchmarks/same_weights.py BASE HEAD --only fedprox,dp

A refactoring changes no result. Each run is BBC News with BERT-tiny over 20 clients, three rounds of four clients,
and one method; some use two workers, one is stopped and resumed. Prints a line for each run and exits with 1 if any
differs. Times are not compared, and neither are the names of keys that a checkout has renamed (``RENAMED``).
"""

import argparse
import csv
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BASE_SETTINGS = (
    "num_rounds=3",
    "clients_per_round=4",
    "client.max_steps=4",
    "evaluation.every=2",
    "runtime.workers=1",
)
FEWSHOT = ("fewshot.gold=24", "fewshot.f=1", "fewshot.n=4", "fewshot.k=20", "task.prompt=bbc")
SECURE = ("secure.dropout=0", "secure.max_colluding=0")
RUNS: dict[str, tuple[str, ...]] = {
    "fedavg": (),
    "fedavg, two workers": ("runtime.workers=2",),
    "fedprox": ("algorithm.name=fedprox", "algorithm.mu=0.1"),
    "fedadam, kept optimiser": ("algorithm.name=fedadam", "client.keep_optimizer=true"),
    "fedsplitbert, final steps": ("model.train={critical_layer=1}", "client.finetune_steps=2"),
    "pulling": ('pull.rule="low"', 'pull.push="selected"'),
    "exact lora": ('model.peft={r=2, averaging="exact"}',),
    "4 bits, error feedback": ('exchange.up=["int4"]', "exchange.error_feedback=true"),
    "secagg": ('secure.protocol="secagg"', *SECURE),
    "secagg+": ('secure.protocol="secagg+"', *SECURE),
    "lightsecagg": ('secure.protocol="lightsecagg"', *SECURE),
    "dp": ("privacy.clip=1.0", "privacy.noise=0.5", 'algorithm.weighting="uniform"'),
    "curriculum, two workers": (*FEWSHOT, 'fewshot.pacing="curriculum"', "runtime.workers=2"),
    "search": (*FEWSHOT, 'fewshot.pacing="search"', "fewshot.validation=16", "num_rounds=14"),
    "centralised": ("algorithm.name=centralised",),
    "chained": ("algorithm.name=chained", "num_rounds=2", "partition.clients=4"),
    "local": ("algorithm.name=local", "partition.clients=4"),
}
RESUMED = "fedavg"
"""The run that is also stopped after its first round and resumed."""
RENAMED: dict[str, str] = {
    "final_steps": "finetune_steps",
    "corruption": "max_colluding",
    "final": "finetuned",
    "final_failed": "finetune_failed",
    "final_untrained": "finetune_untrained",
    "lost": "dropped_out",
    "matrix": "cross_client_evaluation",
    "moved": "update_norms",
}
"""Keys of settings and of round lines that have another name in an older checkout: the old name, and the new one."""
_TIMED = ("seconds", "simulated_seconds")


def run_all(experiment: str, out: Path, names: list[str]) -> None:
    """Run the experiments with the fednlp that is imported, each into a folder of its own."""
    import fednlp

    sources = [path.read_text(encoding="utf-8") for path in Path(fednlp.__file__).parent.rglob("*.py")]
    for name in names:
        settings = tuple(as_known(setting, sources) for setting in (*BASE_SETTINGS, *RUNS[name]))
        try:
            fednlp.run(experiment, out / name, overrides=settings)
            if name == RESUMED:
                _stopped_and_resumed(experiment, out / f"{name}, resumed", settings)
        except fednlp.FednlpError as error:
            (out / name).mkdir(parents=True, exist_ok=True)
            (out / name / "refused.txt").write_text(str(error))


def as_known(setting: str, sources: list[str]) -> str:
    """Return a setting by the name that a checkout knows: the old one, where no source declares the new one.

    >>> as_known("secure.max_colluding=0", ["class Secure:\\n    corruption: float = 0.1"])
    'secure.corruption=0'
    >>> as_known("secure.max_colluding=0", ["class Secure:\\n    max_colluding: float = 0.1"])
    'secure.max_colluding=0'
    """
    section, _, rest = setting.partition(".")
    for old, new in RENAMED.items():
        if rest.startswith(f"{new}=") and not any(f"    {new}: " in source for source in sources):
            return f"{section}.{old}{rest.removeprefix(new)}"
    return setting


def _stopped_and_resumed(experiment: str, out: Path, settings: tuple[str, ...]) -> None:
    import fednlp

    told = inspect.signature(fednlp.run).parameters
    name = "callback" if "callback" in told else "listener"
    try:
        fednlp.run(experiment, out, overrides=settings, **{name: _Stop()})
    except KeyboardInterrupt:
        fednlp.resume(out)


class _Stop:
    """A callback that stops the run after its first round."""

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        raise KeyboardInterrupt

    round = on_round  # of a fednlp whose callbacks have this name

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def results_of(run: Path) -> dict[str, Any]:
    """Return what a run came to: digests of its weights, its lines without times, its clients' scores."""
    if (run / "refused.txt").is_file():
        return {"refused": (run / "refused.txt").read_text()}
    found: dict[str, Any] = {}
    for path in sorted(run.glob("model/*.safetensors")):
        found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    lines = (run / "rounds.jsonl").read_text().splitlines()
    found["rounds"] = [_without_times(json.loads(line)) for line in lines]
    if (run / "clients.csv").is_file():
        with (run / "clients.csv").open(newline="") as file:
            found["clients"] = [row[:5] for row in csv.reader(file)]
    return found


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {RENAMED.get(k, k): _without_times(v) for k, v in value.items() if k not in _TIMED}
    return [_without_times(one) for one in value] if isinstance(value, list) else value


def differences(base: Any, head: Any, where: str = "") -> list[str]:
    """Return the places where two results differ.

    >>> differences({"a": [1, 2]}, {"a": [1, 3]})
    ['a.1: 2 -> 3']
    """
    if isinstance(base, dict) and isinstance(head, dict):
        pairs = [(key, base.get(key), head.get(key)) for key in {**base, **head}]
    elif isinstance(base, list) and isinstance(head, list) and len(base) == len(head):
        pairs = [(str(number), *both) for number, both in enumerate(zip(base, head, strict=True))]
    else:
        return [] if base == head else [f"{where}: {base} -> {head}"[:300]]
    return [one for key, b, h in pairs for one in differences(b, h, f"{where}.{key}".lstrip("."))]


def _checkout_results(checkout: Path, scratch: Path, names: list[str]) -> dict[str, dict[str, Any]]:
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--inside", str(scratch), "--only", ",".join(map(_key, names))]
    subprocess.run([*command, str(checkout), str(checkout)], env=environment, cwd=checkout, check=True)
    return {path.name: results_of(path) for path in sorted(scratch.iterdir()) if path.is_dir()}


def _key(name: str) -> str:
    return name.replace(", ", "/")


def main() -> int:
    """Compare two checkouts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("base", type=Path)
    parser.add_argument("head", type=Path)
    parser.add_argument("--only", help="names of runs, with commas between")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    names = [name for name in RUNS if options.only is None or _key(name) in options.only.split(",")]
    if options.inside is not None:
        run_all(str(options.base / "experiments" / "small.toml"), options.inside, names)
        return 0
    with tempfile.TemporaryDirectory() as scratch:
        found = []
        for place, checkout in (("base", options.base), ("head", options.head)):
            begun = time.monotonic()
            (Path(scratch) / place).mkdir()
            found.append(_checkout_results(checkout.resolve(), Path(scratch) / place, names))
            print(f"{place}: {checkout} ({time.monotonic() - begun:.0f} s)")
    base, head = found
    different = 0
    for name in base:
        changes = differences(base[name], head[name])
        different += bool(changes)
        refused = " (both refuse it)" if "refused" in base[name] and not changes else ""
        print(f"{'DIFFERENT' if changes else 'equal':9} {name}{refused}")
        for change in changes[:5]:
            print(f"          {change}")
    print(f"{len(base) - different} of {len(base)} equal, bit for bit")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
