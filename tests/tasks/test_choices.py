"""Questions with options: how they are read, which is chosen and by what, and how often a constant answer is right."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.data import load_data
from fednlp.data.choices import answer_fault
from fednlp.data.features import Features
from fednlp.errors import ConfigError, DataError
from fednlp.tasks.chat import Chat
from fednlp.tasks.choices import RATES, candidates_of, question_with_letters, right_of

from .models import CPU, built, byte_level, gpt2

TEMPLATE = (
    "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)
WAYS = ("text", "letter", "generation")
QUESTIONS = [
    ("colour of grass?", ["red", "a deep green", "blue"], 1),
    ("two and two?", ["three", "four"], 1),
    ("who wrote it?", ["he", "she", "they", "a person of another place"], 0),
    ("where?", ["here", "there", "nowhere"], 2),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bytes")
    byte_level(folder, ["here there grass red green A B C D Answer: user assistant"])
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Any:
    from fednlp.models.pretrained import load_tokenizer

    return load_tokenizer(str(folder))


def row(question: str, options: list[str] | None, gold: int, text: str = "") -> dict[str, str | None]:
    turns = [
        {"role": "user", "content": question},
        {"role": "assistant", "content": options[gold] if options else text},
    ]
    return {"messages": json.dumps(turns), "choices": json.dumps(options) if options else None}


ROWS = [*(row(*question) for question in QUESTIONS), row("say yes", None, 0, "yes")]


def made(tokenizer: Any, length: int = 256, **options: Any) -> tuple[Chat, Features, Any]:
    """Return the task, the features of the questions and of an example without options, and a model."""
    task = Chat.build([], tokenizer, chat_template=TEMPLATE, choices=WAYS, max_new_tokens=6, **options)
    model = built(task, gpt2(len(tokenizer), n_positions=256))
    return task, Features.in_memory(task.encode(ROWS, tokenizer, length)), model


@torch.inference_mode()
def predicted(task: Chat, model: Any, features: Features, indices: np.ndarray) -> list[Any]:
    return task.predict(model, features, indices, CPU).predictions


def likelihood(model: Any, tokenizer: Any, prompt: str, answer: str) -> float:
    """Return the log-probability of an answer's tokens, one forward pass, without padding."""
    before = len(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    ids = torch.tensor([tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]])
    with torch.inference_mode():
        found = model(input_ids=ids).logits[0].double().log_softmax(-1)
    return float(found[torch.arange(before - 1, ids.shape[1] - 1), ids[0, before:]].sum())


def prompt_of(tokenizer: Any, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    text: str = tokenizer.apply_chat_template(
        messages, chat_template=TEMPLATE, tokenize=False, add_generation_prompt=True
    )
    return text


def test_the_choices_are_those_of_the_likelihoods_that_the_model_gives(tokenizer: Any) -> None:
    task, features, model = made(tokenizer)
    indices = np.arange(len(ROWS))
    found = predicted(task, model, features, indices)
    assert found[-1][3] == []
    for prediction, (question, options, _) in zip(found, QUESTIONS, strict=False):
        texts = np.array([likelihood(model, tokenizer, prompt_of(tokenizer, question), o) for o in options])
        asking = question_with_letters([{"role": "user", "content": question}], options)[0]["content"]
        prompt = prompt_of(tokenizer, asking)
        letters = [likelihood(model, tokenizer, prompt, "ABCD"[at]) for at in range(len(options))]
        by_length = texts / [len(option) for option in options]
        assert prediction[3][:3] == [texts.argmax(), by_length.argmax(), np.argmax(letters)]
    plain = Chat.build([], tokenizer, chat_template=TEMPLATE)
    alone = Features.in_memory(plain.encode([{"messages": r["messages"]} for r in ROWS], tokenizer, 256))
    assert [one[:3] for one in found] == predicted(plain, model, alone, indices)


def test_likelihoods_and_accuracies_are_those_of_the_evaluation_harness(tokenizer: Any) -> None:
    pytest.importorskip("lm_eval", reason="lm_eval is not installed")
    from lm_eval.api.instance import Instance
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.models.huggingface import HFLM

    task, features, model = made(tokenizer)
    harness = HFLM(
        pretrained=model,
        tokenizer=tokenizer,
        batch_size=3,
        device="cpu",
        max_length=256,
        add_bos_token=False,
    )
    indices = np.arange(len(QUESTIONS))
    predictions = predicted(task, model, features, indices)
    accuracies = []
    for number, (question, options, gold) in enumerate(QUESTIONS):
        prompt = prompt_of(tokenizer, question)
        asked = [
            Instance("loglikelihood", {}, (prompt, option), place) for place, option in enumerate(options)
        ]
        results = harness.loglikelihood(asked, disable_tqdm=True)
        own = [one.answer for one in candidates_of(features, number)][: len(options)]
        assert [list(one) for one in own] == [
            harness._encode_pair(prompt, option)[1] for option in options
        ]  # the same tokens
        mine = [likelihood(model, tokenizer, prompt, option) for option in options]
        assert [value for value, _ in results] == pytest.approx(mine, abs=1e-4)
        parts = [float(found) for found in _likelihoods(task, model, features, number)[: len(options)]]
        assert [value for value, _ in results] == pytest.approx(parts, rel=1e-6)
        config = SimpleNamespace(process_results=None, use_prompt=None)
        asked_of = SimpleNamespace(
            config=config,
            _metric_fn_list={"acc": None, "acc_norm": None},
            OUTPUT_TYPE="multiple_choice",
            multiple_input=False,
            multiple_target=False,
            doc_to_choice=lambda doc: doc["choices"],
            doc_to_target=lambda doc: doc["answer"],
        )
        scores = ConfigurableTask.process_results(asked_of, {"choices": options, "answer": gold}, results)
        accuracies.append((scores["acc"], scores["acc_norm"]))
        choices = predictions[number][3]
        assert scores == {"acc": float(choices[0] == gold), "acc_norm": float(choices[1] == gold)}
    metrics = task.metrics(predictions, features, indices)
    wanted = np.mean(accuracies, axis=0).tolist()
    assert [metrics["choice_accuracy"], metrics["choice_accuracy_norm"]] == pytest.approx(wanted, abs=1e-6)
    print(f"lm_eval: {wanted}, and the likelihoods are equal to 1e-6")


def _likelihoods(task: Chat, model: Any, features: Features, number: int) -> np.ndarray:
    from fednlp.tasks.choices import batches_of

    candidates = candidates_of(features, number)
    found = np.zeros(len(candidates))
    with torch.inference_mode():
        for batch in batches_of(candidates, task.padding):
            for owners, _, losses in task._scored(model, batch, CPU):
                found -= np.bincount(owners, losses, len(candidates))
    return found


picks = st.lists(st.tuples(*[st.integers(-1, 3)] * 4, st.integers(0, 1)), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(picks, st.data())
def test_rates_are_functions_of_sums_and_no_constant_answer_is_better_than_the_baseline(
    chosen: list[tuple[int, ...]], data: st.DataObject
) -> None:
    gold = data.draw(st.lists(st.integers(-1, 3), min_size=len(chosen), max_size=len(chosen)))
    features = Features(None, {"gold": np.array(gold), "learnt": np.zeros(0)}, {})
    task = Chat(vocabulary=4, choices=WAYS, metric="choice_accuracy")
    predictions = [
        [1, 2, 0.5, list(one) if right >= 0 else [], ""] for one, right in zip(chosen, gold, strict=True)
    ]
    indices = np.arange(len(gold))
    metrics = task.metrics(predictions, features, indices)
    at = data.draw(st.integers(0, len(gold)))
    parts = [
        task.sums(predictions[some], features, indices[some]) for some in (slice(0, at), slice(at, None))
    ]
    summed = task.metrics_of_sums([sum(pair) for pair in zip(*parts, strict=True)])
    assert summed == pytest.approx(metrics, nan_ok=True)
    score = float(task.score(task.statistics(predictions, features, indices).sum(0)))
    assert score == pytest.approx(metrics["choice_accuracy"], nan_ok=True)
    if not any(place >= 0 for place in gold):
        assert np.isnan(score)
        return
    scored = [place for place in gold if place >= 0]
    assert metrics["constant_accuracy"] == max(
        np.mean([place == one for place in scored]) for one in range(4)
    )
    assert metrics["format_rate"] == pytest.approx(
        np.mean([one[4] for one, place in zip(chosen, gold, strict=True) if place >= 0])
    )


def test_the_baseline_is_the_best_constant_answer(tokenizer: Any) -> None:
    task, features, _ = made(tokenizer, scorer="rouge")
    indices = np.arange(len(ROWS))
    name, predictions = task.baseline(features, indices, features, indices)
    assert "always the same option" in name
    metrics = task.metrics(predictions, features, indices)
    assert (
        {metrics[rate] for rate in RATES if rate != "format_rate"} == {metrics["constant_accuracy"]} == {0.5}
    )
    assert metrics["format_rate"] == 1
    constant = [[1, 2, 0.5, [2, 2, 2, 2, 1], ""]] * len(ROWS)
    assert task.metrics(constant, features, indices)["choice_accuracy"] == 0.25


def test_an_interval_of_choices_is_that_of_a_share() -> None:
    from fednlp.tasks.intervals import of_examples, wilson

    task = Chat(metric="letter_accuracy")
    features = Features(None, {"gold": np.array([0, 1, -1, 1])}, {})
    predictions = [[1, 1, 0.0, [0, 0, 1, -1, 0], ""], [1, 1, 0.0, [0, 0, 1, -1, 0], ""], [1, 1, 0.0, [], ""]]
    predictions.append(predictions[1])
    rows = task.statistics(predictions, features, np.arange(4))
    assert of_examples(rows, task.score) == wilson(2 / 3, 3)


def test_a_generated_answer_is_read_and_its_format_counted(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, features, model = made(tokenizer, scorer="rouge")
    indices = np.arange(len(ROWS))
    said = iter([["B", "four", "(A) he", "D"], ["a green", "four", "", "here", "yes"]])
    monkeypatch.setattr(Chat, "_written", lambda *_: next(said))
    predictions = predicted(task, model, features, indices)
    metrics = task.metrics(predictions, features, indices)
    assert metrics["generated_accuracy"] == 0.75
    assert metrics["format_rate"] == 0.5
    assert 0 < metrics["rouge_l"] < 1
    shown = task.format_prediction(predictions[0])
    assert (shown["generated"], shown["answer"]) == ("B", "a green")
    assert task.format_prediction(predictions[2])["generated"] == "A"
    assert task.format_prediction(predictions[-1]) == "yes"
    summed = task.metrics_of_sums(task.sums(predictions, features, indices))
    assert summed == pytest.approx(metrics)
    by_rouge = Chat.build([], tokenizer, chat_template=TEMPLATE, scorer="rouge", metric="rouge_l")
    score = by_rouge.score(by_rouge.statistics(predictions, features, indices).sum(0))
    assert float(score) == pytest.approx(metrics["rouge_l"])


def test_answers_are_generated_alike_alone_and_together(tokenizer: Any) -> None:
    task, features, model = made(tokenizer, scorer="rouge")
    together = predicted(task, model, features, np.arange(len(ROWS)))
    alone = [predicted(task, model, features, np.array([n]))[0] for n in range(len(ROWS))]
    assert [one[3:] for one in together] == [one[3:] for one in alone]
    messages = [{"messages": json.dumps(json.loads(r["messages"] or "")[:1])} for r in ROWS]
    assert [one[4] for one in together] == task.replies(model, messages, tokenizer, 256, CPU)


def test_what_options_lose_is_counted(tokenizer: Any) -> None:
    task, features, model = made(tokenizer, length=18)
    lost = task.cuts(features, np.arange(len(ROWS)))
    assert lost["the beginning of the question that lists its options"] == 3
    assert lost["their options, which are not scored, since one is too long"] == 1
    assert features.values("gold").tolist() == [1, 1, -1, 2, -1]
    assert all(len(one.read) <= 18 for n in range(4) for one in candidates_of(features, n))
    found = predicted(task, model, features, np.arange(len(ROWS)))
    assert [bool(one[3]) for one in found] == [True, True, False, True, False]
    assert right_of([one[3] for one in found], features.values("gold")).shape == (5, 5)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


Answer = Callable[[list[str], int], Any]
FORMS: dict[str, tuple[str, Answer]] = {
    "number": ("by its number, from 0", lambda options, gold: gold),
    "letter": ("by its letter", lambda options, gold: "abcd"[gold]),
    "text": ("by its text", lambda options, gold: options[gold]),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("layout", ["question", "messages"])
def test_questions_with_options_become_chats_in_each_form(form: str, layout: str, tmp_path: Path) -> None:
    said, answer = FORMS[form]
    rows = [
        {"question": q} if layout == "question" else {"messages": [{"role": "user", "content": q}]}
        for q, _, _ in QUESTIONS
    ]
    for one, (_, options, gold) in zip(rows, QUESTIONS, strict=True):
        one |= {"choices": options, "answer": answer(options, gold), "subject": "x"}
    data = load_data(path=written(tmp_path / "choices.jsonl", rows), test_fraction=None)
    assert (data.task, dict(data.columns)) == ("chat", {"messages": "messages", "choices": "choices"})
    assert data.train.column_names == ["messages", "choices", "subject"]
    for made, (question, options, gold) in zip(data.train.to_pylist(), QUESTIONS, strict=True):
        assert made["messages"] == row(question, options, gold)["messages"]
        assert json.loads(made["choices"]) == options
    assert any(said in note for note in data.notes)


OTHER_WORDS: dict[str, Callable[[str, list[str], int], dict[str, Any]]] = {
    "arc": lambda question, options, gold: {
        "question": question,
        "choices": {"text": options, "label": list("1234"[: len(options)])},
        "answerKey": "1234"[gold],
    },
    "openbookqa": lambda question, options, gold: {
        "question_stem": question,
        "choices": [{"text": text, "label": "ABCD"[at]} for at, text in enumerate(options)],
        "answerKey": "ABCD"[gold],
    },
    "mmlu": lambda question, options, gold: {
        "question": question,
        **dict(zip("ABCD", [*options, "", ""], strict=False)),
        "answer": "ABCD"[gold],
    },
    "hellaswag": lambda question, options, gold: {"ctx": question, "endings": options, "label": str(gold)},
}


@pytest.mark.parametrize("layout", OTHER_WORDS)
def test_questions_in_other_words_are_found_by_themselves(layout: str, tmp_path: Path) -> None:
    rows = [OTHER_WORDS[layout](*question) | {"system": "be brief"} for question in QUESTIONS]
    if layout == "mmlu":
        import csv

        path = tmp_path / "choices.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    else:
        path = written(tmp_path / "choices.jsonl", rows)
    data = load_data(path=path, test_fraction=None)
    assert (data.task, data.train.column_names) == ("chat", ["messages", "choices"])
    for made, (question, options, gold) in zip(data.train.to_pylist(), QUESTIONS, strict=True):
        assert json.loads(made["choices"]) == options
        system, *turns = json.loads(made["messages"])
        assert system == {"role": "system", "content": "be brief"}
        assert turns == json.loads(row(question, options, gold)["messages"] or "")
    assert any(note.startswith("question, choices, answer are made of") for note in data.notes)


def test_a_label_that_no_option_has_is_named_with_its_line(tmp_path: Path) -> None:
    rows = [OTHER_WORDS["arc"](*question) for question in QUESTIONS]
    rows[2]["answerKey"] = "D"
    with pytest.raises(
        DataError, match=r"choices.jsonl:3: the answer 'D' is none of the options' labels, 1, 2, 3"
    ):
        load_data(path=written(tmp_path / "choices.jsonl", rows))


def test_a_conversation_may_end_with_an_option_and_others_have_none(tmp_path: Path) -> None:
    rows = [{"messages": json.loads(one["messages"] or ""), "choices": None} for one in ROWS]
    for one, (_, options, _) in zip(rows, QUESTIONS, strict=False):
        one["choices"] = options
    data = load_data(path=written(tmp_path / "a.jsonl", rows), test_fraction=None)
    assert data.train["choices"].to_pylist() == [one["choices"] or "" for one in ROWS]
    renamed = [
        {"question": q, "options": o, "answer": g} | {"options": json.dumps(o)} for q, o, g in QUESTIONS
    ]
    path = written(tmp_path / "b.jsonl", renamed)
    data = load_data(path=path, test_fraction=None, task="chat", columns={"choices": "options"})
    assert data.train["messages"].to_pylist() == [one["messages"] for one in ROWS[:-1]]
    with pytest.raises(DataError, match="no column 'optons'"):
        load_data(path=path, task="chat", columns={"choices": "optons"})


def test_answers_of_a_column_are_read_as_most_of_them_can_be(tmp_path: Path) -> None:
    """Numbers among the options are no numbers of options, and the other way round."""
    rows = [{"question": "1 + 1?", "choices": ["1", "2", "3"], "answer": 1}]
    other = [{"question": "2 + 1?", "choices": ["1", "7", "3"], "answer": 0}]
    data = load_data(path=written(tmp_path / "a.jsonl", rows + other), test_fraction=None)
    assert [json.loads(m)[-1]["content"] for m in data.train["messages"].to_pylist()] == ["2", "1"]
    with pytest.raises(DataError, match=r"two ways, by its number, from 0 and by its text.*write letters"):
        load_data(path=written(tmp_path / "b.jsonl", rows), test_fraction=None)


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "one": ({"choices": ["red"], "answer": 0}, "there is one option in 'choices'"),
    "none": ({"choices": [], "answer": 0}, "there is no option in 'choices'"),
    "equal": ({"choices": ["red", "red "], "answer": 0}, "the option 'red' is in 'choices' twice"),
    "empty": ({"choices": ["red", " "], "answer": 0}, "option 2 in 'choices' is empty"),
    "outside": ({"choices": ["red", "blue"], "answer": 2}, "'2' is outside the 2 choices, which are 0 to 1"),
    "no list": ({"choices": "red, blue", "answer": 0}, "'choices' is no list of texts such as"),
    "python": ({"choices": "['red', 'blue']", "answer": 0}, "of pandas, write the table with to_json"),
    "many": ({"choices": [f"o{n}" for n in range(27)], "answer": 0}, "26 at most have a letter"),
}


@pytest.mark.parametrize("case", WRONG)
def test_options_that_cannot_be_scored_are_named_with_their_line(case: str, tmp_path: Path) -> None:
    bad, why = WRONG[case]
    good = {"question": "grass?", "choices": ["red", "blue"], "answer": 1}
    path = written(tmp_path / "choices.jsonl", [good, good, {"question": "grass?"} | bad, good])
    with pytest.raises(DataError, match=r"choices\.jsonl:3") as error:
        load_data(path=path, test_fraction=None)
    assert why in str(error.value)
    assert "\n" not in str(error.value)
    data = load_data(path=path, test_fraction=None, on_invalid_row="drop")
    assert (len(data.train_numbers), data.dropped) == (3, 1)


def test_an_answer_that_is_no_option_is_named(tmp_path: Path) -> None:
    by_text = [
        {"question": "grass?", "choices": ["red", "green"], "answer": answer}
        for answer in ("green", "red", "grey")
    ]
    with pytest.raises(DataError, match="'grey' is not among the 2 choices: write it as it stands there"):
        load_data(path=written(tmp_path / "a.jsonl", by_text), test_fraction=None)
    by_letter = [one | {"answer": letter} for one, letter in zip(by_text, "BAC", strict=True)]
    with pytest.raises(DataError, match="'C' is outside the 2 choices, which are A to B"):
        load_data(path=written(tmp_path / "b.jsonl", by_letter), test_fraction=None)
    turns = json.loads(row("grass?", ["red"], 0)["messages"] or "")
    other = {"messages": turns, "choices": ["green", "blue"]}
    with pytest.raises(DataError, match="'red' is not among the 2 choices in 'choices'"):
        load_data(path=written(tmp_path / "c.jsonl", [other, other]), test_fraction=None)
    both = {"messages": turns, "choices": ["red", "blue"], "answer": "B"}
    with pytest.raises(DataError, match="ends with 'red', and the answer is 'blue'"):
        load_data(path=written(tmp_path / "d.jsonl", [both, both]), test_fraction=None)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "other metric": ({"metric": "accuracy"}, "is not for chats: say log_likelihood"),
    "not computed": ({"metric": "generated_accuracy"}, r'task.choices = \["text", "letter", "generation"\]'),
    "no texts": ({"metric": "rouge_l"}, 'say task.scorer = "rouge"'),
    "bleu": ({"scorer": "bleu"}, 'say "rouge", or leave it out'),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_score_that_is_not_computed_is_refused(case: str, tokenizer: Any) -> None:
    options, why = REFUSED[case]
    with pytest.raises(ConfigError, match=why):
        Chat.build([], tokenizer, chat_template=TEMPLATE, **options)


def test_an_answer_outside_very_many_options_is_told_too() -> None:
    assert answer_fault("Z", ["a"] * 1_200_000, "letter").endswith("the 1,200,000 choices, which are A to Z")
