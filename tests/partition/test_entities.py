"""Label shift of tagged texts: which label a text has, and that clients differ in it."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import PartitionError
from fednlp.partition import PartitionSpec, jensen_shannon, label_counts, make_partition
from fednlp.partition.entities import NONE, entity_labels

TYPES = st.sampled_from(["LOC", "MISC", "ORG", "PER"])
TEXTS = st.lists(st.lists(TYPES, max_size=6).map(Counter), min_size=1, max_size=30)


@given(TEXTS, TEXTS)
def test_the_majority_is_one_that_no_other_type_of_the_text_beats(train, test):
    labels, _, names = entity_labels(train, test, "majority")
    totals = sum(train, Counter())
    for types, label in zip(train, labels, strict=True):
        if not types:
            assert names[label] == NONE
            continue
        most = max(types.values())
        assert types[names[label]] == most
        assert all(totals[names[label]] <= totals[kind] for kind in types if types[kind] == most)


@given(TEXTS, TEXTS)
def test_the_rarest_is_rarer_than_every_other_type_of_the_text(train, test):
    labels, _, names = entity_labels(train, test, "rarest")
    totals = sum(train, Counter())
    for types, label in zip(train, labels, strict=True):
        assert (names[label] == NONE) == (not types)
        assert all(totals[names[label]] <= totals[kind] for kind in types)


@given(TEXTS, TEXTS, st.sampled_from(["majority", "rarest"]))
def test_a_test_text_has_a_label_of_training_or_none_that_is_known(train, test, rule):
    labels, unseen, names = entity_labels(train, test, rule)
    assert {*labels.tolist()} | {0} == {*range(len(names))}
    for types, label in zip(test, unseen, strict=True):
        assert label == -1 or names[label] in types or (label == 0 and not types)


@pytest.mark.parametrize("rule", [None, "majority", "rarest"])
def test_few_types_a_client_at_a_small_alpha_and_all_at_a_large_one(rule):
    types = [Counter({kind: 1 + number % 3}) for number in range(60) for kind in ("LOC", "ORG", "PER")]
    labels, _, names = entity_labels(types, (), rule or "majority")
    prior = np.bincount(labels) / len(labels)

    def mean_divergence(alpha: float) -> float:
        spec = PartitionSpec("label", clients=9, alpha=alpha, entity=rule)
        part = make_partition(spec, [0] * 180, [0] * 180, train_entities=types, test_entities=types)
        counts = label_counts(part, labels, len(names))
        shares = counts / counts.sum(axis=1, keepdims=True)
        return float(np.mean([jensen_shannon(share, prior) for share in shares]))

    assert mean_divergence(1e-4) > 0.4 > 0.05 > mean_divergence(1e6)


def test_an_entity_of_texts_without_tags_is_refused():
    with pytest.raises(PartitionError, match="entity is for texts with tags: leave it out"):
        make_partition(
            PartitionSpec("label", clients=2, alpha=1.0, entity="rarest"), [0, 1], [0], num_labels=2
        )
