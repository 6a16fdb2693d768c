"""Workers on GPUs, which are made up here: who has which, by the number, the setting and the file."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fednlp.config.sections import Runtime
from fednlp.errors import ConfigError, RunError
from fednlp.inference.model import device_for
from fednlp.runtime.placement import gpu_of, gpu_share, most_workers, worker_number, workers_by_gpu
from fednlp.training.worker_spec import pick_device


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8).filter(sum))
def test_each_gpu_has_the_workers_that_it_is_given(counts: list[int]) -> None:
    found = [gpu_of(worker, counts) for worker in range(sum(counts))]
    assert [Counter(found)[gpu] for gpu in range(len(counts))] == counts
    assert [gpu_of(worker + sum(counts), counts) for worker in range(sum(counts))] == found


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 40))
def test_no_gpu_has_two_workers_more_than_another_whatever_their_number(
    gpus: int, each: int, workers: int
) -> None:
    held = Counter(gpu_of(worker, [each] * gpus) for worker in range(workers))
    assert max(held.values()) - min(held[gpu] for gpu in range(gpus)) <= 1


@given(st.integers(1, 500), st.integers(0, 64))
def test_each_worker_of_a_cluster_finds_a_share_of_one_gpu(workers: int, gpus: int) -> None:
    units = round(10_000 * gpu_share(workers, gpus))
    assert units / 10_000 == gpu_share(workers, gpus)
    assert 0 <= units <= 10_000
    assert (units > 0) == (gpus > 0)
    if gpus:
        assert gpus * (10_000 // units) >= workers


MACHINES = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), min_size=1, max_size=4)


@given(MACHINES, st.integers(1, 4), st.integers(1, 12))
def test_workers_that_find_a_place_are_those_that_can_be_placed_one_by_one(
    machines: list[tuple[int, int]], threads: int, workers: int
) -> None:
    share = gpu_share(workers, sum(gpus for _, gpus in machines))
    units, placed = round(10_000 * share), 0
    for cores, gpus in machines:
        free = [10_000] * gpus
        while cores >= threads and (not units or any(one >= units for one in free)):
            cores -= threads
            if units:
                place = next(gpu for gpu, one in enumerate(free) if one >= units)
                free[place] -= units
            placed += 1
    assert most_workers(machines, threads, share) == placed


@pytest.mark.parametrize(
    ("environment", "number"),
    [
        ({"SLURM_LOCALID": "3", "PMI_RANK": "11"}, 3),
        ({"SLURM_LOCALID": "0", "MPI_LOCALRANKID": "2"}, 2),
        ({"FEDNLP_WORKER": "1", "SLURM_LOCALID": "0"}, 1),
    ],
)
def test_a_rank_knows_its_number_on_its_machine(environment: dict[str, str], number: int) -> None:
    """``srun`` says it in a variable of its own; in a job of Slurm ``mpirun`` and the pool know better."""
    assert worker_number(environment) == number


def mapping(folder: Path, text: str, name: str = "gpus.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_says_it_by_machine(tmp_path: Path) -> None:
    path = mapping(tmp_path, '"node1" = [2, 2]\nnode2 = [0, 4]\n')
    assert workers_by_gpu(2, 1, path, "node1") == [2, 2]
    assert workers_by_gpu(2, 1, path, "node2.example.org") == [0, 4]
    assert workers_by_gpu(3, 2, None, "any") == [2, 2, 2]


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("here: [2, 2]\n", [2, 2]),
        ("mapping_default:\n    here: [2, 2]\nmapping_other:\n    node1: [0, 1]\n", [2, 2]),
        ("mapping_default:\n    node1: [0, 1]\n", "names the machines node1, and this one is here"),
        (
            "a:\n  here: [2, 2]\nb:\n  here: [0, 1]\n",
            "names here in a and b: keep it in the one that is meant",
        ),
        ("a:\n  here: 2\n", "is no mapping of workers to GPUs"),
        ("here: [2, -1]\n", "is no mapping of workers to GPUs"),
        ("here: [", "is no mapping of workers to GPUs"),
        ("", "is no mapping of workers to GPUs"),
    ],
)
def test_a_file_of_fednlp_says_it_in_yaml(text: str, counts: list[int] | str, tmp_path: Path) -> None:
    path = mapping(tmp_path, text, "gpu_mapping.yaml")
    if isinstance(counts, list):
        assert workers_by_gpu(2, 1, path, "here") == counts
    else:
        with pytest.raises(ConfigError, match=counts):
            workers_by_gpu(2, 1, path, "here")


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
        ("node1.example.org = [1]", "its name, in quotes, and a number for each GPU"),
        ("here = [1, 1]\nhere = [2, 2]", "not valid TOML: Cannot overwrite a value"),
        ("here = [", "is not valid TOML"),
        ("", r"names the machines \(none\), and this one is here: add a line such as \"here\" = \[1, 1\]"),
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
    assert found == ["cuda:0", "cuda:1", "cuda:0", "cuda:1", "cuda:0"]


def test_without_a_gpu_the_cpu_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert pick_device("auto", 2) == torch.device("cpu")


@pytest.mark.parametrize(("counts", "refused"), [("[]", False), ("[2, 2]", True), ("[0]", True)])
def test_a_mapping_is_not_forgotten_where_no_gpu_is_seen(
    counts: str, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``CUDA_VISIBLE_DEVICES=""``, or a driver that does not start."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    path = mapping(tmp_path, f"here = {counts}")
    if refused:
        with pytest.raises(ConfigError, match=r"it has 0 GPUs \(CUDA_VISIBLE_DEVICES may hide some\)"):
            pick_device("auto", 1, path)
    else:
        assert pick_device("auto", 1, path) == torch.device("cpu")
    assert pick_device("cpu", 1, path) == torch.device("cpu")


def runtime(**settings: object) -> Runtime:
    return Runtime.model_validate(settings)


def test_a_model_that_is_used_computes_where_its_run_did_or_where_it_is_told_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    second = mapping(tmp_path, "here = [0, 4]")
    assert str(device_for(runtime())) == "cuda:0"
    assert str(device_for(runtime(gpu_mapping=second))) == "cuda:1"
    assert str(device_for(runtime(gpu_mapping=second), "cpu")) == "cpu"
    assert str(device_for(runtime(device="cpu", gpu_mapping=second))) == "cpu"


@pytest.mark.parametrize("text", ["there = [0, 4]", "here = [0, 1, 1]", None])
def test_the_mapping_of_other_machines_is_not_that_of_a_model_that_is_used(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one whose GPUs ``CUDA_VISIBLE_DEVICES`` hides, nor a file that was left behind."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("socket.gethostname", lambda: "here")
    path = "gone.toml" if text is None else mapping(tmp_path, text)
    assert str(device_for(runtime(gpu_mapping=path))) == "cuda:0"


@pytest.mark.parametrize(("device", "chosen"), [("cuda:7", None), ("cpu", "cuda:7"), ("auto", "gpu")])
def test_a_device_that_is_not_here_says_how_to_choose(
    device: str, chosen: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RunError, match="here: say --device cpu, or --device auto"):
        device_for(runtime(device=device), chosen)


@pytest.mark.parametrize("name", ["meta", "quantum", "cuda:99", ""])
def test_a_device_that_is_not_there_or_holds_no_values(name: str) -> None:
    with pytest.raises(RunError, match=f'there is no device "{name}" here: say runtime.device = "cpu"'):
        pick_device(name)
