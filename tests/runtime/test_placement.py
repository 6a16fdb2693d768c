"""Workers on GPUs, which are made up here: who has which, by the number, the setting and the file."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.runtime.placement import gpu_of, workers_by_gpu
from fednlp.training.worker_spec import pick_device


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(sum))
def test_each_gpu_has_the_workers_that_it_is_given(counts: list[int]) -> None:
    found = [gpu_of(worker, counts) for worker in range(sum(counts))]
    assert found == sorted(found)
    assert [Counter(found)[gpu] for gpu in range(len(counts))] == counts
    assert [gpu_of(worker + sum(counts), counts) for worker in range(sum(counts))] == found


def mapping(folder: Path, text: str) -> str:
    path = folder / "gpus.toml"
    path.write_text(text)
    return str(path)


def test_a_file_says_it_by_machine(tmp_path: Path) -> None:
    path = mapping(tmp_path, '"node1" = [2, 2]\nnode2 = [0, 4]\n')
    assert workers_by_gpu(2, 1, path, "node1") == [2, 2]
    assert workers_by_gpu(2, 1, path, "node2.example.org") == [0, 4]
    assert workers_by_gpu(3, 2, None, "any") == [2, 2, 2]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "node1 = [1]",
            r"gpus.toml names the machines node1, and this one is here: add a line such as \"here\"",
        ),
        ("here = [1]", r"gives here the workers \[1\], and it has 2 GPUs"),
        ("here = [0, 0]", "at least one worker"),
        ("here = [1, -1]", "is no mapping of workers to GPUs"),
        ("here = 2", "is no mapping of workers to GPUs"),
        ("here = [", "is no mapping of workers to GPUs"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        workers_by_gpu(2, 1, mapping(tmp_path, text), "here")


def test_a_file_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"there is no file gpus\.toml"):
        workers_by_gpu(2, 1, "gpus.toml")


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_worker_has_the_gpu_of_its_number(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    found = []
    for number in range(5):
        monkeypatch.setenv("FEDNLP_WORKER", str(number))
        found.append(str(pick_device(name, 2)))
    assert found == ["cuda:0", "cuda:0", "cuda:1", "cuda:1", "cuda:0"]


def test_without_a_gpu_the_cpu_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto", 2) == torch.device("cpu")
