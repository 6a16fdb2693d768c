"""What five million lines cost in memory: read, stored, tokenised and indexed by the public path.

    python benchmarks/big_data.py                   # prints JSON; five million lines, some GB in a temporary folder
    python benchmarks/big_data.py --lines 500000
    python benchmarks/big_data.py --lines 10000000 --authors 1000000   # a natural partition, bound 4,000 MB

Generated lines of 8 to 12 words and a number, with one of 20 labels, in a CSV file. One child process does what
``fednlp run`` does before its first round: the data set (``open_data`` of ``simulation/components.py``), its features
with bert-tiny's tokenizer (``features_of`` beside it), a partition of 1,000 clients by label, saved and opened
again (with ``--authors``, a natural partition with so many, whose numbers of lines follow Zipf's law); then it reads
the examples of 100 clients from the features, as a round would. After each phase it says
the most that it has held so far (``VmHWM``), and what of its memory is its own and no page of a file (``RssAnon``).
Only Linux tells both. The bound is on all that is held up to the partition; of the round on the process's own memory:
clients' examples lie all over the features, whose pages are the system's to keep or to drop.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

BOUND, NATURAL_BOUND, LABELS, CLIENTS, COHORT = 1000, 4000, 20, 1000, 100
TEXT = """
    the a of to and in that it is was for on are with they be at one have this from by hot word but what some we
    can out other were all there when up use your how said each she which do their time if will way about many
    then them write would like so these her long make thing see him two has look more day could go come did number
    sound no most people my over know water than call first who may down side been now find any new work part take
    get place made live where after back little only round man year came show every good me give our under name
"""


def write_lines(path: Path, count: int, authors: int) -> None:
    """Write a CSV file of generated lines: a text, a label, and an author if there are any; each author has a line."""
    rng, vocabulary = random.Random(0), TEXT.split()
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label,author\n" if authors else "text,label\n")
        for number in range(count):
            words = rng.choices(vocabulary, k=rng.randint(8, 12))
            # the inverse of a distribution function with density 1 / rank
            author = number if number < authors else int(authors ** rng.random()) - 1
            whose = f",u{author}" if authors else ""
            file.write(f"{' '.join(words)} {number},l{rng.randrange(LABELS)}{whose}\n")


def work(path: Path, authors: int) -> None:
    """Do what a run does before its first round; print a line of JSON a phase."""
    before = time.perf_counter()

    def said(phase: str, **more: Any) -> None:
        nonlocal before
        seconds, before = time.perf_counter() - before, time.perf_counter()
        print(json.dumps({"phase": phase, "seconds": round(seconds, 1), **memory(), **more}), flush=True)

    import numpy as np

    from fednlp.config import parse
    from fednlp.models.pretrained import load_tokenizer
    from fednlp.models.resolve import resolve_model
    from fednlp.partition import Partition
    from fednlp.simulation.components import features_of, make_task, open_data
    from fednlp.simulation.partitioning import build_partition

    experiment = parse(
        {
            "name": "big",
            "data": {"path": str(path)},
            "partition": {"method": "natural", "field": "author"}
            if authors
            else {"method": "label", "clients": CLIENTS, "alpha": 1.0},
            "model": {"name_or_path": "bert-tiny", "max_length": 32},
        }
    ).resolved()
    tokenizer = load_tokenizer(resolve_model("bert-tiny"))
    said("imports")
    data = open_data(experiment)
    said("reading", rows=data.train.num_rows)
    task = make_task(data.task, data, tokenizer, {})
    features = features_of(data, "train", data.task, task, tokenizer, 32, lambda text: None)
    said("tokenising", tokens=int(features.offsets["input_ids"][-1]))
    file = path.parent / "partition.npz"
    build_partition(experiment, data, lambda text: None).save(file)
    partition = Partition.load(file)
    sizes = np.diff(partition.train_offsets)
    said("partition", clients=len(sizes), largest=int(sizes.max()), median=int(np.median(sizes)))
    tokens = sum(len(features.words(partition.train(client))) for client in range(COHORT))
    said(f"{COHORT} clients read", tokens=tokens)


def memory() -> dict[str, int]:
    """Return what this process has held at most, and what it holds of its own, in MB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kinds = {"peak_mb": "VmHWM", "own_mb": "RssAnon"}
    return {name: round(int(lines[key].split()[0]) * 1024 / 1e6) for name, key in kinds.items()}


def main() -> None:
    """Write the lines, let a child do the work, and hold what it says against the bound."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=5_000_000)
    parser.add_argument("--authors", type=int, default=0, help="clients of a natural partition")
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None:
        work(options.work, options.authors)
        return
    from fednlp.hubs.cache import cache_dir

    packages = cache_dir() / "sources"
    with tempfile.TemporaryDirectory() as folder:
        path, cache = Path(folder) / "big.csv", Path(folder) / "cache"
        write_lines(path, options.lines, options.authors)
        cache.mkdir()
        packages.mkdir(parents=True, exist_ok=True)
        (cache / "sources").symlink_to(packages)  # what is fetched is the user's own; the rest is made anew
        command = [sys.executable, __file__, "--work", str(path), "--authors", str(options.authors)]
        environment = os.environ | {"FEDNLP_CACHE": str(cache)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        phases = [json.loads(line) for line in done.stdout.splitlines()]
        size = sum(one.stat().st_size for one in cache.rglob("*") if one.is_file() and not one.is_symlink())
        figures = {
            "lines": options.lines,
            "file_mb": round(path.stat().st_size / 1e6),
            "cache_mb": round(size / 1e6),
        }
    *before, rounds = phases
    bound = NATURAL_BOUND if options.authors else BOUND
    held = max(phase["peak_mb"] for phase in before) < bound and rounds["own_mb"] < bound
    print(json.dumps(figures | {"phases": phases, "bound_mb": bound, "held": held}, indent=1))
    sys.exit(not held)


if __name__ == "__main__":
    main()
