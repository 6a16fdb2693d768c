"""The scores of SQuAD v1.1 (Rajpurkar et al. 2016, section 6.1), by the rules of its official script."""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


def normalised(text: str) -> str:
    """Return a text in lower case, without ASCII punctuation, English articles and superfluous white space.

    >>> normalised("The  Cat's (a) mat!")
    'cats mat'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, gold: str) -> float:
    """Return 1.0 where two answers are the same once normalised, else 0.0.

    >>> exact_match("the Denver Broncos.", "Denver Broncos")
    1.0
    """
    return float(normalised(prediction) == normalised(gold))


def token_f1(prediction: str, gold: str) -> float:
    """Return the F1 of two normalised answers as bags of words, in [0, 1].

    As in the official script of version 1.1, two answers that are both empty once normalised score 0.

    >>> token_f1("the Broncos of Denver", "Denver Broncos")
    0.8
    """
    words, truth = Counter(normalised(prediction).split()), Counter(normalised(gold).split())
    same = (words & truth).total()
    return 2 * same / (words.total() + truth.total()) if same else 0.0


def best_scores(prediction: str, golds: Sequence[str]) -> tuple[float, float]:
    """Return exact match and F1, each the best over all gold answers; without any, both are 0."""
    exact = max((exact_match(prediction, gold) for gold in golds), default=0.0)
    return exact, max((token_f1(prediction, gold) for gold in golds), default=0.0)
