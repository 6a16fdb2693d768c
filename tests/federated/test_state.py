"""A checkpoint is read back as it was, or refused in one line."""

import json
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from fednlp.errors import RunError
from fednlp.federated.params import Layout
from fednlp.federated.state import State

LAYOUT = Layout.of({"a": ((2, 3), "parameter"), "b": ((4,), "buffer")})


def saved(path: Path) -> Path:
    state = State(
        round=3,
        layout=LAYOUT,
        params=torch.arange(10, dtype=torch.float32),
        vectors={"momentum": torch.ones(10), "pseudo": torch.tensor([-1, 2], dtype=torch.int32)},
        memory={"labellings": 2, "search": {"paces": [[1, 2]]}},
    )
    state.save(path)
    return path


def test_it_is_read_back(tmp_path: Path) -> None:
    state = State.load(saved(tmp_path / "s"), LAYOUT)
    assert state.round == 3
    assert state.memory == {"labellings": 2, "search": {"paces": [[1, 2]]}}
    assert state.params.tolist() == list(range(10))
    assert {name: vector.tolist() for name, vector in state.vectors.items()} == {
        "momentum": [1] * 10,
        "pseudo": [-1, 2],
    }


def require_refused_or_read(path: Path) -> None:
    told = ""
    try:
        state = State.load(path, LAYOUT)
        assert state.round >= 0
        assert (state.params.shape, state.params.dtype) == ((10,), torch.float32)
    except RunError as error:
        told = str(error)
    assert "\n" not in told


@given(data=st.data())
def test_damaged_bytes(
    mutants: ModuleType, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = saved(tmp_path_factory.mktemp("state") / "s")
    path.write_bytes(mutants.damaged_bytes(data.draw, path.read_bytes()))
    require_refused_or_read(path)


@given(data=st.data())
def test_other_metadata(
    mutants: ModuleType, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = saved(tmp_path_factory.mktemp("state") / "s")
    told = {"round": 3, "memory": {"a": [1]}, "layout": LAYOUT.describe()}
    save_file(load_file(path), path, {"fednlp": json.dumps(mutants.changed(data.draw, told))})
    require_refused_or_read(path)


@pytest.mark.parametrize("text", ["[]", "{}", "3", "null", "{", '{"round": 1}', "[" * 10_000, "9" * 5_000])
def test_metadata_of_another_kind(tmp_path: Path, text: str) -> None:
    path = saved(tmp_path / "s")
    save_file(load_file(path), path, {"fednlp": text})
    with pytest.raises(RunError, match="cannot be read"):
        State.load(path, LAYOUT)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"y": torch.zeros(10)}, "cannot be read"),
        ({"params": torch.zeros(9)}, "another model"),
        ({"params": torch.zeros(10, dtype=torch.float16)}, "another model"),
        ({"params": torch.full((10,), torch.nan)}, "NaN"),
        ({"params": torch.zeros(10), "vector.m": torch.full((1,), torch.inf)}, "NaN"),
    ],
)
def test_other_tensors(tmp_path: Path, tensors: dict[str, torch.Tensor], said: str) -> None:
    told = {"round": 3, "memory": {}, "layout": LAYOUT.describe()}
    save_file(tensors, tmp_path / "s", {"fednlp": json.dumps(told)})
    with pytest.raises(RunError, match=said):
        State.load(tmp_path / "s", LAYOUT)
