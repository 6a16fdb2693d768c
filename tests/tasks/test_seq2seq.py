"""Sequence to sequence with every kind of encoder-decoder: loss, generation, scores."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fednlp.data.features import Features
from fednlp.errors import ConfigError, DataError, ModelError
from fednlp.tasks import blocks
from fednlp.tasks.seq2seq import SequenceToSequence

from .models import CPU, WORDS, bert, built, byte_level, fit, wordpiece

pytestmark = pytest.mark.whole

KINDS = ("t5", "bart", "marian", "mbart", "bert-bert")
SOURCES = ("w1 w2 w3", "w4", "w5 w6 w7 w8 w9 w10", "w2 w2 w11", "w12 w13")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return wordpiece(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def task(tokenizer: Any) -> SequenceToSequence:
    return SequenceToSequence.build([], tokenizer, max_target_length=10)


def t5(words: int) -> Any:
    from transformers import T5Config

    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return T5Config(vocab_size=words, **sizes, decoder_start_token_id=0, eos_token_id=3, dropout_rate=0.0)


def bart(words: int, kind: str = "BartConfig") -> Any:
    import transformers

    sizes = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_attention_heads": 4}
    sizes |= {"decoder_attention_heads": 4, "encoder_layers": 2, "decoder_layers": 2}
    starts = {} if kind == "MBartConfig" else {"decoder_start_token_id": 3}
    return getattr(transformers, kind)(
        vocab_size=words,
        max_position_embeddings=64,
        dropout=0.0,
        init_std=0.1,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        **sizes,
        **starts,
    )


def bert_bert(words: int) -> Any:
    from transformers import EncoderDecoderConfig

    return EncoderDecoderConfig.from_encoder_decoder_configs(bert(words), bert(words))


CONFIGS: dict[str, Callable[[int], Any]] = {
    "t5": t5,
    "bart": bart,
    "marian": lambda words: bart(words, "MarianConfig"),
    "mbart": lambda words: bart(words, "MBartConfig"),
    "bert-bert": bert_bert,
}


def features_of(task: Any, tokenizer: Any, sources: Any = SOURCES) -> Features:
    """Targets are their sources backwards."""
    rows = [{"source": text, "target": " ".join(text.split()[::-1])} for text in sources]
    return Features.in_memory(task.encode(rows, tokenizer, 16))


def outcome_of(task: Any, model: Any, features: Features, numbers: Any = None) -> Any:
    with torch.inference_mode():
        return task.predict(model, features, np.arange(len(features)) if numbers is None else numbers, CPU)


def test_features_are_ids_and_references(tokenizer: Any, task: SequenceToSequence) -> None:
    made = task.encode(
        [
            {"source": "w1 w2", "target": "w3", "references": '["w3 é", "w4"]'},
            {"source": None, "target": "w3", "references": "[]"},
        ],
        tokenizer,
        16,
    )
    assert tokenizer.convert_ids_to_tokens(made[0]["input_ids"]) == ["[CLS]", "w1", "w2", "[SEP]"]
    assert tokenizer.convert_ids_to_tokens(made[0]["target"]) == ["[CLS]", "w3", "[SEP]"]
    assert json.loads(made[0]["references"]) == ["w3 é", "w4"]
    assert json.loads(made[1]["references"]) == ["w3"]
    prefixed = SequenceToSequence.build([], tokenizer, source_prefix="w9 ")
    assert tokenizer.decode(
        prefixed.encode([{"source": "w1", "target": ""}], tokenizer, 16)[0]["input_ids"]
    ) == ("[CLS] w9 w1 [SEP]")


@pytest.mark.parametrize("length", [2, 3, 5, 10])
def test_what_is_too_long_is_cut_and_the_end_stays(tokenizer: Any, tmp_path: Path, length: int) -> None:
    task = SequenceToSequence.build([], tokenizer, max_target_length=length)
    made = task.encode([{"source": " ".join(WORDS), "target": " ".join(WORDS)}], tokenizer, 7)[0]
    assert len(made["input_ids"]) == 7
    assert (len(made["target"]), made["target"][-1]) == (length, 3)
    bare = byte_level(tmp_path, ["a b"])  # as GPT-2's, which adds nothing
    bare._tokenizer.post_processor = __import__("tokenizers").processors.ByteLevel()
    task = SequenceToSequence.build([], bare, max_target_length=length)
    ids = task.encode([{"source": "a", "target": "b" * 20}, {"source": "a", "target": "b"}], bare, 7)
    assert (len(ids[0]["target"]), ids[0]["target"][-1]) == (length, bare.eos_token_id)
    assert ids[1]["target"] == [*bare("b")["input_ids"], bare.eos_token_id]
    if length > 2:  # an end that is written out at the beginning is not the end
        written = task.encode([{"source": "a", "target": "</s>" + "b" * 20}], bare, 7)[0]["target"]
        assert (len(written), written[-1]) == (length, bare.eos_token_id)


@pytest.mark.parametrize("text", ["{", '"a"', "[1]", '{"a": 1}', "[" * 100_000, "[null]"])
def test_references_are_a_list_of_texts(tokenizer: Any, task: SequenceToSequence, text: str) -> None:
    with pytest.raises(DataError, match="JSON list of texts") as caught:
        task.encode([{"source": "w1", "target": "w2", "references": text}], tokenizer, 16)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scorer": "meteor"}, 'scorer is "meteor"'),
        ({"max_target_length": 1}, "max_target_length is 1"),
        ({"num_beams": 0}, "num_beams is 0"),
    ],
)
def test_options_that_cannot_be(tokenizer: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SequenceToSequence.build([], tokenizer, **options)


@pytest.mark.filterwarnings("ignore:Version v4.12.0:FutureWarning")  # said whenever it is given labels
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_is_that_of_transformers_row_by_row(tokenizer: Any, task: Any, kind: str) -> None:
    model, features = built(task, CONFIGS[kind](len(tokenizer))), features_of(task, tokenizer)
    if kind == "bert-bert":
        model.config.decoder_start_token_id = tokenizer.cls_token_id
    total, count = 0.0, 0
    for number in range(len(features)):
        source, target = (
            torch.from_numpy(features.ragged(name, number).astype(np.int64))[None]
            for name in ("input_ids", "target")
        )
        if kind == "bert-bert":  # its decoder begins with the [CLS] that the target begins with
            assert target[0, 0] == tokenizer.cls_token_id
            target = target[:, 1:]
        with torch.inference_mode():
            loss = float(model(input_ids=source, labels=target).loss)
        total, count = total + loss * target.numel(), count + target.numel()
    batch = task.collate(features, np.arange(len(features)), CPU)
    assert float(task.loss(model, batch).detach()) == pytest.approx(total / count, rel=1e-5)
    outcome = outcome_of(task, model, features)
    assert (outcome.loss, outcome.weight) == (pytest.approx(total, rel=1e-5), count)
    if kind == "bert-bert":  # its configuration need not say what a decoder begins with
        model.config.decoder_start_token_id = None
        assert float(task.loss(model, batch).detach()) == pytest.approx(total / count, rel=1e-5)


def test_a_configuration_need_not_say_what_a_decoder_begins_with(tokenizer: Any, task: Any) -> None:
    """Then it is the tokenizer's [CLS]."""
    from transformers import T5Config

    config = T5Config(**{k: v for k, v in t5(len(tokenizer)).to_dict().items() if "start" not in k})
    silent, plain = built(task, config), built(task, t5(len(tokenizer)))
    plain.config.decoder_start_token_id = tokenizer.cls_token_id
    features = features_of(task, tokenizer)
    one, other = outcome_of(task, silent, features), outcome_of(task, plain, features)
    assert one == other


def test_smoothing_is_torchs_and_for_training_alone(tokenizer: Any, task: Any) -> None:
    smooth = SequenceToSequence.build([], tokenizer, max_target_length=10, label_smoothing_factor=0.2)
    model, features = built(task, t5(len(tokenizer))), features_of(task, tokenizer)
    batch = task.collate(features, np.arange(len(features)), CPU)
    with torch.inference_mode():
        logits = model(
            input_ids=batch["input_ids"],
            attention_mask=batch["attention_mask"],
            labels=batch["target"],
        ).logits[batch["target_mask"].bool()]
        logs = torch.log_softmax(logits, 1)
        hard = -logs[torch.arange(len(logs)), batch["labels"]].mean()
        expected = 0.8 * hard - 0.2 * logs.mean()
    torch.testing.assert_close(smooth.loss(model, batch).detach(), expected, rtol=1e-5, atol=1e-6)
    assert outcome_of(smooth, model, features).loss == outcome_of(task, model, features).loss


def greedy(model: Any, ids: list[int], start: int, most: int) -> list[int]:
    """The likeliest token, one at a time, without any cache; padding is none."""
    made = [start]
    with torch.inference_mode():
        while (len(made) <= most and made[-1] != 3) or len(made) == 1:
            logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=torch.tensor([made])).logits[
                0, -1
            ]
            logits[0] = -torch.inf
            made.append(int(logits.argmax()))
    return made[1:]


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_generation_is_that_of_a_loop(tokenizer: Any, task: Any, kind: str) -> None:
    model, features = built(task, CONFIGS[kind](len(tokenizer))), features_of(task, tokenizer)
    fit(task, model, features, np.arange(len(features)), steps=12, rate=0.01)  # so that some texts end
    start = {"t5": 0, "bert-bert": 2}.get(kind, 3)
    expected = []
    for number in range(len(features)):
        made = greedy(model, features.ragged("input_ids", number).tolist(), start, 10)
        expected.append(" ".join(tokenizer.convert_ids_to_tokens([n for n in made if n > 4])))
    assert outcome_of(task, model, features).predictions == expected
    assert any(expected)


@pytest.mark.parametrize("kind", KINDS)
def test_generation_is_a_function_of_weights_and_options_alone(tokenizer: Any, task: Any, kind: str) -> None:
    """Neither the batch, nor the generator's state, nor what a checkpoint brings as defaults matters."""
    from transformers import GenerationConfig

    beams = SequenceToSequence.build([], tokenizer, max_target_length=10, num_beams=3)
    model, features = built(task, CONFIGS[kind](len(tokenizer))), features_of(task, tokenizer)
    for asked in (task, beams):
        whole = outcome_of(asked, model, features).predictions
        alone = [outcome_of(asked, model, features, np.array([n])).predictions[0] for n in range(5)]
        own = GenerationConfig(
            do_sample=True, min_length=8, no_repeat_ngram_size=1, num_beams=2, max_length=3
        )
        before, model.generation_config = model.generation_config, own
        state = torch.get_rng_state()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            again = outcome_of(asked, model, features).predictions
        assert model.generation_config is own
        model.generation_config = before
        assert torch.equal(torch.get_rng_state(), state)
        assert whole == alone == again
    assert [type(text) for text in whole] == [str] * 5


class Wrapped(torch.nn.Module):
    """A model inside another module, as adapters are put on it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model

    def forward(self, **given: Any) -> Any:
        return self.inner(**given)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_around_a_model_changes_nothing(tokenizer: Any, task: Any, kind: str) -> None:
    from transformers import GenerationConfig

    model, features = built(task, CONFIGS[kind](len(tokenizer))), features_of(task, tokenizer)
    plain = outcome_of(task, model, features)
    model.generation_config = GenerationConfig(min_length=8, no_repeat_ngram_size=1)
    assert outcome_of(task, Wrapped(model).eval(), features) == plain
    assert model.generation_config.min_length == 8


def test_pieces_change_nothing(tokenizer: Any, task: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, features = built(task, bart(len(tokenizer))), features_of(task, tokenizer)
    whole = outcome_of(task, model, features, np.array([3, 1, 4, 0, 2]))
    monkeypatch.setattr(blocks, "MAX_ROWS", 2)
    pieces = outcome_of(task, model, features, np.array([3, 1, 4, 0, 2]))
    assert pieces.predictions == whole.predictions
    assert pieces.loss == pytest.approx(whole.loss, rel=1e-5)
    assert pieces.weight == whole.weight


@pytest.mark.parametrize("kind", ["t5", "bert-bert"])
@pytest.mark.parametrize("scorer", ["rouge", "bleu"])
@pytest.mark.variants(1)
def test_it_learns_to_turn_words_around(tokenizer: Any, kind: str, scorer: str) -> None:
    task = SequenceToSequence.build([], tokenizer, max_target_length=10, scorer=scorer)
    features = features_of(task, tokenizer, ("w1 w2 w3 w4", "w5 w6 w7 w8", "w9 w10 w11 w12"))
    model = built(task, CONFIGS[kind](len(tokenizer)))
    fit(task, model, features, np.arange(3), steps=60, rate=0.01)
    outcome = outcome_of(task, model, features)
    metrics = task.metrics(outcome.predictions, features, np.arange(3))
    assert metrics[task.metric] > (90 if scorer == "bleu" else 0.9)
    assert task.format_prediction(outcome.predictions[0]) == "w4 w3 w2 w1"


@pytest.mark.parametrize("scorer", ["rouge", "bleu"])
def test_the_statistics_give_the_metric(tokenizer: Any, scorer: str) -> None:
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer

    task = SequenceToSequence.build([], tokenizer, scorer=scorer)
    references = [["w1 w2 w3 w4 w5"], ["w1 w2", "w6 w7 w8"], ["w3"]]
    rows = [{"source": "w1", "target": "w2", "references": json.dumps(texts)} for texts in references]
    features = Features.in_memory(task.encode(rows, tokenizer, 16))
    predictions, numbers = ["w3", "w1 w2 w3 w4", "w6 w8"], np.array([2, 0, 1])
    metrics = task.metrics(predictions, features, numbers)
    statistics = task.statistics(predictions, features, numbers)
    assert set(metrics) == {"rouge1", "rouge2", "rouge_l", "bleu"}
    assert statistics.dtype == np.float64
    assert abs(task.score(statistics.sum(0)) - metrics[task.metric]) < 1e-9
    assert task.score(np.zeros((2, statistics.shape[1]))).tolist() == [0, 0]
    streams = [["w3", "w1 w2 w3 w4 w5", "w1 w2"], [None, None, "w6 w7 w8"]]
    assert metrics["bleu"] == pytest.approx(sacrebleu.corpus_bleu(predictions, streams).score, abs=1e-6)
    scorer_of = RougeScorer(["rouge1", "rouge2", "rougeL"])
    pairs = zip(predictions, [references[n] for n in numbers], strict=True)
    scores = [scorer_of.score_multi(texts, text) for text, texts in pairs]
    for mine, theirs in (("rouge1", "rouge1"), ("rouge2", "rouge2"), ("rouge_l", "rougeL")):
        assert metrics[mine] == pytest.approx(np.mean([score[theirs].fmeasure for score in scores]))


def test_it_is_built_again_from_json(task: SequenceToSequence) -> None:
    assert SequenceToSequence(**json.loads(json.dumps(asdict(task)))) == task
    assert not task.uses_only_input_ids
    assert (task.start, task.end, task.metric) == (2, 3, "rouge_l")


def test_the_baseline_is_the_beginning_of_the_source(tokenizer: Any) -> None:
    task = SequenceToSequence.build([], tokenizer, source_prefix="w0 w1 ")
    rows = [{"source": "w2 w3 w4 w5 w6", "target": "w8 w9 w8 w9"}, {"source": "w2", "target": "w8 w9"}]
    features = Features.in_memory(task.encode(rows, tokenizer, 16))
    name, found = task.baseline(features, np.arange(2), features, np.array([1, 0]))
    assert name == "the beginning of the source"
    assert found == ["w2", "w2 w3 w4"]


@pytest.fixture(scope="module")
def two_sided(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of w0 to w19, in whose folder lies that of the targets, v0 to v9."""
    folder = tmp_path_factory.mktemp("two")
    wordpiece(folder / "target", [f"v{n}" for n in range(10)])
    return wordpiece(folder)


def two_vocabularies() -> Any:
    config = bart(25, "MarianConfig")
    config.decoder_vocab_size, config.share_encoder_decoder_embeddings = 15, False
    return config


TRANSLATED = (("w1 w15 w3", "v3 v2 v1"), ("w4", "v4 v4"), ("w19 w6", "v9 v8 v7 v6"))


def test_targets_may_have_a_vocabulary_of_their_own(two_sided: Any, tmp_path: Path) -> None:
    from fednlp.models.pretrained import save_model

    task = SequenceToSequence.build([], two_sided, max_target_length=10, scorer="bleu")
    assert (task.vocabulary, task.start, task.end, task.first) == (15, 2, 3, 2)
    rows = [{"source": source, "target": target} for source, target in TRANSLATED]
    features = Features.in_memory(task.encode(rows, two_sided, 16))
    assert features.ragged("input_ids", 2).tolist() == [2, 5 + 19, 5 + 6, 3]
    assert features.ragged("target", 2).tolist() == [2, 5 + 9, 5 + 8, 5 + 7, 5 + 6, 3]
    model = built(task, two_vocabularies())
    fit(task, model, features, np.arange(3), steps=80, rate=0.01)
    outcome = outcome_of(task, model, features)
    assert outcome.predictions == [target for _, target in TRANSLATED]
    said, beginnings = task.baseline(features, np.arange(3), features, np.arange(3))
    assert (said, beginnings) == ("the beginning of the source", ["w1 w15 w3", "w4", "w19 w6"])

    save_model(model, two_sided, tmp_path, "")
    saved = SequenceToSequence(**json.loads(json.dumps(asdict(task) | {"tokenizer": str(tmp_path)})))
    loaded = SequenceToSequence.build([], two_sided)
    assert loaded.target_vocabulary == task.target_vocabulary, "what it was used for plays no part"
    again = Features.in_memory(saved.encode(rows, two_sided, 16))
    assert outcome_of(saved, model, again) == outcome


def test_one_vocabulary_for_both_stays_as_it_was(tokenizer: Any, task: SequenceToSequence) -> None:
    assert task.target_vocabulary == ""
    assert task.vocabulary == len(tokenizer)


def test_two_tokenizers_that_do_not_go_together(tmp_path: Path) -> None:
    wordpiece(tmp_path / "one" / "target", pad_token="[MASK]")
    with pytest.raises(
        ConfigError, match="its tokenizers pad with different ids, 0 and 4: give both the same"
    ):
        SequenceToSequence.build([], wordpiece(tmp_path / "one"))
    alone = wordpiece(tmp_path / "alone")
    task = SequenceToSequence(str(tmp_path / "alone"), target_vocabulary="0" * 64)
    with pytest.raises(ModelError, match="the tokenizer of its targets is missing"):
        task.encode([{"source": "w1", "target": "w2"}], alone, 8)
