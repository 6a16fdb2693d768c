"""One label for each tagged text, the type of its entities, so that tagging has label shift as classification has.

FedNLP (Lin et al. 2022), section 3.2 and Table 2, shares OntoNotes out by label shift, and does not say what the label
of a sentence is. Here it is an entity type of the sentence, by a stated rule.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from fednlp.partition.index import IntArray

Entity = Literal["majority", "rarest"]
"""``"majority"``: the type that most entities of the text have, the rarer in training of equally many; ``"rarest"``:
the type of the text that is rarest in training."""
Entities = Sequence[Mapping[str, int]]
"""For each text, how many entities of each type it has."""
NONE = "none"
"""The label of a text without entities."""


def _label_of(types: Mapping[str, int], known: Mapping[str, int], entity: Entity) -> str:
    """Return the label of a text.

    Args:
        types: Number of the text's entities of each type.
        known: Number of entities of each type in all training texts.

    >>> known = {"PER": 90, "LOC": 40, "ORG": 7}
    >>> [_label_of({"PER": 2, "ORG": 1}, known, rule) for rule in ("majority", "rarest")]
    ['PER', 'ORG']
    >>> _label_of({"PER": 1, "LOC": 1}, known, "majority"), _label_of({}, known, "majority")
    ('LOC', 'none')
    """
    counts = types if entity == "majority" else dict.fromkeys(types, 1)
    return min(types, key=lambda kind: (-counts[kind], known.get(kind, 0), kind), default=NONE)


def entity_labels(
    train: Entities, test: Entities, entity: Entity
) -> tuple[IntArray, IntArray, tuple[str, ...]]:
    """Return the label of each training and each test example, and the names of the labels, "none" first.

    Args:
        train: The entities of each training example (N).
        test: The entities of each test example (M).
        entity: Which entity of a text counts.

    Returns:
        int64 (N,) and int64 (M,), positions among the names, -1 for a type that is no training example's label; and
        the names.

    >>> train, test, names = entity_labels([{"PER": 1}, {}, {"PER": 1, "LOC": 1}], [{"ORG": 1}, {"PER": 3}], "rarest")
    >>> train.tolist(), test.tolist(), names
    ([2, 0, 1], [-1, 2], ('none', 'LOC', 'PER'))
    """
    known: Counter[str] = Counter()
    for types in train:
        known.update(types)
    found = [_label_of(types, known, entity) for types in train]
    names = (NONE, *sorted({*found} - {NONE}))
    places = {name: place for place, name in enumerate(names)}
    labels = [places.get(_label_of(types, known, entity), -1) for types in test]
    return np.array([places[label] for label in found], np.int64), np.array(labels, np.int64), names
