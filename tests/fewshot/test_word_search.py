"""Words for labels by likelihood ratio: against a computation by hand, and from the gold labels of a run alone."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import fednlp
from fednlp.cli import app
from fednlp.config import as_experiment
from fednlp.errors import ConfigError
from fednlp.models.pretrained import load_tokenizer
from fednlp.models.resolve import resolve_model
from fednlp.prompts.prompt_sets import load_prompts
from fednlp.prompts.simulation.prompt_search import search_words
from fednlp.prompts.word_search import (
    assigned_words,
    candidate_words,
    common_words,
    likelihood_ratios,
    require_every_label,
)


def by_hand(probabilities: Any, labels: list[int], label: int, token: int) -> float:
    """The sum over all examples, one by one, as the paper has it."""
    own = sum(one == label for one in labels)
    total = 0.0
    for example, one in enumerate(labels):
        p = probabilities[example][token]
        weight = 1.0 if one == label else -own / (len(labels) - own)
        total += weight * math.log(p / (1 - p))
    return total


@given(st.integers(0, 10_000), st.integers(2, 4), st.integers(0, 6))
def test_scores_are_those_computed_by_hand(seed: int, classes: int, more: int) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.permutation([*range(classes), *rng.integers(0, classes, more).tolist()])
    probabilities = rng.dirichlet(np.ones(5), len(labels))
    probabilities = np.clip(probabilities, 1e-6, 1 - 1e-6)
    scores = likelihood_ratios(probabilities, labels, classes)
    for label in range(classes):
        for token in range(5):
            assert scores[label, token] == pytest.approx(
                by_hand(probabilities, labels.tolist(), label, token), abs=1e-8
            )


def test_probabilities_of_zero_and_one_have_finite_scores() -> None:
    scores = likelihood_ratios(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0, 1]), 2)
    assert np.isfinite(scores).all()
    assert scores[0, 1] > 0 > scores[0, 0]


@given(st.integers(0, 10_000), st.integers(2, 3), st.integers(3, 5))
def test_no_other_assignment_of_words_has_a_higher_sum(seed: int, labels: int, tokens: int) -> None:
    from itertools import permutations

    scores = np.random.default_rng(seed).normal(size=(labels, tokens))
    chosen = assigned_words(scores)
    assert len(set(chosen)) == labels
    best = max(sum(scores[i, t] for i, t in enumerate(one)) for one in permutations(range(tokens), labels))
    assert sum(scores[i, t] for i, t in enumerate(chosen)) == pytest.approx(best)


def test_words_that_one_text_alone_holds_count_only_where_others_are_too_few() -> None:
    words = {1: "one", 2: "two", 3: "three", 4: "four"}
    texts = [{1, 2, 9}, {1, 3}, {1, 2}]

    def among(tokens: Iterable[int]) -> dict[int, str]:
        return {token: words[token] for token in sorted({*tokens} & {*words})}

    assert common_words(among, texts, 2, 10) == {1: "one", 2: "two"}
    assert common_words(among, texts, 3, 10) == {1: "one", 2: "two", 3: "three"}
    assert common_words(among, texts, 4, 10) == words
    with pytest.raises(ConfigError, match="5 labels need one each"):
        common_words(among, texts, 5, 10)


def test_every_label_needs_a_gold_label() -> None:
    require_every_label(np.array([1, 0, 1]), ["a", "b"])
    with pytest.raises(ConfigError, match=r"no gold label is 'c', .*: raise fewshot\.gold"):
        require_every_label(np.array([1, 0, 1]), ["a", "b", "c"])


def test_candidates_are_whole_words_that_the_task_accepts(tiny_model: Path) -> None:
    tokenizer = load_tokenizer(str(tiny_model))
    pattern = "{mask} News: {text}"
    words = candidate_words(tokenizer, pattern, range(len(tokenizer)))
    assert words
    some = [*words][::2]
    assert candidate_words(tokenizer, pattern, some) == {token: words[token] for token in some}
    assert candidate_words(tokenizer, pattern, tokenizer.all_special_ids) == {}
    assert not {*words} & {*tokenizer.all_special_ids}
    for token, word in words.items():
        assert word.isalpha()
        assert tokenizer(word, add_special_tokens=False).input_ids == [token]


SETTINGS: dict[str, Any] = {
    "model": {"name_or_path": "bert-tiny", "max_length": 48},
    "task": {"prompt": "bbc"},
    "data": {"name": "bbc"},
    "partition": {"method": "label", "clients": 8, "alpha": 10.0},
    "fewshot": {"gold": 32, "gamma": 10.0, "pacing": "static", "per_client": 4, "n": 2, "f": 1},
    "clients_per_round": 4,
    "num_rounds": 1,
}


@pytest.mark.usefixtures("own_cache")
@pytest.mark.slow
def test_words_for_bbc_from_32_gold_labels(here: Path) -> None:
    import tomli_w

    (here / "few.toml").write_text(tomli_w.dumps(SETTINGS))

    def printed(*words: str) -> str:
        result = CliRunner().invoke(app, ["prompts", "search", "few.toml", *words])
        if "FetchError" in repr(result.exception):
            pytest.skip(str(result.exception))
        assert result.exit_code == 0, result.output
        return result.stdout

    first = printed("--json")
    found = json.loads(first)
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    assert {one["pattern"] for one in found} == set(load_prompts("bbc").patterns)
    for one in found:
        assert set(one["words"]) == {"business", "entertainment", "politics", "sports", "tech"}
        assert len(set(one["words"].values())) == 5
        assert one["gold_accuracy"] > 0.25
    printed("--out", "mine.toml")
    assert printed("--json", "--out", "mine.toml") == first, "the same again, and nothing else"
    mine = load_prompts("mine.toml")
    assert (mine.patterns, dict(mine.words[0])) == ((found[0]["pattern"],), found[0]["words"])
    assert printed("--set", "fewshot.gold=40", "--json") != first
    assert len(json.loads(printed("--set", "task.prompt=mine.toml", "--json"))) == 1
    changes: dict[str, Any] = {"task": {"prompt": "mine.toml"}, "evaluation": {"personal": False}}
    changes |= {"fewshot": SETTINGS["fewshot"] | {"pacing": "none"}, "runtime": {"workers": 1}}
    run = fednlp.run(SETTINGS | changes, here / "run")
    trained = run.read_json("task.json")["fields"]
    tokenizer = load_tokenizer(resolve_model("bert-tiny"))
    assert trained["pattern"] == found[0]["pattern"]
    assert tokenizer.convert_ids_to_tokens(trained["words"]) == [
        found[0]["words"][one] for one in trained["labels"]
    ]
    summary = run.read_json("summary.json")
    assert summary["evaluation"]["global"]["accuracy"] > summary["trivial_baseline"]["accuracy"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fewshot": None}, "words are found from gold labels: say [fewshot] gold"),
        ({"task": {"name": "text-classification"}}, "words are for prompts: say [task] prompt"),
    ],
)
def test_what_has_no_words(
    changes: dict[str, Any], message: str, here: Path, texts: Path, tiny_model: Path
) -> None:
    import tomli_w

    settings = SETTINGS | {"data": {"path": str(texts)}, "model": {"name_or_path": str(tiny_model)}} | changes
    (here / "few.toml").write_text(tomli_w.dumps({k: v for k, v in settings.items() if v is not None}))
    result = CliRunner().invoke(app, ["prompts", "search", "few.toml"])
    assert message in str(result.exception)


@pytest.mark.whole
def test_words_are_of_the_texts_and_not_of_the_pattern(tmp_path: Path) -> None:
    data, prompts = tmp_path / "pairs.csv", tmp_path / "own.toml"
    rows = [
        "12 34,56,fruit",
        "78 90,21,water",
    ]  # no words, so that all words of the vocabulary are candidates
    data.write_text("title,body,kind\n" + "\n".join(rows * 20) + "\n")
    prompts.write_text(
        'name = "own"\nsource = "a test"\n'
        'patterns = ["{text} is food, music or law: {mask}.", "{text} {text_pair} is film, music or city: {mask}."]\n'
        '[[words]]\nfruit = "food"\nwater = "music"\n'
    )
    experiment = {
        "data": {"path": str(data), "columns": {"text": "title", "text_pair": "body", "label": "kind"}},
        "task": {"prompt": str(prompts)},
        "partition": {"method": "uniform", "clients": 2},
        "clients_per_round": 2,
        "model": {"name_or_path": "bert-tiny", "max_length": 32},
        "fewshot": {"gold": 12},
    }
    found = search_words(as_experiment(experiment), lambda _: None).found
    assert {"{text_pair}" in one.pattern for one in found} == {False, True}
    for one in found:
        assert not {*one.words.values()} & {"food", "music", "law", "film", "city"}
