"""ROUGE and BLEU against the libraries' own corpus scores."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.tasks.scorers import bleu, bleu_counts, rouge

texts = st.lists(st.sampled_from(["the", "cat", "sat", "on", "mat", ",", ".", "Dog", "ä"]), max_size=9).map(
    " ".join
)
corpora = st.lists(st.tuples(texts, st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=6)


@settings(max_examples=60)
@given(corpora)
def test_bleu_of_summed_counts_is_sacrebleus_corpus_bleu(corpus: list[tuple[str, list[str]]]) -> None:
    import sacrebleu

    predictions, references = [pair[0] for pair in corpus], [pair[1] for pair in corpus]
    most = max(map(len, references))
    streams = [[texts[i] if i < len(texts) else None for texts in references] for i in range(most)]
    expected = sacrebleu.corpus_bleu(predictions, streams, force=True).score
    found = bleu(bleu_counts(predictions, references).sum(0))
    assert found == pytest.approx(expected, abs=1e-9)


def test_a_known_bleu() -> None:
    """By hand: precisions 5/6, 3/5, 1/4 and, smoothed, 1/(2*3); six words against six."""
    counts = bleu_counts(["the cat sat on a mat"], [["the cat lay on a mat"]])[0]
    assert counts.tolist() == [5, 3, 1, 0, 6, 5, 4, 3, 6, 6]
    assert bleu(counts) == pytest.approx(100 * (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25)


def test_bleu_is_a_function_of_sums_of_any_shape_and_nought_of_nothing() -> None:
    counts = bleu_counts(["a b c d e", "x"], [["a b c d e"], ["y"]])
    several = bleu(np.stack([counts, counts * 3, np.zeros_like(counts)]))
    assert several.shape == (3, 2)
    np.testing.assert_allclose(several, [[100, 0], [100, 0], [0, 0]], atol=1e-9)


def test_case_counts_for_bleu_and_not_for_rouge() -> None:
    assert bleu(bleu_counts(["A B C D"], [["a b c d"]])[0]) == 0
    assert rouge(["A B C D"], [["a b c d"]]).tolist() == [[1, 1, 1]]


@settings(max_examples=40)
@given(corpora)
def test_rouge_is_the_best_over_references(corpus: list[tuple[str, list[str]]]) -> None:
    from rouge_score.rouge_scorer import RougeScorer

    predictions, references = [pair[0] for pair in corpus], [pair[1] for pair in corpus]
    found = rouge(predictions, references)
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"])
    for row, prediction, options in zip(found, predictions, references, strict=True):
        scores = [scorer.score(option, prediction) for option in options]
        for column, name in enumerate(["rouge1", "rouge2", "rougeL"]):
            assert row[column] == pytest.approx(max(score[name].fmeasure for score in scores))


def test_a_known_rouge() -> None:
    """By hand: of 6 and 5 words 4 are common, of 5 and 4 pairs 2; the longest common subsequence has 2."""
    found = rouge(["police killed the gunman right here"], [["the gunman police killed yesterday"]])
    assert found[0, 0] == pytest.approx(2 * 4 / 11)
    assert found[0, 1] == pytest.approx(2 * 2 / 9)
    assert found[0, 2] == pytest.approx(2 * 2 / 11)


def test_nothing_is_scored_as_nothing() -> None:
    assert rouge([], []).shape == (0, 3)
    assert bleu(bleu_counts([], []).sum(0)) == 0
    assert rouge([""], [[""]]).tolist() == [[0, 0, 0]]
    assert rouge(["", "a"], [["a"], [""]]).tolist() == [[0, 0, 0], [0, 0, 0]]


def test_as_many_predictions_as_references() -> None:
    with pytest.raises(ValueError, match="zip"):
        rouge(["a"], [])
    with pytest.raises(ValueError, match="zip"):
        bleu_counts(["a"], [])
