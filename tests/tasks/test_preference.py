"""Preferences: the loss of DPO, what is cut, the reference of round 0, scores, and whole runs."""

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import fednlp
from fednlp.config import parse
from fednlp.data.features import Features, write_features
from fednlp.deployment.server.components import server_components
from fednlp.errors import RunError
from fednlp.inference.inputs import rows_of_file
from fednlp.inference.model import open_trained
from fednlp.inference.predict import predict_texts
from fednlp.inference.score import evaluate_run
from fednlp.models.pretrained import pretrained_model
from fednlp.simulation.run_dir import RunDir
from fednlp.tasks.preference import Preference
from fednlp.training.reference import reference_columns
from fednlp.training.reference import with_reference as with_reference_on_disk

from .models import CPU, built, byte_level, gpt2

CHATML = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)
words = st.text("abc d\né", min_size=1, max_size=12).filter(lambda text: text == text.strip())
pairs = st.tuples(st.lists(words, min_size=1, max_size=5).filter(lambda turns: len(turns) % 2), words, words)

Pair = tuple[list[str], str, str]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = byte_level(tmp_path_factory.mktemp("bytes"), ["a b c user assistant system"])
    made.chat_template = CHATML
    return made


def row_of(pair: Pair) -> dict[str, str | None]:
    turns = [
        {"role": ("user", "assistant")[number % 2], "content": text} for number, text in enumerate(pair[0])
    ]
    return {"messages": json.dumps(turns), "chosen": pair[1], "rejected": pair[2]}


def drawn(count: int) -> list[Pair]:
    rng = np.random.default_rng(0)

    def text() -> str:
        return " ".join(rng.choice(list("abcd"), size=rng.integers(1, 9)))

    return [([text() for _ in range(rng.choice([1, 3]))], text(), text() + " é") for _ in range(count)]


def features_of(task: Preference, tokenizer: Any, found: list[Pair], length: int = 256) -> Features:
    return Features.in_memory(task.encode(map(row_of, found), tokenizer, length))


def plain(model: Any, tokenizer: Any, row: dict[str, Any], side: str) -> torch.Tensor:
    """Return log p of an answer as anybody computes it: one sequence, a softmax at each place."""
    prompt = json.loads(row["messages"])
    render = tokenizer.apply_chat_template
    begin = render(prompt, tokenize=False, add_generation_prompt=True)
    text = render([*prompt, {"role": "assistant", "content": row[side]}], tokenize=False).rstrip("\n")
    first = len(tokenizer(begin, add_special_tokens=False)["input_ids"])
    ids = torch.tensor([tokenizer(text, add_special_tokens=False)["input_ids"]])
    scores = model(input_ids=ids).logits[0].log_softmax(-1)
    return scores[torch.arange(first - 1, ids.shape[1] - 1), ids[0, first:]].sum()


def two_models(task: Preference, tokenizer: Any) -> tuple[Any, Any]:
    """Return a model and its reference, in double precision."""
    reference = built(task, gpt2(len(tokenizer), n_positions=512)).double()
    model = built(task, gpt2(len(tokenizer), n_positions=512)).double()
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        for one in model.parameters():
            one += 0.02 * torch.randn_like(one)
    return model, reference


def with_reference(task: Preference, reference: Any, features: Features) -> Features:
    return features.with_columns(reference_columns(task, reference, features, np.arange(len(features)), CPU))


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_loss_and_margins_are_those_of_a_plain_computation(tokenizer: Any, smoothing: float) -> None:
    task = Preference.build([], tokenizer, beta=0.3, label_smoothing=smoothing)
    model, reference = two_models(task, tokenizer)
    found = drawn(6)
    features = with_reference(task, reference, features_of(task, tokenizer, found))
    with torch.no_grad():
        gaps = [
            [plain(one, tokenizer, row_of(pair), side) for side in ("chosen", "rejected")]
            for pair in found
            for one in (model, reference)
        ]
    table = torch.tensor(gaps, dtype=torch.float64).view(-1, 2, 2)
    margins = 0.3 * ((table[:, 0, 0] - table[:, 1, 0]) - (table[:, 0, 1] - table[:, 1, 1]))
    losses = -(1 - smoothing) * F.logsigmoid(margins) - smoothing * F.logsigmoid(-margins)
    indices = np.arange(len(found))
    loss = task.loss(model, task.collate(features, indices, CPU)).detach()
    assert float(loss) == pytest.approx(float(losses.mean()), abs=1e-6)
    with torch.inference_mode():
        outcome = task.predict(model, features, indices, CPU)
    assert [one[1] for one in outcome.predictions] == pytest.approx(margins.tolist(), abs=1e-9)
    assert outcome.loss / outcome.weight == pytest.approx(float(losses.mean()), abs=1e-9)
    metrics = task.metrics(outcome.predictions, features, indices)
    assert metrics["preference_accuracy"] == float((margins > 0).double().mean())
    assert metrics["reward_margin"] == pytest.approx(float(margins.mean()))
    tokens = [len(tokenizer(pair[1], add_special_tokens=False)["input_ids"]) + 1 for pair in found]
    assert metrics["chosen_log_likelihood"] == pytest.approx(float(table[:, 0, 0].sum()) / sum(tokens))
    sums = task.statistics(outcome.predictions, features, indices).sum(0)
    assert task.score(sums) == metrics[task.metric]
    assert task.metrics_of_sums(task.sums(outcome.predictions, features, indices)) == pytest.approx(metrics)


@pytest.mark.filterwarnings("ignore")
def test_loss_rewards_and_accuracies_are_those_of_trl(tokenizer: Any, tmp_path: Path) -> None:
    """Twenty pairs, by TRL's own trainer: its tokens, its log-likelihoods and its loss."""
    trl = pytest.importorskip("trl", reason="trl is not installed: pip install trl")
    datasets = pytest.importorskip("datasets", reason="trl needs datasets: pip install datasets")
    template = CHATML.replace("</s>\n", "</s>")  # TRL also learns what stands behind the end of an answer
    task = Preference.build([], tokenizer, beta=0.2, chat_template=template)
    model, reference = two_models(task, tokenizer)
    found = drawn(20)
    features = with_reference(task, reference, features_of(task, tokenizer, found))
    indices = np.arange(20)
    loss = float(task.loss(model, task.collate(features, indices, CPU)).detach())
    with torch.inference_mode():
        outcome = task.predict(model, features, indices, CPU)
    metrics = task.metrics(outcome.predictions, features, indices)
    prompts = [json.loads(row_of(pair)["messages"] or "") for pair in found]
    sides = [[[{"role": "assistant", "content": pair[at]}] for pair in found] for at in (1, 2)]
    rows = datasets.Dataset.from_dict({"prompt": prompts, "chosen": sides[0], "rejected": sides[1]})
    arguments = trl.DPOConfig(
        str(tmp_path),
        beta=0.2,
        per_device_train_batch_size=20,
        max_length=None,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
    )
    trainer = trl.DPOTrainer(model, reference, args=arguments, train_dataset=rows, processing_class=tokenizer)
    tokenizer.chat_template = CHATML
    with torch.no_grad():
        wanted = float(trainer.compute_loss(model, next(iter(trainer.get_train_dataloader()))))
    told = {name: values[-1] for name, values in trainer._metrics["eval"].items()}
    print(f"trl {trl.__version__}: loss {wanted:.9f}, ours {loss:.9f}; {told}; {metrics}")
    assert loss == pytest.approx(wanted, abs=1e-6)
    assert metrics["reward_margin"] == pytest.approx(told["rewards/margins"], abs=1e-6)
    assert metrics["preference_accuracy"] == pytest.approx(told["rewards/accuracies"], abs=1e-6)
    means = [sum(one[at] for one in outcome.predictions) / 20 for at in (2, 4)]
    assert means == pytest.approx([told["logps/chosen"], told["logps/rejected"]], abs=1e-4)


def test_no_margin_before_the_first_step_and_no_gradient_at_prompts(tokenizer: Any) -> None:
    """Of a pair alone to the last bit; in a batch, where padding changes the order of sums, but for rounding."""
    task = Preference.build([], tokenizer)
    model = built(task, gpt2(len(tokenizer), n_positions=512))
    features = with_reference(task, model, features_of(task, tokenizer, drawn(12)))
    for number in range(12):
        with torch.inference_mode():
            [one] = task.predict(model, features, np.array([number]), CPU).predictions
        assert one[:2] == [0.5, 0.0]
    with torch.inference_mode():
        outcome = task.predict(model, features, np.arange(12), CPU)
    assert max(abs(one[1]) for one in outcome.predictions) < 1e-5
    assert outcome.loss / outcome.weight == pytest.approx(math.log(2), abs=1e-6)
    batch = task.collate(features, np.arange(12), CPU)
    learnt = torch.zeros(batch["input_ids"].numel(), dtype=torch.bool)
    learnt[batch["places"]] = True
    logits = torch.zeros(*batch["input_ids"].shape, len(tokenizer), requires_grad=True)
    task.loss(_Fixed(logits), batch).backward()
    assert logits.grad is not None
    touched = logits.grad.flatten(0, 1).abs().sum(1) > 0
    assert torch.equal(touched, learnt)


class _Fixed(torch.nn.Module):
    """A model that returns the same logits whatever it reads."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def forward(self, **inputs: Any) -> Any:
        return SimpleNamespace(logits=self.logits)


@settings(max_examples=60, deadline=None)
@given(pair=pairs, length=st.integers(8, 90))
def test_both_sides_are_cut_to_one_prompt_and_answers_only_with_a_word(
    tokenizer: Any, pair: Pair, length: int
) -> None:
    task = Preference.build([], tokenizer)
    row = row_of(pair)
    [whole] = task.encode([row], tokenizer, 10_000)
    [made] = task.encode([row], tokenizer, length)
    sides = []
    for one in (whole, made):
        for side in (slice(one["chosen"]), slice(one["chosen"], None)):
            ids, learnt = one["input_ids"][side], np.array(one["learnt"][side], dtype=bool)
            first = int(np.flatnonzero(learnt)[0])
            sides.append((ids[:first], [token for token, is_it in zip(ids, learnt, strict=True) if is_it]))
            assert len(ids) <= max(length, 0 if one is made else 10_000)
    (prompt, *_), _, (kept, chosen), (other, rejected) = sides
    assert kept == other
    assert len(kept) > 0
    assert prompt[len(prompt) - len(kept) :] == kept
    lost = [len(sides[at][1]) - len(answer) for at, answer in enumerate((chosen, rejected))]
    assert all(sides[at][1][: len(answer)] == answer for at, answer in enumerate((chosen, rejected)))
    assert made["cut_answer"] == sum(lost)
    fits = max(len(sides[0][1]), len(sides[1][1])) < length
    assert (sum(lost) == 0) == fits
    features = Features.in_memory([made])
    assert ("the end of an answer" in task.cuts(features, np.array([0]))) == (not fits)
    assert (task.whole_lengths(features) > task.input_lengths(features)).any() == (made != whole)


def test_the_baseline_prefers_by_length_as_in_training(tokenizer: Any) -> None:
    task = Preference.build([], tokenizer)
    train = features_of(task, tokenizer, [(["a"], "b", "b b b"), (["a"], "c", "c c"), (["a"], "c c", "c")])
    test = features_of(task, tokenizer, [(["a"], "b", "b b"), (["a"], "b b", "c"), (["a"], "c", "b")])
    name, found = task.baseline(train, np.arange(3), test, np.arange(3))
    assert name == "the shorter answer, as in training"
    assert [one[0] for one in found] == [1.0, 0.0, 0.5]
    metrics = task.metrics(found, test, np.arange(3))
    assert metrics["preference_accuracy"] == 0.5
    assert math.isnan(metrics["reward_margin"])


@pytest.fixture(scope="module")
def made(tokenizer: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a small decoder and a file of pairs whose chosen answers say a, and the rejected ones c."""
    folder = tmp_path_factory.mktemp("made")
    task = Preference.build([], tokenizer)
    built(task, gpt2(len(tokenizer), n_positions=128)).save_pretrained(folder / "decoder")
    tokenizer.save_pretrained(folder / "decoder")
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        one, other = (" ".join(rng.choice(list("bd"), size=3)) for _ in range(2))
        rows.append({"prompt": one, "chosen": f"a {other}", "rejected": f"c {other}"})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def experiment(made: Path, **changes: Any) -> Any:
    tables: dict[str, Any] = {
        "num_rounds": 3,
        "clients_per_round": 3,
        "task": {"name": "preference", "max_new_tokens": 8},
        "data": {"path": str(made / "pairs.jsonl")},
        "partition": {"method": "uniform", "clients": 3},
        "model": {"name_or_path": str(made / "decoder"), "max_length": 64},
        "client": {"learning_rate": 0.003, "per_device_train_batch_size": 8},
        "runtime": {"workers": 1},
    }
    return parse({"name": "pairs", **tables, **changes})


LORA = {"method": "lora", "r": 4}


def test_the_reference_is_computed_once_and_shared_by_seeds_whose_adapters_add_nothing_yet(
    made: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Preference.build([], tokenizer)
    rows = task.encode(map(row_of, drawn(5)), tokenizer, 64)
    features = write_features(tmp_path / "features", [rows])
    said: list[str] = []

    def referenced(seed: int, change: float = 0.0) -> Features:
        model = pretrained_model(
            str(made / "decoder"), task.model_class, task.settings(), {}, seed, {"method": "lora", "r": 2}
        )
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if ".lora_B." in name:
                    parameter += change
        return with_reference_on_disk(task, model, features, np.array([3, 0]), CPU, LORA, said.append)

    first = referenced(1)
    column = first.values("reference_chosen")
    assert np.isnan(column).tolist() == [False, True, True, False, True]
    monkeypatch.setattr(Preference, "reference", lambda *given: pytest.fail("it is computed again"))
    again = referenced(2)
    assert np.array_equal(again.values("reference_chosen"), column, equal_nan=True)
    assert again.ragged("input_ids", 1).tolist() == rows[1]["input_ids"]
    assert len(said) == 1
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        referenced(2, change=0.1)


@pytest.mark.parametrize("task", ["chat", "preference"])
def test_a_server_whose_sites_have_all_examples_has_none(made: Path, task: str) -> None:
    served = parse(
        {
            "name": "served",
            "task": {"name": task},
            "data": {"name": "sites"},
            "model": {"name_or_path": str(made / "decoder"), "max_length": 64},
        }
    )
    components = server_components(served.resolved(real_clients=True), print)
    assert len(components.data.test_numbers) == 0
    assert components.task.name == task


@pytest.mark.whole
@pytest.mark.variants(1)
@pytest.mark.parametrize("peft", [None, LORA, LORA | {"averaging": "exact"}], ids=["full", "lora", "exact"])
def test_a_run_learns_to_prefer_and_its_reference_is_the_model_of_round_0(
    made: Path, tmp_path: Path, peft: dict[str, Any] | None
) -> None:
    model = {"name_or_path": str(made / "decoder"), "max_length": 64} | ({"peft": peft} if peft else {})
    client = {"learning_rate": 0.02 if peft else 0.003, "per_device_train_batch_size": 8}
    run = fednlp.run(experiment(made, model=model, client=client), tmp_path / "run")
    last = run.read_json("summary.json")["evaluation"]["global"]
    assert last["preference_accuracy"] == 1.0
    assert last["reward_margin"] > 0.05
    first = run.round_lines()[0]
    assert first["train_loss"] == pytest.approx(math.log(2), abs=0.1)
    scores = evaluate_run(run.folder, made / "pairs.jsonl").metrics
    assert scores["preference_accuracy"] == 1.0
    assert evaluate_run(run.folder).metrics["reward_margin"] == pytest.approx(last["reward_margin"], rel=1e-4)
    # By the weights of the two models alone.
    trained = open_trained(run.folder)
    reference = trained.starting()
    rows = [json.loads(line) for line in (made / "pairs.jsonl").read_text().splitlines()[:5]]
    with torch.no_grad():
        for row in rows:
            pair = row_of(([row["prompt"]], row["chosen"], row["rejected"]))
            gaps = [
                plain(one, trained.tokenizer, pair, "chosen")
                - plain(one, trained.tokenizer, pair, "rejected")
                for one in (trained.model, reference)
            ]
            features = trained.with_reference(Features.in_memory(trained.encode([pair])))
            [outcome] = trained.predict(features)
            assert outcome.predictions[0][1] == pytest.approx(0.1 * float(gaps[0] - gaps[1]), abs=1e-4)


@pytest.mark.whole
def test_a_run_begins_with_the_model_of_another_and_resumes_with_its_own_reference(
    made: Path, stopping: Callable[..., AbstractContextManager[Any]], tmp_path: Path
) -> None:
    """The other was tuned on chats: its adapters are in its weights, which are the reference."""
    chats = experiment(
        made,
        num_rounds=1,
        task={"name": "chat"},
        data={"path": str(made / "chats.jsonl")},
        model={"name_or_path": str(made / "decoder"), "max_length": 64, "peft": LORA},
    )
    rows = [{"prompt": "b d", "completion": "a d"}, {"prompt": "d", "completion": "b"}] * 10
    (made / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tuned = fednlp.run(chats, tmp_path / "chats")
    model = {"name_or_path": str(tuned.model), "max_length": 64, "peft": LORA}
    begun = experiment(made, num_rounds=2, model=model)
    run = fednlp.run(begun, tmp_path / "run")

    with stopping(rounds=1) as callback:
        fednlp.run(begun, tmp_path / "stopped", callback=callback)
    again = fednlp.resume(tmp_path / "stopped")
    assert [line["evaluation"] for line in again.round_lines()] == [
        line["evaluation"] for line in run.round_lines()
    ]
    assert (run.model / "adapter" / "adapter_config.json").is_file()
    assert (run.model / "generation_config.json").is_file()
    assert isinstance(predict_texts(run.folder, "b d")[0], str)
    record, row = next(iter(rows_of_file(open_trained(run.folder), made / "pairs.jsonl").rows))
    assert json.loads(row["messages"] or "") == [{"role": "user", "content": record["prompt"]}]
    weights = tuned.model / "model.safetensors"
    from safetensors.torch import load_file, save_file

    changed = {name: 1.01 * tensor for name, tensor in load_file(weights).items()}
    save_file(changed, weights, metadata={"format": "pt"})
    with pytest.raises(RunError, match="has changed since"):
        evaluate_run(RunDir(run.folder).folder)
