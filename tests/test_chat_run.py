"""Runs of chats: what a client's weight is, what the folder of a model is ready for, and what is told of long texts."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fednlp
from fednlp.config import parse
from fednlp.errors import ConfigError
from fednlp.inference.export import export
from fednlp.inference.predict import predict_texts
from fednlp.inference.score import evaluate_run
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir
from tests.test_every_task import WORDS
from tests.test_prompt_decoder_run import save_decoder

TEMPLATE = (
    "{% for m in messages %}{{ m['content'] + ' [SEP] ' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'word0 ' }}{% endif %}"
).replace("{{ m['content']", "{{ ('word0 ' if m['role'] == 'assistant' else '') + m['content']")

pytestmark = [pytest.mark.whole, pytest.mark.usefixtures("same_workers")]


@pytest.fixture(scope="module")
def decoder(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_decoder(tiny_model, tmp_path_factory.mktemp("decoder"))


def document(decoder: Path, rows: list[dict[str, Any]], folder: Path, **more: Any) -> dict[str, Any]:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "num_rounds": 2,
        "clients_per_round": 3,
        "data": {"path": str(path)},
        "task": {"name": "chat", "chat_template": TEMPLATE, "max_new_tokens": 12},
        "partition": {"method": "quantity", "clients": 4, "beta": 1.0},
        "model": {"name_or_path": str(decoder), "max_length": 32},
        "client": {"learning_rate": 0.01},
        "runtime": {"workers": 1},
    } | more


def questions(count: int, answer: str = "") -> list[dict[str, Any]]:
    rng = random.Random("questions")
    return [
        {"question": f"{rng.choice(WORDS)} {rng.choice(WORDS)}", "answer": answer or rng.choice(WORDS)}
        for _ in range(count)
    ]


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(run.model / "model.safetensors")


def test_weights_by_tokens_are_those_by_examples_where_all_answers_are_as_long(
    decoder: Path, tmp_path: Path
) -> None:
    """Two learnt tokens an answer: all weights are doubled, which is exact."""
    asked = document(decoder, questions(60), tmp_path)
    runs = [
        fednlp.run(parse(asked | {"algorithm": {"weighting": weighting}}), tmp_path / weighting)
        for weighting in ("examples", "tokens")
    ]
    one, other = map(weights, runs)
    assert all(torch.equal(one[name], other[name]) for name in one)
    longer = questions(60)
    for row in longer[::2]:
        row["answer"] = " ".join([row["answer"]] * 5)
    asked = document(decoder, longer, tmp_path)
    runs = [
        fednlp.run(parse(asked | {"algorithm": {"weighting": weighting}}), tmp_path / f"{weighting} 2")
        for weighting in ("examples", "tokens")
    ]
    one, other = map(weights, runs)
    assert not all(torch.equal(one[name], other[name]) for name in one)


def test_a_folder_answers_messages_in_a_pipeline_and_stops(
    decoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import pipeline

    asked = document(decoder, questions(80, "word7"), tmp_path, num_rounds=6, clients_per_round=4)
    asked["client"]["learning_rate"] = 0.05
    run = fednlp.run(parse(asked), tmp_path / "run")
    assert predict_texts(run.folder, "word1 word2") == ["word7"]
    folder = export(run.folder, tmp_path / "out")
    write: Any = pipeline("text-generation", model=str(folder), device="cpu")
    [found] = write([{"role": "user", "content": "word1 word2"}])
    assert found["generated_text"][-1] == {"role": "assistant", "content": "word7"}
    settings = json.loads((folder / "generation_config.json").read_text())
    assert settings["eos_token_id"] == write.tokenizer.convert_tokens_to_ids("[SEP]")
    assert write.tokenizer.chat_template == TEMPLATE
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]
    exec(code.replace("path/to/this/folder", str(folder)).replace("Some text", "word1 word2"), {})
    assert capsys.readouterr().out.strip() == "word7"


def test_questions_with_options_are_scored_by_the_run_and_by_evaluate(decoder: Path, tmp_path: Path) -> None:
    rng = random.Random("options")
    rows = [
        {
            "question": row["question"],
            "choices": (texts := rng.sample(WORDS, 3)),
            "answer": texts.index(texts[n % 3]),
        }
        for n, row in enumerate(questions(60))
    ]
    task = {"name": "chat", "chat_template": TEMPLATE, "metric": "choice_accuracy"}
    run = fednlp.run(parse(document(decoder, rows, tmp_path, task=task)), tmp_path / "run")
    summary = run.read_json("summary.json")
    found, baseline = summary["evaluation"]["global"], summary["trivial_baseline"]
    assert baseline["choice_accuracy"] == found["constant_accuracy"]
    assert (summary["metric"], summary["interval"]["metric"]) == ("choice_accuracy", "choice_accuracy")
    assert 0 <= summary["interval"]["low"] <= found["choice_accuracy"] <= summary["interval"]["high"]
    assert "choice_accuracy_worst_decile" in summary["evaluation"]["personal"]
    assert evaluate_run(run.folder).metrics == pytest.approx(found, abs=1e-6)
    assert evaluate_run(run.folder, tmp_path / "chats.jsonl").metrics["constant_accuracy"] == pytest.approx(
        1 / 3
    )


def test_cut_answers_are_warned_of_however_few_they_are(decoder: Path, tmp_path: Path) -> None:
    rows = [*questions(300), {"question": "word1", "answer": "word2 " * 40}]
    said: list[str] = []
    asked = document(decoder, rows, tmp_path, num_rounds=1)
    run = fednlp.run(parse(asked), tmp_path / "run", callback=_Noting(said))
    [line] = [line for line in said if "that the model reads" in line]
    assert line.startswith(
        "warning: 1 text (0.3 %) longer than the 32 tokens that the model reads, which lose the end of"
    )
    issues = run.read_json("data.json")["oddities"]
    assert [issue["minor"] for issue in issues if issue["kind"] == "cut-off"] == [False]


class _Noting(NullCallback):
    def __init__(self, said: list[str]) -> None:
        self.said = said

    def log(self, text: str) -> None:
        self.said.append(text)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "padding free": ({"client": {"padding_free": True}}, "encoder, and chat has a decoder: leave it out"),
    "tokens of texts": (
        {"task": {"name": "text-classification"}, "algorithm": {"weighting": "tokens"}},
        "text-classification has none",
    ),
    "bounded tokens": ({"algorithm": {"weighting": "tokens", "most_examples": 5}}, "leave one of them out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_go_with_chats_is_refused_in_a_line(case: str, decoder: Path, tmp_path: Path) -> None:
    changes, why = REFUSED[case]
    with pytest.raises(ConfigError, match=why) as error:
        parse(document(decoder, questions(4), tmp_path) | changes).resolved()
    assert "\n" not in str(error.value)
