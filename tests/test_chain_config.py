"""The words of an exchange: what they mean, and what each refusal says."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.federated.transform_spec import NAMES, Direction, Step, additive, check_exchange, parse_chain


def refusal(words: list[str], direction: Direction = "up") -> str:
    with pytest.raises(ConfigError) as caught:
        parse_chain(words, direction)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith(f"exchange.{direction}: ")
    return text.removeprefix(f"exchange.{direction}: ")


@pytest.mark.parametrize(
    ("words", "steps"),
    [
        ([], ()),
        (["float16"], (Step("float16"),)),
        (["int8:64"], (Step("int8", block=64),)),
        (["topk:1e-2", "int4"], (Step("topk", 0.01), Step("int4"))),
        (["clip:1", "randomk:0.5", "sign"], (Step("clip", 1.0), Step("randomk", 0.5), Step("sign"))),
    ],
)
def test_words_become_steps(words: list[str], steps: tuple[Step, ...]) -> None:
    assert parse_chain(words, "up") == steps


@pytest.mark.parametrize("word", ["float16", "bfloat16", "int8", "int4", "int4:32"])
def test_what_may_go_down(word: str) -> None:
    assert parse_chain([word], "down")[0].name == word.partition(":")[0]


@pytest.mark.parametrize(
    ("words", "needed"),
    [
        (["fp16"], ["fp16", "did you mean float16?"]),
        (["top-k:0.1"], ["top-k:0.1", "did you mean topk:0.01?"]),
        (["Int8"], ["did you mean int8?"]),
        (["zip"], ["did you mean clip:1.0?"]),
        (["huffman"], ["there are clip, topk, randomk, float16, bfloat16, int8, int4, sign"]),
        ([""], ["is unknown"]),
        (["topk"], ["needs a number", '"topk:0.01"']),
        (["clip:"], ["needs a number", '"clip:1.0"']),
        (["topk:1"], ["between 0 and 1", '"topk:0.01"']),
        (["randomk:0"], ["between 0 and 1", '"randomk:0.01"']),
        (["topk:1%"], ["between 0 and 1"]),
        (["topk:nan"], ["between 0 and 1"]),
        (["clip:-1"], ["above 0"]),
        (["clip:inf"], ["above 0"]),
        (["float16:2"], ["takes no number", '"float16"']),
        (["sign:"], ["takes no number", '"sign"']),
        (["int8:1"], ["a whole number from 2 on", '"int8:64"']),
        (["int4:6.5"], ["a whole number from 2 on", '"int4:64"']),
        (["int4:²"], ["a whole number from 2 on"]),
        (["int8", "int8:64"], ["int8 stands there 2 times"]),
        (["topk:0.1", "topk:0.2"], ["topk stands there 2 times"]),
        (["float16", "int8"], ["float16 and int8 both quantise"]),
        (["sign", "int8"], ["sign and int8 both quantise"]),
        (["topk:0.1", "randomk:0.1"], ["topk and randomk both sparsify"]),
        (["int8", "topk:0.1"], ["topk", "before int8"]),
        (["topk:0.1", "clip:1"], ["clip", "put it before topk"]),
    ],
)
def test_refusals_name_the_word_and_the_remedy(words: list[str], needed: list[str]) -> None:
    text = refusal(words)
    assert [part for part in needed if part not in text] == []


@pytest.mark.parametrize("word", ["topk:0.1", "randomk:0.1", "sign", "clip:1.0"])
def test_weights_are_no_updates(word: str) -> None:
    text = refusal([word], "down")
    assert text.startswith(f"{word.partition(':')[0]} is for updates")
    assert "bfloat16" in text


@given(words=st.lists(st.text(max_size=60) | st.sampled_from([*NAMES, "topk:0.1", "clip:2"]), max_size=4))
def test_any_words_are_steps_or_one_line(words: list[str]) -> None:
    try:
        steps, refused = parse_chain(words, "up"), ""
    except ConfigError as error:
        steps, refused = (), str(error)
    assert len(refused.splitlines()) <= 1
    assert refused or [step.name for step in steps] == [word.partition(":")[0] for word in words]


def test_a_sound_exchange_passes() -> None:
    check_exchange([], [], False)
    check_exchange(["clip:1.0", "topk:0.01"], ["float16"], False)
    check_exchange(["topk:0.01", "int8"], ["float16"], True)
    check_exchange(["sign"], [], True)


@pytest.mark.parametrize("up", [[], ["clip:1"]])
def test_error_feedback_needs_an_error(up: list[str]) -> None:
    with pytest.raises(ConfigError, match="nothing on the way up loses anything"):
        check_exchange(up, ["float16"], True)


def test_error_feedback_undoes_clipping() -> None:
    with pytest.raises(ConfigError, match="leave out one of the two"):
        check_exchange(["clip:1", "topk:0.1"], [], True)


def test_both_ways_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        check_exchange(["topk"], ["sign"], True)
    text = str(caught.value)
    assert "exchange.up:" in text
    assert "exchange.down:" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    "word", ["float16", "bfloat16", "int8", "int4:64", "sign", "topk:0.1", "randomk:0.1"]
)
def test_only_full_numbers_add_up_unopened(word: str) -> None:
    able, reason = additive(parse_chain(["clip:1", word], "up"))
    assert not able
    assert word.partition(":")[0] in reason


def test_clipped_updates_add_up() -> None:
    assert additive(()) == (True, "")
    assert additive(parse_chain(["clip:1"], "up")) == (True, "")


def test_reading_words_needs_no_torch() -> None:
    code = "import sys, fednlp.federated.transform_spec; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
