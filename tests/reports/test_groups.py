"""Runs that differ in their seeds alone are one group; everything else tells groups apart."""

from collections.abc import Callable
from pathlib import Path

from fednlp.reports.groups import differing, group_runs, settings
from fednlp.reports.read import Run, read_run

NewRun = Callable[..., Path]


def test_seeds_of_one_algorithm_are_one_group_in_the_order_of_seeds(new_run: NewRun) -> None:
    folders = [new_run(f"{a}{s}", algorithm=a, seed=s) for s in (2, 0, 1) for a in ("fedprox", "centralised")]
    groups = group_runs([read_run(folder) for folder in folders])
    assert {label: [run.seed for run in runs] for label, runs in groups.items()} == {
        "FedProx": [0, 1, 2],
        "Centralised": [0, 1, 2],
    }


def test_runs_of_other_settings_are_never_averaged_and_their_labels_say_how_they_differ(
    new_run: NewRun,
) -> None:
    def partition(alpha: float) -> dict[str, object]:
        return {"partition": {"method": "label", "clients": 20, "alpha": alpha, "seed": 0}}

    folders = [new_run(f"p{a}", config=partition(a)) for a in (0.1, 1.0)]
    folders.append(new_run("slow", config=partition(1.0) | {"client": {"optimizer": "sgd"}}))
    folders.append(new_run("avg", algorithm="fedavg", config=partition(1.0)))
    groups = group_runs([read_run(folder) for folder in folders])
    assert [len(runs) for runs in groups.values()] == [1, 1, 1, 1]
    labels = list(groups)
    assert labels[0].startswith("FedOpt (alpha 0.1")
    assert labels[1].startswith("FedOpt (alpha 1.0")
    assert "optimizer sgd" in labels[2]
    assert labels[3] == "FedAvg (alpha 1.0)"


def test_what_changes_no_result_divides_no_group(new_run: NewRun) -> None:
    one = new_run("one", seed=0, config={"name": "a", "runtime": {"workers": 1}})
    two = new_run(
        "two", seed=1, config={"name": "b", "runtime": {"workers": 2}, "report": {"report_to": ["wandb"]}}
    )
    assert [len(runs) for runs in group_runs([read_run(one), read_run(two)]).values()] == [2]


def test_the_same_configuration_and_seed_count_once_and_the_further_run_is_kept(new_run: NewRun) -> None:
    begun = new_run("begun", seed=0, rounds=6, finished=False)
    done = new_run("done", seed=0, rounds=6)
    for order in ((begun, done), (done, begun)):
        groups = group_runs([read_run(folder) for folder in order])
        assert [[run.folder.name for run in runs] for runs in groups.values()] == [["done"]]


def test_differing_names_the_keys_on_which_tables_disagree() -> None:
    assert differing([{"a": 1, "b": [1]}, {"a": 1, "b": [2]}, {"a": 1, "b": [1], "c": None}]) == ["b"]
    assert differing([{"a": 1}]) == []


def test_settings_that_came_later_do_not_divide_older_runs_from_newer_ones(new_run: NewRun) -> None:
    client = {"optimizer": "adamw", "learning_rate": 5e-4, "max_steps": -1, "per_device_train_batch_size": 8}
    old = new_run("old", seed=0, config={"client": client | {"warmup_ratio": 0.0}})
    later = {
        "client": client | {"warmup_steps": 0, "keep_optimizer": False, "finetune_steps": 0},
        "exchange": {"up": [], "down": [], "error_feedback": False},
        "pull": {"rule": "all", "share": 0.5, "of": "tensors", "push": "all"},
        "costs": {},
        "model": {"name_or_path": "bert-tiny", "max_length": 128, "train": "all", "config": {}},
    }
    new = new_run("new", seed=1, config=later)
    assert [len(runs) for runs in group_runs([read_run(old), read_run(new)]).values()] == [2]
    other = new_run("other", seed=2, config=later | {"exchange": {"up": ["float16"]}})
    assert [len(runs) for runs in group_runs([read_run(f) for f in (old, new, other)]).values()] == [2, 1]


def test_a_table_of_settings_stands_in_place_of_the_default_word(new_run: NewRun) -> None:
    run = read_run(new_run(config={"model": {"train": {"critical_layer": 2}}}))
    found = settings(run)
    assert found["model.train.critical_layer"] == 2
    assert "model.train" not in found
    assert "pull.share" not in found
    assert settings(read_run(new_run("low", config={"pull": {"rule": "low"}})))["pull.share"] == 0.5


def test_variants_go_by_their_names_and_say_more_only_among_their_like(new_run: NewRun) -> None:
    def run(name: str, variant: str, layer: int, alpha: float = 1.0) -> Run:
        config = {
            "variant": variant,
            "model": {"train": {"critical_layer": layer}},
            "partition": {"method": "label", "alpha": alpha},
        }
        return read_run(new_run(name, config=config))

    runs = [run("a", "low", 2), run("b", "high", 4)]
    local = read_run(new_run("l", algorithm="local"))
    assert list(group_runs([*runs, local])) == ["low", "high", "Local only"]
    assert list(group_runs([*runs, run("c", "low", 2, 0.1)])) == [
        "low (alpha 1.0)",
        "high",
        "low (alpha 0.1)",
    ]
