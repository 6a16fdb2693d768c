"""A checkpoint's outputs go to the labels of their names; what it does not know is drawn, and said."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification

from fednlp.models import label_head
from fednlp.models.pretrained import pretrained_model
from fednlp.tasks.inputs import class_settings

Make = Callable[..., Path]
CLASSES, TAGS = "AutoModelForSequenceClassification", "AutoModelForTokenClassification"
AUTO: dict[str, Any] = {
    CLASSES: AutoModelForSequenceClassification,
    TAGS: AutoModelForTokenClassification,
}
MULTI = {"problem_type": "multi_label_classification"}
BATCH = {"input_ids": torch.tensor([[5, 7, 9, 2]]), "attention_mask": torch.ones(1, 4).long()}


def trained(make: Make, to: Path, kind: str, head: str, names: list[str], **config: Any) -> Path:
    """Return a checkpoint whose outputs have names; one of "LABEL_0", ... says that it does not name them."""
    folder = Path(shutil.copytree(make(kind, head, num_labels=len(names)), to / "checkpoint"))
    path = folder / "config.json"
    known = json.loads(path.read_text()) | {"id2label": dict(enumerate(names))}
    known["label2id"] = {name: place for place, name in enumerate(names)}
    path.write_text(json.dumps(known | config))
    return folder


@pytest.mark.parametrize("kind", ["roberta", "gpt2", "bart"])
@pytest.mark.parametrize(
    ("there", "wanted", "kept", "said"),
    [
        (["pos", "neg"], ["neg", "pos"], [1, 0], ""),
        (["Positive", "NEGATIVE "], ["negative", "positive"], [1, 0], ""),
        (["10", "9", "8"], ["8", "9", "10"], [2, 1, 0], ""),
        (["LABEL_0", "LABEL_1"], ["neg", "pos"], [0, 1], "LABEL_0 is 'neg', LABEL_1 is 'pos'"),
        (["LABEL_0", "LABEL_1", "LABEL_2"], ["neg", "pos"], [None] * 2, "has 3 outputs, and the labels are 'neg'"),
        (["law", "sport"], ["neg", "pos"], [None] * 2, "is for 'law', 'sport', and the labels are 'neg', 'pos'"),
        (["US", "us"], ["Us", "us"], [None, 1], "keeps its outputs of 'us'; those of 'Us' are made anew"),
        (["c", "b", "a"], ["a", "c"], [2, 0], "keeps its outputs of 'a', 'c'; those of 'b' are left out"),
        (["b", "a"], ["a", "b", "c"], [1, 0, None], "of 'a', 'b'; those of 'c' are made anew"),
    ],
)  # fmt: skip
def test_outputs_follow_the_names_of_their_labels(
    kind: str,
    there: list[str],
    wanted: list[str],
    kept: list[int | None],
    said: str,
    random_model: Make,
    tmp_path: Path,
) -> None:
    folder = trained(random_model, tmp_path, kind, CLASSES, there)
    lines: list[str] = []
    settings = class_settings(wanted, 1)
    model, again = (
        pretrained_model(str(folder), CLASSES, settings, {}, seed=3, log=lines.append).eval()
        for _ in range(2)
    )
    before = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        now, then = model(**BATCH).logits[0], before(**BATCH).logits[0]
    for place, row in enumerate(kept):
        assert (row is not None and torch.equal(now[place], then[row])) or (
            row is None and now[place] not in then
        )
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert len(lines) == (2 if said else 0)
    assert all(said in line for line in lines)
    assert list(model.config.id2label.values()) == wanted


@pytest.mark.parametrize(
    ("head", "there", "config", "settings", "said"),
    [
        (TAGS, ["B-LOC", "O"], {}, class_settings(["O", "B-LOC"], 1), ""),
        (CLASSES, ["a", "b"], MULTI, class_settings(["a", "b"], 1), "another kind"),
        (CLASSES, ["score"], {"problem_type": "regression"}, class_settings(["a", "b"], 1), "another kind|for 'score'"),
        (CLASSES, ["a", "b"], {}, {"num_labels": 1, "problem_type": "regression"}, "for 'a', 'b'|has 2 outputs"),
        (CLASSES, ["LABEL_0"], {}, {"num_labels": 1, "problem_type": "regression"}, ""),
    ],
)  # fmt: skip
def test_heads_of_other_kinds(
    head: str,
    there: list[str],
    config: dict[str, Any],
    settings: dict[str, Any],
    said: str,
    random_model: Make,
    tmp_path: Path,
) -> None:
    folder, lines = trained(random_model, tmp_path, "bert", head, there, **config), list[str]()
    model = pretrained_model(str(folder), head, settings, {}, seed=0, log=lines.append).eval()
    assert bool(said) == bool(lines), lines
    assert all(any(part in line for part in said.split("|")) for line in lines)
    assert model.config.problem_type == settings.get("problem_type")
    if head == TAGS:
        before = AUTO[head].from_pretrained(folder).eval()
        with torch.no_grad():
            assert torch.equal(model(**BATCH).logits, before(**BATCH).logits[..., [1, 0]])


def test_a_body_alone_is_told_nothing_of(random_model: Make) -> None:
    lines: list[str] = []
    settings = class_settings(["a", "b"], 1)
    pretrained_model(str(random_model("bert")), CLASSES, settings, {}, seed=0, log=lines.append)
    assert not lines


def test_outputs_that_are_made_anew_are_trained_beside_adapters(random_model: Make, tmp_path: Path) -> None:
    folder = trained(random_model, tmp_path, "bart", CLASSES, ["law", "sport"])
    peft = {"method": "lora", "target_modules": ["q_proj"]}
    model = pretrained_model(str(folder), CLASSES, class_settings(["a", "b"], 1), {}, 0, peft)
    trainable = [name for name, one in model.named_parameters() if one.requires_grad]
    assert any("out_proj" in name and "classification_head" in name for name in trainable)


def test_labels_are_matched_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger's checkpoint may have a million labels."""
    seen: list[str] = []
    plain = label_head._plain
    monkeypatch.setattr(label_head, "_plain", lambda name: (seen.append(name), plain(name))[1])
    names = [f"Label {number}" for number in range(100)]
    assert label_head.matching_outputs([name.upper() for name in reversed(names)], names) == [
        *range(99, -1, -1)
    ]
    assert len(seen) <= 3 * len(names)
