"""ROUGE and BLEU over lists of strings, by the libraries that papers report."""

from collections.abc import Sequence

import numpy as np

ROUGE = ("rouge1", "rouge2", "rouge_l")
_ORDERS = 4
BLEU_COUNTS = 2 * _ORDERS + 2
"""How many counts BLEU sums."""


def rouge(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return ROUGE-1, ROUGE-2 and ROUGE-L of each prediction, F-measures in [0, 1], (examples, 3).

    Lin 2004, *ROUGE: a Package for Automatic Evaluation of Summaries*, as the library rouge-score has it:
    lower case, runs of a-z and 0-9 are words, no stemming. With several references the best counts, for each
    of the three by itself.

    Args:
        predictions: One text an example.
        references: At least one text an example.

    >>> rouge(["the cat sat"], [["a dog", "the cat stood"]]).round(3).tolist()
    [[0.667, 0.5, 0.667]]
    """
    from rouge_score.rouge_scorer import RougeScorer

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    scores = [
        [score.fmeasure for score in scorer.score_multi(texts, prediction).values()]
        for prediction, texts in zip(predictions, references, strict=True)
    ]
    return np.array(scores, np.float64).reshape(-1, len(ROUGE))


def bleu_counts(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """Return what BLEU sums over a corpus, (examples, 10): right n-grams, all n-grams (n = 1..4), lengths.

    The lengths are those of the prediction and of the reference that is nearest to it in length. sacreBLEU's
    defaults: tokenizer 13a, case kept.

    Args:
        predictions: One text an example.
        references: At least one text an example.

    >>> bleu_counts(["the cat sat ."], [["the cat sat down ."]]).tolist()
    [[4.0, 2.0, 1.0, 0.0, 4.0, 3.0, 2.0, 1.0, 4.0, 5.0]]
    """
    from sacrebleu.metrics.bleu import BLEU

    scorer = BLEU(force=True)  # without a word about texts that look tokenised
    made = np.zeros((len(predictions), BLEU_COUNTS))
    for row, prediction, texts in zip(made, predictions, references, strict=True):
        found = scorer.corpus_score([prediction], [[text] for text in texts])
        row[:] = [*found.counts, *found.totals, found.sys_len, found.ref_len]
    return made


def bleu(sums: np.ndarray) -> np.ndarray:
    """Return corpus BLEU, 0 to 100, from summed counts, (..., 10) to (...).

    Papineni et al. 2002, section 2.3, with sacreBLEU's default (exponential) smoothing; 0 without any n-gram.

    >>> bleu(np.array([[4, 3, 2, 1, 4, 3, 2, 1, 4, 4], [0] * 10])).round(6).tolist()
    [100.0, 0.0]
    """
    from sacrebleu.metrics.bleu import BLEU

    flat = np.rint(np.asarray(sums, np.float64)).astype(np.int64).reshape(-1, BLEU_COUNTS)
    scores = np.zeros(len(flat))
    for place, (*counts, length, reference) in enumerate(flat.tolist()):
        right, total = counts[:_ORDERS], counts[_ORDERS:]
        scores[place] = BLEU.compute_bleu(right, total, length, reference, smooth_method="exp").score
    return scores.reshape(np.shape(sums)[:-1])
