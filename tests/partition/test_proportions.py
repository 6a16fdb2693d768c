"""Partitions by a table of label shares, and the files that hold one."""

import csv
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import PartitionError
from fednlp.partition.methods.proportions import bin_scores, proportions_owners, score_bins
from fednlp.partition.proportion_tables import columns_in_order, read_proportions

# FedSplitBERT, Table I: MNLI over three clients; Table II: MRPC over ten, rounded as published.
MNLI = "entailment,neutral,contradiction\n86%,5%,9%\n5%,90%,5%\n5%,5%,90%\n"
MRPC = [92, 86, 71, 66, 50, 44, 35, 28, 12, 51], [8, 14, 29, 34, 50, 56, 65, 72, 88, 48]


def held(labels, owners, clients, count):
    counts = np.zeros((clients, count), dtype=int)
    np.add.at(counts, (owners, labels), 1)
    return counts


def stored(tmp_path, text, name="shares.csv"):
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_table_one_of_fedsplitbert(tmp_path):
    table = read_proportions(stored(tmp_path, MNLI))
    assert table.by == "client"
    np.testing.assert_allclose(table.shares.sum(axis=1), 1)
    np.testing.assert_allclose(table.shares[0], [0.86, 0.05, 0.09])
    labels = np.repeat([0, 1, 2], 1000)
    counts = held(labels, proportions_owners(labels, table.shares, "client", seed=0), 3, 3)
    np.testing.assert_allclose(counts / 1000, table.shares, atol=0.04)


def test_table_two_of_fedsplitbert_is_rounded(tmp_path):
    rows = "\n".join(f"{a}%,{b}%" for a, b in zip(*MRPC, strict=True))
    table = read_proportions(stored(tmp_path, f"1,0\n{rows}\n"))
    assert table.by == "client"
    np.testing.assert_allclose(table.shares[9], [51 / 99, 48 / 99])


@st.composite
def tables(draw):
    clients, count = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    rows = st.lists(st.integers(0, 9), min_size=count, max_size=count).filter(any)
    return np.array([draw(rows) for _ in range(clients)], dtype=float), count


@given(tables(), st.data(), st.integers(0, 99))
def test_every_example_once_and_equal_sizes(drawn, data, seed):
    rows, count = drawn
    labels = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=len(rows), max_size=90)))
    shares = rows / rows.sum(axis=1, keepdims=True)
    owners = proportions_owners(labels, shares, "client", seed)
    sizes = np.bincount(owners, minlength=len(rows))
    assert len(sizes) == len(rows)
    assert np.ptp(sizes) <= 1
    assert np.array_equal(owners, proportions_owners(labels, shares, "client", seed))


@given(tables(), st.integers(1, 30), st.integers(0, 99))
def test_a_table_that_fits_is_met(drawn, scale, seed):
    rows, count = drawn
    counts = (rows / rows.sum(axis=1, keepdims=True)).round(1)
    counts[:, 0] += 1 - counts.sum(axis=1)
    if (counts < 0).any():
        return
    counts = (counts * 10).round().astype(int) * scale
    labels = np.arange(count).repeat(counts.sum(axis=0))
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert np.array_equal(
        held(labels, proportions_owners(labels, shares, "client", seed), len(rows), count), counts
    )


def test_what_is_short_is_shared_in_proportion():
    labels = np.repeat([0, 1], [30, 70])
    counts = held(labels, proportions_owners(labels, [[0.8, 0.2], [0.4, 0.6]], "client", seed=0), 2, 2)
    # 40 and 20 were asked for, 30 are there: two thirds and one third of them, the rest from the other label.
    assert counts.tolist() == [[20, 30], [10, 40]]


@given(st.lists(st.integers(4, 40), min_size=1, max_size=6), st.integers(0, 9))
def test_by_label_each_label_is_split_as_the_column_says(supply, seed):
    labels = np.repeat(np.arange(len(supply)), supply)
    shares = np.tile([[0.5], [0.25], [0.25]], (1, len(supply)))
    counts = held(labels, proportions_owners(labels, shares, "label", seed), 3, len(supply))
    assert counts.sum(axis=0).tolist() == supply
    assert (np.abs(counts - shares * supply) < 1).all()


def test_a_client_without_an_example_is_refused():
    with pytest.raises(PartitionError, match="leave client 1 without an example"):
        proportions_owners(np.zeros(5, int), [[1.0], [0.0]], "label", seed=0)
    with pytest.raises(PartitionError, match=r"say at most partition.clients = 1"):
        proportions_owners(np.zeros(1, int), [[1.0], [1.0]], "client", seed=0)


@given(st.lists(st.floats(0, 5), min_size=3, max_size=60), st.integers(0, 9))
def test_scores_are_sorted_and_cut(scores, seed):
    bins, borders = score_bins(scores, np.eye(3), "client", seed)
    assert np.ptp(np.bincount(bins, minlength=3)) <= 1
    ordered = [np.array(scores)[bins == k] for k in range(3)]
    assert all(a.max() <= b.min() for a, b in pairwise(ordered))
    assert borders.tolist() == [part.min() for part in ordered[1:]]
    # Away from the borders the test scores fall into the bins of the training scores.
    clear = ~np.isin(scores, borders)
    assert np.array_equal(bin_scores(scores, borders)[clear], bins[clear])


def test_bins_are_as_large_as_they_are_asked_for():
    bins, _ = score_bins(np.arange(100.0), [[0.9, 0.1], [0.5, 0.5]], "client", seed=0)
    assert np.bincount(bins).tolist() == [70, 30]
    bins, _ = score_bins(np.arange(100.0), [[0.9, 0.1], [0.1, 0.9]], "label", seed=0)
    assert np.bincount(bins).tolist() == [50, 50]
    with pytest.raises(PartitionError, match="example 1 has no finite score"):
        score_bins([1.0, float("nan")], np.eye(2), "client", seed=0)


FORMS = {
    "a.csv": "client,neg,pos\nx,0.8,0.2\ny,0.2,0.8\n",
    "b.csv": "\ufeffneg,client,pos\r\n80%,x,20%\r\n\r\n20,y,80\r\n",
    "c.tsv": "client\tneg\tpos\nx\t80\t20\ny\t20\t80\n",
    "d.json": json.dumps([{"client": "x", "neg": 0.8, "pos": 0.2}, {"pos": 80, "neg": "20", "client": "y"}]),
}


def test_comments_stand_above_the_header_and_are_counted_as_lines(tmp_path):
    table = read_proportions(stored(tmp_path, '# from "a table,\n# quoted\n#neg,pos\n.8,.2\n.2,.8\n'))
    assert table.labels == ("#neg", "pos")
    np.testing.assert_allclose(table.shares, [[0.8, 0.2], [0.2, 0.8]])
    with pytest.raises(PartitionError, match=r"shares.csv:4 has 1 column, the header has 2"):
        read_proportions(stored(tmp_path, "# one\n\nneg,pos\n.8\n"))
    with pytest.raises(PartitionError, match="is empty"):
        read_proportions(stored(tmp_path, "# one\n# two"))


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_file_reads_alike(tmp_path, name):
    table = read_proportions(stored(tmp_path, FORMS[name], name))
    assert table.clients == ("x", "y")
    assert table.labels == ("neg", "pos")
    np.testing.assert_allclose(table.shares, [[0.8, 0.2], [0.2, 0.8]])


def test_columns_that_add_up_split_a_label_over_the_clients(tmp_path):
    table = read_proportions(stored(tmp_path, "a,b\n70%,10%\n20%,20%\n10%,70%\n"))
    assert table.by == "label"
    np.testing.assert_allclose(table.shares.sum(axis=0), 1)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "neg,pos\n", "at least one row"),
        ("a.csv", "neg,pos\n.5\n", "a.csv:2 has 1 column, the header has 2"),
        ("a.csv", "neg,pos\n.5,much\n", "a.csv:2: 'much' under 'pos' is no share"),
        ("a.csv", "neg,pos\n1.5,-.5\n", "a.csv:2: '-.5' under 'pos' is no share"),
        ("a.csv", "neg,pos\nnan,.5\n", "'nan' under 'neg'"),
        (
            "a.csv",
            "neg,pos\n.5,.5\n.5,.3\n",
            "a.csv:3: the shares add up to 0.8, and the column 'pos' to 0.8",
        ),
        ("a.csv", "neg,neg\n.5,.5\n", "label names in the header must all be there and differ"),
        ("a.csv", "client,neg,pos\nx,.5,.5\nx,.5,.5\n", "names in the column 'client'"),
        ("a.csv", b"neg,p\xf6s\n.5,.5\n", "not UTF-8"),
        ("a.csv", None, "there is no file of proportions"),
        ("a.json", "[", "a.json:1 is no JSON"),
        ("a.json", "[" * 100_000, "is no JSON"),
        ("a.json", f'[{{"a": {"9" * 5_000}}}]', "is no JSON"),
        ("a.json", "{}", "list of objects"),
        ("a.json", '[{"a": 1}, {"b": 1}]', "client 1 does not have the labels of the first"),
        ("a.json", '[{"a": null}]', "'None' under 'a' is no share"),
    ],
)
def test_a_table_that_cannot_be_used_says_why(tmp_path, name, text, said):
    path = tmp_path / name if text is None else stored(tmp_path, text, name)
    with pytest.raises(PartitionError, match=said) as caught:
        read_proportions(path)
    assert "\n" not in str(caught.value)


def test_labels_are_matched_by_name(tmp_path):
    table = read_proportions(stored(tmp_path, MNLI))
    shares = columns_in_order(("contradiction", "entailment", "neutral"), table)
    np.testing.assert_allclose(shares[0], [0.09, 0.86, 0.05])
    with pytest.raises(
        PartitionError, match="label 'entailment' that the data does not have: did you mean 'entailments'"
    ):
        columns_in_order(("contradiction", "entailments", "neutral"), table)
    with pytest.raises(PartitionError, match="no column for the label 'other'"):
        columns_in_order(("contradiction", "entailment", "neutral", "other"), table)


def test_columns_that_add_up_to_100_are_shares(tmp_path):
    table = read_proportions(stored(tmp_path, "a,b\n50,20\n50,80\n"))
    assert table.by == "label"
    np.testing.assert_allclose(table.shares, [[0.5, 0.2], [0.5, 0.8]])


def test_a_cell_too_long_to_read_is_named_by_its_line(tmp_path):
    before = csv.field_size_limit(131_072)  # Python's own; reading data raises it for the process
    try:
        with pytest.raises(PartitionError, match=r"shares\.csv:4 cannot be read"):
            read_proportions(stored(tmp_path, f"# one\n# two\na,b\n1,{'0' * 200_000}\n"))
    finally:
        csv.field_size_limit(before)
