"""Text generation with a decoder alone: prompts, loss, generation, scores."""

import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data.features import Features
from fednlp.errors import ConfigError, ModelError
from fednlp.tasks import blocks
from fednlp.tasks.base import Row
from fednlp.tasks.seq2seq import SequenceToSequence
from fednlp.tasks.text_generation import TextGeneration, halves_of

from .models import CPU, WORDS, bert, byte_level, fit, gpt2, wordpiece
from .models import built as random_model

SOURCES = ("w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w2 w2 w11", "w12 w13")
KINDS = ("gpt2", "llama", "bert")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return wordpiece(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """As GPT-2's: it adds no special tokens, and a blank belongs to the word behind it."""
    from tokenizers.processors import ByteLevel

    found = byte_level(tmp_path_factory.mktemp("bytes"), ["a b c the sum of it is"])
    found._tokenizer.post_processor = ByteLevel()
    return found


@pytest.fixture(scope="module")
def task(tokenizer: Any) -> TextGeneration:
    return TextGeneration.build([], tokenizer, max_target_length=8, template="{source} w19")


def llama(words: int) -> Any:
    from transformers import LlamaConfig

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    return LlamaConfig(
        vocab_size=words, max_position_embeddings=64, initializer_range=0.1, num_key_value_heads=2, **sizes
    )


def built(task: Any, kind: str) -> Any:
    words = 5 + len(WORDS)
    if kind == "bert":  # an encoder that is told to look back only
        return random_model(task, bert(words, is_decoder=True))
    return random_model(task, {"gpt2": gpt2, "llama": llama}[kind](words))


def rows_of(sources: Any = SOURCES) -> list[Row]:
    """Targets are their sources, each word by the next."""
    return [
        {"source": text, "target": " ".join(f"w{(int(word[1:]) + 1) % 19}" for word in text.split())}
        for text in sources
    ]


def features_of(task: Any, tokenizer: Any, sources: Any = SOURCES) -> Features:
    return Features.in_memory(task.encode(rows_of(sources), tokenizer, 24))


def outcome_of(task: Any, model: Any, features: Features, numbers: Any = None) -> Any:
    with torch.inference_mode():
        return task.predict(model, features, np.arange(len(features)) if numbers is None else numbers, CPU)


def tokens(tokenizer: Any, ids: Any) -> str:
    return " ".join(tokenizer.convert_ids_to_tokens(list(ids)))


def test_a_prompt_then_the_target_then_the_end(tokenizer: Any, task: TextGeneration) -> None:
    rows: list[Row] = [
        {"source": "w1 w2", "target": " w3 w4 ", "references": '["w3 é", "w4"]'},
        {"source": None, "target": None, "references": None},
    ]
    made = task.encode(rows, tokenizer, 24)
    assert [set(row) for row in made] == [{"input_ids", "prompt", "references"}] * 2
    assert tokens(tokenizer, made[0]["input_ids"]) == "[CLS] w1 w2 w19 w3 w4 [SEP]"
    assert tokens(tokenizer, made[0]["input_ids"][: made[0]["prompt"]]) == "[CLS] w1 w2 w19"
    assert json.loads(made[0]["references"]) == ["w3 é", "w4"]
    assert tokens(tokenizer, made[1]["input_ids"]) == "[CLS] w19 [SEP]"
    assert json.loads(made[1]["references"]) == [""]


def test_a_blank_belongs_to_the_word_behind_it(bytewise: Any) -> None:
    task = TextGeneration.build(
        [], bytewise, max_target_length=20, template="It is {{ {source} }}\nthe sum: "
    )
    row: Row = {"source": "a b", "target": "c", "references": None}
    made = task.encode([row], bytewise, 64)[0]
    prompt, end = made["input_ids"][: made["prompt"]], bytewise.eos_token_id
    assert prompt == bytewise("It is { a b }\nthe sum:", add_special_tokens=False)["input_ids"]
    assert made["input_ids"][made["prompt"] :] == [*bytewise(" c")["input_ids"], end]
    bare = replace(task, template="{source}").encode([row | {"source": ""}], bytewise, 64)[0]
    assert bare["input_ids"][: bare["prompt"]] == [bytewise.pad_token_id], "a prompt is never empty"


def test_special_tokens_count_in_the_template_alone(bytewise: Any) -> None:
    task = TextGeneration.build([], bytewise, template="<s>{source}<mask>")
    row: Row = {"source": "a</s>b", "target": "c</s><s>d"}
    made = task.encode([row], bytewise, 128)[0]
    ids, prompt = made["input_ids"], made["prompt"]
    assert (ids[0], ids[prompt - 1], ids[-1]) == (0, 4, 2)
    assert not {0, 1, 2, 4} & {*ids[1 : prompt - 1], *ids[prompt:-1]}
    assert "".join(bytewise.convert_ids_to_tokens(ids[1 : prompt - 1])) == "a</s>b"


@settings(max_examples=60, deadline=None)
@given(
    source=st.integers(0, 30),
    target=st.integers(0, 30),
    most=st.integers(2, 12),
    spare=st.integers(1, 20),
    before=st.integers(0, 3),
    behind=st.integers(0, 3),
)
def test_the_source_alone_gives_way(
    tokenizer: Any, source: int, target: int, most: int, spare: int, before: int, behind: int
) -> None:
    template = " ".join([*["w17"] * before, "{source}", *["w18"] * behind])
    task = TextGeneration.build([], tokenizer, max_target_length=most, template=template)
    words, wanted = (np.resize(WORDS[:9], count).tolist() for count in (source, target))
    length = 1 + before + behind + most + spare
    made, unknown = task.encode(
        [{"source": " ".join(words), "target": text} for text in (" ".join(wanted), "")], tokenizer, length
    )
    ids, prompt = made["input_ids"], made["prompt"]
    opening, closing = ["[CLS]", *["w17"] * before], ["w18"] * behind
    assert tokenizer.convert_ids_to_tokens(ids[:prompt]) == [*opening, *words[:spare], *closing]
    assert tokenizer.convert_ids_to_tokens(ids[prompt:]) == [*wanted[: most - 1], "[SEP]"]
    assert len(ids) <= length
    assert prompt + most <= length, "what is generated has its place too"
    assert unknown["input_ids"][:-1] == ids[:prompt], "the prompt is a function of the source"


def test_no_room_for_a_source(tokenizer: Any, task: TextGeneration) -> None:
    row: Row = {"source": "w1 w2", "target": "w3"}
    assert task.encode([row], tokenizer, 11)[0]["prompt"] == 3
    with pytest.raises(ModelError, match=r"take 10 tokens and model.max_length is 10: shorten"):
        task.encode([row], tokenizer, 10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scorer": "meteor"}, 'scorer is "meteor"'),
        ({"max_target_length": 1}, "max_target_length is 1"),
        ({"num_beams": 0}, "num_beams is 0"),
        ({"template": "Sum it up:"}, "must hold {source} once"),
        ({"template": "{source}{source}"}, "must hold {source} once"),
        ({"template": "{text}"}, "holds {text}: it may hold {source}"),
        ({"template": "{source!r}"}, "holds {source}: it may hold"),
        ({"template": "{source"}, "a brace itself is written twice"),
    ],
)
def test_options_that_cannot_be(tokenizer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TextGeneration.build([], tokenizer, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(before=st.text(), behind=st.text())
def test_a_template_has_two_halves(before: str, behind: str) -> None:
    written = (half.replace("{", "{{").replace("}", "}}") for half in (before, behind))
    assert halves_of("{source}".join(written)) == (before, behind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_is_that_of_the_targets_alone(
    tokenizer: Any, task: TextGeneration, kind: str, smoothing: float
) -> None:
    """By hand: each text alone and unpadded, all logits, those before the target's tokens picked."""
    model, features = built(task, kind), features_of(task, tokenizer)
    rows, labels = [], []
    for number in range(len(features)):
        ids = torch.from_numpy(features.ragged("input_ids", number).astype(np.int64))
        begin = int(features.values("prompt")[number])
        with torch.inference_mode():
            rows.append(model(input_ids=ids[None]).logits[0, begin - 1 : -1])
        labels.append(ids[begin:])
        assert labels[-1][-1] == tokenizer.sep_token_id
    logs, right = torch.log_softmax(torch.cat(rows).double(), 1), torch.cat(labels)
    hard = -logs[torch.arange(len(right)), right]
    expected = (1 - smoothing) * hard.mean() - smoothing * logs.mean()
    smooth = replace(task, label_smoothing_factor=smoothing)
    batch = task.collate(features, np.arange(len(features)), CPU, training=True)
    assert float(smooth.loss(model, batch).detach()) == pytest.approx(float(expected), rel=1e-5)
    outcome = outcome_of(smooth, model, features)
    assert (outcome.loss, outcome.weight) == (pytest.approx(float(hard.sum()), rel=1e-5), len(right))


def test_logits_are_made_for_targets_alone(tokenizer: Any, task: TextGeneration) -> None:
    model, features = built(task, "gpt2"), features_of(task, tokenizer)
    seen: list[int] = []
    model.lm_head.register_forward_hook(lambda module, given, made: seen.append(made.shape[:-1].numel()))
    batch = task.collate(features, np.arange(len(features)), CPU)
    task.loss(model, batch)
    assert seen == [len(batch["labels"])]
    assert batch["labels"].shape == batch["places"].shape


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beams", [1, 3])
def test_generation_is_transformers_own_of_one_prompt(
    tokenizer: Any, task: TextGeneration, kind: str, beams: int
) -> None:
    from transformers import GenerationConfig

    task = replace(task, num_beams=beams)
    model, features = built(task, kind), features_of(task, tokenizer)
    fit(task, model, features, np.arange(len(features)), steps=15, rate=0.01)  # so that some texts end
    expected = []
    for number, text in enumerate(SOURCES):
        prompt = tokenizer(f"{text} w19", return_tensors="pt")["input_ids"][:, :-1]  # without its [SEP]
        assert prompt[0].tolist() == features.ragged("input_ids", number)[: prompt.shape[1]].tolist()
        options = GenerationConfig(
            max_new_tokens=8, do_sample=False, num_beams=beams, eos_token_id=3, pad_token_id=0
        )
        made = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=options)
        expected.append(tokenizer.decode(made[0, prompt.shape[1] :], skip_special_tokens=True))
    model.generation_config = GenerationConfig(do_sample=True, min_length=20, no_repeat_ngram_size=1)
    assert outcome_of(task, model, features).predictions == expected
    assert any(expected)


def test_each_step_reads_one_token(tokenizer: Any, task: TextGeneration) -> None:
    model, features = built(task, "gpt2"), features_of(task, tokenizer)
    widths: list[int] = []
    model.transformer.wte.register_forward_hook(lambda module, given, made: widths.append(made.shape[1]))
    outcome_of(task, model, features, np.array([2]))
    assert widths[:2] == [features.lengths(np.array([2]))[0], features.values("prompt")[2]]
    assert set(widths[2:]) == {1}
    assert len(widths) <= 1 + task.max_target_length


@pytest.mark.parametrize("kind", KINDS)
def test_neither_padding_nor_the_batch_matters(
    tokenizer: Any, task: TextGeneration, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, features = built(task, kind), features_of(task, tokenizer)
    order = np.array([3, 1, 4, 0, 2])
    whole = outcome_of(task, model, features, order)
    alone = [outcome_of(task, model, features, np.array([number])) for number in order]
    assert whole.indices == order.tolist()
    assert whole.predictions == [one.predictions[0] for one in alone]
    assert whole.loss == pytest.approx(sum(one.loss for one in alone), rel=1e-5)
    assert whole.weight == sum(one.weight for one in alone)
    monkeypatch.setattr(blocks, "MAX_ROWS", 2)
    pieces = outcome_of(task, model, features, order)
    assert (pieces.predictions, pieces.weight) == (whole.predictions, whole.weight)
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    other = features_of(replace(task, padding=7), tokenizer)  # the mask alone says what is padding
    batches = [one.collate(other, order, CPU) for one in (task, replace(task, padding=7))]
    losses = [float(task.loss(model, batch).detach()) for batch in batches]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert (batches[1]["input_ids"] == 7).sum() > (batches[0]["input_ids"] == 7).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_may_be_the_padding(tokenizer: Any, kind: str) -> None:
    """As GPT-2's; a text must end with it all the same."""
    task = replace(TextGeneration.build([], tokenizer, max_target_length=8), padding=3)
    assert learnt(task, tokenizer, kind) == [row["target"] for row in rows_of()]


def learnt(task: Any, tokenizer: Any, kind: str) -> list[str]:
    features, model = features_of(task, tokenizer), built(task, kind)
    fit(task, model, features, np.arange(len(features)), steps=60, rate=0.01)
    texts: list[str] = outcome_of(task, model, features).predictions
    return texts


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scorer", ["rouge", "bleu"])
def test_it_learns_a_word_for_a_word(tokenizer: Any, kind: str, scorer: str) -> None:
    task = TextGeneration.build([], tokenizer, max_target_length=8, scorer=scorer, num_beams=2)
    texts = learnt(task, tokenizer, kind)
    assert [task.format_prediction(text) for text in texts] == [row["target"] for row in rows_of()]
    metrics = task.metrics(texts, features_of(task, tokenizer), np.arange(5))
    assert metrics["rouge_l"] == 1
    assert task.metric == ("bleu" if scorer == "bleu" else "rouge_l")


@pytest.mark.parametrize("scorer", ["rouge", "bleu"])
def test_scores_and_baseline_are_those_of_sequence_to_sequence(tokenizer: Any, scorer: str) -> None:
    rows: list[Row] = [
        {"source": "w2 w3 w4 w5 w6", "target": "w8 w9 w8 w9", "references": '["w8 w9 w9", "w1 w4 w5"]'},
        {"source": "w2", "target": "w8 w9", "references": '["w2"]'},
        {"source": "w7 w8 w9", "target": "w1 w2 w3", "references": None},
    ]
    numbers, predictions = np.array([2, 0, 1]), ["w1 w2", "w8 w9 w4 w5 w1", "w2"]
    one = TextGeneration.build([], tokenizer, scorer=scorer, template="w0 {source} w1")
    other = SequenceToSequence.build([], tokenizer, scorer=scorer, source_prefix="w0 ")
    found: list[Any] = [
        (task, Features.in_memory(task.encode(rows, tokenizer, 128))) for task in (one, other)
    ]
    scores = [task.metrics(predictions, features, numbers) for task, features in found]
    assert scores[0] == scores[1]
    assert 0 < scores[0]["bleu"] < 100
    sums = [task.statistics(predictions, features, numbers) for task, features in found]
    assert np.array_equal(sums[0], sums[1])
    assert abs(one.score(sums[0].sum(0)) - scores[0][one.metric]) < 1e-9
    assert one.score(np.zeros((2, sums[0].shape[1]))).tolist() == [0, 0]
    said = [task.baseline(features, np.arange(3), features, numbers) for task, features in found]
    assert said[0] == said[1] == ("the beginning of the source", ["w7 w8 w9", "w2 w3 w4", "w2"])


def test_it_is_built_again_from_json(task: TextGeneration) -> None:
    assert TextGeneration(**json.loads(json.dumps(asdict(task)))) == task
    assert (task.uses_only_input_ids, task.end, task.padding, task.metric) == (True, 3, 0, "rouge_l")
    assert task.settings() == {"pad_token_id": 0}


def test_a_batch_holds_its_examples_words_alone(tokenizer: Any, task: TextGeneration) -> None:
    features = features_of(task, tokenizer)
    for training in (False, True):
        batch = task.collate(features, np.array([0, 3]), CPU, training=training)
        known = {*features.words(np.array([0, 3])).tolist(), task.padding}
        assert {*batch["input_ids"].flatten().tolist(), *batch["labels"].tolist()} <= known


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")  # PEFT asks by the old name
@pytest.mark.parametrize(
    ("method", "kind"), [("lora", "llama"), ("prompt-tuning", "llama"), ("prompt-tuning", "gpt2")]
)
def test_adapters_generate(tokenizer: Any, task: TextGeneration, method: str, kind: str) -> None:
    pytest.importorskip("peft")
    from fednlp.models.adapters import with_adapter

    features = features_of(task, tokenizer)
    model: Any = with_adapter(built(task, kind), {"method": method}, task.model_class)
    fit(task, model, features, np.arange(5), steps=40, rate=0.5 if method == "prompt-tuning" else 0.05)
    expected = [greedy(model, features, number) for number in range(5)]
    made = outcome_of(task, model, features).predictions
    assert made == [tokenizer.decode(ids, skip_special_tokens=True) for ids in expected]
    assert len(set(made)) > 1


def greedy(model: Any, features: Features, number: int) -> list[int]:
    """The likeliest token, one at a time, without any cache; padding is none."""
    ids = features.ragged("input_ids", number)[: features.values("prompt")[number]].tolist()
    made: list[int] = []
    with torch.inference_mode():
        while len(made) < 8 and made[-1:] != [3]:
            read = torch.tensor([ids + made])
            logits = model(input_ids=read, attention_mask=torch.ones_like(read)).logits[0, -1]
            logits[0] = -torch.inf
            made.append(int(logits.argmax()))
    return made


def test_what_cannot_generate_says_so(tokenizer: Any, task: TextGeneration) -> None:
    from fednlp.models.lstm import LstmConfig

    config = LstmConfig(vocab_size=5 + len(WORDS), embedding_size=8, hidden_size=8)
    batch = task.collate(features_of(task, tokenizer), np.arange(5), CPU)
    with pytest.raises(ModelError, match="LstmForCausalLM cannot generate texts: take a Transformer"):
        task.loss(random_model(task, config), batch)
