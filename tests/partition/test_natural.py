"""Natural partitions: one client per value of a field."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import PartitionError
from fednlp.partition.methods.natural import field_groups, natural_owners


@given(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=40))
def test_one_client_per_value_in_order(values):
    owners, names = natural_owners(values, "author")
    assert sorted(set(values)) == sorted(names)
    assert [names[owner] for owner in owners] == values
    assert np.array_equal(owners, natural_owners(list(values), "author")[0])


def test_text_is_sorted_by_character_and_numbers_by_value():
    assert natural_owners(["b", "a", "c"], "f")[1] == ("a", "b", "c")
    assert natural_owners([10, 9, 10], "f")[1] == ("9", "10")
    assert natural_owners(["10", "9"], "f")[0].tolist() == [1, 0]


@pytest.mark.parametrize("missing", [None, "", " \t", float("nan")])
def test_a_missing_value_is_named(missing):
    with pytest.raises(PartitionError, match=r"example 17 has no value in the field 'author'"):
        natural_owners(["a", missing, "b"], "author", numbers=[4, 17, 20])
    with pytest.raises(PartitionError, match="example 1 has"):
        natural_owners(["a", missing], "author")


def test_another_number_of_clients_is_refused():
    with pytest.raises(PartitionError, match=r"has 2 values, each a client, not 3: .*partition.clients = 2"):
        natural_owners(["a", "b"], "author", clients=3)
    with pytest.raises(PartitionError, match=r"has 2 values, each a client, not 1"):
        natural_owners(["a", "b"], "author", clients=1)
    assert len(natural_owners(["a", "b"], "author", clients=2)[1]) == 2


def test_a_field_of_whole_texts_is_refused():
    with pytest.raises(PartitionError, match="more than 1000 characters"):
        natural_owners(["a", "b" * 1001], "text")


def test_values_that_no_client_has():
    assert field_groups(["b", "z", None, "a", 1], ("1", "a", "b")).tolist() == [2, -1, -1, 1, 0]
