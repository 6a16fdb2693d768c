"""The numbers of a protocol: what they keep, what they are for few clients, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fednlp.errors import ConfigError
from fednlp.secure.plan import make_plan

PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
DEFAULTS = {  # n: the thresholds at corruption = dropout = 0.1, and the neighbours in SecAgg+
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
        assert plan.needed == expected
        if protocol == "secagg+":
            assert plan.neighbours == neighbours


@given(
    protocol=st.sampled_from(PROTOCOLS),
    clients=st.integers(1, 60),
    dropout=st.floats(0, 0.99),
    corruption=st.floats(0, 0.99),
    active=st.booleans(),
)
def test_a_sum_is_over_three_clients_and_two_honest_ones_or_there_is_no_plan(
    protocol: str, clients: int, dropout: float, corruption: float, active: bool
) -> None:
    try:
        plan = make_plan(protocol, clients, dropout, corruption, active=active)
    except ConfigError:
        return
    if (
        protocol == "secagg+"
    ):  # of a client's neighbours; the corrupt ones among them are fewer than the threshold
        assert plan.needed + 1 >= 3
        assert plan.needed <= plan.neighbours
        return
    assert plan.needed >= max(3, plan.corrupt + 2)
    assert plan.needed <= clients - plan.vanishing


@pytest.mark.parametrize(
    ("protocol", "clients", "dropout", "corruption", "said"),
    [
        (
            "secagg",
            3,
            0.34,
            0.0,
            "3 of 3 clients must answer .* lower one of the two, or raise clients_per_round",
        ),
        ("secagg", 10, 0.1, 0.8, "10 of 10 clients must answer"),
        ("lightsecagg", 3, 0.34, 0.0, "a sum must be over 3 or more: lower dropout or corruption, or raise"),
        ("lightsecagg", 10, 0.0, 0.9, "with 9 corrupt ones a sum must be over 11 or more"),
        ("lightsecagg", 10, 0.4, 0.3, "twice the 6 clients"),
    ],
)
def test_sums_that_tell_too_much_are_refused(
    protocol: str, clients: int, dropout: float, corruption: float, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_plan(protocol, clients, dropout, corruption)


def test_the_threshold_leaves_two_honest_clients() -> None:
    assert make_plan("secagg", 10, 0.1, 0.5).needed == 7
    assert make_plan("secagg", 10, 0.1, 0.4).needed == 6
    assert make_plan("secagg", 10, 0.1, 0.5, active=True).needed == 8
