"""What peers write into a server's log is bounded, and noise of one leaves the lines of another."""

from hypothesis import given
from hypothesis import strategies as st

from fednlp.deployment.links.limited_log import (
    MOST_OF_ONE,
    MOST_OF_SITES,
    MOST_OF_STRANGERS,
    SPAN,
    limited,
)
from fednlp.deployment.session.driver import PeerIdentity


@given(st.lists(st.integers(0, 400), max_size=800), st.integers(0, 400))
def test_one_line_of_a_site_gets_through_any_noise_of_strangers_and_few_sites(
    noise: list[int], honest: int
) -> None:
    lines = list[str]()
    log = limited(lines.append, lambda: 0.0)
    for number in noise:
        log(PeerIdentity(f"ipv4:10.0.0.{number}:{len(lines)}", None), "a stranger")
        log(PeerIdentity(f"ipv4:10.1.0.{number % 30}:1", b"%d" % (number % 30)), "a bad site")
    log(PeerIdentity("ipv4:10.2.0.1:1", b"honest"), f"line {honest}")
    assert f"ipv4:10.2.0.1:1: line {honest}" in lines
    assert sum(line.endswith("a stranger") for line in lines) <= MOST_OF_STRANGERS


def test_a_peer_is_known_by_its_certificate_or_by_its_address() -> None:
    lines, clock = list[str](), [0.0]
    log = limited(lines.append, lambda: clock[0])
    for port in range(100):
        log(PeerIdentity(f"ipv4:10.0.0.1:{port}", None), "a stranger")
        log(PeerIdentity(f"ipv4:10.0.0.{port}:1", b"one site"), "the site")
    assert sum(line.endswith("a stranger") for line in lines) == MOST_OF_ONE
    assert sum(line.endswith("the site") for line in lines) == MOST_OF_ONE
    for number in range(1000):
        log(PeerIdentity("", b"%d" % number), "many sites")
    assert sum(line.endswith("many sites") for line in lines) == MOST_OF_SITES - MOST_OF_ONE
    clock[0] = SPAN
    log(PeerIdentity("ipv4:10.0.0.1:7", None), "again")
    assert lines[-2:] == [
        "ipv4:10.0.0.1:7: again",
        "(766 lines about connections were left out before this one)",
    ]
