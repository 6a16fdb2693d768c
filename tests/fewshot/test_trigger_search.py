"""Patterns found by gradients: gains against differences, a search that never falls, and only gold labels looked at."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from fednlp.cli import app
from fednlp.config import Experiment
from fednlp.data.features import Features
from fednlp.errors import ConfigError, FednlpError, ModelError
from fednlp.fewshot.gold import GoldLabels
from fednlp.models.pretrained import load_tokenizer
from fednlp.prompts.prompt_sets import load_prompts
from fednlp.prompts.simulation.gold_scores import gold_rows, held_out_half
from fednlp.prompts.simulation.prompt_search import gold_of, search_words, write_prompts
from fednlp.prompts.simulation.trigger_search import FoundPattern, search_triggers
from fednlp.prompts.trigger_gradient import input_embeddings, trigger_gradient
from fednlp.prompts.trigger_search import (
    climb,
    first_order_gains,
    require_numbers,
    stand_in_pattern,
    trigger_pattern,
    written_pattern,
)
from fednlp.simulation.components import build_components
from fednlp.tasks.prompt_classification import PromptClassification

pytestmark = pytest.mark.whole

LABELS = ("arts", "economy", "science", "sports")
WORDS = [*(f"word{n}" for n in range(30)), *(f"{label}{n}" for label in LABELS for n in range(4)), *LABELS]
PIECES = ["play", "playing", "##ing", "{", "}", "{}", ".", "word1word2"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2}
PROMPTS = {
    "name": "mine",
    "source": "a test",
    "patterns": ["{mask} {text}", "{text} word1 {mask}", "word2 {text} {mask}"],
    "words": [dict(zip(LABELS, LABELS, strict=True))],
}
FEW = {"gold": 48, "gamma": 100.0, "pacing": "none"}


def save_tokenizer(folder: Path, masked: bool = True) -> Path:
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import WordPiece
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    names = SPECIAL if masked else SPECIAL[:-1]
    inner = Tokenizer(
        WordPiece({word: n for n, word in enumerate([*names, *WORDS, *PIECES])}, unk_token="[UNK]")
    )
    inner.pre_tokenizer = WhitespaceSplit()
    inner.decoder = decoders.WordPiece(cleanup=False)
    inner.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    special = {f"{name[1:-1].lower()}_token": name for name in names}
    PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=64, **special).save_pretrained(folder)
    return folder


def save_model(folder: Path, kind: str = "BertForMaskedLM", masked: bool = True) -> Path:
    """Save a tiny language model of random weights with its tokenizer."""
    import transformers

    words = len(SPECIAL) + len(WORDS) + len(PIECES)
    config: Any = {
        "BertForMaskedLM": lambda: transformers.BertConfig(
            vocab_size=words, max_position_embeddings=64, initializer_range=0.3, **SIZES
        ),
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(
            vocab_size=words, n_embd=16, n_layer=1, n_head=2, n_positions=64
        ),
        "BartForConditionalGeneration": lambda: transformers.BartConfig(
            vocab_size=words, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
            decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_position_embeddings=64,
            pad_token_id=0, bos_token_id=2, eos_token_id=3, decoder_start_token_id=3, forced_eos_token_id=None,
        ),
    }[kind]()  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        getattr(transformers, kind)(config).save_pretrained(folder)
    return save_tokenizer(folder, masked)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("masked"))


@pytest.fixture(scope="module")
def asked(
    masked: Path,
    make_csv: Callable[..., Path],
    make_rows: Callable[..., list[tuple[str, str, str]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Any]:
    """An experiment with 48 gold labels and a test set of its own; label names are words."""
    folder = tmp_path_factory.mktemp("texts")
    texts = {
        name: make_csv(folder / f"{name}.csv", make_rows(160, seed=n))
        for n, name in enumerate(("own", "test"))
    }
    return {
        "name": "tiny",
        "data": {"path": str(texts["own"]), "test_path": str(texts["test"])},
        "partition": {"method": "uniform", "clients": 4},
        "clients_per_round": 2,
        "model": {"name_or_path": str(masked), "max_length": 40},
        "task": {"name": "prompt-classification", "pattern": "{text} {mask}"},
        "fewshot": FEW,
        "seed": 3,
    }


def found_for(asked: dict[str, Any], triggers: int = 3, steps: int = 9, candidates: int = 10) -> FoundPattern:
    return search_triggers(Experiment(**asked), triggers, steps, candidates, lambda _: None)


@pytest.fixture(scope="module")
def found(asked: dict[str, Any]) -> FoundPattern:
    return found_for(asked)


def gold_for(asked: dict[str, Any]) -> tuple[GoldLabels, Any]:
    """Return the gold labels of an experiment, and the number of each training row in the file."""
    experiment = Experiment(**asked).resolved()
    components = build_components(experiment, lambda _: None)
    return gold_of(experiment, components, lambda _: None), components


# The search itself


@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(1, 6), st.integers(0, 12))
def test_a_search_never_falls_and_takes_the_best_that_it_tries(
    seed: int, triggers: int, candidates: int, more: int
) -> None:
    rng = np.random.default_rng(seed)
    table, gains = rng.normal(size=(triggers, 10)), rng.normal(size=(triggers, 10)).astype(np.float32)
    mask, forbidden = 0, {0, 7}
    tried: list[tuple[int, ...]] = []

    def likelihood(tokens: tuple[int, ...]) -> float:
        tried.append(tokens)
        return float(sum(table[place, token] for place, token in enumerate(tokens)))

    found, last = [], (mask,) * triggers
    for step in climb(
        last,
        lambda tokens, place: gains[place],
        likelihood,
        lambda tokens: not forbidden & {*tokens},
        steps=triggers + more,
        candidates=candidates,
    ):
        place = (step.number - 1) % triggers
        order = [int(token) for token in np.argsort(-gains[place]) if token not in {*forbidden, last[place]}]
        expected = [(*last[:place], token, *last[place + 1 :]) for token in order[:candidates]]
        assert tried[-len(expected) :] == expected, "the tokens of the greatest gains, and no others"
        assert step.likelihood == pytest.approx(likelihood(step.tokens))
        best = max(expected, key=likelihood)
        assert step.changed == (step.number <= triggers or likelihood(best) > likelihood(last))
        assert step.tokens == (best if step.changed else last)
        found.append(step)
        last = step.tokens
    whole = found[triggers - 1 :]
    assert all(one.likelihood <= two.likelihood for one, two in pairwise(whole))
    assert mask not in last
    ended = len(found) < triggers + more
    assert not ended or not any(one.changed for one in found[-triggers:])
    assert [one.number for one in found] == [*range(1, len(found) + 1)]


def test_a_search_ends_where_no_trigger_is_replaced() -> None:
    def steps(triggers: int) -> int:
        score = {0: 0.0, 1: 3.0, 2: 1.0}
        gains = np.array([0, 2, 1], np.float32)
        return len(
            [*climb((0,) * triggers, lambda *_: gains, lambda tokens: sum(map(score.__getitem__, tokens)),
                    lambda tokens: 0 not in tokens, steps=99, candidates=2)]
        )  # fmt: skip

    assert [steps(1), steps(3)] == [2, 6], "one turn that sets, and one that replaces none"


def test_where_no_token_can_be_written_the_search_is_refused() -> None:
    gains = np.zeros(3, np.float32)
    with pytest.raises(
        ModelError, match=r"no token of the model's vocabulary can be written .* as trigger 1"
    ):
        list(climb((0, 0), lambda *_: gains, lambda _: 0.0, lambda _: False, steps=4, candidates=2))


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ((0, 9, 9), "0 triggers: ask for 1 to 32"),
        ((33, 99, 9), "33 triggers: ask for 1 to 32"),
        ((3, 2, 9), "2 steps for 3 triggers: a step sets one, so ask for 3 steps or more"),
        ((3, 3, 0), "0 candidates a step: ask for 1 or more"),
    ],
)
def test_numbers_out_of_range(numbers: tuple[int, int, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        require_numbers(*numbers)
    require_numbers(3, 3, 1)


# Tokens that can be written


def byte_level(folder: Path) -> Any:
    """A byte-level tokenizer as RoBERTa's: a space belongs to the word behind it."""
    from tokenizers import Tokenizer, decoders
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer
    from transformers import PreTrainedTokenizerFast

    inner, names = Tokenizer(BPE()), ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    inner.pre_tokenizer, inner.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=330, initial_alphabet=ByteLevel.alphabet(), special_tokens=names, show_progress=False
    )
    inner.train_from_iterator(["good films {bad} playing play été"] * 20, trainer)
    special = {f"{name.strip('</>')}_token": name for name in names[1:2] + names[3:]}
    PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", **special
    ).save_pretrained(folder)
    return load_tokenizer(str(folder))


@pytest.fixture(scope="module")
def tokenizers(masked: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {
        "wordpiece": load_tokenizer(str(masked)),
        "bytes": byte_level(tmp_path_factory.mktemp("bytes")),
    }


@given(
    st.sampled_from(["wordpiece", "bytes"]),
    st.lists(st.integers(0, 400), min_size=1, max_size=4),
    st.booleans(),
)
def test_what_is_written_is_read_as_the_same_tokens(
    tokenizers: dict[str, Any], kind: str, numbers: list[int], paired: bool
) -> None:
    tokenizer = tokenizers[kind]
    tokens = tuple(number % len(tokenizer) for number in numbers)
    pattern = written_pattern(tokenizer, tokens, paired=paired)
    if pattern is None:
        return
    assert not {*tokens} & {*tokenizer.all_special_ids}
    text = "play" if kind == "wordpiece" else "good"
    row = {"text": text, "text_pair": text, "label": "a"}
    task = PromptClassification(("a",), pattern=pattern, mask=tokenizer.mask_token_id)
    (read,) = task.encode([row], tokenizer, 99)
    after = read["gap"] + 1 if paired else read["gap"] - len(tokens)
    assert tuple(read["input_ids"][after : after + len(tokens)]) == tokens
    bare = replace(task, pattern=trigger_pattern("", paired=paired))
    assert len(read["input_ids"]) == len(tokens) + len(bare.encode([row], tokenizer, 99)[0]["input_ids"])


def test_which_tokens_can_be_written(tokenizers: dict[str, Any]) -> None:
    tokenizer = tokenizers["wordpiece"]

    def written(*words: str) -> str | None:
        return written_pattern(tokenizer, tuple(tokenizer.convert_tokens_to_ids([*words])), paired=False)

    assert written("word1", "play") == "{text} word1 play {mask}"
    assert written("{", "word1", "}") == "{text} {{ word1 }} {mask}"
    assert written("{}") is None, "a pattern is cut at its braces, so that they are two tokens"
    assert written("word1", "##ing") == "{text} word1ing {mask}"
    assert written("play", "##ing") is None, "that is the token playing"
    for special in SPECIAL:
        assert written("word1", special) is None
    assert written_pattern(tokenizer, (10**6,), paired=False) is None, (
        "a row of the embeddings without a token"
    )
    spoken = [
        token
        for token in range(len(tokenizers["bytes"]))
        if written_pattern(tokenizers["bytes"], (token,), paired=False)
    ]
    names = tokenizers["bytes"].convert_ids_to_tokens(spoken)
    assert "Ġfilms" in names
    assert all(name.startswith("Ġ") for name in names), "without its space a token cannot stand behind a text"


@pytest.mark.parametrize("paired", [False, True])
def test_texts_are_encoded_with_a_token_in_the_place_of_each_trigger(
    tokenizers: dict[str, Any], paired: bool
) -> None:
    for tokenizer in tokenizers.values():
        pattern = stand_in_pattern(tokenizer, 3, paired=paired)
        words = pattern.replace("{text_pair}", "").replace("{text}", "").replace("{mask}", "").split()
        assert len(words) == 3
        assert len({*words}) == 1


# The gradient


def likelihood_of(
    model: Any, ids: Any, shift: Any, place: int, gaps: list[int], words: list[int], labels: Any
) -> float:
    """The mean log-likelihood by transformers alone, with the embedding at a place of each row shifted."""
    embedded = model.get_input_embeddings()(ids).clone()
    embedded[:, place] += shift
    logits = model(inputs_embeds=embedded).logits[torch.arange(len(ids)), gaps][:, words]
    return float(torch.log_softmax(logits, dim=-1)[torch.arange(len(ids)), labels].mean())


@pytest.mark.parametrize("place", [0, 1, 2])
def test_gains_are_those_by_differences(masked: Path, place: int) -> None:
    """Of every token: the slope of the likelihood where the trigger moves in the direction of the token's embedding."""
    from transformers import AutoModelForMaskedLM

    tokenizer = load_tokenizer(str(masked))
    model = AutoModelForMaskedLM.from_pretrained(masked).eval()
    exact = AutoModelForMaskedLM.from_pretrained(masked, dtype=torch.float64).eval()
    task = PromptClassification.build(
        LABELS,
        tokenizer,
        pattern="{text} word1 play word3 {mask}",
        verbalizer=dict(zip(LABELS, LABELS, strict=True)),
    )
    rows = [{"text": f"word{n} arts{n % 4} word7", "label": LABELS[n % 4]} for n in range(6)]
    features = Features.in_memory(task.encode(rows, tokenizer, 40))
    batches = [task.collate(features, np.array(some), torch.device("cpu")) for some in ([0, 1, 2, 3], [4, 5])]
    before = [parameter.clone() for parameter in model.parameters()]
    gradient = trigger_gradient(task, model, batches, place - 3)
    table = input_embeddings(model).weight.detach().numpy()
    gains = first_order_gains(table, gradient)
    ids = torch.cat([batch["input_ids"] for batch in batches])
    gaps, labels = features.values("gap").tolist(), torch.tensor([n % 4 for n in range(6)])
    step = 1e-4
    with torch.inference_mode():
        for token in range(0, len(tokenizer), 7):
            shift = step * torch.tensor(table[token], dtype=torch.float64)
            up, down = (
                likelihood_of(exact, ids, sign * shift, gaps[0] - 3 + place, gaps, list(task.words), labels)
                for sign in (1, -1)
            )
            assert gains[token] == pytest.approx((up - down) / (2 * step), rel=1e-3, abs=1e-5)
    assert np.ptp(gains) > 0.01
    assert all(map(torch.equal, before, model.parameters()))
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_a_table_of_embeddings_is_refused() -> None:
    class Other(torch.nn.Module):
        def get_input_embeddings(self) -> torch.nn.Module:
            return torch.nn.Linear(2, 2)

    with pytest.raises(ModelError, match="has a Linear in their place"):
        input_embeddings(Other())


# From the gold labels of an experiment


def test_half_of_the_gold_labels_of_each_label_is_held_out() -> None:
    labels = np.array([0] * 5 + [1] * 2 + [2] * 6)
    empty = np.empty(0, np.int64)
    gold = GoldLabels(
        empty, empty, labels, np.empty(0, bool), (empty, empty), empty, 1, ("arts", "economy", "science")
    )
    halves = [held_out_half(gold, seed) for seed in range(20)]
    for held in halves:
        assert np.bincount(labels[held]).tolist() == [2, 1, 3]
    assert (held_out_half(gold, 4) == halves[4]).all()
    assert len({held.tobytes() for held in halves}) > 10, "drawn by the seed"
    lone = replace(gold, labels=np.array([0, 0, 1, 2, 2]))
    with pytest.raises(
        ConfigError, match=r"fewer than two gold labels are 'economy', .* raise fewshot\.gold"
    ):
        held_out_half(lone, 0)


def test_labels_are_those_that_clients_gave_wrong_ones_included(asked: dict[str, Any]) -> None:
    gold, components = gold_for(asked | {"fewshot": FEW | {"noisy_client_fraction": 0.5}})
    rows = gold_rows(components, gold)
    assert [row["label"] for row in rows] == [gold.label_names[label] for label in gold.labels]
    true = components.data.train.take(gold.examples).to_pylist()
    assert [row["text"] for row in rows] == [row["text"] for row in true]
    assert [row["label"] for row in rows] != [row["label"] for row in true]


def test_the_search_improves_and_comes_out_the_same_again(asked: dict[str, Any], found: FoundPattern) -> None:
    assert found == found_for(asked)
    assert found_for(asked | {"seed": 4}).steps != found.steps
    whole = [step for step in found.steps if step.number >= 3]
    assert all(one.likelihood < two.likelihood for one, two in pairwise(whole))
    assert len(whole) > 1
    assert found.after == max(step.held_out for step in whole)
    assert found.pattern in [trigger_pattern(step.triggers, paired=False) for step in whole]
    assert "[MASK]" in found.steps[0].triggers
    assert (found.searched_on + found.held_out, found.words_found) == (48, False)
    assert abs(found.searched_on - found.held_out) <= len(LABELS)


def test_the_score_is_that_of_the_written_file_by_transformers_alone(
    asked: dict[str, Any], masked: Path, tmp_path: Path
) -> None:
    """On the gold labels held out, text by text."""
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    (tmp_path / "few.toml").write_text(tomli_w.dumps(asked))
    path = tmp_path / "own.toml"
    words = ["--triggers", "2", "--steps", "6", "--candidates", "4", "--out", str(path), "--json"]
    result = CliRunner().invoke(app, ["prompts", "search", str(tmp_path / "few.toml"), *words])
    assert result.exit_code == 0, result
    found = json.loads(result.stdout)
    written = load_prompts(path)
    assert (written.patterns, dict(written.words[0])) == ((found["pattern"],), found["words"])
    tokenizer, model = AutoTokenizer.from_pretrained(masked), AutoModelForMaskedLM.from_pretrained(masked)
    model.eval()
    gold, components = gold_for(asked)
    held = held_out_half(gold, asked["seed"])
    texts = components.data.train.column("text").take(gold.examples[held]).to_pylist()
    ids = tokenizer.convert_tokens_to_ids([found["words"][name] for name in gold.label_names])
    right, likelihoods = [], []
    for text, label in zip(texts, gold.labels[held], strict=True):
        whole = written.patterns[0].format(text=text, mask="[MASK]")
        inputs = tokenizer(whole, return_tensors="pt")
        at = int((inputs["input_ids"][0] == tokenizer.mask_token_id).nonzero())
        with torch.inference_mode():
            logits = model(**inputs).logits[0, at, ids]
        right.append(int(logits.argmax()) == label)
        likelihoods.append(float(torch.log_softmax(logits, dim=-1)[label]))
    assert found["held_out"] == len(right)
    assert found["after"]["accuracy"] == pytest.approx(np.mean(right))
    assert found["after"]["likelihood"] == pytest.approx(np.mean(likelihoods), rel=1e-4)
    again = asked | {"task": {"prompt": str(path)}}
    components = build_components(Experiment(**again).resolved(), lambda _: None)
    assert isinstance(components.task, PromptClassification)
    assert (components.task.pattern, list(components.task.words)) == (found["pattern"], ids)


def rewritten(
    asked: dict[str, Any], path: Path, change: Callable[[dict[str, Any]], dict[str, Any]], numbers: Any
) -> dict[str, Any]:
    """Return the experiment with a file in which the training rows of these numbers are changed."""
    import csv

    _, components = gold_for(asked)
    table = components.data.train.to_pylist()
    chosen = {int(number) for number in numbers}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ["text", "label", "site"])
        writer.writeheader()
        writer.writerows(change(row) if number in chosen else row for number, row in enumerate(table))
    return asked | {"data": asked["data"] | {"path": str(path)}}


def test_no_label_but_the_gold_ones_is_looked_at(
    asked: dict[str, Any], found: FoundPattern, tmp_path: Path
) -> None:
    gold, components = gold_for(asked)
    hidden = set(range(components.data.train.num_rows)) - set(gold.examples.tolist())
    turned = dict(zip(LABELS, [*LABELS[1:], LABELS[0]], strict=True))
    other = rewritten(
        asked, tmp_path / "turned.csv", lambda row: row | {"label": turned[row["label"]]}, hidden
    )
    assert (gold_for(other)[0].examples == gold.examples).all()
    assert len(hidden) > 100
    assert found_for(other) == found
    gold_turned = rewritten(
        asked, tmp_path / "gold.csv", lambda row: row | {"label": turned[row["label"]]}, gold.examples
    )
    assert found_for(gold_turned).steps != found.steps


@pytest.mark.parametrize("given_words", [True, False])
def test_what_is_held_out_is_not_searched_on(
    asked: dict[str, Any], tmp_path: Path, given_words: bool
) -> None:
    """With other texts there, the same steps are taken, and their scores there are others; words are the same."""
    asked = asked if given_words else {key: value for key, value in asked.items() if key != "task"}
    gold, _ = gold_for(asked)
    held = gold.examples[held_out_half(gold, asked["seed"])]
    other = rewritten(asked, tmp_path / "other.csv", lambda row: row | {"text": "sports1 word3 arts2"}, held)
    one, two = found_for(asked), found_for(other)
    assert one.words_found is not given_words
    assert [(step.triggers, step.likelihood) for step in one.steps] == [
        (step.triggers, step.likelihood) for step in two.steps
    ]
    assert one.words == two.words
    assert [step.held_out for step in one.steps] != [step.held_out for step in two.steps]


def test_between_two_texts_triggers_stand_behind_the_mask(asked: dict[str, Any], tmp_path: Path) -> None:
    rows = [f"word{n % 9} {LABELS[n % 2]}1,word{n % 5},{LABELS[n % 2]}" for n in range(80)]
    (tmp_path / "pairs.csv").write_text("\n".join(["text,text_pair,label", *rows]) + "\n")
    changes = {
        "data": {"path": str(tmp_path / "pairs.csv"), "columns": {"text_pair": "text_pair"}},
        "task": {"name": "prompt-classification", "pattern": "{text} {mask} {text_pair}"},
    }
    found = found_for(asked | changes, triggers=1, steps=2)
    assert found.pattern.startswith("{text} {mask} ")
    assert found.pattern.endswith(" {text_pair}")
    assert found.pattern in [trigger_pattern(step.triggers, paired=True) for step in found.steps]
    assert set(found.words) == {"arts", "economy"}


# The command


@pytest.fixture
def typed(asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)

    def invoke(*words: str, **changes: Any) -> Result:
        settings = {key: one for key, one in (asked | changes).items() if one is not None}
        (tmp_path / "few.toml").write_text(tomli_w.dumps(settings))
        (tmp_path / "mine.toml").write_text(tomli_w.dumps(PROMPTS))
        return CliRunner().invoke(app, ["prompts", "search", "few.toml", *words])

    return invoke


QUICK = ("--triggers", "2", "--steps", "4", "--candidates", "3")


def test_the_command_in_words(typed: Callable[..., Result]) -> None:
    result = typed(*QUICK, task={"prompt": "mine.toml"})
    assert result.exit_code == 0, result
    steps = [line for line in result.stderr.splitlines() if line.startswith("step ")]
    assert [line.split(":")[0] for line in steps[:2]] == ["step 1 of 4", "step 2 of 4"]
    assert all("log-likelihood -" in line and "left at most" in line for line in steps)
    pattern, words, accuracy, ranking, written = result.stdout.splitlines()
    assert pattern.startswith("{text} ")
    assert words == "   words     " + ", ".join(f"{label} = {label}" for label in LABELS)
    assert "gold labels held out; before, with masks for triggers, " in accuracy
    assert [f"mine.toml:{n} " in ranking for n in range(3)] == [True] * 3
    assert written == 'written found.toml: say task.prompt = "found.toml"'
    assert load_prompts("found.toml").patterns == (pattern,)
    refused = typed(*QUICK, task={"prompt": "mine.toml"})
    assert "found.toml is there already: name another file with --out" in str(refused.exception)
    assert typed(*QUICK, "--out", "found.toml", task={"prompt": "mine.toml"}).stdout == result.stdout


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("few.toml", "is no file of prompts that may be replaced"),
        ("pipe", "is no file of prompts that may be replaced"),
        ("empty", "is no file of prompts that may be replaced"),
        (".", "is a folder: name a file in it, such as found.toml"),
        ("bbc", "is the name of prompts that come with fednlp"),
    ],
)
@pytest.mark.parametrize("options", [QUICK, ()])
def test_nothing_but_prompts_is_written_over(
    out: str, said: str, options: tuple[str, ...], typed: Callable[..., Result], tmp_path: Path
) -> None:
    """The experiment itself, which a user may name by mistake, among other things."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").touch()
    result = typed(*options, "--out", out, task={"prompt": "mine.toml"})
    assert said in str(result.exception)
    assert not result.stdout
    assert "[fewshot]" in (tmp_path / "few.toml").read_text()
    assert (tmp_path / "pipe").is_fifo()


def test_what_no_file_of_prompts_may_say_is_refused(tmp_path: Path) -> None:
    words = {"a\nb": "one", "c": "two"}
    with pytest.raises(ConfigError, match="no control characters"):
        write_prompts(tmp_path / "odd.toml", "s", "{text} {mask}", words)
    with pytest.raises(ConfigError, match="no control characters"):
        write_prompts(tmp_path / "o\x1b[31md.toml", "s", "{text} {mask}", {"a": "one", "c": "two"})
    assert not list(tmp_path.iterdir())


def test_patterns_are_ranked_by_the_gold_labels_held_out(
    typed: Callable[..., Result], asked: dict[str, Any]
) -> None:
    """Each score is that of a search for triggers, or for words, that has this pattern alone."""
    result = typed(task={"prompt": "mine.toml"})
    *_, line = result.stdout.splitlines()
    assert line.startswith("patterns with the words given, by ")
    search = search_words(Experiment(**(asked | {"task": {"prompt": "mine.toml"}})), lambda _: None)
    scores = [one.held_out for one in search.ranked]
    assert scores == sorted(scores, key=lambda one: (one.accuracy, one.likelihood), reverse=True)
    assert len({one.likelihood for one in scores}) == 3
    assert {one.prompt: one.pattern for one in search.ranked} == {
        f"mine.toml:{n}": pattern for n, pattern in enumerate(PROMPTS["patterns"])
    }
    assert line.endswith(f"; best {search.ranked[0].prompt}")
    alone = typed(task={"prompt": "mine.toml:1"})
    assert "patterns with the words given" not in alone.output
    assert json.loads(typed("--json", task={"prompt": "mine.toml"}).stdout)[0].keys() == {
        "pattern",
        "words",
        "score",
        "gold_accuracy",
    }


def test_where_nothing_can_be_held_out_words_are_found_and_patterns_not_ranked(
    typed: Callable[..., Result], asked: dict[str, Any]
) -> None:
    few = FEW | {"gold": 6}  # so that a label has one where each has some
    seed = next(
        seed
        for seed in range(99)
        if not gold_for(asked | {"fewshot": few, "seed": seed})[0].classes_without_gold()
    )
    result = typed(task={"prompt": "mine.toml"}, fewshot=few, seed=seed)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].startswith(
        "patterns are not ranked: fewer than two gold labels are "
    )
    refused = typed(*QUICK, task={"prompt": "mine.toml"}, fewshot=few, seed=seed)
    assert isinstance(refused.exception, ConfigError)
    assert "fewer than two gold labels are " in str(refused.exception)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--steps 4", "--steps and --candidates are for --triggers"),
        ("--candidates 4", "--steps and --candidates are for --triggers"),
        ("--triggers 0", "0 triggers: ask for 1 to 32"),
        ("--triggers -1", "-1 triggers: ask for 1 to 32"),
        ("--triggers 3 --steps 2", "2 steps for 3 triggers"),
        ("--triggers 3 --candidates 0", "0 candidates a step"),
        ("--triggers 3 --set fewshot.gold=3", "fewer than two gold labels are "),
        ("--triggers 30 --set model.max_length=20", "shorten the one or raise the other"),
        ("--triggers 3 --set task.prompt=nosuch", "there are no prompts"),
    ],
)
def test_mistakes(typed: Callable[..., Result], words: str, says: str) -> None:
    result = typed(*words.split(), task={"prompt": "mine.toml"})
    assert isinstance(result.exception, FednlpError), result
    assert says in str(result.exception)


def test_without_gold_labels_there_is_nothing_to_search(typed: Callable[..., Result]) -> None:
    result = typed(*QUICK, fewshot=None)
    assert isinstance(result.exception, ConfigError)
    assert "patterns are found from gold labels: say [fewshot] gold = 32" in str(result.exception)


def test_no_number(typed: Callable[..., Result]) -> None:
    result = typed("--triggers", "three")
    assert result.exit_code == 2
    assert "Invalid value for '--triggers'" in result.stderr


@pytest.mark.parametrize("task", [None, {"name": "prompt-classification", "pattern": "{text} {mask}"}])
@pytest.mark.parametrize(
    ("kind", "with_mask", "says"),
    [
        (
            "GPT2LMHeadModel",
            True,
            "is a decoder, and triggers are found with a masked language model: take one",
        ),
        ("BartForConditionalGeneration", True, "is an encoder-decoder, and triggers are found with a masked"),
        ("BertForMaskedLM", False, "needs a mask token"),
    ],
)
def test_models_that_are_refused(
    typed: Callable[..., Result],
    tmp_path: Path,
    kind: str,
    with_mask: bool,
    says: str,
    task: dict[str, Any] | None,
) -> None:
    folder = save_model(tmp_path / "model", kind, with_mask)
    result = typed(*QUICK, task=task, model={"name_or_path": str(folder), "max_length": 40})
    assert isinstance(result.exception, ModelError), result
    assert says in str(result.exception)
