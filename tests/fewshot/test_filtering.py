"""Representational filtering: equal to the formula, and nearest texts equal to all comparisons."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fednlp.errors import ConfigError, ModelError
from fednlp.fewshot import filtering
from fednlp.fewshot import neighbours as module
from fednlp.fewshot.filtering import pick, representative
from fednlp.fewshot.neighbours import nearest

RHOS = st.sampled_from([1.001, 1.5, 2.0, 3.0, 10.0, 1e6, 1e300])


def by_formula(near, budget, rho):
    """FeS, section 3.2: every score of every text that remains, from its definition, at every step."""
    texts, picked = range(len(near)), []
    around = {u: [x for x in texts if u in near[x]] for u in texts}
    while len(picked) < min(budget, len(near)):
        scores = {
            u: math.fsum(rho ** -len(near[x] & set(picked)) for x in around[u])
            for u in texts
            if u not in picked
        }
        picked.append(min(scores, key=lambda u: (-scores[u], u)))
    return picked


def by_comparison(vectors, k):
    """The k nearest others of each text, of equally near ones the first, all compared in float64."""
    alike = vectors.astype(np.float64) @ vectors.T.astype(np.float64)
    order = np.argsort(-alike, axis=1, kind="stable")
    return [[int(other) for other in row if other != text][:k] for text, row in enumerate(order)]


@st.composite
def graphs(draw, most=14):
    texts = draw(st.integers(2, most))
    k = draw(st.integers(1, texts - 1))
    others = [draw(st.permutations([v for v in range(texts) if v != x])) for x in range(texts)]
    return np.array([row[:k] for row in others], dtype=np.int32)


@st.composite
def signs(draw, most=24):
    """Rows of 16 numbers, each +-1, so that cosines are exact in float32 and many are equal."""
    texts = draw(st.integers(2, most))
    rows = draw(st.lists(st.integers(0, 2**16 - 1), min_size=texts, max_size=texts))
    bits = np.array(rows)[:, None] >> np.arange(16) & 1
    return (2 * bits - 1).astype(np.float32)


@given(graphs(), st.integers(0, 16), RHOS)
def test_picks_are_those_of_the_formula(near, budget, rho):
    assert pick(near, budget, rho).tolist() == by_formula([set(row.tolist()) for row in near], budget, rho)


@settings(max_examples=10)
@given(st.integers(0, 2**32), st.integers(1, 40), RHOS)
def test_picks_are_those_of_the_formula_down_to_the_smallest_scores(seed, k, rho):
    """More picks about a text than 16 digits can tell apart."""
    rng = np.random.default_rng(seed)
    near = np.stack([rng.permutation(np.delete(np.arange(60), x))[:k] for x in range(60)]).astype(np.int32)
    assert pick(near, 60, rho).tolist() == by_formula([set(row.tolist()) for row in near], 60, rho)


@pytest.mark.parametrize(("leading", "rows"), [(0.0, 1), (0.999, 7), (0.8, 8192)])
def test_where_the_highest_is_looked_for_and_how_sums_are_cut_change_nothing(monkeypatch, leading, rows):
    rng = np.random.default_rng(5)
    near = np.stack([rng.permutation(np.delete(np.arange(80), x))[:12] for x in range(80)]).astype(np.int32)
    monkeypatch.setattr(filtering, "_LEADING", leading)
    monkeypatch.setattr(filtering, "_ROWS", rows)
    assert pick(near, 80, 10.0).tolist() == by_formula([set(row.tolist()) for row in near], 80, 10.0)


@given(signs(), st.data(), RHOS)
@pytest.mark.whole
def test_from_embeddings_to_picks(vectors, data, rho):
    k = data.draw(st.integers(1, len(vectors) + 2))
    budget = data.draw(st.integers(0, len(vectors) + 2))
    expected = by_formula([set(row) for row in by_comparison(vectors, k)], budget, rho)
    picks = representative(vectors, budget, k, rho)
    assert picks.dtype == np.int64
    assert picks.tolist() == expected


@given(signs(), st.integers(0, 30))
@pytest.mark.whole
def test_each_text_once_and_a_budget_is_the_beginning_of_a_larger_one(vectors, budget):
    everything = representative(vectors, len(vectors), 3)
    assert sorted(everything.tolist()) == list(range(len(vectors)))
    assert representative(vectors, budget, 3).tolist() == everything[:budget].tolist()


@given(signs(), st.data())
@pytest.mark.whole
def test_lengths_do_not_matter(vectors, data):
    powers = data.draw(st.lists(st.integers(-20, 20), min_size=len(vectors), max_size=len(vectors)))
    scaled = (vectors * 2.0 ** np.array(powers)[:, None]).astype(np.float32)
    np.testing.assert_array_equal(nearest(scaled, 3), nearest(vectors, 3))


@pytest.mark.parametrize("texts", [0, 1, 2, 3])
def test_fewer_than_k_texts(texts):
    vectors = np.eye(4, dtype=np.float32)[:texts]
    assert nearest(vectors, 150).tolist() == [[v for v in range(texts) if v != x] for x in range(texts)]
    assert sorted(representative(vectors, 150, 150).tolist()) == list(range(texts))
    assert representative(vectors, 0, 150).tolist() == []


def test_topics_come_before_second_texts_of_a_topic():
    rng = np.random.default_rng(0)
    topics = np.repeat(np.arange(8), np.arange(12, 28, 2))
    vectors = np.eye(8, 32, dtype=np.float32)[topics] + 0.02 * rng.standard_normal((len(topics), 32)).astype(
        "f"
    )
    assert sorted(topics[representative(vectors, 8, 10)].tolist()) == list(range(8))


def test_k_is_150_for_many_texts_and_a_twentieth_of_few(monkeypatch):
    assert filtering.NEIGHBOURS == 150
    monkeypatch.setattr(filtering, "NEIGHBOURS", 15)
    vectors = np.random.default_rng(0).standard_normal((400, 8)).astype(np.float32)
    for texts, k in ((400, 15), (200, 10), (19, 1)):
        part = vectors[:texts]
        np.testing.assert_array_equal(representative(part, 19), representative(part, 19, k))
        assert representative(part, 19).tolist() != representative(part, 19, k + 1).tolist()


def test_an_empty_text_harms_nobody():
    vectors = np.array([[0, 0], [1, 0], [2, 0.1], [0, 0]], dtype=np.float32)
    assert nearest(vectors, 1).tolist() == [[1], [2], [1], [0]]
    assert sorted(representative(vectors, 4, 2).tolist()) == [0, 1, 2, 3]


def some_texts(count=700, spread=0.4):
    """Topics of several sizes, some texts twice."""
    rng = np.random.default_rng(3)
    topics = rng.standard_normal((20, 24))[rng.integers(0, 20, count)]
    vectors = (topics + spread * rng.standard_normal(topics.shape)).astype(np.float32)
    vectors[::50] = vectors[1]
    return vectors


def recall(found, vectors, k):
    true = by_comparison(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), k)
    return np.mean(
        [len(set(row) & set(expected)) / k for row, expected in zip(found.tolist(), true, strict=True)]
    )


@pytest.mark.parametrize(("at_once", "parts"), [(1, 512), (5000, 3), (1 << 22, 40)])
def test_blocks_and_parts_change_nothing(monkeypatch, at_once, parts):
    """Cosines that two products may round differently stand too far apart to change places."""
    vectors = some_texts()[1:50]
    expected = by_comparison(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), 7)
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    monkeypatch.setattr(module, "_PARTS", parts)
    assert nearest(vectors, 7).tolist() == [sorted(row) for row in expected]


@pytest.mark.parametrize("exact_up_to", [10, 10_000])
def test_threads_change_nothing(monkeypatch, exact_up_to):
    monkeypatch.setattr(module, "_AT_ONCE", 1 << 15)
    monkeypatch.setattr(module, "_COMPARED", 200)
    vectors = some_texts()
    one, three = (nearest(vectors, 9, exact_up_to=exact_up_to, threads=threads) for threads in (1, 3))
    np.testing.assert_array_equal(one, three)


def test_cells_find_most_of_the_nearest(monkeypatch):
    monkeypatch.setattr(module, "_A_CELL", 20)
    monkeypatch.setattr(module, "_FITTED", 300)
    monkeypatch.setattr(module, "_COMPARED", 120)
    vectors = some_texts(spread=1.0)
    vectors = np.delete(vectors, np.arange(0, len(vectors), 50), axis=0)
    found = nearest(vectors, 10, exact_up_to=100)
    assert 0.96 < recall(found, vectors, 10) < 1
    assert (np.diff(found, axis=1) > 0).all()
    assert not (found == np.arange(len(found))[:, None]).any()


@settings(max_examples=20)
@given(signs())
def test_cells_that_hold_all_texts_are_exact(vectors):
    """10,000 texts are compared with each, so that here all are."""
    np.testing.assert_array_equal(nearest(vectors, 3, exact_up_to=1), nearest(vectors, 3))


def test_texts_that_are_all_the_same(monkeypatch):
    monkeypatch.setattr(module, "_A_CELL", 20)
    same = np.ones((90, 4), dtype=np.float32)
    expected = [[v for v in range(4) if v != x][:3] for x in range(90)]
    for exact_up_to in (10, 100):
        assert nearest(same, 3, exact_up_to=exact_up_to).tolist() == expected
    assert representative(same, 5, 3).tolist()[0] == 0


def test_a_vector_that_is_not_finite_is_named():
    vectors = np.ones((4, 2), dtype=np.float32)
    vectors[2, 1] = np.nan
    with pytest.raises(ModelError, match="text 2"):
        representative(vectors, 2, 1)


@pytest.mark.parametrize(
    ("budget", "k", "rho", "word"),
    [
        (-1, 1, 2.0, "budget"),
        (1, 0, 2.0, "k ="),
        (1, 1, 1.0, "rho"),
        (1, 1, np.inf, "rho"),
        (1, 1, np.nan, "rho"),
    ],
)
def test_what_cannot_be_filtered(budget, k, rho, word):
    with pytest.raises(ConfigError, match=word):
        representative(np.eye(3, dtype=np.float32), budget, k, rho)
