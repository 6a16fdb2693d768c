"""What is shared, transformed and pulled, in words; and whether clients keep tensors to themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fednlp.reports.client_tensors import keeps_tensors, own_models
from fednlp.reports.content import _all_metrics
from fednlp.reports.describe import communication_summary, describe_method, frozen_summary
from fednlp.reports.document import Grid
from fednlp.reports.modelcard import model_card
from fednlp.reports.read import read_run
from fednlp.reports.table import compare_table

NewRun = Callable[..., Path]


@pytest.mark.parametrize(
    ("train", "expected"),
    [
        ("all", ""),
        (["all"], ""),
        ("bias", "Biases shared, the rest frozen."),
        (["bias", "head"], "Biases, the head shared, the rest frozen."),
        (
            {"shared": "layer.0-3", "personal": ["layer.4-5", "head"], "frozen": "embeddings"},
            "Layers 0-3 shared, layers 4-5, the head personal, embeddings frozen, the rest frozen.",
        ),
        ({"personal": "head"}, "The head personal, the rest shared."),
        ({"frozen": ["decoder.layer.2:bias"]}, "Decoder layer 2 (bias) frozen, the rest shared."),
        (
            {"critical_layer": 4},
            "Layers 0-3 shared, the layers from 4 on, if any, and with them the head personal, embeddings frozen.",
        ),
        (
            {"critical_layer": 0, "embeddings": "shared"},
            "No layer shared, the layers from 0 on, if any, and with them the head personal, embeddings shared.",
        ),
        ("re:q_proj", "What fits q_proj shared, the rest frozen."),
    ],
)
def test_a_selection_is_described(train: Any, expected: str) -> None:
    assert communication_summary({"model": {"train": train}}) == expected


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"exchange": {"up": [], "down": [], "error_feedback": False}, "pull": {"rule": "all"}}, ""),
        (
            {"exchange": {"up": ["topk:0.01", "int8"], "down": ["float16"], "error_feedback": True}},
            "Updates sent as the largest 1 % of the values, then 8-bit integers; the model sent as float16; what an "
            "update loses is added to the client's next one.",
        ),
        (
            {"pull": {"rule": "low", "share": 0.5, "of": "tensors", "push": "all"}},
            "Each client sends 50 % of the tensors that moved least since its last round.",
        ),
        (
            {"pull": {"rule": "random", "share": 0.25, "of": "parameters", "push": "selected"}},
            "Each client sends 25 % of the parameters drawn again each time, and gets these alone back.",
        ),
    ],
)
def test_exchange_and_pulling_are_described(config: Any, expected: str) -> None:
    assert communication_summary(config) == expected


def test_the_aggregator_and_the_attack_are_described(new_run: NewRun) -> None:
    """In the report's first paragraph, and in the model card, which says what such a model is not for."""
    config = {
        "algorithm": {"name": "my_methods:feddyn", "weighting": "uniform", "options": {"alpha": 0.1}},
        "aggregator": {"name": "trimmed-mean", "options": {}, "fraction": 0.2},
        "attack": {"name": "mine:free_rider", "fraction": 0.25, "options": {"lazy": 2}},
    }
    text = describe_method(config)
    assert text.startswith("feddyn (alpha 0.1): ")
    assert "The updates are aggregated by: trimmed mean (fraction 0.2)." in text
    assert "25 % of the clients attack: free_rider (lazy 2)." in text
    one = describe_method({"clients_per_round": 1, "num_rounds": 1})
    assert one.startswith("unknown: 1 client a round, 1 round asked for;")
    assert "aggregated" not in describe_method({})
    assert "attack" not in describe_method({})
    run, plain = read_run(new_run("a", config=config)), read_run(new_run("b"))
    assert run.summary is not None
    assert plain.summary is not None
    card = model_card(run.summary, run.config, {})
    assert "aggregated by: trimmed mean" in card
    assert "Some clients attacked the training on purpose" in card
    assert "attack" not in model_card(plain.summary, plain.config, {})


@pytest.mark.parametrize("odd", [3, "x", [], None, ["topk:"], {"up": 5}, {"up": ["topk:x\n"]}, {"rule": []}])
def test_odd_configurations_are_said_somehow(odd: Any) -> None:
    config = {"model": {"train": odd}, "exchange": odd, "pull": odd, "aggregator": odd, "attack": odd}
    assert "\n" not in communication_summary(config) + frozen_summary(config) + describe_method(config)
    assert keeps_tensors(config) is False


def test_baselines_say_what_stays_frozen_and_nothing_else() -> None:
    config = {
        "algorithm": {"name": "local"},
        "model": {"train": {"personal": "head", "frozen": "embeddings"}},
    }
    assert describe_method(config).endswith("(a baseline). Frozen: embeddings.")
    assert "All but biases stays frozen." in describe_method({**config, "model": {"train": "bias"}})
    assert describe_method({**config, "model": {"train": "all"}}).endswith("(a baseline).")


def test_a_method_says_what_travels_and_the_steps_at_the_end() -> None:
    config = {
        "algorithm": {"name": "fedavg"},
        "model": {"train": "bias"},
        "client": {"finetune_steps": 100},
    }
    text = describe_method(config)
    assert (
        "Biases shared, the rest frozen. At the end each client takes 100 local steps more by itself" in text
    )


SPLIT = {"model": {"name_or_path": "bert-tiny", "train": {"critical_layer": 1}}}


@pytest.mark.parametrize(
    ("config", "kept"),
    [
        ({"model": {"train": {"personal": "head"}}}, True),
        ({"model": {"train": {"shared": "head", "rest": "personal"}}}, True),
        (SPLIT, True),
        ({"pull": {"rule": "low", "push": "selected"}}, True),
        ({"pull": {"rule": "low", "push": "all"}}, False),
        ({"model": {"train": {"frozen": "head"}}}, False),
        ({}, False),
    ],
)
def test_who_keeps_tensors(config: Any, kept: bool) -> None:
    assert keeps_tensors(config) is kept


def test_a_common_model_is_known_by_its_tests_after_every_round(new_run: NewRun) -> None:
    assert not own_models(read_run(new_run("all-layers", config=SPLIT)))
    assert own_models(read_run(new_run("split", config=SPLIT, every=6)))
    assert own_models(read_run(new_run("told", config=SPLIT, summary={"personalised": True})))
    assert not own_models(read_run(new_run("local", algorithm="local", config=SPLIT, every=6)))


def test_a_table_says_whose_models_the_global_test_is_of(new_run: NewRun) -> None:
    run = read_run(new_run(config=SPLIT, every=6))
    (note,) = compare_table({"split": [run]}).notes
    assert note.startswith("split: clients have models of their own")


def _card(config: dict[str, Any], **summary: Any) -> str:
    return model_card({"algorithm": "fedavg", **summary}, {"algorithm": {"name": "fedavg"}, **config}, {})


def test_a_card_says_what_stands_in_the_personal_places() -> None:
    card = _card({**SPLIT, "variant": "c1"}, evaluation={"global": {"accuracy": 0.5}}, parameters=12)
    for expected in (
        "and in the personal places the first ones",
        "fednlp export RUN --client NAME --out FOLDER",
        "with some clients' own models",
        "(variant c1)",
        "12 shared parameters",
        "layers 0 ",
    ):
        assert expected.replace("layers 0 ", "ayer 0 shared") in card.replace("\\", "")
    pulled = _card({"pull": {"rule": "low", "push": "selected"}})
    assert "each has a model of its own" in pulled
    at_sites = _card({**SPLIT, "data": {"name": "sites"}}).replace("\\", "")
    assert "fednlp export FEDERATION --own --out FOLDER" in at_sites
    assert "--client" not in at_sites
    assert "personal places" not in pulled


@pytest.mark.parametrize(
    ("config", "summary"),
    [({}, {}), (SPLIT, {"personalised": False}), (SPLIT, {"algorithm": "centralised"})],
)
def test_a_card_of_a_common_model_says_nothing_of_the_kind(config: Any, summary: Any) -> None:
    card = _card(config, **summary)
    assert "personal places" not in card
    assert "--client" not in card.replace("\\", "")


def test_the_best_round_is_told_by_the_tests_it_was_found_with(new_run: NewRun) -> None:
    best = {"round": 3, "accuracy": 0.8}
    expected = "Round 3 reached accuracy 80.0 % on the clients' own tests"
    assert expected in _card(SPLIT, personalised=True, rounds=6, best=best).replace("\\", "")
    assert "80.0 % on the test set" in _card(SPLIT, personalised=False, rounds=6, best=best)
    for personalised, expected in ((True, "Best personal test"), (False, "Best global test")):
        folder = new_run(str(personalised), config=SPLIT, summary={"personalised": personalised})
        (table,) = _all_metrics([read_run(folder)])
        assert isinstance(table, Grid)
        assert any(row[0].startswith(expected) for row in table.rows)


def test_a_client_s_own_adapters_are_exported_too() -> None:
    card = _card({"model": {"train": {"personal": "head"}, "peft": {"r": 4}}})
    assert "personal places" in card
    assert "fednlp export RUN --client NAME" in card.replace("\\", "")
