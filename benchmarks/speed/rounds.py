"""Section ``round``: a round of two clients as processes over mTLS, against the same round in the pool.

Each of the two clients takes 10 x 4 local steps in a round, on batches of 8 texts, with BERT-tiny (4.4 million
parameters, random weights). The pool has two workers in two processes; the federation has the server and a process for
each site, as ``fednlp rehearse`` starts them. The runs alternate. The figure is the median of their rounds but the
first, which warms up, and the last, which is evaluated; both runs end in the same weights.
"""

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

BOUND = 1.15
_HIDDEN, _VOCABULARY = 128, 30522


def rounds(count: int, steps: int, repeats: int) -> dict[str, Any]:
    """Return the figures of the section ``round``.

    Args:
        count: Rounds of a run.
        steps: Local steps of a client in a round.
        repeats: Pairs of runs.
    """
    import fednlp
    from fednlp.deployment.operate.rehearse import rehearse
    from fednlp.simulation.callback import NullCallback

    times: dict[str, list[float]] = {"pool": [], "deployment": []}
    same = []
    for _ in range(repeats):
        with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
            folder = Path(name)
            made = _experiment(folder / "made", count, steps)
            runs = {"pool": fednlp.run(made, folder / "pool").folder}
            runs["deployment"] = rehearse(made, folder / "deployment", NullCallback()).folder
            for key, run in runs.items():
                lines = [json.loads(line) for line in (run / "rounds.jsonl").read_text().splitlines()]
                times[key] += [line["seconds"] for line in lines[1:-1]]
            weights = [(run / "model" / "model.safetensors").read_bytes() for run in runs.values()]
            same.append(weights[0] == weights[1])
    medians = {key: statistics.median(some) for key, some in times.items()}
    return {
        "steps": steps,
        "rounds": len(times["pool"]),
        "pool": round(medians["pool"], 4),
        "deployment": round(medians["deployment"], 4),
        "ratio": round(medians["deployment"] / medians["pool"], 3),
        "bound": BOUND,
        "same_weights": all(same),
    }


def _experiment(folder: Path, count: int, steps: int) -> Any:
    from made_up import experiment

    client = {
        "optimizer": "adamw",
        "learning_rate": 1e-3,
        "max_steps": steps,
        "num_train_epochs": 100,
        "per_device_train_batch_size": 8,
    }
    return experiment(
        folder,
        hidden=_HIDDEN,
        clients=2,
        rounds=count,
        vocabulary=_VOCABULARY,
        words=60,
        client=client,
        evaluation={"every": count, "personal": False},
        runtime={"workers": 2},
    )
