"""What more clients cost: known ones, ones in a round, and ones that keep records.

    python benchmarks/scale.py                        # prints JSON
    python benchmarks/scale.py known round            # some of its sections

* ``known``: a thousand to a million clients of which 50 train in a round, on the model and the texts of ``engine.py``
  (each has one text of 64 tokens, and takes one step; one worker).
  Start-up is everything before the first round but the imports. A round is held against one with a thousand clients.
* ``round``: 10, 100 and 1,000 of ten thousand clients in a round; seconds a client, and memory.
* ``records``: personal parameters of 100,000 clients, 40 kB each, written by rounds in a random order and flushed, then
  dropped from the page cache and read, against plain writes and reads of the same bytes at the same places.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

KNOWN, IN_ROUND = (1_000, 10_000, 100_000, 1_000_000), (10, 100, 1_000)
FLAT, DISK_SHARE = 1.10, 0.5
RECORDS, RECORD, TAKEN = 100_000, 10_000, 10_000


def prepare(folder: Path, clients: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Write the model of ``engine.py``, and a text for each client; return the specification and the settings."""
    import engine
    import numpy as np

    from fednlp.data.features import write_features
    from fednlp.partition import Partition

    spec, settings = engine.prepare(folder, 1)
    ids, labels = engine.client_texts(0, 8)
    rows = [
        {"input_ids": one, "label": label} for one, label in zip(ids.tolist(), labels.tolist(), strict=True)
    ]
    spec["train_features"] = spec["test_features"] = str(folder / "many")
    write_features(
        folder / "many", ((rows * 64)[: clients - start] for start in range(0, clients, 64 * len(rows)))
    )
    numbers, nobody = np.arange(clients), np.zeros(clients + 1, dtype=np.int64)
    Partition(np.arange(clients + 1), numbers, nobody, numbers[:0], numbers).save(folder / "partition.npz")
    return spec, settings | {"partition": {"clients": clients}}


def measure_rounds(clients: int, cohort: int, rounds: int) -> dict[str, Any]:
    """Return start-up, memory and the median of warm rounds of a federation."""
    import torch
    import transformers.models.bert.modeling_bert  # noqa: F401 - not a part of what is measured
    from big_data import memory
    from engine import Federation

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        prepared = prepare(Path(name), clients)
        start, before = time.perf_counter(), memory()["own_mb"]
        federation = Federation(Path(name), cohort, 1, 1, prepared=prepared)
        begun = time.perf_counter() - start
        taken = [federation.round()[0] for _ in range(rounds + 1)][1:]
        federation.pool.close()
    return {
        "start_s": round(begun, 2),
        "round_s": round(statistics.median(taken), 3),
        "client_ms": round(1000 * statistics.median(taken) / cohort, 2),
        "own_mb": memory()["own_mb"] - before,
    }


def measure_records() -> dict[str, Any]:
    """Return the megabytes a second of clients' records, and of the disk alone."""
    import numpy as np
    import torch

    from fednlp.federated.store import ClientStore

    order = np.random.default_rng(0).permutation(RECORDS)[:TAKEN].tolist()
    values = {"personal": torch.randn(RECORD)}
    data, size = values["personal"].numpy().tobytes(), 4 * RECORD * TAKEN / 1e6
    with tempfile.TemporaryDirectory(dir=".") as name:  # not in memory, where /tmp may lie
        store = ClientStore(Path(name) / "clients.bin", {"personal": RECORD})
        plain = os.open(Path(name) / "plain.bin", os.O_RDWR | os.O_CREAT)

        def written() -> None:
            for client in order:
                store.write(client, 1, values)
            store.sync()

        def written_alone() -> None:
            for client in order:
                os.pwrite(plain, data, 2 * client * len(data))
            os.fsync(plain)

        def read() -> None:
            for client in order:
                store.read(client, 1)

        def read_alone() -> None:
            for client in order:
                os.pread(plain, len(data), 2 * client * len(data))

        writes = seconds(written), seconds(written_alone)
        other = os.open(store.path, os.O_RDONLY)
        for file in (other, plain):
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        reads = seconds(read), seconds(read_alone)
        for file in (other, plain):
            os.close(file)
        store.close()
    return {
        what: {
            "mb_s": round(size / ours),
            "disk_mb_s": round(size / bound),
            "share": round(bound / ours, 3),
            "bound": DISK_SHARE,
        }
        for what, (ours, bound) in (("writes", writes), ("reads", reads))
    }


def seconds(work: Callable[[], None]) -> float:
    """Return how long some work takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def alone(what: str, *arguments: Any) -> dict[str, Any]:
    """Measure something in a process of its own."""
    command = [sys.executable, __file__, "--measure", json.dumps([what, *arguments])]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Measure the sections and print them as JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help="known, round, records; all by default"
    )
    parser.add_argument("--rounds", type=int, default=5, help="warm rounds a figure")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        what, *arguments = json.loads(options.measure)
        print(json.dumps(globals()[f"measure_{what}"](*arguments)))
        return
    sections, result = options.sections or ["known", "round", "records"], dict[str, Any]()
    if "known" in sections:
        known = {f"{clients:,}": alone("rounds", clients, 50, options.rounds) for clients in KNOWN}
        first = next(iter(known.values()))["round_s"]
        for one in known.values():
            one |= {"of_the_first": round(one["round_s"] / first, 3), "bound": FLAT}
        result["clients known"] = known
    if "round" in sections:
        result["clients a round"] = {
            f"{cohort:,}": alone("rounds", 10_000, cohort, 1 if cohort > 100 else options.rounds)
            for cohort in IN_ROUND
        }
    if "records" in sections:
        result["records"] = alone("records")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
