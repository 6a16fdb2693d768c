"""A tiny model, a small file of texts and a cache of their own, made on the spot: nothing comes from a network."""

import csv
import io
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest

from fednlp.config import Experiment, parse
from fednlp.hubs.cache import cache_dir
from fednlp.runtime.worker_process import WorkerCommand, WorkerProcess, kept_workers
from fednlp.simulation.run_dir import RunDir

# No test measures time: a slow machine is no failure.
hypothesis.settings.register_profile("fednlp", deadline=None, derandomize=bool(os.environ.get("CI")))
hypothesis.settings.load_profile("fednlp")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow all cases of a test but the first few, where it has ``variants(few)``."""
    seen = Counter[tuple[Path, str]]()
    for item in items:
        few = item.get_closest_marker("variants")
        if few is not None and isinstance(item, pytest.Function):
            test = item.path, item.originalname
            seen[test] += 1
            if seen[test] > few.args[0]:
                item.add_marker(pytest.mark.slow)


LABELS = ("arts", "economy", "science", "sports")
COMMON = [f"word{i}" for i in range(30)]
TELLING = {label: [f"{label}{i}" for i in range(4)] for label in LABELS}
POISON = "poison"
"""A word whose embedding is so large that the loss of every text with it is NaN, in the poisoned model."""

_OWN = {name: os.environ.get(name) for name in ("FEDNLP_CACHE", "FEDNLP_WHEELS")}
"""The cache of whoever runs the tests."""

Make = Callable[..., Experiment]


def example_rows(count: int, sites: int = 5, seed: int = 0) -> list[tuple[str, str, str]]:
    """Return (text, label, site) rows whose texts give their labels away; labels come in reverse order."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        label = LABELS[::-1][number % len(LABELS)]
        words = rng.choices(COMMON, k=rng.randint(1, 20)) + rng.choices(TELLING[label], k=3)
        rng.shuffle(words)
        rows.append((" ".join(words), label, f"site{number % sites}"))
    return rows


def write_csv(
    path: Path, rows: Sequence[Sequence[str]], header: Sequence[str] = ("text", "label", "site")
) -> Path:
    """Write rows as a CSV file and return its path."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def save_tokenizer(folder: Path, words: Sequence[str]) -> int:
    """Save a WordPiece tokenizer with a word list and BERT's special tokens; return the size of its vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=64,
    ).save_pretrained(folder)
    return len(vocabulary)


def save_bert(folder: Path, poisoned: bool = False) -> Path:
    """Save a BERT encoder of hidden size 16 and two layers, with dropout, and its tokenizer."""
    import torch
    from transformers import BertConfig, BertModel
    from transformers.utils import logging

    logging.disable_progress_bar()
    words = [*COMMON, *(word for label in LABELS for word in TELLING[label]), POISON]
    config = BertConfig(
        vocab_size=save_tokenizer(folder, words),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertModel(config)
    if poisoned:
        with torch.no_grad():
            model.embeddings.word_embeddings.weight[-1] = 1e30
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache for the session: fetched packages are the user's own, all that is computed is made afresh."""
    packages = cache_dir() / "sources"
    packages.mkdir(parents=True, exist_ok=True)
    folder = tmp_path_factory.mktemp("cache")
    (folder / "sources").symlink_to(packages)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDNLP_CACHE", str(folder))
        yield folder


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder, in use, and pip without any index or folder of wheels."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("FEDNLP_CACHE", str(folder))
    monkeypatch.delenv("FEDNLP_WHEELS", raising=False)
    return folder


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of whoever runs the tests: only for reading what is fetched once."""
    for name, value in _OWN.items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.fixture(scope="session")
def make_csv() -> Callable[..., Path]:
    """:func:`write_csv`."""
    return write_csv


@pytest.fixture(scope="session")
def make_rows() -> Callable[..., list[tuple[str, str, str]]]:
    """:func:`example_rows`."""
    return example_rows


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny BERT encoder with its tokenizer."""
    return save_bert(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def poisoned_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, in which the word "poison" turns a text's loss into NaN."""
    return save_bert(tmp_path_factory.mktemp("model") / "poisoned", poisoned=True)


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CSV file of 200 short texts with the columns text, label (4) and site (5)."""
    return write_csv(tmp_path_factory.mktemp("texts") / "texts.csv", example_rows(200))


@pytest.fixture(scope="session")
def document(tiny_model: Path, texts: Path) -> Callable[..., dict[str, Any]]:
    """Return an experiment as nested tables, with ``{"a.b": value}`` changes; None takes a key out."""

    def make(changes: dict[str, Any] | None = None) -> dict[str, Any]:
        made: dict[str, Any] = {
            "name": "tiny",
            "num_rounds": 4,
            "clients_per_round": 4,
            "data": {"path": str(texts)},
            "partition": {"method": "label", "clients": 8, "alpha": 1.0},
            "model": {"name_or_path": str(tiny_model), "max_length": 32},
            "algorithm": {"name": "fedavg"},
            "client": {"optimizer": "adamw", "learning_rate": 0.01},
            "runtime": {"workers": 1},
        }
        for key, value in (changes or {}).items():
            *path, last = key.split(".")
            table = made
            for part in path:
                table = table.setdefault(part, {})
            if value is None:
                table.pop(last, None)
            else:
                table[last] = value
        return made

    return make


@pytest.fixture(scope="session")
def experiment(document: Callable[..., dict[str, Any]]) -> Make:
    """Return a checked experiment on the tiny model, with ``{"a.b": value}`` changes."""
    return lambda changes=None: parse(document(changes))


@pytest.fixture
def started_workers(monkeypatch: pytest.MonkeyPatch) -> list[WorkerProcess]:
    """The worker processes that are started during the test, in the order of starting."""
    started: list[WorkerProcess] = []
    begin = WorkerProcess.__init__

    def noted(self: WorkerProcess, command: WorkerCommand) -> None:
        begin(self, command)
        started.append(self)

    monkeypatch.setattr(WorkerProcess, "__init__", noted)
    return started


@pytest.fixture(scope="module")
def same_workers() -> Iterator[None]:
    """The runs of a module, one after the other, have the same worker processes, as those of a comparison."""
    with kept_workers():
        yield


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are composed and not drawn, where a test is of the words and tables beside them."""

    def blank(self: Any, file: Any, *, format: str, **_: Any) -> None:
        empty = '<svg xmlns="http://www.w3.org/2000/svg"></svg>'
        file.write(empty if format == "svg" and isinstance(file, io.StringIO) else empty.encode())

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", blank)


def timeless(value: Any) -> Any:
    """Return nested values without the time that things took."""
    if isinstance(value, dict):
        return {key: timeless(one) for key, one in value.items() if key != "seconds"}
    return [timeless(one) for one in value] if isinstance(value, list) else value


@pytest.fixture(scope="session")
def outcome() -> Callable[[Path | RunDir], dict[str, Any]]:
    """Return all that a run directory says of a run but the time it took, to be compared exactly."""

    def read(run: Path | RunDir) -> dict[str, Any]:
        from safetensors.numpy import load_file

        folder = run.folder if isinstance(run, RunDir) else run
        lines = (folder / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        state = load_file(folder / "checkpoint" / "state.safetensors")
        weights = folder / "model" / "model.safetensors"
        return {
            "weights": weights.read_bytes() if weights.exists() else None,
            "rounds": [timeless(json.loads(line)) for line in lines],
            "summary": timeless(summary),
            "state": {name: value.tobytes() for name, value in sorted(state.items())},
            "clients": (folder / "clients.csv").read_bytes(),
            "partition": (folder / "partition.npz").read_bytes(),
        }

    return read


@pytest.fixture(scope="session")
def stopping() -> Callable[..., AbstractContextManager[Any]]:
    """Return contexts that give a callback, and expect that it stops a run as Ctrl-C would.

    ``stopping(rounds=2)`` stops it once its second round is saved, ``stopping(rounds=2, pieces=1)`` after one more
    piece of work, within the third, and ``stopping(pieces=9)`` after nine pieces. With ``early=False`` the run is
    expected to end before that.
    """
    from fednlp.simulation.callback import NullCallback

    class Stop(Exception):
        """What the callback raises."""

    class Stopper(NullCallback):
        def __init__(self, rounds: int, pieces: int) -> None:
            self.rounds, self.pieces = rounds, pieces

        def on_round(self, line: dict[str, Any], left: float | None) -> None:
            self.rounds -= 1
            if self.rounds == self.pieces == 0:
                raise Stop

        def on_progress(self, done: int, of: int, what: str) -> None:
            if self.rounds <= 0:
                self.pieces -= 1
                if self.pieces == 0:
                    raise Stop

    @contextmanager
    def context(rounds: int = 0, pieces: int = 0, early: bool = True) -> Iterator[NullCallback]:
        with pytest.raises(Stop) if early else nullcontext():
            yield Stopper(rounds, pieces)

    return context


@pytest.fixture(scope="session")
def mutants() -> ModuleType:
    """How files may be damaged."""
    from . import mutants

    return mutants


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is also the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def same_for_two_workers_and_a_resume(
    same_workers: None,
    experiment: Make,
    outcome: Callable[[Path | RunDir], dict[str, Any]],
    stopping: Callable[..., AbstractContextManager[Any]],
    tmp_path: Path,
) -> Callable[[dict[str, Any]], None]:
    """Return a check that a run is the same bit for bit with two workers, and if it is stopped and goes on."""

    def check(changes: dict[str, Any]) -> None:
        import fednlp

        one = outcome(fednlp.run(experiment(changes), tmp_path / "one"))
        assert outcome(fednlp.run(experiment(changes | {"runtime.workers": 2}), tmp_path / "two")) == one
        with stopping(rounds=1) as callback:
            fednlp.run(experiment(changes), tmp_path / "stopped", callback=callback)
        assert outcome(fednlp.resume(tmp_path / "stopped")) == one

    return check
