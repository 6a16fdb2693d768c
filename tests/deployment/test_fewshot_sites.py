"""Few-shot learning between machines: labels stay at the sites, and the run is the simulation's, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import fednlp
from fednlp import config
from fednlp.config import Experiment
from fednlp.data import load_data
from fednlp.data.labels import with_labels
from fednlp.deployment.operate.shards import TRAIN, split_out
from fednlp.deployment.server.components import server_components
from fednlp.deployment.session.messages import Reply, from_client
from fednlp.deployment.session.servable import require_servable
from fednlp.deployment.session.setup import ENCODER_FILES, Ready, Setup, model_files, read_experiment
from fednlp.deployment.site.disclosure import redact_labels
from fednlp.deployment.site.policy import Allow, parse_policy
from fednlp.deployment.site.refusals import check_settings
from fednlp.deployment.site.site import Site
from fednlp.disk import sha256_of
from fednlp.errors import ConfigError, RunError
from fednlp.federated.client import TrainRequest
from fednlp.fewshot.config import Fewshot
from fednlp.fewshot.deployment.server import PSEUDO as REMOTE_PSEUDO
from fednlp.fewshot.deployment.site import LabelsKept, SiteLabels, redact_kept
from fednlp.fewshot.pacing import LabelQuota
from fednlp.fewshot.simulation.central_labels import PSEUDO
from fednlp.runtime.messages import to_json
from fednlp.tasks import agreed_fields
from fednlp.training.requests.predict import Labels

from .machines import Machines
from .test_federation import allows, deploy, quiet, rounds

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]

FEW: dict[str, Any] = {"gold": 12, "gamma": 1.0, "f": 1, "n": 2, "k": 20.0}
SETTINGS: dict[str, Any] = {
    "num_rounds": 3,
    "clients_per_round": 2,
    "partition.clients": 4,
    "task.name": "text-classification",
}
METHODS: dict[str, dict[str, Any]] = {
    "gold alone": {"fewshot": FEW | {"pacing": "none"}},
    "static": {"fewshot": FEW | {"pacing": "static", "f": 2, "per_client": 5}, "algorithm.name": "fedprox"},
    "curriculum": {"fewshot": FEW | {"class_balanced": True}, "costs": {"device": "jetson-tx2"}},
    "filter": {"fewshot": FEW | {"filter_ratio": 0.5, "noisy_client_fraction": 0.5}},
    "search": {
        "fewshot": FEW
        | {"pacing": "search", "trial_rounds": 2, "validation": 20, "candidates": 2, "window": 2}
        | {"max_searches": 1},
        "num_rounds": 16,
        "evaluation.every": 8,
        "algorithm.name": "fedopt",
    },
    "own head": {
        "fewshot": FEW | {"n": 4},
        "model.train": {"personal": ["head"]},
        "num_rounds": 4,
    },
    "finetuned": {
        "fewshot": FEW,
        "client.finetune_steps": 2,
        "exchange.down": ["bfloat16"],
        "evaluation.keep_client_models": 0,
    },
}


@pytest.fixture
def encoder(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny model in place of the one that filters texts."""
    from fednlp.models.resolve import resolve_model

    def resolve(name: str) -> str:
        return resolve_model(str(tiny_model) if name == "minilm" else name)

    monkeypatch.setattr("fednlp.models.resolve.resolve_model", resolve)
    monkeypatch.setattr("fednlp.fewshot.deployment.server.resolve_model", resolve)


def known_between_machines(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of a simulation without what the true labels say, which no federation has."""
    return [{key: value for key, value in line.items() if key != "hidden_truth"} for line in lines]


@pytest.mark.parametrize(
    "method",
    [
        name if name == "own head" else pytest.param(name, marks=pytest.mark.slow)  # as in tests/laws
        for name in METHODS
    ],
)
@pytest.mark.slow
def test_a_deployment_is_the_simulation(method: str, experiment: Make, encoder: None, tmp_path: Path) -> None:
    made = experiment(SETTINGS | METHODS[method])
    simulated = fednlp.run(made, tmp_path / "simulated")
    deployed = deploy(split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path)
    lines = known_between_machines(rounds(simulated))
    if method == "own head":  # no site has the global test set
        del lines[-1]["evaluation"]["global"]
    assert rounds(deployed) == lines
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] == weights[1]
    if made.fewshot is not None and made.fewshot.pacing != "none":
        assert rounds(deployed)[-1]["labels"]["pseudo"] > 0


def labelled_rows(path: Path, names: list[str]) -> tuple[list[str], np.ndarray]:
    """Return the texts of a shard and their label ids, -1 for none."""
    data = with_labels(load_data(path=path, test_fraction=None, unlabelled=True), names)
    return data.input_texts("train", data.train_numbers), data.labels("train")


def test_shards_hold_the_gold_labels_alone(experiment: Make, tmp_path: Path) -> None:
    """A site's file has the labels that the simulation draws, wrong ones too; every other label is empty."""
    from fednlp.fewshot.simulation.gold_labels import drawn_gold_labels
    from fednlp.simulation.assignment import build_partition
    from fednlp.simulation.components import open_data

    made = experiment({"fewshot": FEW | {"noisy_client_fraction": 0.5}}).resolved()
    data = open_data(made)
    partition = build_partition(made, data, quiet)
    gold = drawn_gold_labels(made, data.labels("train"), data.label_names, partition)
    shards = split_out(made, tmp_path / "shards", quiet)
    found = 0
    for client, name in enumerate(shards.names):
        texts, labels = labelled_rows(shards.folder / name / TRAIN, shards.experiment.data.labels or [])
        numbers = np.sort(partition.train(client))
        assert texts == data.input_texts("train", numbers)
        known = dict(zip(*(array.tolist() for array in gold.of(client)), strict=True))
        assert labels.tolist() == [known.get(number, -1) for number in numbers.tolist()]
        found += len(known)
        assert pq.read_table(shards.folder / name / TRAIN)["label"].to_pylist().count("") == len(texts) - len(
            known
        )
    assert found == FEW["gold"]
    assert shards.experiment.fewshot is not None
    assert shards.experiment.fewshot.gold == Fewshot().gold
    require_servable(shards.experiment)


@pytest.mark.slow
def test_machines_that_are_killed_end_as_the_simulation(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who trains and labels in a round, with a head of its own; and nobody who was not killed labels twice."""
    made = experiment(SETTINGS | METHODS["own head"])
    simulated = fednlp.run(made, tmp_path / "simulated")
    kept: list[str] = []
    keep = SiteLabels.keep

    def counted(self: SiteLabels, round_number: int, found: Labels, quota: LabelQuota) -> int:
        kept.append(f"{self.folder.parent.name} {round_number}")
        return keep(self, round_number, found, quota)

    monkeypatch.setattr(SiteLabels, "keep", counted)
    machines = Machines(
        split_out(made.resolved(), tmp_path / "shards", quiet),
        tmp_path,
        server_deaths=[(1, "label", 2), (2, "label", 1), (2, "train", 1), (3, "label", 4)],
        site_deaths=[(0, "label", False), (0, "train", True), (1, "label", True), (1, "train", False)],
    )
    deployed = machines.run()
    lines = known_between_machines(rounds(simulated))
    del lines[-1]["evaluation"]["global"]
    assert rounds(deployed) == lines
    weights = [(run.folder / "model" / "model.safetensors").read_bytes() for run in (simulated, deployed)]
    assert weights[0] == weights[1]
    assert machines.server_deaths == []
    assert machines.site_deaths == set()
    assert len(kept) <= 4 * 4 + 1
    assert len([one for one in kept if one.startswith(("site-2", "site-3"))]) == 2 * 4


def test_no_text_and_no_label_leaves_a_site(experiment: Make, tmp_path: Path) -> None:
    machines = Machines(
        split_out(experiment(SETTINGS | METHODS["curriculum"]).resolved(), tmp_path / "shards", quiet),
        tmp_path,
    )
    deployed = machines.run()
    labelled = sum(len(line["labelling"]) for line in rounds(deployed))
    said: dict[str, list[Any]] = {}
    for frame in machines.frames:
        message, _ = from_client(frame)
        if isinstance(message, Reply):
            said.setdefault(message.id.rpartition(".")[2], []).append(message.answer)
    assert len(said["label"]) == labelled > 0
    assert all(answer.keys() == to_json(LabelsKept(0)).keys() for answer in said["label"])  # type: ignore[union-attr]
    assert all(
        answer.keys() == {"train", "test", "gold", "candidates", "clients"} for answer in said["setup"]
    )
    sent = b"".join(machines.frames)
    for name in machines.names:
        texts, _ = labelled_rows(
            machines.shards.folder / name / TRAIN, machines.shards.experiment.data.labels or []
        )
        assert not any(text.encode() in sent for text in texts if len(text) > 20)
    assert PSEUDO == REMOTE_PSEUDO  # of the same name in the checkpoint, and a number for each site there
    vectors = load_file(deployed.state)
    assert vectors[f"vector.{PSEUDO}"].shape == (len(machines.names),)
    assert not [*tmp_path.glob("site-*/labels/*")], "labels stay on the disk after the run"


def test_a_site_that_fails_to_label_keeps_the_labels_that_it_had(experiment: Make, tmp_path: Path) -> None:
    made = experiment(SETTINGS | {"fewshot": FEW | {"n": 4}})
    machines = Machines(
        split_out(made.resolved(), tmp_path / "shards", quiet), tmp_path, absent=[(1, "label")]
    )
    lines = rounds(machines.run())
    assert [line["labelling"] for line in lines] == [[0, 2, 3]] * 3
    assert [line["labelling_dropped"] for line in lines] == [[{"client": 1, "reason": "gone"}]] * 3
    assert all(line["labels"]["pseudo"] > 0 for line in lines)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_a_server_that_may_not_know_sizes_knows_whether_there_are_labels(
    gold: int, candidates: int, kept: int
) -> None:
    ready, silent = Ready(train=1, test=0), Allow(tell_size=False)
    told = redact_labels(silent, ready, gold, candidates)
    assert (told.gold, told.candidates) == (int(gold > 0), int(candidates > 0))
    assert redact_kept(silent, LabelsKept(0, kept)) == LabelsKept(0, 1)
    assert redact_labels(Allow(), ready, gold, candidates).gold == gold
    assert redact_kept(Allow(), LabelsKept(0, kept)).labels == kept


def test_a_site_may_forbid_pseudo_labels(experiment: Make) -> None:
    policy = parse_policy({"allow": {"pseudo_labels": False}})
    (refusal,) = check_settings(policy, experiment({"fewshot": FEW}))
    assert str(refusal) == (
        "allow.pseudo_labels = false, the experiment has sites label texts by the model (fewshot.pacing)"
    )
    assert check_settings(policy, experiment({"fewshot": FEW | {"pacing": "none"}})) == []
    assert check_settings(parse_policy({}), experiment({"fewshot": FEW})) == []


@pytest.mark.parametrize(
    ("few", "message"),
    [
        ({"gold": 12}, "fewshot.gold is for simulations"),
        ({"gamma": 9.0}, "fewshot.gamma is for simulations"),
        ({"detect_label_noise": True}, "fewshot.detect_label_noise compares the gold labels of all clients"),
        (
            {"label_counts": "truth"},
            'label_counts = "truth" reads the labels of unlabelled texts, and a federation between',
        ),
        ({"pacing": "search", "trial_rounds": 2}, "say data.validation_path"),
        ({"filter_ratio": 0.2, "filter": "random"}, "is a baseline of simulations"),
    ],
)
def test_what_a_server_without_labels_cannot_do_is_refused(
    experiment: Make, few: dict[str, Any], message: str
) -> None:
    data = {"name": "sites", "labels": ["a", "b"]}
    made = {"data": data, "partition": None, "task.name": "text-classification", "fewshot": {}}
    require_servable(experiment(made).resolved())
    with pytest.raises(ConfigError, match=message):
        require_servable(experiment(made | {"fewshot": few}).resolved())


def test_true_label_counts_are_not_split_out_or_rehearsed(experiment: Make, tmp_path: Path) -> None:
    made = experiment({"fewshot": FEW | {"label_counts": "truth"}}).resolved()
    with pytest.raises(
        ConfigError,
        match=r"a federation between machines leaves each client and its texts at a site",
    ):
        split_out(made, tmp_path / "shards", quiet)


def test_a_site_refuses_an_experiment_with_true_label_counts(experiment: Make) -> None:
    data = {"name": "sites", "labels": ["a", "b"]}
    made = experiment({"data": data, "partition": None, "task.name": "text-classification", "fewshot": {}})
    sections = made.model_dump(exclude_none=True)
    read_experiment(sections)
    with pytest.raises(
        RunError, match=r"fewshot\.label_counts = .truth. reads the labels of unlabelled texts"
    ):
        read_experiment(sections | {"fewshot": {"label_counts": "truth"}})


def test_secure_sums_do_not_go_with_labels_at_sites(experiment: Make, tmp_path: Path) -> None:
    made = experiment({"fewshot": FEW, "secure.protocol": "secagg+"}).resolved()
    with pytest.raises(ConfigError, match=r"leave \[secure\] out, or leave \[fewshot\] out"):
        split_out(made, tmp_path / "shards", quiet)


def site_labels(folder: Path, run: str = "run", texts: int = 10) -> SiteLabels:
    file = folder / "notes.csv"
    file.write_text("text,label\n" + "".join(f"word{n},{'ab'[n] if n < 2 else ''}\n" for n in range(texts)))
    data = load_data(path=file, test_fraction=None, task="text-classification", unlabelled=True)
    made = config.parse({"data": {"name": "sites"}, "fewshot": {}})
    return SiteLabels(folder / "labels", run, made, data, folder, quiet)


def test_a_site_trains_by_the_labelling_that_the_server_names(tmp_path: Path) -> None:
    """Whatever was labelled later, and after a restart: so the labels of a round that came to nothing do not count."""
    labels = site_labels(tmp_path)
    assert labels.gold[0].tolist() == [0, 1]
    assert labels.candidates.tolist() == [*range(2, 10)]
    expected = {0: ([0, 1], [0, 1])}
    for number in (1, 2, 4):
        confidences = np.random.default_rng(number).random(8)
        assert labels.keep(number, Labels([number % 2] * 8, confidences.tolist()), LabelQuota(50.0, 3)) == 3
        best = sorted((np.argsort(-confidences)[:3] + 2).tolist())
        expected[number] = [0, 1, *best], [0, 1, *[number % 2] * 3]
    again = site_labels(tmp_path)
    for number, (examples, known) in expected.items():
        request = again.with_labels(TrainRequest(0, 9, 1.0, labelling=number))
        assert (request.examples, request.labels) == (examples, known)
    assert again.with_labels(TrainRequest(0, 9, 1.0)) == TrainRequest(0, 9, 1.0)
    with pytest.raises(RunError, match="the labels of round 3 are not at this site"):
        again.labelled(3)
    assert (tmp_path / "labels" / "1.npz").stat().st_mode & 0o077 == 0


def test_labels_are_of_one_run_and_of_the_data_that_were_labelled(tmp_path: Path) -> None:
    site_labels(tmp_path, texts=12)  # of a dry run: it has labelled nothing
    site_labels(tmp_path).keep(1, Labels([0] * 8, [0.5] * 8), LabelQuota(50.0))
    with pytest.raises(RunError, match="data have changed since it gave texts pseudo labels"):
        site_labels(tmp_path, texts=11)
    assert len(site_labels(tmp_path).labelled(1)[0]) == 6
    with pytest.raises(RunError, match="round 1 are not at this site"):
        site_labels(tmp_path, run="another", texts=11).labelled(1)


def test_a_dry_run_says_what_is_told_of_labels(experiment: Make, encoder: None, tmp_path: Path) -> None:
    """The texts are not filtered for it; and a site that forbids labels refuses the run with the key."""
    shards = split_out(experiment(SETTINGS | METHODS["filter"]).resolved(), tmp_path / "shards", quiet)
    components = server_components(shards.experiment, quiet)
    setup = Setup(
        experiment=shards.experiment.model_dump(exclude_none=True),
        task=components.task_spec,
        task_fields=agreed_fields(components.task),
        longest=components.longest,
        client=0,
        clients=4,
        run="run",
    )
    files = model_files(Path(components.source)) | model_files(Path(components.source), ENCODER_FILES)
    objects = {}
    for name, path in files.items():
        objects[name] = tmp_path / sha256_of(path)
        objects[name].write_bytes(path.read_bytes())
    train, test = shards.files(shards.names[0])
    _, labels = labelled_rows(train, shards.experiment.data.labels or [])
    gold = int((labels >= 0).sum())
    site = Site(tmp_path / "site", "nord", allows(train, test), quiet)
    lines = [line.strip() for line in site.examine(setup, objects, "here", None)[0]]
    assert f"this site   nord, {len(labels)} training examples, {gold} of them with a label" in lines
    assert "labels: texts without a label are given one by the model; these labels stay here" in lines
    assert "how many of its examples have a label, and how many texts it can label and has labelled" in lines
    assert sum("encoder:" in line for line in lines) == len(model_files(Path(components.source)))
    assert (tmp_path / "site" / "encoder" / "config.json").is_file()
    only = sha256_of(objects["encoder:config.json"])
    policy = parse_policy({"data": {"path": str(train)}, "allow": {"models": [f"sha256:{only}"]}})
    objects["start:config.json"] = tmp_path / "another"
    objects["start:config.json"].write_bytes(objects["encoder:config.json"].read_bytes() + b"\n")
    with pytest.raises(RunError, match=r"allow\.models"):
        Site(tmp_path / "site", "nord", policy, quiet).answer("setup", setup.model_dump(), objects)
