"""Texts prepared as by Moses: its own examples, laws, and a model that learns from tokenised texts."""

import builtins
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError, MissingDependency
from fednlp.tasks import moses, task_from
from fednlp.tasks.seq2seq import SequenceToSequence

from .models import byte_level

GERMAN = "Am 3. Oktober sagte Dr. Weiß: „Das ist – ungefähr – z.B. 1.000 Euro wert.“"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from tokenizers.decoders import ByteLevel

    folder = tmp_path_factory.mktemp("tokenizer")
    made = byte_level(folder, ["w1 , w2 .", GERMAN])
    made.backend_tokenizer.decoder = ByteLevel()
    made.save_pretrained(folder)
    return made


@pytest.fixture
def without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **options: Any) -> Any:
        if name == "sacremoses":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"moses": "tokenize", "languages": "de-en"}, 'task.moses is "tokenize": say "none", "normalise" or'),
        ({"moses": "tokenise"}, r'needs the languages .* task\.languages = "de-en", not ""'),
        ({"moses": "normalise", "languages": "German"}, 'not "German"'),
        ({"languages": "de-en"}, r"task\.languages is for task\.moses"),
    ],
)
def test_options_that_cannot_be(tokenizer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SequenceToSequence.build([], tokenizer, **options)


@pytest.mark.usefixtures("without_library")
def test_without_the_library_the_command_is_named_before_anything_is_done(tokenizer: Any) -> None:
    with pytest.raises(MissingDependency, match=r"run .*pip install .*\[moses\]"):
        SequenceToSequence.build([], tokenizer, moses="normalise", languages="de-en")
    with pytest.raises(MissingDependency, match=r"run .*pip install .*\[moses\]"):
        moses.column_preparation("tokenise", "de-en")
    assert SequenceToSequence.build([], tokenizer).moses_version == ""


@given(st.lists(st.text()))
def test_nothing_is_done_unless_it_is_asked_for(texts: list[str]) -> None:
    assert moses.prepared(texts, "none", "de") == texts
    assert moses.restored(texts, "none", "de") == moses.restored(texts, "normalise", "de") == texts


def test_the_scripts_do_what_moses_does() -> None:
    pytest.importorskip("sacremoses")
    assert moses.prepared([GERMAN], "normalise", "de") == [
        'Am 3. Oktober sagte Dr. Weiß: "Das ist - ungefähr - z.B. 1.000 Euro wert."'
    ]
    assert moses.prepared([GERMAN], "tokenise", "de") == [
        'Am 3. Oktober sagte Dr. Weiß : " Das ist - ungefähr - z.B. 1.000 Euro wert . "'
    ]
    english = "It doesn't cost 'that' much (R&D, 5%) <b> &quot;"
    assert moses.prepared([english], "tokenise", "en") == [
        "It doesn 't cost ' that ' much ( R & D , 5 % ) < b > & quot ;"
    ]


@given(st.lists(st.sampled_from(["the", "cat", "doesn't", "sit", "on", "Peter's", "mat"]), min_size=1))
def test_plain_sentences_survive_both_ways(words: list[str]) -> None:
    pytest.importorskip("sacremoses")
    text = f"{' '.join(words).capitalize()}, he said (twice)."
    made = moses.prepared([text], "tokenise", "en")
    assert made[0].split()[-1] == "."
    assert moses.restored(made, "tokenise", "en") == [text]


def test_each_side_is_prepared_in_its_language_and_references_stay(tokenizer: Any) -> None:
    pytest.importorskip("sacremoses")
    task = SequenceToSequence.build(
        [], tokenizer, moses="tokenise", languages="de-en", source_prefix="w9: ", max_target_length=16
    )
    assert task.moses_version
    row = {"source": "w1 z.B. „w2“, w3.", "target": "w4 “w5”!"}
    found = task.encode([row], tokenizer, 32)[0]
    by_hand = SequenceToSequence.build([], tokenizer, max_target_length=16)
    source, target = 'w9: w1 z.B. " w2 " , w3 .', 'w4 " w5 " !'
    expected = by_hand.encode([{"source": source, "target": target}], tokenizer, 32)[0]
    assert found["input_ids"] == expected["input_ids"]
    assert found["target"] == expected["target"]
    assert json.loads(found["references"]) == ["w4 “w5”!"]
    same = task_from("sequence-to-sequence", json.loads(json.dumps(task.__dict__)))
    assert same == task


def test_what_is_written_is_joined_again_before_it_is_scored(tokenizer: Any) -> None:
    """The baseline goes the way of generated texts."""
    pytest.importorskip("sacremoses")
    rows = [{"source": "w1, w2.", "target": "w1, w2."}]
    plain = SequenceToSequence.build([], tokenizer, scorer="bleu", max_target_length=16)
    task = SequenceToSequence.build(
        [], tokenizer, scorer="bleu", max_target_length=16, moses="tokenise", languages="en-en"
    )
    features, number = Features.in_memory(task.encode(rows, tokenizer, 16)), np.array([0])
    assert task.baseline(features, number, features, number)[1] == ["w1, w2."]
    assert plain.baseline(features, number, features, number)[1] == ["w1 , w2 ."]
