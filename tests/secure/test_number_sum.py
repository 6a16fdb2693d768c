"""Secure sums of whole numbers: exact, whoever drops out, and nothing where too few are left."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import SecureAbort
from fednlp.secure.encoding import Encoding, most_bits
from fednlp.secure.field import PRIME
from fednlp.secure.params import SecAggParams, make_params
from fednlp.secure.round import NumberSum
from fednlp.secure.upload import masked_numbers

PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
BITS = 192
CLIENTS = (3, 8, 1, 14, 9, 20, 5, 6, 2, 4)


def numbers_of_client(client: int) -> list[int]:
    rng = np.random.default_rng(client)
    small = rng.integers(-5, 1000, 5).tolist()
    return [*small, 0, (-1) ** client * 3 ** (100 + client), 2**180 + client]


def params_of(protocol: str) -> SecAggParams:
    return make_params(protocol, len(CLIENTS), 8, 1.0, 7, clip=1.0, dropout=0.3, max_colluding=0.0)


def opened(protocol: str) -> NumberSum:
    return NumberSum(params_of(protocol), CLIENTS, 1, 8, BITS)


@given(data=st.data(), clients=st.integers(1, 200), modulus=st.sampled_from([2**32, PRIME]))
def test_numbers_are_the_sums_of_their_digits(data: Any, clients: int, modulus: int) -> None:
    bits = data.draw(st.integers(2, min(24, most_bits(clients, modulus))))
    encoding = Encoding(1.0, bits, 1.0, clients, modulus)
    drawn = data.draw(
        st.lists(
            st.lists(st.integers(1 - 2**191, 2**191 - 1), min_size=2, max_size=2),
            min_size=1,
            max_size=min(clients, 5),
        )
    )
    total = sum(encoding.encode_numbers(own, BITS).astype(np.int64) for own in drawn) % modulus
    sums = encoding.decode_numbers(np.asarray(total).astype(np.uint32), BITS, len(drawn))
    assert sums == [sum(column) for column in zip(*drawn, strict=True)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("lost", [(), (8, 20)])
def test_the_sum_is_exact(protocol: str, lost: tuple[int, ...]) -> None:
    secure = opened(protocol)
    for client, masking in secure.begin().items():
        if client not in lost:
            secure.add(client, masked_numbers(numbers_of_client(client), BITS, masking).tolist())
    own = [numbers_of_client(client) for client in CLIENTS if client not in lost]
    assert secure.finish() == [sum(column) for column in zip(*own, strict=True)]
    assert {*secure.arrived} == {*CLIENTS} - {*lost}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_what_a_client_sends_says_nothing(protocol: str) -> None:
    """The residues are spread over the whole range, whatever the numbers are."""
    params = make_params(protocol, len(CLIENTS), 500, 1.0, 7, clip=1.0)
    secure = NumberSum(params, CLIENTS, 1, 500, BITS)
    client, masking = next(iter(secure.begin().items()))
    residues = masked_numbers([client] * 500, BITS, masking)
    share = (residues.astype(np.float64) / params.encoding.modulus).mean()
    assert abs(share - 0.5) < 0.05
    assert len(np.unique(residues)) > 0.99 * len(residues)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_too_few_clients_have_no_sum(protocol: str) -> None:
    secure = opened(protocol)
    client, masking = next(iter(secure.begin().items()))
    with pytest.raises(SecureAbort, match="no client answered"):
        secure.finish()
    secure.add(client, masked_numbers(numbers_of_client(client), BITS, masking).tolist())
    with pytest.raises(SecureAbort):
        secure.finish()


@pytest.mark.parametrize("sent", [[], [0], [-1] * 72, [2**32] * 72])
def test_what_is_no_vector_of_residues_is_not_added(sent: list[int]) -> None:
    secure = opened("secagg")
    assert secure.length == 72
    secure.begin()
    with pytest.raises(SecureAbort, match="client 3 sent no 72 residues"):
        secure.add(3, sent)
    assert secure.arrived == []


def test_a_number_out_of_range_is_not_told() -> None:
    encoding = params_of("secagg").encoding
    with pytest.raises(SecureAbort, match="has more than 192 bits") as found:
        encoding.encode_numbers([7, -(2**191)], BITS)
    assert str(2**191) not in str(found.value)
