"""A run directory as a server leaves it while it runs, for the tests of what watches it."""

import json
from pathlib import Path
from typing import Any

from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.deployment.server.status import Status, write_status

NOW = 1_780_000_000.0

SITES: list[dict[str, Any]] = [
    {
        "client": 0,
        "name": "nord",
        "state": "working",
        "doing": "works on the training of round 2",
        "certificate": NOW,
    },
    {"client": 1, "name": "west <b>&amp;", "state": "awaited", "doing": "has the training of round 2 to do"},
    {"client": 2, "name": "Östra", "state": "removed", "doing": ""},
]


def status(**changes: Any) -> Status:
    """A status in the second round of three."""
    sites = [
        {"since": NOW - 100, "heard": None, "bytes_in": 1_500_000, "bytes_out": 2_000_000} | site
        for site in SITES
    ]
    awaited = [
        {
            "client": 1,
            "name": SITES[1]["name"],
            "seconds": 65.0,
            "release": "it answers, or fednlp sites remove",
        }
    ]
    fields: dict[str, Any] = {
        "run": "trial",
        "experiment": "hospitals",
        "phase": "round 2 of 3",
        "round": 2,
        "rounds": 3,
        "sites": sites,
        "awaited": awaited,
        "started": NOW - 200,
        "updated": NOW,
        "round_ended": NOW - 65,
        "privacy": {"epsilon": 2.5, "delta": 1e-5, "rounds": 1, "where": "server"},
        "pid": 1,
        "host": "server.example",
    }
    return Status(**(fields | changes))


def line(number: int, loss: float = 0.5) -> dict[str, Any]:
    """A line of rounds.jsonl."""
    scores = {"accuracy": 0.25 * number, "loss": loss + 0.1}
    return {
        "round": number,
        "cohort": [0, 1],
        "train_loss": loss,
        "bytes_up": 1000,
        "bytes_down": 2000,
        "evaluation": {"global": scores},
        "seconds": 2.0,
    }


def append(run: Path, *lines: dict[str, Any]) -> None:
    with (run / "rounds.jsonl").open("a") as file:
        file.writelines(json.dumps(one) + "\n" for one in lines)


def run_directory(folder: Path, *lines: dict[str, Any], **changes: Any) -> Path:
    """A folder with a status and some rounds."""
    (folder / FOLDER).mkdir(parents=True)
    (folder / "environment.json").write_text(json.dumps({"data": {"metric": "accuracy"}}))
    write_status(folder / FOLDER, status(**changes))
    append(folder, *lines)
    return folder
