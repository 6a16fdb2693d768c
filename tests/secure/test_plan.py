"""The numbers of a protocol: what they keep, what they are for few clients, and what is refused."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.secure.plan import make_plan

PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
DEFAULTS = {  # n: the thresholds at max_colluding = dropout = 0.1, and the neighbours in SecAgg+
    3: (3, None, 3, None),
    4: (3, 2, 4, 2),
    5: (3, 2, 5, 2),
    6: (4, 2, 6, 2),
    7: (4, 2, 7, 2),
    8: (5, 2, 8, 2),
    9: (5, 2, 9, 2),
    10: (6, 2, 9, 4),
}


@pytest.mark.parametrize("n", DEFAULTS)
def test_the_defaults_for_few_clients(n: int) -> None:
    *needed, neighbours = DEFAULTS[n]
    for protocol, expected in zip(PROTOCOLS, needed, strict=True):
        if expected is None:
            with pytest.raises(ConfigError, match='write protocol = "secagg"'):
                make_plan(protocol, n, 0.1, 0.1)
            continue
        plan = make_plan(protocol, n, 0.1, 0.1)
        assert plan.threshold == expected
        if protocol == "secagg+":
            assert plan.neighbours == neighbours


@given(
    protocol=st.sampled_from(PROTOCOLS),
    clients=st.integers(1, 60),
    dropout=st.floats(0, 0.99),
    max_colluding=st.floats(0, 0.99),
    malicious_server=st.booleans(),
)
def test_a_sum_is_over_three_clients_and_two_honest_ones_or_there_is_no_plan(
    protocol: str, clients: int, dropout: float, max_colluding: float, malicious_server: bool
) -> None:
    try:
        plan = make_plan(protocol, clients, dropout, max_colluding, malicious_server=malicious_server)
    except ConfigError:
        return
    if (
        protocol == "secagg+"
    ):  # of a client's neighbours; the colluding ones among them are fewer than the threshold
        assert plan.threshold + 1 >= 3
        assert plan.threshold <= plan.neighbours
        return
    assert plan.threshold >= max(3, plan.max_colluding + 2)
    assert plan.threshold <= clients - plan.max_dropouts


@pytest.mark.parametrize(
    ("protocol", "clients", "dropout", "max_colluding", "said"),
    [
        (
            "secagg",
            3,
            0.34,
            0.0,
            "3 of 3 clients must answer .* lower one of the two, or raise clients_per_round",
        ),
        ("secagg", 10, 0.1, 0.8, "10 of 10 clients must answer"),
        (
            "lightsecagg",
            3,
            0.34,
            0.0,
            "a sum must be over 3 or more: lower dropout or max_colluding, or raise",
        ),
        ("lightsecagg", 10, 0.0, 0.9, "with 9 colluding ones a sum must be over 11 or more"),
        ("lightsecagg", 10, 0.4, 0.3, "twice the 6 clients"),
    ],
)
def test_sums_that_tell_too_much_are_refused(
    protocol: str, clients: int, dropout: float, max_colluding: float, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(protocol, clients, dropout, max_colluding)


def test_the_threshold_leaves_two_honest_clients() -> None:
    assert make_plan("secagg", 10, 0.1, 0.5).threshold == 7
    assert make_plan("secagg", 10, 0.1, 0.4).threshold == 6
    assert make_plan("secagg", 10, 0.1, 0.5, malicious_server=True).threshold == 8


@pytest.mark.parametrize(
    ("protocol", "clients", "spread", "bits"),
    [
        ("secagg", 255, 0.0, 24),
        ("secagg", 256, 0.0, 23),
        ("secagg", 254, 1.0, 24),
        ("secagg", 254, 1.01, 23),
        ("secagg", 1000, 0.0, 22),
        ("lightsecagg", 127, 0.0, 24),
        ("lightsecagg", 128, 0.0, 23),
        ("lightsecagg", 1000, 0.0, 21),
    ],
)
def test_bits_are_as_many_as_the_sum_has_room_for(
    protocol: str, clients: int, spread: float, bits: int
) -> None:
    """n S <= (M - 1) / 2, S = 2^(bits - 1), and no finer than 24 bits."""
    plan = make_plan(protocol, clients, 0.1, 0.1, spread=spread)
    assert plan.bits == bits
    room = make_plan(protocol, clients, 0.1, 0.1, spread=spread, bits=2)
    assert room.bits == 2
    largest = (plan.modulus - 1) // 2 // (clients + math.ceil(spread))
    assert 2 ** (bits - 1) <= largest
    assert bits == 24 or 2**bits > largest


def test_bits_that_do_not_fit_are_refused() -> None:
    assert make_plan("secagg", 10, 0.1, 0.1, bits=28).bits == 28
    with pytest.raises(ConfigError, match=r"secure\.bits = 29: a sum over 10 clients has room for 28 bits"):
        make_plan("secagg", 10, 0.1, 0.1, bits=29)
    assert make_plan("secagg", 10, 0.1, 0.1, spread=2.0**30 - 21).bits == 2
    with pytest.raises(ConfigError, match="has no room for noise of that size"):
        make_plan("secagg", 10, 0.1, 0.1, spread=2.0**30)


def test_a_plan_reads_as_one_line() -> None:
    line = "10 clients a round, 4 neighbours each; 1 may drop out, 1 may collude; threshold 2; 24 bits a parameter"
    assert str(make_plan("secagg+", 10, 0.1, 0.1)) == f"secagg+: {line} before masking"
    assert "neighbours" not in str(make_plan("secagg", 10, 0.1, 0.1))


def test_what_a_protocol_cannot_do_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 clients or more are needed"):
        make_plan("secagg", 2, 0.0, 0.0)
    with pytest.raises(ConfigError, match='malicious_server = true is for protocol = "secagg"'):
        make_plan("lightsecagg", 10, 0.1, 0.1, malicious_server=True)
    assert make_plan("lightsecagg", 4, 0.0, 0.5).threshold == 4
    assert make_plan("lightsecagg", 9, 0.25, 0.5).threshold == 7  # 2 * 7 > 9 + 4, and not 2 * 6
    with pytest.raises(ConfigError, match="twice the 6 clients"):
        make_plan("lightsecagg", 9, 0.34, 0.4)
