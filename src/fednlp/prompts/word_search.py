"""Words for labels, found from gold labels by likelihood ratio.

Schick, Schmid and Schütze 2020, "Automatically Identifying Words That Can Serve as Labels for Few-Shot Text
Classification" (PETAL, arXiv:2010.13641), section 4.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.tasks.cloze import parts_of, word_ids

Scores = NDArray[np.float64]

_SHORTEST = 3
_CONSIDERED = 100
_FLOOR = 1e-12
"""Least distance of a probability from 0 and from 1, so that its logarithm is finite."""


def likelihood_ratios(probabilities: Scores, labels: NDArray[np.int64], num_labels: int) -> Scores:
    """Return how much more each token says of the examples of a label than of all others.

    With q = log(p / (1 - p)) for a token's probability p at the mask, the score of a token for a label is the sum of q
    over the examples of the label, minus the sum over the others times the ratio of both numbers.

    Args:
        probabilities: (examples, tokens), of each token at the mask of each example.
        labels: (examples,), class numbers; each class has an example, and there are two or more.
        num_labels: Number of classes.

    Returns:
        (num_labels, tokens).

    >>> p = np.array([[0.5, 0.2], [0.5, 0.5]])
    >>> likelihood_ratios(p, np.array([0, 1]), 2).round(4).tolist()
    [[0.0, -1.3863], [0.0, 1.3863]]
    """
    clipped = np.clip(probabilities.astype(np.float64), _FLOOR, 1 - _FLOOR)
    q = np.log(clipped) - np.log1p(-clipped)
    sums = np.stack([q[labels == label].sum(axis=0) for label in range(num_labels)])
    own = np.bincount(labels, minlength=num_labels).astype(np.float64)[:, None]
    scores: Scores = sums - (sums.sum(axis=0) - sums) * own / (len(labels) - own)
    return scores


def assigned_words(scores: Scores) -> list[int]:
    """Return a token for each label, none twice, so that the sum of their scores is highest.

    Args:
        scores: (labels, tokens), with at least as many tokens as labels; equal ones count in the order of the tokens.

    >>> assigned_words(np.array([[5.0, 4.0, 0.0], [5.0, 1.0, 0.0]]))
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    best = np.argsort(-scores, axis=1, kind="stable")[:, : max(_CONSIDERED, len(scores))]
    considered = np.unique(best)
    _, columns = linear_sum_assignment(scores[:, considered], maximize=True)
    return [int(token) for token in considered[columns]]


def candidate_words(
    tokenizer: Any, pattern: str, among: Iterable[int], *, decoder: bool = False
) -> dict[int, str]:
    """Return the tokens that are a whole word of letters where the mask of a pattern stands, by their number.

    Args:
        pattern: Such as ``"{mask} News: {text}"``; with a space before the mask, words begin with one.
        among: The tokens that are looked at.
        decoder: Whether the model is one.
    """
    special = set(tokenizer.all_special_ids)
    tokens = [token for token in sorted(among) if token not in special]
    words = [tokenizer.decode([token]).strip() for token in tokens]
    named = [(t, w) for t, w in zip(tokens, words, strict=True) if len(w) >= _SHORTEST and w.isalpha()]
    pieces = word_ids(tokenizer, parts_of(pattern), [word for _, word in named], decoder=decoder)
    return {token: word for (token, word), ids in zip(named, pieces, strict=True) if ids == [token]}


def common_words(
    words_among: Callable[[Iterable[int]], dict[int, str]], texts: Sequence[Set[int]], least: int, tokens: int
) -> dict[int, str]:
    """Return the words that two texts or more hold; all that one holds, where these are too few; at last all words.

    Rare words would else win by chance. The paper takes the 10,000 words that are most frequent in texts without
    labels; here no text but those with gold labels is looked at.

    Args:
        words_among: Returns the words that are among tokens, by token.
        texts: The tokens of each text.
        least: How many words are needed.
        tokens: Number of tokens that there are.

    Raises:
        ConfigError: The vocabulary has fewer words than are needed.
    """
    counts = Counter(token for text in texts for token in text)
    held = words_among(counts)
    for fewest in (2, 1):
        common = {token: word for token, word in held.items() if counts[token] >= fewest}
        if len(common) >= least:
            return common
    every = words_among(range(tokens))
    if len(every) < least:
        raise ConfigError(
            f"the model's vocabulary has {len(every)} whole words of letters where the mask stands, and {least} labels "
            "need one each: take another model or pattern, or give task.verbalizer"
        )
    return every


def require_every_label(labels: NDArray[np.int64], names: Sequence[str]) -> None:
    """Check that each label has a gold label.

    Raises:
        ConfigError: One has none, or there is one label only.
    """
    lacking = [name for number, name in enumerate(names) if number not in labels]
    if lacking:
        raise ConfigError(
            f"no gold label is {lacking[0]!r}, so that no word can be found for it: raise fewshot.gold, or take "
            "another seed"
        )
