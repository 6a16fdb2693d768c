"""The command line as it is typed: what it does, what it prints, and one message for every mistake."""

import csv
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from fednlp import config
from fednlp.cli import main
from fednlp.inference.predict import Prediction
from fednlp.partition import Partition
from fednlp.simulation.run_dir import RunDir

pytestmark = pytest.mark.whole

Document = Callable[..., dict[str, Any]]
COMMAND = [sys.executable, "-c", "from fednlp.cli import main; main()"]


@dataclass(frozen=True)
class Said:
    """What a command left behind."""

    code: int
    out: str
    err: str


Type = Callable[..., Said]


@pytest.fixture
def fednlp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Type:
    """Type a command; whatever is not caught by the command line itself fails the test with its traceback."""

    def type_it(*words: object) -> Said:
        handler = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(sys, "argv", ["fednlp", *map(str, words)])
        monkeypatch.setenv("COLUMNS", "200")
        capsys.readouterr()
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            signal.signal(signal.SIGTERM, handler)
        out, err = capsys.readouterr()
        return Said(code, out, err)

    return type_it


@pytest.fixture
def refused(fednlp: Type) -> Callable[..., str]:
    """Type a command that must fail: exit code 1, one line that begins with "error:", nothing else."""

    def type_it(*words: object) -> str:
        result = fednlp(*words)
        assert result.code == 1, result
        message = [line for line in result.err.splitlines() if line]
        assert len(message) == 1, result
        assert message[0].startswith("error: ")
        assert "Traceback" not in result.out
        return message[0]

    return type_it


def csv_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def toml(here: Path, document: Document) -> Path:
    """An experiment of two short rounds, as a file in the working directory."""
    made = config.parse(document({"num_rounds": 2, "clients_per_round": 2, "client.max_steps": 2}))
    (here / "tiny.toml").write_text(config.dump(made))
    return here / "tiny.toml"


# ---------------------------------------------------------------------------------------------- run


def test_run(fednlp: Type, toml: Path) -> None:
    """A line a round, a closing table, a curve and the path; the folder given is the run directory."""
    result = fednlp("run", toml, "--out", "out")
    assert (result.code, result.err) == (0, "")
    rounds = [line for line in result.out.splitlines() if line.startswith("round ")]
    assert [line.split()[1] for line in rounds] == ["1/2", "2/2"]
    for line in rounds:
        for part in ("loss", "accuracy", "up", "down", "left"):
            assert part in line.split()
    for part in ("test accuracy", "test macro F1", "clients' own tests", "best round", "run directory: out"):
        assert part in result.out
    assert "┤" in result.out
    assert RunDir(Path("out")).finished


def test_run_without_out_makes_a_folder_each_time(fednlp: Type, toml: Path) -> None:
    assert fednlp("run", toml).code == 0
    assert fednlp("run", toml).code == 0
    assert fednlp("run", toml, "--seed", "3").code == 0
    folders = sorted(path.name for path in Path("runs").iterdir())
    assert len(folders) == 3
    assert all(name.startswith("tiny-") for name in folders)
    assert sum(name.endswith("-2") for name in folders) == 1


def test_settings_from_the_command_line(fednlp: Type, toml: Path) -> None:
    options = [
        "--set",
        "client.learning_rate=3e-4",
        "--set",
        "algorithm.name=fedopt",
        "--seed",
        5,
        "--workers",
        1,
    ]
    assert fednlp("run", toml, "--out", "out", *options).code == 0
    resolved = RunDir(Path("out")).experiment()
    assert resolved.client.learning_rate == 3e-4
    assert resolved.algorithm.name == "fedopt"
    assert resolved.server.momentum == 0.9
    assert (resolved.seed, resolved.partition.seed) == (5, 5)


def test_model_option(fednlp: Type, toml: Path, poisoned_model: Path) -> None:
    assert fednlp("run", toml, "--out", "out", "--model", poisoned_model).code == 0
    assert RunDir(Path("out")).experiment().model.name_or_path == str(poisoned_model)


def test_resume_goes_on_where_it_was(fednlp: Type, toml: Path) -> None:
    """Interrupted by a real Ctrl-C in a process of its own, then resumed; no traceback, and a hint how to go on."""
    long = ["--set", "num_rounds=4000", "--set", "evaluation.every=4000", "--set", "runtime.workers=2"]
    process = subprocess.Popen(
        [*COMMAND, "run", str(toml), "--out", "out", *long],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    wait_for_rounds(process, Path("out"), 2)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in out + err
    assert "fednlp run --resume out" in out + err
    done = len(RunDir(Path("out")).round_lines())
    assert 2 <= done < 4000
    text = Path("out/resolved.toml").read_text()
    Path("out/resolved.toml").write_text(text.replace("num_rounds = 4000", f"num_rounds = {done + 2}"))
    result = fednlp("run", "--resume", "out", "--workers", 1)
    assert result.code == 0
    # Between the line of a round and its checkpoint the round does not count yet.
    assert f"{done} done" in result.out or f"{done - 1} done" in result.out
    assert [line["round"] for line in RunDir(Path("out")).round_lines()] == list(range(1, done + 3))


def heed_interrupts() -> None:
    """Undo what a shell does to the commands that it runs in the background: these ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_rounds(process: subprocess.Popen[str], folder: Path, count: int) -> None:
    deadline = time.monotonic() + 120
    rounds = folder / "rounds.jsonl"
    while not (rounds.is_file() and rounds.read_bytes().count(b"\n") >= count):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(not Path(f"/proc/{os.getpid()}/task").is_dir(), reason="needs /proc to find the worker")
@pytest.mark.slow
def test_a_worker_that_is_killed(fednlp: Type, toml: Path) -> None:
    """The command says so in one line and ends, without its other processes; the run can go on."""
    long = ["--set", "num_rounds=4000", "--set", "evaluation.every=4000", "--set", "runtime.workers=3"]
    process = subprocess.Popen(
        [*COMMAND, "run", str(toml), "--out", "out", *long],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_rounds(process, Path("out"), 1)
    victim, other = children(process.pid)
    os.kill(victim, signal.SIGKILL)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 1
    assert len(err.splitlines()) == 1
    assert "a worker process died (signal SIGKILL)" in err
    assert not Path(f"/proc/{other}").exists()
    done = len(RunDir(Path("out")).round_lines())
    text = Path("out/resolved.toml").read_text()
    Path("out/resolved.toml").write_text(text.replace("num_rounds = 4000", f"num_rounds = {done + 1}"))
    assert fednlp("run", "--resume", "out", "--workers", 1).code == 0


def test_sigterm_is_a_clean_end(toml: Path) -> None:
    process = subprocess.Popen(
        [
            *COMMAND,
            "run",
            str(toml),
            "--out",
            "out",
            "--set",
            "num_rounds=4000",
            "--set",
            "evaluation.every=1",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_rounds(process, Path("out"), 1)
    process.terminate()
    _, err = process.communicate(timeout=300)
    assert process.returncode != 0
    assert "Traceback" not in err


def test_resuming_what_is_finished_does_nothing(fednlp: Type, toml: Path) -> None:
    fednlp("run", toml, "--out", "out")
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")}
    result = fednlp("run", "--resume", "out")
    assert result.code == 0
    assert "finished already" in result.out
    assert {path: path.stat().st_mtime_ns for path in Path("out").rglob("*")} == before


def test_resume_with_another_number_of_workers_by_set(
    fednlp: Type, refused: Callable[..., str], toml: Path
) -> None:
    assert fednlp("run", toml, "--out", "out", "--set", "num_rounds=1").code == 0
    assert "runtime.workers = two" in refused("run", "--resume", "out", "--set", "runtime.workers=two")
    result = fednlp("run", "--resume", "out", "--set", "runtime.workers=1")
    assert result.code == 0
    assert "finished already" in result.out


def test_a_name_that_no_file_system_takes(refused: Callable[..., str], toml: Path) -> None:
    assert "choose another --out" in refused("run", toml, "--out", "x" * 300)


def test_resume_with_other_settings(fednlp: Type, refused: Callable[..., str], toml: Path) -> None:
    fednlp("run", toml, "--out", "out")
    assert "seed" in refused("run", "--resume", "out", "--seed", 4)
    assert "client.learning_rate" in refused("run", "--resume", "out", "--set", "client.learning_rate=0.5")
    assert "num_rounds: 2 -> 3" in refused("run", toml, "--resume", "out", "--set", "num_rounds=3")
    assert "--out" in refused("run", "--resume", "out", "--out", "elsewhere")
    assert fednlp("run", toml, "--resume", "out").code == 0


def test_nothing_of_the_libraries_is_heard(toml: Path) -> None:
    """A real process, all methods of output captured: what is on the screen is fednlp's own."""
    ended = subprocess.run(
        [*COMMAND, "run", str(toml), "--out", "out", "--set", "algorithm.name=local"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stderr == ""
    assert "Warning" not in ended.stdout
    assert "Some weights" not in ended.stdout


# ------------------------------------------------------------------------------------------ compare


@pytest.mark.usefixtures("undrawn")
def test_compare(fednlp: Type, toml: Path, request: pytest.FixtureRequest) -> None:
    """Every run once; a second time nothing is run again, and more methods run only what is missing."""
    result = fednlp(
        "compare", toml, "--algorithms", "fedavg,fedopt", "--baselines", "centralised,local", "--out", "cmp"
    )
    assert result.code == 0, result
    runs = {path.parent.name for path in Path("cmp").glob("*/summary.json")}
    assert runs == {f"{name}-seed0" for name in ("fedavg", "fedopt", "centralised", "local")}
    for name in ("fedavg", "fedopt", "centralised", "local"):
        assert name in result.out.lower()
    *_, page = result.out.splitlines()
    assert page.startswith("cmp/report/report.html (and ")
    finished = [line for line in result.out.splitlines() if ": finished, " in line]
    assert len(finished) == 4
    assert "round 1/" not in result.out
    suffixes = {path.suffix for path in Path("cmp/report").rglob("*") if path.is_file()}
    assert {".html", ".md", ".csv", ".tex", ".png"} <= suffixes

    request.getfixturevalue("undrawn")  # from here on the runs count
    before = {path: path.stat().st_mtime_ns for run in runs for path in Path("cmp", run).rglob("*")}
    options = [
        "--algorithms",
        "fedavg,fedopt,fedprox",
        "--baselines",
        "centralised",
        "--seeds",
        2,
        "--out",
        "cmp",
        "--verbose",
    ]
    again = fednlp("compare", toml, *options)
    assert again.code == 0, again
    assert "tiny/fedprox-seed1: round 1/" in again.out
    assert "cmp/report/table.csv" in again.out
    assert result.out.count("data: texts read as") == again.out.count("data: texts read as") == 1
    assert "3 of 8 runs done already" in again.out
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(list(Path("cmp").glob("*/summary.json"))) == 9
    for run in Path("cmp").glob("*/summary.json"):
        method, _, seed = run.parent.name.partition("-seed")
        summary = json.loads(run.read_text())
        assert (summary["algorithm"], summary["seed"]) == (method, int(seed))


@pytest.mark.slow
def test_compare_goes_on_with_what_was_begun(fednlp: Type, toml: Path) -> None:
    fednlp("compare", toml, "--algorithms", "fedavg", "--out", "cmp")
    whole = Path("cmp/fedavg-seed0/model/model.safetensors").read_bytes()
    Path("cmp/fedavg-seed0/summary.json").unlink()
    lines = Path("cmp/fedavg-seed0/rounds.jsonl").read_text()
    result = fednlp("compare", toml, "--algorithms", "fedavg", "--out", "cmp")
    assert result.code == 0
    assert Path("cmp/fedavg-seed0/rounds.jsonl").read_text() == lines
    assert Path("cmp/fedavg-seed0/model/model.safetensors").read_bytes() == whole
    assert Path("cmp/fedavg-seed0/summary.json").is_file()


def test_compare_goes_on_after_a_kill_before_the_first_round(fednlp: Type, toml: Path) -> None:
    """All that a kill right after the folder was made leaves is the configuration."""
    folder = Path("cmp/fedavg-seed0")
    (folder / "checkpoint").mkdir(parents=True)
    settings = config.with_algorithm(config.load(toml), "fedavg", 0).resolved()
    (folder / "resolved.toml").write_text(config.dump(settings))
    assert fednlp("compare", toml, "--algorithms", "fedavg", "--out", "cmp").code == 0
    assert RunDir(folder).finished


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--algorithms", "fedavgg"], "did you mean fedavg?"),
        (["--algorithms", "centralised"], "--baselines centralised"),
        (["--baselines", "fedavg"], "--baselines fedavg"),
        (["--seeds", "0"], "--seeds 0"),
        (["--algorithms", "", "--baselines", ""], "nothing to compare"),
        (["--set", "client.lr=3"], "client.lr"),
    ],
)
def test_compare_refuses(options: list[str], message: str, refused: Callable[..., str], toml: Path) -> None:
    assert message in refused("compare", toml, "--out", "cmp", *options)
    assert not Path("cmp").exists()


def test_compare_says_of_which_method_an_error_is(refused: Callable[..., str], toml: Path) -> None:
    """The methods before it are kept."""
    with toml.open("a") as file:
        file.write('\n[variants.good]\n[variants."train all".model]\ntrain = ["decoder.layer.0"]\n')
    message = refused("compare", toml, "--algorithms", "good,train all", "--out", "cmp")
    assert message.startswith(
        'error: train all: model.train: "decoder.layer.0": the model has no decoder.layer.0'
    )
    assert RunDir(Path("cmp/good-seed0")).finished


def test_compare_names_the_settings_that_a_variant_keeps(fednlp: Type, here: Path) -> None:
    """One that is not compared, the same value, a table and one that is given too are not worth a word."""
    text = 'data = {name = "bbc", path = "."}\nnum_rounds = 2\n' + "".join(
        f"[variants.{name}]\nnum_rounds = {rounds}\nclient = {{optimizer = 'sgd'}}\n"
        for name, rounds in (("own", 4), ("alike", 3), ("left", 5), ("told", 6), ('"a.b"', 7))
    )
    (here / "e.toml").write_text(text)
    settings = ("num_rounds=3", "client={learning_rate = 0.1}", "variants.told.num_rounds=9")
    words = [word for setting in settings for word in ("--set", setting)]
    said = fednlp("compare", "e.toml", *words, "--algorithms", "own,alike,told,a.b").err
    assert [line for line in said.splitlines() if "keeps its own" in line] == [
        "the variant own keeps its own num_rounds = 4; to change it, add --set variants.own.num_rounds=...",
        "the variant a.b keeps its own num_rounds = 7; to change it, edit the file",
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ('{name = "ontonotes"}', "ontonotes is not fetched"),
        ('{name = "ontonotes", path = "nowhere"}', "there is no nowhere: give the files of ontonotes"),
        ('{path = ["tiny.csv", "nowhere.csv"]}', "there is no nowhere.csv: give the files of the experiment"),
    ],
)
def test_compare_wants_all_files_before_the_first_run(
    data: str, message: str, refused: Callable[..., str], toml: Path, here: Path
) -> None:
    (here / "tiny.csv").touch()
    (here / "later.toml").write_text(f"data = {data}\n")
    assert message in refused("compare", toml, "later.toml", "--out", "cmp")
    assert not (here / "cmp").exists()


def test_compare_refuses_runs_of_other_settings(
    fednlp: Type, refused: Callable[..., str], toml: Path
) -> None:
    fednlp("compare", toml, "--algorithms", "fedavg", "--out", "cmp")
    other = ["--set", "client.learning_rate=0.5"]
    assert "other settings" in refused("compare", toml, "--algorithms", "fedavg", "--out", "cmp", *other)


# ---------------------------------------------------------------------------------------- partition

PARTITIONS = {
    "uniform": ["--clients", 10],
    "label": ["--clients", 10, "--alpha", 0.5],
    "quantity": ["--clients", 10, "--beta", 2.0],
    "label+quantity": ["--clients", 10, "--alpha", 0.5, "--beta", 2.0],
    "natural": ["--field", "site"],
    "proportions": ["--proportions", "shares.csv"],
    "cluster": ["--clients", 10, "--alpha", 0.5],
}


@pytest.fixture
def encoder(monkeypatch: pytest.MonkeyPatch, tiny_model: Path) -> None:
    """Let the sentence encoder be the tiny model."""
    from fednlp.models import resolve

    find = resolve.resolve_model
    monkeypatch.setattr(
        resolve, "resolve_model", lambda name: find(str(tiny_model) if name == "minilm" else name)
    )


@pytest.mark.parametrize("method", PARTITIONS)
def test_partition(method: str, fednlp: Type, here: Path, texts: Path, encoder: None) -> None:
    """Figures as JSON on the standard output and nothing else there; the index holds every example once."""
    Path("shares.csv").write_text(
        "client,arts,economy,science,sports\n0,0.5,0.5,0,0\n1,0,0,0.5,0.5\n2,0.25,0.25,0.25,0.25\n"
    )
    result = fednlp(
        "partition", texts, "--method", method, *PARTITIONS[method], "--out", "part.npz", "--json"
    )
    assert result.code == 0, result
    figures = json.loads(result.out)
    partition = Partition.load("part.npz")
    with np.load("part.npz", allow_pickle=False) as arrays:
        for name in ("train_offsets", "train_indices", "test_offsets", "test_indices", "client_ids"):
            assert arrays[name].dtype == np.int64
    clients = {"natural": 5, "proportions": 3}.get(method, 10)
    assert figures["clients"] == partition.num_clients == clients
    sizes = np.diff(partition.train_offsets)
    assert (figures["sizes"]["min"], figures["sizes"]["max"]) == (sizes.min(), sizes.max())
    assert figures["sizes"]["median"] == np.median(sizes)
    for part in (figures, figures["first_tenth"], figures["last_tenth"]):
        assert part["mean_divergence"] >= 0
    everyone = np.concatenate([partition.train_indices, partition.test_indices])
    assert np.sort(everyone).tolist() == list(range(200))
    again = fednlp(
        "partition", texts, "--method", method, *PARTITIONS[method], "--out", "again.npz", "--json"
    )
    assert again.code == 0
    assert Path("again.npz").read_bytes() == Path("part.npz").read_bytes()


def test_partition_for_people(fednlp: Type, here: Path, texts: Path) -> None:
    result = fednlp("partition", texts, "--method", "label", "--clients", 4, "--alpha", 1, "--plots", "plots")
    assert result.code == 0
    assert "4 clients, 160 training and 40 test examples" in result.out
    assert len(list(Path("plots").glob("*.png"))) == 4


def test_the_partition_of_a_run_is_that_of_the_command(fednlp: Type, toml: Path, texts: Path) -> None:
    """The same options and seed, the same bytes."""
    fednlp("run", toml, "--out", "out", "--seed", 3)
    options = ["--method", "label", "--clients", 8, "--alpha", 1.0, "--seed", 3]
    fednlp("partition", texts, *options, "--out", "part.npz")
    assert Path("part.npz").read_bytes() == Path("out/partition.npz").read_bytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "labels", "--clients", 3], "did you mean 'label'?"),
        (["--method", "label", "--clients", 3], "say, for example, --alpha 1.0"),
        (["--method", "label", "--clients", 3, "--alpha", 0], "--alpha 0.0: input"),
        (["--method", "label", "--clients", 3, "--alpha", -1], "--alpha -1.0: input"),
        (["--method", "quantity", "--clients", 3, "--beta", 0], "--beta 0.0: input"),
        (["--method", "quantity", "--clients", 3, "--beta", -2], "--beta -2.0: input"),
        (["--clients", 161], "say at most --clients 160"),
        (["--clients", 0], "--clients 0: input"),
        ([], "say, for example, --clients 100"),
        (["--method", "cluster", "--clients", 3], "say, for example, --alpha 1.0"),
        (["--method", "file"], 'say, for example, --file "part.npz"'),
        (["--method", "uniform", "--clients", 3, "--alpha", 1], "--alpha has no effect"),
        (["--clients", 3, "--set", "partition.clients"], "--set partition.clients: write key=value"),
        (["--method", "natural", "--field", "sight"], "site"),
        (["--clients", 3, "--text", "texte"], "text"),
        (["--clients", 3, "--label", "lable"], "label"),
        (["--clients", 3, "--test-fraction", 1.5], "--test-fraction 1.5: input"),
        (["--method", "proportions", "--proportions", "none.csv"], "none.csv"),
        (["--clients", 3, "--out", "/dev/null/part.npz"], "/dev/null"),
        (
            ["--clients", 3, "--out", "part.csv"],
            "--out part.csv: name it .npz, or .h5 as the original FedNLP has it",
        ),
    ],
)
def test_partition_refuses(
    options: list[object], message: str, refused: Callable[..., str], here: Path, texts: Path
) -> None:
    assert message in refused("partition", texts, *options)


@pytest.mark.parametrize(("given", "cohort"), [([], 4), (["--set", "clients_per_round=3"], 3)])
def test_a_split_has_the_cohort_of_its_experiment_at_most_all_clients(
    given: list[str], cohort: int, fednlp: Type, here: Path, texts: Path
) -> None:
    fednlp("partition", texts, "--method", "uniform", "--clients", 4, "--split-out", "shards", *given)
    assert config.load("shards/federation.toml").clients_per_round == cohort
    split = config.load("shards/simulation.toml").resolved()
    assert (split.clients_per_round, split.partition.clients) == (cohort, 4)
    Path("silos").mkdir()
    for number in range(2):
        shutil.copyfile(f"shards/client-{number}/train.parquet", f"silos/{number}.parquet")
    fednlp("partition", "silos", "--split-out", "own", *given)
    assert config.load("own/federation.toml").clients_per_round == 2


# ------------------------------------------------------------------------------------------- report


def test_report(fednlp: Type, toml: Path, request: pytest.FixtureRequest) -> None:
    fednlp("run", toml, "--out", "one")
    fednlp("run", toml, "--out", "two", "--set", "algorithm.name=fedopt")
    result = fednlp("report", "one", "two", "--out", "report", "--verbose", "--figures", "pdf,svg")
    assert result.code == 0
    written = [Path(line) for line in result.out.splitlines()]
    assert {".html", ".md", ".pdf", ".svg"} <= {path.suffix for path in written}
    page = next(path for path in written if path.suffix == ".html").read_text()
    assert "<svg" in page
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", page), (
        "the page asks for something elsewhere"
    )
    request.getfixturevalue("undrawn")
    assert fednlp("report", "one").out.startswith("one/report/report.html (and ")
    assert list(Path("one/report").glob("*.html"))


# ---------------------------------------------------------------------------------------- bad input

BAD_FILES: dict[str, tuple[bytes, list[str]]] = {
    "empty": (b"", ["own.csv", "empty"]),
    "only a header": (b"text,label\n", ["own.csv", "no example"]),
    "missing label": (b"text,label\na,x\nb,\nc,y\n", ["own.csv:3", "label is missing"]),
    "wrong encoding": ("text,label\na,x\né,y\n".encode("latin-1"), ["own.csv:3", "UTF-8"]),
    "ragged row": (b"text,label\na,x\nb,y,z\n", ["own.csv:3", "3 cells"]),
    "short row": (b"text,label\na,x\nb\n", ["own.csv:3", "1 cell"]),
    "open quote": (b'text,label\na,x\n"b,y\n', ["own.csv:3", "quote"]),
    "NUL byte": (b"text,label\na,x\nb\0,y\n", ["own.csv:3", "NUL"]),
    "UTF-16": ("text,label\na,x\n".encode("utf-16"), ["own.csv:1", "UTF-16"]),
    "no such column": (b"texts,label\na,x\n", ["own.csv:1", "texts"]),
    "one label": (b"text,label\n" + b"a,x\n" * 20, ["label"]),
    "few examples": (b"text,label\na,x\nb,y\nc,x\n", ["8"]),
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_a_file_that_is_unfit(kind: str, refused: Callable[..., str], toml: Path) -> None:
    """File and line are named, and no run directory is begun."""
    content, message = BAD_FILES[kind]
    Path("own.csv").write_bytes(content)
    message = refused("run", toml, "--out", "out", "--set", "data.path=own.csv")
    for part in message:
        assert part in message
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "num_round=3"], "did you mean num_rounds?"),
        (["--set", "partition.alpha=0"], "partition.alpha = 0: input"),
        (["--set", "partition.clients=1000"], "1,000"),
        (["--set", "partition.method=quantity"], "beta"),
        (["--set", "data.path=none.csv"], "none.csv"),
        (["--set", "data.text=texte"], "text"),
        (["--set", "data.label=lable"], "label"),
        (["--set", "partition.method=natural", "--set", "partition.field=sight"], "site"),
        (["--set", "model.name_or_path=./nowhere"], "./nowhere"),
        (["--set", "model.name_or_path=owner/no-such-model"], "owner/no-such-model"),
        (["--set", "model.name_or_path=bert-tinny"], "bert-tiny"),
        (["--set", "model.config.hidden_sise=3"], "hidden_sise"),
        (["--set", "runtime.device=quantum"], "quantum"),
        (["--out", "/dev/null/out"], "/dev/null"),
        (["--out", "tiny.toml"], "tiny.toml"),
        (["--resume", "nowhere"], "nowhere"),
        (["--resume", "."], "no run directory"),
    ],
)
def test_run_refuses(options: list[str], message: str, refused: Callable[..., str], toml: Path) -> None:
    assert message in refused("run", toml, *options)


def test_an_experiment_file_that_is_not_there(refused: Callable[..., str], toml: Path) -> None:
    assert "did you mean tiny.toml?" in refused("run", "tinny.toml")
    assert "its folder has tiny.toml, and fednlp comes with quickstart, small and " in refused(
        "run", "absent.toml"
    )


def test_unknown_data_set(refused: Callable[..., str], here: Path) -> None:
    Path("e.toml").write_text("[data]\nname = '20new'\n")
    assert "20news" in refused("run", "e.toml")
    assert "20news" in refused("partition", "20new", "--clients", 3)
    Path("quickstart.toml").write_text("")
    assert "did you mean quickstart.toml?" in refused("run", "quikstart.toml")


def test_no_data_at_all(refused: Callable[..., str], here: Path) -> None:
    Path("e.toml").write_text("seed = 1\n")
    assert "[data]" in refused("run", "e.toml")


def test_all_mistakes_in_one_message(fednlp: Type, toml: Path) -> None:
    wrong = ["--set", "num_round=3", "--set", "client.learning_rate=-1", "--set", "algorithm.name=fedavgg"]
    result = fednlp("run", toml, *wrong)
    assert result.code == 1
    assert result.err.count("error:") == 1
    assert "3 mistakes" in result.err
    assert len(result.err.splitlines()) == 4


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.safetensors", "cut short"),
        ("tokenizer.json", "cut short"),
        ("tokenizer.json", "gone"),
        ("config.json", "cut short"),
        ("config.json", "gone"),
    ],
)
def test_a_model_folder_that_is_damaged(
    file: str, damage: str, refused: Callable[..., str], toml: Path, tiny_model: Path
) -> None:
    folder = Path("model")
    folder.mkdir()
    for path in tiny_model.iterdir():
        content = path.read_bytes()
        if path.name != file:
            (folder / path.name).write_bytes(content)
        elif damage == "cut short":
            (folder / path.name).write_bytes(content[: len(content) // 2])
    assert "model" in refused("run", toml, "--out", "out", "--model", "./model")
    assert not Path("out").exists()


def test_a_model_folder_without_weights_begins_from_the_seed(
    fednlp: Type, toml: Path, tiny_model: Path
) -> None:
    """A configuration alone is an architecture; that nothing is pretrained is reported."""
    Path("model").mkdir()
    for path in tiny_model.iterdir():
        if path.name != "model.safetensors":
            (Path("model") / path.name).write_bytes(path.read_bytes())
    result = fednlp("run", toml, "--out", "out", "--model", "./model")
    assert result.code == 0
    assert "has no weights" in result.out


def test_no_network_and_nothing_cached(fednlp: Type, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDNLP_CACHE", str(here / "cache"))
    monkeypatch.delenv("FEDNLP_WHEELS", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    Path("e.toml").write_text("[data]\nname = '20news'\n")
    result = fednlp("run", "e.toml", "--out", "out")
    assert result.code == 1
    assert result.err.splitlines()[-1].startswith("error: 20 Newsgroups is not in the cache")
    assert result.err.count("error:") == 1


def test_a_cached_feature_file_that_was_cut_short_is_made_again(
    fednlp: Type, toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDNLP_CACHE", str(toml.parent / "cache"))
    assert fednlp("run", toml, "--out", "one").code == 0
    for path in Path("cache/features").rglob("*.bin"):
        path.write_bytes(path.read_bytes()[:-4])
    assert fednlp("run", toml, "--out", "two").code == 0
    one, two = (Path(name, "model", "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two


_FULL: list[str] = []
"""Places where the system says that the disk is full."""


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _FULL:
        return
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
    if (writes or event in {"os.rename", "os.mkdir"}) and str(arguments[0]).startswith(_FULL[0]):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(arguments[0]))


@pytest.fixture(scope="module")
def audit() -> None:
    """Watch what is opened for writing; a hook cannot be taken away again, but it does nothing when not asked."""
    sys.addaudithook(_refuse)


@pytest.mark.parametrize(
    "room", ["cache/tables", "cache/features", "out/rounds.jsonl", "out/checkpoint", "out/.model"]
)
def test_no_disk_space(
    room: str, audit: None, refused: Callable[..., str], toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDNLP_CACHE", str(toml.parent / "cache"))
    _FULL.append(str(toml.parent / room))
    try:
        message = refused("run", toml, "--out", toml.parent / "out")
    finally:
        _FULL.clear()
    assert "no space left" in message
    assert ("FEDNLP_CACHE" if room.startswith("cache") else "--out") in message


def test_no_disk_space_for_the_checkpoint(
    refused: Callable[..., str], toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library that writes the checkpoint has an error of its own for a full disk."""
    from safetensors import SafetensorError

    def full(*arguments: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("fednlp.federated.state.save_file", full)
    message = refused("run", toml, "--out", "out")
    assert "no space left" in message
    assert "fednlp run --resume out" in message


def test_usage_errors_are_no_tracebacks(fednlp: Type, here: Path) -> None:
    for words in (
        ["frun"],
        ["run", "--nope"],
        ["partition"],
        ["report"],
        ["partition", "x.csv", "--clients", "many"],
    ):
        result = fednlp(*words)
        assert result.code == 2, result
        assert "Error" in result.err


def test_help_needs_no_heavy_library() -> None:
    """``fednlp --help`` and ``import fednlp`` load neither torch nor transformers, nor what checks an experiment."""
    heavy = (
        "{'torch', 'transformers', 'sklearn', 'pyarrow', 'matplotlib', 'numpy', 'pydantic', 'fednlp.config'}"
    )
    program = f"import sys, fednlp.cli; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_python_m_fednlp_is_the_command() -> None:
    said = [
        subprocess.run([*start, "--version"], capture_output=True, text=True, check=True).stdout
        for start in (COMMAND, [sys.executable, "-m", "fednlp"])
    ]
    assert said[0] == said[1] == f"fednlp {version('fednlp')}\n"


def test_data_lists_the_names(fednlp: Type) -> None:
    result = fednlp("data")
    assert result.code == 0
    for name in ("20news", "agnews", "sst2", "trec", "bbc"):
        assert name in result.out


@pytest.mark.slow
def test_several_experiments_are_one_table(fednlp: Type, toml: Path) -> None:
    text = toml.read_text()
    Path("one.toml").write_text(text.replace('name = "tiny"', 'name = "one"'))
    Path("other.toml").write_text(text.replace('name = "tiny"', 'name = "other"'))
    words = (
        "compare",
        "one.toml",
        "other.toml",
        "--algorithms",
        "fedavg",
        "--baselines",
        "local",
        "--out",
        "out",
    )
    result = fednlp(*words)
    assert result.code == 0
    for part in ("one, accuracy", "other, accuracy", "Without", "across-global.txt (and 9 files"):
        assert part in result.out
    assert Path("out/across-personal.tex").is_file()
    with (Path("out") / "across-global.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["experiment"] for row in rows] == ["one, accuracy", "other, accuracy"]
    scores = json.loads(Path("out/other/fedavg-seed0/summary.json").read_text())
    assert float(rows[1]["FedAvg_mean"]) == pytest.approx(100 * scores["evaluation"]["global"]["accuracy"])
    assert float(rows[1]["trivial_baseline_mean"]) == pytest.approx(
        100 * scores["trivial_baseline"]["accuracy"]
    )
    before = {path: path.stat().st_mtime_ns for path in Path("out").rglob("summary.json")}
    assert fednlp(*words).code == 0
    assert before == {path: path.stat().st_mtime_ns for path in Path("out").rglob("summary.json")}


@pytest.mark.slow
def test_a_setting_may_be_for_one_of_several_experiments(
    fednlp: Type, refused: Callable[..., str], toml: Path
) -> None:
    other = toml.with_name("other.toml")
    other.write_text(toml.read_text().replace('name = "tiny"', 'name = "other"'))
    options = ["--algorithms", "fedavg", "--out", "cmp", "--set", "seed=3"]
    done = fednlp("compare", toml, other, *options, "--set", "other:client.max_steps=1")
    assert done.code == 0, done
    found = {
        one.name: RunDir(Path("cmp", one.name, "fedavg-seed3")).experiment()
        for one in (config.load(toml), config.load(other))
    }
    assert {one.seed for one in found.values()} == {3}
    assert [one.client.max_steps for one in found.values()] == [2, 1]
    assert "nobody is not compared; choose from other, tiny" in refused(
        "compare", toml, other, "--set", "nobody:seed=1"
    )


def test_two_experiments_of_one_name(refused: Callable[..., str], toml: Path) -> None:
    assert "two experiments are named" in refused("compare", toml, toml)


def test_what_nobody_foresaw_is_one_line(fednlp: Type, toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says that it is a fault of fednlp, and how to see where; a code of its own tells it from a mistake."""
    names: dict[str, Any] = {}
    code = "def fail(*_, **__):\n    raise KeyError('two\\nlines\\x1b[2J')"
    exec(compile(code, config.__file__, "exec"), names)  # as if it stood in a file of fednlp
    monkeypatch.setattr("fednlp.config.load", names["fail"])
    monkeypatch.delenv("FEDNLP_TRACEBACK", raising=False)
    result = fednlp("run", toml)
    assert result.code == 70
    assert result.err.startswith("error: KeyError: ")
    assert "a fault of fednlp, please report it; set FEDNLP_TRACEBACK=1" in result.err
    assert len(result.err.splitlines()) == 1
    monkeypatch.setenv("FEDNLP_TRACEBACK", "1")
    with pytest.raises(KeyError):
        fednlp("run", toml)


def test_an_error_in_the_user_s_own_code_says_where(
    fednlp: Type, toml: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("alpha")

    monkeypatch.setattr("fednlp.config.load", fail)
    monkeypatch.delenv("FEDNLP_TRACEBACK", raising=False)
    result = fednlp("run", toml)
    line = fail.__code__.co_firstlineno + 1
    assert result.err.startswith(
        f"error: KeyError: 'alpha': raised by your own code (test_cli.py, line {line})"
    )
    assert result.code == 1


def test_a_terminal_obeys_no_data(
    fednlp: Type, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    """Escapes in labels, in texts, and in what errors quote are shown, not obeyed."""
    escape = "\x1b]0;pwn\x07\x1b[31m"
    answers = [escape + "arts", [f"{escape}tag", "\x9b2J"], "two\nlines"]
    monkeypatch.setattr("fednlp.inference.model.open_trained", lambda *_: None)
    monkeypatch.setattr("fednlp.inference.inputs.rows_of_texts", lambda *_: None)
    monkeypatch.setattr(
        "fednlp.inference.predict.predictions",
        lambda *_, **__: [Prediction({}, answer) for answer in answers],
    )
    out = fednlp("predict", "run", "text").out
    assert len(out.splitlines()) == 3
    assert not {"\x1b", "\x07", "\x9b"} & set(out)
    (here / f"{escape}.toml").write_text("seed = = 1")
    assert not {"\x1b", "\x07"} & set(refused("run", f"{escape}.toml"))


def test_a_task_that_is_none(refused: Callable[..., str], toml: Path) -> None:
    assert "is no task" in refused("run", toml, "--out", "out", "--task", "subprocess:Popen")
    assert "there is no module no" in refused("run", toml, "--out", "out", "--set", "task.name=no:Task")
    assert not Path("out").exists()


@pytest.fixture(scope="module")
def trained(document: Document, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory of two short rounds."""
    from fednlp.simulation.run import run

    changes = {"num_rounds": 2, "clients_per_round": 2, "client.max_steps": 2}
    return run(config.parse(document(changes)), tmp_path_factory.mktemp("trained") / "out").folder


def test_evaluate(fednlp: Type, refused: Callable[..., str], here: Path, trained: Path, texts: Path) -> None:
    scores = json.loads(fednlp("evaluate", trained, "--json").out)
    by_label, unknown = scores.pop("by_label"), scores.pop("unknown_labels")
    summary = json.loads((trained / "summary.json").read_text())
    assert scores.pop("interval") == summary["interval"]
    assert scores == pytest.approx(summary["evaluation"]["global"])
    assert by_label == json.loads((trained / "by_label.json").read_text())
    assert unknown == {}
    result = fednlp("evaluate", trained, "--data", texts, "--out", "predictions.jsonl")
    assert "test accuracy" in result.out
    lines = [json.loads(line) for line in Path("predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 200
    right = sum(line["prediction"] == line["label"] for line in lines)
    assert f"test accuracy  {right / 200:.4f} (95 %: " in result.out
    assert lines[3]["site"] == "site3"
    assert all(0.25 <= line["probability"] <= 1 for line in lines)
    assert fednlp("evaluate", trained, "--data", texts, "--out", "predictions.csv").code == 0
    rows = csv_of(Path("predictions.csv"))
    assert list(rows[0]) == ["text", "label", "site", "example", "prediction", "probability"]
    assert [row["prediction"] for row in rows] == [line["prediction"] for line in lines]
    assert "there is no nowhere.csv" in refused("evaluate", trained, "--data", "nowhere.csv")
    assert ".csv, .tsv or .jsonl" in refused("evaluate", trained, "--out", "predictions.xlsx")
    again = refused("evaluate", trained, "--data", "predictions.csv", "--out", "more.csv")
    assert "the data have one of that name" in again


def test_evaluate_a_file_with_other_columns(
    fednlp: Type, refused: Callable[..., str], here: Path, trained: Path, texts: Path
) -> None:
    Path("own.csv").write_text(texts.read_text().replace("text,label,", "note,team,", 1))
    said = refused("evaluate", trained, "--data", "own.csv")
    assert "no column 'text'" in said
    assert "name the file's own with --text, --label or --column" in said
    same = fednlp("evaluate", trained, "--data", texts, "--json").out
    assert (
        fednlp("evaluate", trained, "--data", "own.csv", "--text", "note", "--label", "team", "--json").out
        == same
    )
    columns = ("--column", "text=note", "--column", "label=team")
    assert fednlp("evaluate", trained, "--data", "own.csv", *columns, "--json").out == same
    assert "give the file with --data" in refused("evaluate", trained, "--label", "team")
    assert "say --device cpu" in refused("evaluate", trained, "--device", "quantum")
    assert fednlp("evaluate", trained, "--data", texts, "--device", "cpu", "--json").out == same


def test_evaluate_shows_labels(fednlp: Type, trained: Path) -> None:
    """A row a label, and the confusion matrix, whose columns go by number; no line ends in blanks."""
    result = fednlp("evaluate", trained).out
    found = json.loads((trained / "by_label.json").read_text())
    for place, label in enumerate(found["labels"]):
        values = [f"{found[part][place]:.4f}" for part in ("precision", "recall", "f1")]
        rows = [line.split() for line in result.splitlines()]
        assert [label, *values, str(found["support"][place])] in rows
        assert [str(place + 1), label, *map(str, found["confusion"][place])] in rows
    assert all(line == line.rstrip() for line in result.splitlines())


def test_a_label_that_the_model_does_not_know(fednlp: Type, here: Path, trained: Path) -> None:
    (here / "rare.csv").write_text("text,label\nword1 arts1,arts\nword2,rheuma\nword3,rheuma\n")
    result = fednlp("evaluate", trained, "--data", "rare.csv", "--json")
    assert "2 rows with a label that the model does not know ('rheuma')" in result.err
    assert json.loads(result.out)["unknown_labels"] == {"rheuma": 2}
    assert sum(json.loads(result.out)["by_label"]["support"]) == 1


def test_a_file_without_a_label_that_the_model_knows(
    refused: Callable[..., str], fednlp: Type, here: Path, trained: Path
) -> None:
    """Its score would mean nothing: the error names both lists, and the column that has known labels."""
    rows = [f"word{number} arts1,{number % 7},{'arts' if number % 2 else 'sports'}" for number in range(21)]
    (here / "codes.csv").write_text("\n".join(["text,label,desk or team", *rows, ""]))
    said = refused("evaluate", trained, "--data", "codes.csv", "--out", "scored.csv")
    assert "codes.csv: the model knows none of the labels there ('0', '1', '2', '3', '4' and 2 more)" in said
    assert "in the column 'label'; it knows 'arts', 'economy', 'science', 'sports'" in said
    assert said.endswith("add --label 'desk or team'")
    assert not (here / "scored.csv").exists()
    found = fednlp("evaluate", trained, "--data", "codes.csv", "--label", "desk or team", "--json")
    assert json.loads(found.out)["unknown_labels"] == {}
    (here / "few.csv").write_text(f"text,label\nword1,Arts\nword2,{'S' * 99}\n")
    said = refused("evaluate", trained, "--data", "few.csv")
    assert f"('Arts', '{'S' * 40}...')" in said
    assert said.endswith("name the column of the labels with --label COLUMN, or write them as the model does")


def test_evaluate_a_federation_on_a_file_with_other_columns(
    fednlp: Type, refused: Callable[..., str], trained: Path, texts: Path, tmp_path: Path
) -> None:
    """The run of a federation has no columns of its own: the sites named theirs."""
    federation = tmp_path / "federation"
    shutil.copytree(trained, federation)
    settings = tomllib.loads((federation / "resolved.toml").read_text())
    labels = json.loads((federation / "labels.json").read_text())["labels"]
    settings["data"] = {"name": "sites", "labels": labels}
    (federation / "resolved.toml").write_text(tomli_w.dumps(settings))
    own = tmp_path / "own.csv"
    own.write_text(texts.read_text().replace("text,label,", "note,team,", 1))
    said = refused("evaluate", federation, "--data", own)
    assert said.rstrip().endswith("; name the file's own with --text, --label or --column")
    assert fednlp("evaluate", federation, "--data", own, "--text", "note", "--label", "team").code == 0


def test_a_run_without_a_model_says_how_to_go_on(
    refused: Callable[..., str], trained: Path, tmp_path: Path
) -> None:
    half = tmp_path / "half"
    shutil.copytree(trained, half, ignore=shutil.ignore_patterns("model", "summary.json"))
    for verb, *rest in (["predict", "word1"], ["evaluate"], ["export", "--out", tmp_path / "model"]):
        assert f"go on with: fednlp run --resume {half}" in refused(verb, half, *rest)


def test_predict_texts(fednlp: Type, refused: Callable[..., str], trained: Path) -> None:
    told = fednlp("predict", trained, "word1 arts1 arts2", "sports0 sports1").out.splitlines()
    assert set(told) <= {"arts", "economy", "science", "sports"}
    assert len(told) == 2
    assert "write column=text" in refused("predict", trained, "word1", "--with", "context")
    assert "no such column" in refused("predict", trained, "word1", "--with", "context=a")
    assert "no run directory" in refused("predict", "nowhere", "word1")
    assert "text 2 is empty" in refused("predict", trained, "word1", " ")
    typed = refused("predict", trained, "word1 \udcff")
    assert r"text 1, as typed, is not UTF-8 ('word1 \udcff')" in typed
    assert "--with text_pair, as typed, is not UTF-8" in refused(
        "predict", trained, "word1", "--with", "text_pair=\udcff"
    )
    assert "--in and texts" in refused("predict", trained, "word1", "--in", "some.csv")
    assert "give the file with --in" in refused("predict", trained, "word1", "--text", "note")


def test_predict_what_is_piped(
    fednlp: Type, refused: Callable[..., str], trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pipe(text: bytes) -> None:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))

    expected = fednlp("predict", trained, "word1 arts1", "sports0").out
    for words in ((), ("-",)):
        pipe(b"word1 arts1\n\nsports0")
        assert fednlp("predict", trained, *words).out == expected
    pipe(b"\n")
    assert "there is no text to predict" in refused("predict", trained)
    pipe(b"word1\n\xff\n")
    assert "standard input:2: byte 0xff" in refused("predict", trained)
    monkeypatch.setattr("fednlp.data.readers.text_io.LONGEST_LINE", 100)
    pipe(b"word1\n" + b"a" * 101)
    assert "standard input:2: the line is longer" in refused("predict", trained)
    monkeypatch.setattr(sys, "stdin", None)  # as the shell's <&- has it
    assert "there is no text" in refused("predict", trained)


def test_predict_probabilities(fednlp: Type, trained: Path) -> None:
    """Of all labels or the likeliest, the first of which is the prediction; they sum to 1."""
    (line,) = fednlp("predict", trained, "arts1", "--probabilities", "--json").out.splitlines()
    found = json.loads(line)
    shares = list(found["probabilities"].values())
    assert found["text"] == "arts1"
    assert set(found["probabilities"]) == {"arts", "economy", "science", "sports"}
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1, abs=1e-5)
    assert next(iter(found["probabilities"])) == found["prediction"]
    two = ", ".join(f"{label} {share:.4f}" for label, share in list(found["probabilities"].items())[:2])
    assert fednlp("predict", trained, "arts1", "--top", "2").out == f"{two}\n"


def test_predict_a_file(fednlp: Type, refused: Callable[..., str], here: Path, trained: Path) -> None:
    (here / "notes.csv").write_text('id,note\n07,"arts1, word1"\n8,\n9,sports0\n')
    assert "no column 'text'" in refused("predict", trained, "--in", "notes.csv")
    wrong = refused("predict", trained, "--in", "notes.csv", "--text", "nte")
    assert "no column 'nte': did you mean 'note'?" in wrong
    result = fednlp(
        "predict", trained, "--in", "notes.csv", "--text", "note", "--out", "p.csv", "--probabilities"
    )
    assert "1 row without a text, the first is notes.csv:3" in result.err
    assert "written p.csv: 3 rows" in result.err
    rows = csv_of(here / "p.csv")
    labels = ("arts", "economy", "science", "sports")
    assert list(rows[0]) == ["id", "note", "prediction", *(f"probability_{label}" for label in labels)]
    assert [row["id"] for row in rows] == ["07", "8", "9"]
    for row in rows:
        assert row["prediction"] == max(labels, key=lambda label: float(row[f"probability_{label}"]))
    printed = fednlp("predict", trained, "--in", "notes.csv", "--text", "note").out.splitlines()
    assert printed == [row["prediction"] for row in rows]
    fednlp("predict", trained, "--in", "notes.csv", "--text", "note", "--out", "p.tsv", "--top", "9")
    assert "label_4\tprobability_4" in (here / "p.tsv").read_text()
    taken = refused("predict", trained, "--in", "p.csv", "--text", "note", "--out", "q.csv")
    assert "'prediction', and the data have one" in taken
    assert not (here / "q.csv").exists()
    assert "there is no file" in refused("predict", trained, "--in", "nots.csv", "--out", "q.csv")
    assert ".csv, .tsv or .jsonl" in refused("predict", trained, "word1", "--out", "q.xlsx")


def test_the_delimiter_of_the_input_is_kept(
    fednlp: Type, here: Path, trained: Path, texts: Path, document: Document
) -> None:
    """Also where a run's own test set is evaluated; files of other formats have their own delimiter."""
    rows = [list(row.values()) for row in csv_of(texts)[:9]]
    for name, mark in (("semi.csv", ";"), ("tabs.tsv", "\t")):
        lines = [["text", "label", "site"], *rows]
        (here / name).write_text("".join(mark.join(line) + "\n" for line in lines))
    assert fednlp("predict", trained, "--in", "semi.csv", "--out", "one.csv", "--probabilities").code == 0
    assert (here / "one.csv").read_text().startswith("text;label;site;prediction;probability_arts")
    assert fednlp("evaluate", trained, "--data", "semi.csv", "--out", "two.csv").code == 0
    assert (here / "two.csv").read_text().splitlines()[1].startswith(";".join(rows[0]))
    for name in ("one.csv", "two.csv"):
        again = fednlp("evaluate", trained, "--data", name, "--json")
        assert again.out == fednlp("evaluate", trained, "--data", "semi.csv", "--json").out
    for given, out in (("tabs.tsv", "three.csv"), ("semi.csv", "four.tsv")):
        assert fednlp("predict", trained, "--in", given, "--out", out).code == 0
    assert (here / "three.csv").read_text().startswith("text,label,site,prediction\n")
    assert (here / "four.tsv").read_text().startswith("text\tlabel\tsite\tprediction\n")
    moved = here / "moved"
    shutil.copytree(trained, moved)
    settings = tomllib.loads((moved / "resolved.toml").read_text())
    settings["data"]["path"] = str(here / "own.csv")
    (moved / "resolved.toml").write_text(tomli_w.dumps(settings))
    (here / "own.csv").write_text(texts.read_text().replace(",", ";"))
    assert fednlp("evaluate", moved, "--out", "five.csv").code == 0
    assert (here / "five.csv").read_text().startswith("text;label;site;example")


def test_a_long_file_is_predicted_in_pieces(fednlp: Type, here: Path, trained: Path) -> None:
    """Values of JSON lines stay what they are, whatever piece they are of; a later object may bring a column."""
    rows: list[dict[str, Any]] = [{"id": number, "text": f"word{number % 9} arts1"} for number in range(1100)]
    rows[1000]["more"] = [1, None]
    (here / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert fednlp("predict", trained, "--in", "long.jsonl", "--out", "out.jsonl").code == 0
    found = [json.loads(line) for line in (here / "out.jsonl").read_text().splitlines()]
    assert [{key: row[key] for key in row if key != "prediction"} for row in found] == rows
    assert fednlp("predict", trained, "--in", "long.jsonl", "--out", "out.csv").code == 0
    assert csv_of(here / "out.csv")[1000]["more"] == "[1, null]"


def test_data_list_and_info(fednlp: Type, refused: Callable[..., str]) -> None:
    listed = fednlp("data", "list").out
    assert fednlp("data").out == listed
    for part in ("squad", "question-answering", "shakespeare", "speaker", "package index"):
        assert part in listed
    known = json.loads(fednlp("data", "info", "20news", "--json").out)
    assert (known["task"], known["train"], known["test"]) == ("text-classification", 11293, 7528)
    assert "20 Newsgroups" in fednlp("data", "info", "20news").out
    message = refused("data", "info", "20new")
    assert "did you mean '20news'?" in message
    assert "fednlp data list" in message
    assert len(message) < 250


def test_data_info_of_a_file(fednlp: Type, refused: Callable[..., str], here: Path, texts: Path) -> None:
    """How it is read, figures and oddities; other columns, a test file and settings as they are typed elsewhere."""
    result = fednlp("data", "info", texts)
    assert (result.code, result.err) == (0, "")
    for part in (
        "text-classification",
        "160 training and 40 test examples",
        "economy",
        "Latin 100 %",
        "site",
    ):
        assert part in result.out
    made_of = (here / "pairs.csv", here / "test.csv")
    for path in made_of:
        path.write_text("a,b\n" + "".join(f"one {n},other {n}\n" for n in range(20)))
    options = ["--column", "source=a", "--column", "target=b", "--task", "text-generation"]
    known = json.loads(fednlp("data", "info", made_of[0], "--test-path", made_of[1], *options, "--json").out)
    assert (known["task"], known["columns"]) == ("text-generation", {"source": "a", "target": "b"})
    assert [(one["kind"], one["count"]) for one in known["oddities"]] == [("in-train-and-test", 20)]
    assert "--test-fraction 2" in refused("data", "info", texts, "--set", "data.test_fraction=2")
    assert "did you mean --text?" in refused("data", "info", texts, "--set", "data.tex=3")
    assert "there is no" in refused("data", "info", "mine.csv")


def test_data_info_of_a_known_data_set_with_its_files(fednlp: Type, here: Path) -> None:
    """What is known of it, then what is in its files."""
    for name in ("TREC.train.all", "TREC.test.all"):
        (here / name).write_text(
            "".join(f"{'DESC' if n % 2 else 'HUM'} who is {name} {n}\n" for n in range(20))
        )
    result = fednlp("data", "info", "trec", "--path", here).out
    assert "TREC question types" in result
    assert "20 training and 20 test examples" in result


def test_run_and_partition_say_how_the_data_were_read(fednlp: Type, toml: Path, texts: Path) -> None:
    """A run says it once, before its rounds, and keeps it; going on does not say it again."""
    result = fednlp("run", toml, "--out", "out", "--set", "model.max_length=8")
    lines = result.out.splitlines()
    first = next(
        n for n, line in enumerate(lines) if line.startswith("data: texts read as text-classification")
    )
    assert lines[first + 1].startswith("4 labels: ")
    assert lines[first + 2].startswith("lengths: median 8, 95 % 8, longest 8 tokens")
    assert any("longer than the 8 tokens that the model reads" in line for line in lines)
    assert sum(line.startswith(("data: ", "4 labels: ", "lengths: ", "warning: ")) for line in lines) <= 8
    kept = json.loads(Path("out/data.json").read_text())
    assert (kept["train"], kept["tokens"]["longest"]) == (160, 8)
    assert "cut-off" in [oddity["kind"] for oddity in kept["oddities"]]
    assert "word1" not in Path("out/data.json").read_text()
    assert "data: " not in fednlp("run", "--resume", "out").out
    assert "data: texts read as" in fednlp("partition", texts, "--clients", 4).err
