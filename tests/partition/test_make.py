"""One entry for every method: laws that hold for all of them, options, and messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import PartitionError
from fednlp.partition import ALIASES, METHODS, PartitionSpec, make_partition

LABELED = {
    "uniform": {"clients": 6},
    "label": {"clients": 6, "alpha": 0.3},
    "quantity": {"clients": 6, "beta": 0.7},
    "label+quantity": {"clients": 6, "alpha": 0.3, "beta": 0.7},
}


@st.composite
def examples(draw):
    count = draw(st.integers(6, 60))
    train = draw(st.lists(st.integers(0, 3), min_size=count, max_size=count))
    test = draw(st.lists(st.integers(-1, 3), max_size=30))
    return np.array(train), np.array(test, dtype=int)


@given(st.sampled_from(sorted(LABELED)), examples(), st.integers(0, 50))
def test_every_example_is_assigned_once_by_its_number(method, drawn, seed):
    train, test = drawn
    spec = PartitionSpec(method, seed=seed, **LABELED[method])
    numbers, test_numbers = 7 + 2 * np.arange(len(train))[::-1], 3 * np.arange(len(test))
    given_numbers = {"train_numbers": numbers, "test_numbers": test_numbers}
    part = make_partition(spec, train, test, num_labels=4, **given_numbers)
    assert part.num_clients == 6
    assert np.diff(part.train_offsets).min() >= 1
    assert sorted(part.train_indices) == sorted(numbers)
    assert sorted(part.test_indices) == sorted(test_numbers)
    again = make_partition(spec, train, test, num_labels=4, **given_numbers)
    assert np.array_equal(part.train_indices, again.train_indices)
    assert np.array_equal(part.test_indices, again.test_indices)


def test_numbers_change_names_and_nothing_else():
    train, test = np.arange(40) % 4, np.arange(20) % 4
    spec = PartitionSpec("label", clients=5, alpha=0.5)
    plain = make_partition(spec, train, test, num_labels=4)
    named = make_partition(spec, train, test, num_labels=4, train_numbers=np.arange(40) + 100)
    assert np.array_equal(plain.train_indices + 100, named.train_indices)


def test_natural():
    spec = PartitionSpec("natural", field="domain")
    part = make_partition(
        spec, [0, 1, 0], [0, 0, 1], num_labels=2, train_field=["b", "a", "b"], test_field=["b", "z", "a"]
    )
    assert part.client_names == ("a", "b")
    assert [part.train(c).tolist() for c in range(2)] == [[1], [0, 2]]
    assert [part.test(c).tolist() for c in range(2)] == [[2], [0]]


def test_proportions(tmp_path):
    path = tmp_path / "shares.csv"
    path.write_text("client,pos,neg\nfirst,90,10\nsecond,10,90\n")
    train, test = np.arange(400) % 2, np.arange(200) % 2
    spec = PartitionSpec("proportions", proportions=str(path))
    part = make_partition(spec, train, test, num_labels=2, label_names=["neg", "pos"])
    assert part.client_names == ("first", "second")
    assert train[part.train(0)].sum() == 180
    assert test[part.test(0)].sum() == 90
    with pytest.raises(PartitionError, match="rows for 2 clients, not 3"):
        make_partition(
            PartitionSpec("proportions", proportions=str(path), clients=3), train, test, num_labels=2
        )


def test_proportions_of_scores(tmp_path):
    """FedSplitBERT's STS-B: sorted by score and split in order."""
    path = tmp_path / "shares.csv"
    path.write_text("low,mid,high\n1,0,0\n0,1,0\n0,0,1\n")
    scores = np.random.default_rng(0).uniform(0, 5, 300)
    part = make_partition(PartitionSpec("proportions", proportions=str(path)), scores, scores[:90] + 0.01)
    means = [scores[part.train(client)].mean() for client in range(3)]
    assert means == sorted(means)
    assert np.diff(part.train_offsets).tolist() == [100, 100, 100]
    for client in range(3):
        assert scores[part.test(client)].mean() == pytest.approx(means[client], abs=0.3)


@pytest.mark.parametrize("method", ["uniform", "quantity"])
def test_scores_need_no_labels_where_none_are_used(method):
    part = make_partition(
        PartitionSpec(method, **LABELED[method]), np.linspace(0, 5, 50), np.linspace(0, 5, 20)
    )
    assert len(part.train_indices) == 50
    assert len(part.test_indices) == 20


def test_names_of_the_original_files():
    assert set(ALIASES.values()) <= set(METHODS.names())
    spec = {"clients": 3, "alpha": 1.0}
    old = make_partition(PartitionSpec("niid_label", **spec), [0, 1] * 9, [0], num_labels=2)
    new = make_partition(PartitionSpec("label", **spec), [0, 1] * 9, [0], num_labels=2)
    assert np.array_equal(old.train_indices, new.train_indices)


@pytest.mark.parametrize("method", METHODS.names())
def test_each_needed_option_is_asked_for_by_name(method):
    values = {"clients": 2, "alpha": 1.0, "beta": 1.0, "field": "f", "proportions": "p.csv", "file": "p.npz"}
    needs = METHODS.find(method).needs
    for missing in needs:
        rest = {name: values[name] for name in needs if name != missing}
        with pytest.raises(
            PartitionError, match=rf"method '{method.replace('+', '.')}' needs {missing}: say"
        ):
            make_partition(PartitionSpec(method, **rest), [0, 1, 1], [0], num_labels=2)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (PartitionSpec("unifrom", clients=2), "no partition method 'unifrom': did you mean 'uniform'"),
        (
            PartitionSpec("uniform", clients=2, beta=1.0),
            "leave it out, or use the method cluster or label.quantity or quantity",
        ),
        (PartitionSpec("label", clients=2, alpha=1.0, field="x"), "field has no effect"),
        (
            PartitionSpec("label", clients=2, alpha=0.0),
            "alpha = 0.0: input should be greater than 0; say, for example, partition.alpha = 1.0",
        ),
        (
            PartitionSpec("quantity", clients=2, beta=float("inf")),
            "beta = inf: input should be a finite number",
        ),
        (PartitionSpec("uniform", clients=0), "clients = 0: input should be greater than or equal to 1"),
        (PartitionSpec("uniform", clients=2.5), "clients = 2.5: input should be a valid integer"),
        (
            PartitionSpec("label", clients=2, alpha=1.0, alhpa=1.0),
            "partition.alhpa has no effect with method 'label': did you",
        ),
        (PartitionSpec("file", file="part.npz"), "is read, not made: Partition.load reads one"),
        (
            PartitionSpec("uniform", clients=4),
            "4 clients cannot share 3 training examples: say at most partition.clients = 3",
        ),
        (PartitionSpec("natural", field="f"), "needs the field 'f'"),
        (PartitionSpec("cluster", clients=2, alpha=1.0), "needs the texts"),
        (PartitionSpec("cluster", clients=2, alpha=1.0, clusters=0), "clusters = 0"),
    ],
)
def test_options_that_cannot_be_met_say_what_to_type(spec, said):
    with pytest.raises(PartitionError, match=said) as caught:
        make_partition(spec, [0, 1, 1], [0], num_labels=2)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("train", "more", "said"),
    [
        (
            [0, -1, 1],
            {"num_labels": 2, "train_numbers": [5, 6, 7]},
            "training example 6 has no label from 0 to 1",
        ),
        ([0, 2, 1], {"num_labels": 2}, "training example 1 has no label from 0 to 1"),
        ([0.5, 1.5], {"num_labels": 2}, "labels must be whole numbers"),
        ([0.5, 1.5], {}, "label shift needs labels"),
        ([], {"num_labels": 2}, "no training example"),
        ([0, 1], {"num_labels": 2, "train_numbers": [1]}, "2 train labels, but train_numbers"),
    ],
)
def test_examples_that_cannot_be_shared_out_say_why(train, more, said):
    with pytest.raises(PartitionError, match=said):
        make_partition(PartitionSpec("label", clients=2, alpha=1.0), train, [], **more)
