"""What is printed of a value in a notebook is one short line, however much the value holds."""

from pathlib import Path

import numpy as np
import pytest
import torch

from fednlp.data import load_data
from fednlp.data.features import Features
from fednlp.federated.params import Layout
from fednlp.federated.state import State
from fednlp.federated.trainer import Federation
from fednlp.partition import from_owners, overview
from fednlp.reports.read import ClientTable, Run
from fednlp.simulation.run_dir import RunDir

OWNERS = np.arange(5000) % 1000
NAMED = from_owners(OWNERS, OWNERS, 1000, client_names=tuple(f"client {number}" for number in range(1000)))
LAYOUT = Layout.of({f"layer {number}": ((20, 10), "parameter") for number in range(1000)})
PARAMS = {f"layer {number}": torch.zeros(20, 10) for number in range(1000)}
NUMBERS = np.arange(1000)
CLIENTS = ClientTable(NUMBERS, tuple(map(str, NUMBERS)), NUMBERS, NUMBERS, NUMBERS / 1000, NUMBERS / 1000)
LINES = tuple({"round": number} for number in range(1000))

SHOWN = {
    "<Partition of 1,000 clients, named: 5,000 training and 5,000 test examples>": NAMED,
    "<Overview of 200 of 1,000 clients, 2 labels>": overview(NAMED, np.arange(5000) % 2, ("a", "b")),
    "<Layout of 1,000 tensors, 200,000 elements>": LAYOUT,
    "<State after 3 rounds: 200,000 elements, m, v>": State(
        3, LAYOUT, torch.zeros(200_000), {"m": torch.zeros(1), "v": torch.zeros(1)}
    ),
    "<Features of 300 examples: input_ids, label>": Features.in_memory(
        [{"input_ids": [1, 2, 3], "label": 1}] * 300
    ),
    "<Federation after 0 rounds: 1,000 tensors>": Federation(PARAMS, [], {}),
    "<ClientTable of 1,000 clients>": CLIENTS,
    "<Run tiny in runs/tiny: 1,000 rounds, 1,000 clients>": Run(
        Path("runs/tiny"), {"name": "tiny"}, {}, LINES, None, CLIENTS
    ),
    "RunDir(folder=PosixPath('runs/tiny'))": RunDir(Path("runs/tiny")),
}


@pytest.mark.parametrize("line", SHOWN)
def test_a_value_prints_as_one_line(line: str) -> None:
    assert repr(SHOWN[line]) == line


def test_loaded_data_print_as_one_line(texts: Path) -> None:
    expected = "<TextData texts: text-classification, 160 training and 40 test examples, 4 labels>"
    assert repr(load_data(path=texts)) == expected
