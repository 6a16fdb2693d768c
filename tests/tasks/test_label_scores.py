"""Scores by label are those of scikit-learn and seqeval, and belong to the task that defines them."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from fednlp.data.features import Features
from fednlp.tasks.label_scores import LARGEST_CONFUSION, by_label, class_scores, span_scores
from fednlp.tasks.text_classification import TextClassification
from fednlp.tasks.text_regression import TextRegression

PARTS = ("precision", "recall", "f1", "support")
TAGS = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-creative-work"]


@given(st.lists(st.tuples(st.integers(-1, 3), st.integers(0, 3)), max_size=40))
def test_classes_are_those_of_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    """An example of an unknown label (-1) is left out, as in macro F1."""
    truth, guess = (np.array([pair[side] for pair in pairs], np.int64) for side in (0, 1))
    found = class_scores(["a", "b", "c", "d"], truth, guess)
    truth, guess = truth[truth >= 0], guess[truth >= 0]
    if len(truth):
        expected = precision_recall_fscore_support(truth, guess, labels=range(4), zero_division=0)
        for part, values in zip(PARTS, expected, strict=True):
            assert getattr(found, part) == pytest.approx(values.tolist())
        assert found.confusion == confusion_matrix(truth, guess, labels=range(4)).tolist()
    else:
        assert found.support == [0] * 4
        assert found.confusion == [[0] * 4] * 4


def test_a_confusion_of_very_many_labels_is_not_kept() -> None:
    names = [str(number) for number in range(LARGEST_CONFUSION + 1)]
    ids = np.arange(len(names))
    assert class_scores(names, ids, ids).confusion is None
    assert class_scores(names[:-1], ids[:-1], ids[:-1]).confusion is not None


sentences = st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(TAGS)), min_size=1, max_size=8)


@given(st.lists(sentences, min_size=1, max_size=5), st.booleans())
def test_spans_are_those_of_seqeval(pairs: list[list[tuple[str, str]]], strict: bool) -> None:
    from seqeval.metrics import classification_report
    from seqeval.scheme import IOB2

    gold, guess = ([[word[side] for word in sentence] for sentence in pairs] for side in (0, 1))
    found = span_scores(TAGS, gold, guess, strict=strict)
    assert found.labels == ["LOC", "PER", "creative-work"]
    assert found.confusion is None
    mode = {"mode": "strict", "scheme": IOB2} if strict else {}
    if not any(tag.startswith("B") for sentence in [*gold, *guess] for tag in sentence):
        return  # seqeval cannot report on nothing
    expected: dict[str, Any] = classification_report(gold, guess, output_dict=True, zero_division=0, **mode)
    for place, label in enumerate(found.labels):
        row = expected.get(label, {"precision": 0, "recall": 0, "f1-score": 0, "support": 0})
        assert [getattr(found, part)[place] for part in PARTS] == pytest.approx(
            [row["precision"], row["recall"], row["f1-score"], row["support"]]
        )


def test_a_type_that_training_has_not_seen_has_a_row() -> None:
    found = span_scores(["O", "B-PER"], [["B-ORG", "O"]], [["O", "O"]], strict=False)
    assert asdict(found) == {
        "labels": ["ORG", "PER"],
        "precision": [0.0, 0.0],
        "recall": [0.0, 0.0],
        "f1": [0.0, 0.0],
        "support": [1, 0],
        "confusion": None,
    }


def test_a_task_has_them_or_none() -> None:
    """A subclass that scores by rules of its own has none, unless it defines them too."""
    features = Features({}, {"label": np.array([0, 1, 1])}, {})  # type: ignore[arg-type]
    numbers = np.arange(3)

    class Own(TextClassification):
        def metrics(self, predictions: Any, features: Features, numbers: np.ndarray) -> dict[str, float]:
            return {"accuracy": 1.0}

    class Renamed(TextClassification):
        pass

    for kind, there in ((TextClassification, True), (Renamed, True), (Own, False)):
        assert (by_label(kind(("a", "b")), [0, 1, 0], features, numbers) is not None) is there
    assert by_label(TextRegression(), [0.5], features, numbers[:1]) is None
    found = by_label(replace(TextClassification(("a", "b")), name="x"), [0, 1, 0], features, numbers)
    assert found is not None
    assert found.recall == [1.0, 0.5]
