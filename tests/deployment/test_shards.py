"""A data set split into folders: each client's examples, in their order, and what the server has."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fednlp import config
from fednlp.config import Experiment
from fednlp.data import load_data
from fednlp.data.labels import with_labels
from fednlp.deployment.operate.shards import FEDERATION, folder_names, split_out
from fednlp.deployment.server.components import server_components, server_data
from fednlp.errors import ConfigError, DataError
from fednlp.partition import Partition
from fednlp.simulation.assignment import build_partition
from fednlp.simulation.components import open_data

Make = Callable[..., Experiment]


def quiet(text: str) -> None:
    """Log nothing."""


def test_shards_hold_the_partition_s_examples_in_their_order(experiment: Make, tmp_path: Path) -> None:
    made = experiment({"partition.alpha": 0.3}).resolved()
    data = open_data(made)
    partition = build_partition(made, data, quiet)
    shards = split_out(made, tmp_path / "shards", quiet)
    served = config.load(tmp_path / "shards" / FEDERATION)
    assert served.data.labels == list(data.label_names)
    for client, name in enumerate(shards.names):
        train, test = shards.files(name)
        own = with_labels(load_data(path=train, test_path=test, test_fraction=None), served.data.labels or ())
        numbers = partition.train(client)
        assert own.input_texts("train", own.train_numbers) == data.input_texts("train", numbers)
        assert np.array_equal(own.labels("train")[own.train_numbers], data.labels("train")[numbers])
        tests = partition.test(client)
        assert (test is None) is (len(tests) == 0)
        assert own.input_texts("test", own.test_numbers) == data.input_texts("test", tests)
    there = server_data(served)
    assert Path(served.data.test_path or "").name == there.source  # the sites are told of it
    assert len(there.train_numbers) == 0
    assert there.input_texts("test", there.test_numbers) == data.input_texts("test", data.test_numbers)
    with pytest.raises(ConfigError, match="is not empty: choose another folder"):
        split_out(made, tmp_path / "shards", quiet)


@pytest.mark.usefixtures("empty_cache")
def test_a_server_needs_no_data(experiment: Make) -> None:
    """Labels are enough; without a test set there are features of nothing, of which nothing is said."""
    served = experiment(
        {
            "data": {"name": "sites", "labels": ["no", "yes"]},
            "task.name": "text-classification",
            "partition": None,
        }
    ).resolved()
    said: list[str] = []
    components = server_components(served, said.append)
    assert not any("tokenising" in line for line in said)
    assert components.data.label_names == ("no", "yes")
    assert len(components.data.test_numbers) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "sites", "labels": ["a", "b"]}}, "no data to infer the task from"),
        ({}, 'say data.name = "sites"'),
        (
            {
                "data": {"name": "sites", "labels": ["a", "b"]},
                "task.name": "text-classification",
                "model.name_or_path": "lstm",
            },
            "a pretrained model",
        ),
    ],
)
def test_what_a_server_cannot_run_is_refused(
    experiment: Make, changes: dict[str, object], message: str
) -> None:
    made = experiment({"partition": None, **changes}).resolved()
    with pytest.raises(ConfigError, match=message):
        server_components(made, quiet)


@pytest.mark.parametrize(
    ("names", "folders"),
    [
        (("b/nord.csv", "süd"), ("nord", "süd")),
        (("a.csv", "x/a.csv"), ("client-0", "client-1")),
        (("..", "b"), ("client-0", "client-1")),
    ],
)
def test_folders_are_called_as_the_clients_where_they_can_be(
    names: tuple[str, str], folders: tuple[str, str]
) -> None:
    assert folder_names(Partition([0, 1, 2], [0, 1], [0, 0, 0], [], [0, 1], names)) == folders


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "sites", "path": "x.csv"}, 'name = "sites" has no path'),
        ({"path": "x.csv", "labels": ["a", "b"]}, 'labels are for name = "sites"'),
        ({"name": "sites", "labels": ["a", "a"]}, "each is to be named once"),
    ],
)
def test_data_at_sites_are_said_plainly(experiment: Make, data: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        experiment({"data": data})


def test_a_simulation_of_data_at_sites_says_what_to_type(experiment: Make, tmp_path: Path) -> None:
    import fednlp

    made = experiment(
        {
            "data": {"name": "sites", "labels": ["a", "b"]},
            "task.name": "text-classification",
            "partition": None,
        }
    )
    with pytest.raises(DataError, match="start the server with: fednlp serve"):
        fednlp.run(made, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert json.loads(made.model_dump_json())["data"]["labels"] == ["a", "b"]
