"""The numbers of a protocol, from how many clients a round has and what it must withstand."""

from dataclasses import dataclass

from fednlp.errors import ConfigError
from fednlp.secure.encoding import most_bits
from fednlp.secure.field import PRIME
from fednlp.secure.graph import FEWEST_CLIENTS, choose, count, fewest_in_sum, secagg_threshold

MOST_BITS = 24
"""As finely as 32-bit floats, unless told."""


@dataclass(frozen=True)
class Plan:
    """What the parties of a round agree on beforehand.

    Attributes:
        protocol: ``"secagg"``, ``"secagg+"`` or ``"lightsecagg"``.
        clients: How many take part.
        needed: How many must answer at the end: of a client's neighbours (t), or of all in LightSecAgg (U).
        neighbours: Of each client (k).
        vanishing: How many may vanish.
        corrupt: How many may put together with the server what they know (T of LightSecAgg).
        bits: Of an encoded element of a client's update.
        modulus: That sums are taken by.
        active: Whether clients sign what they were shown.
    """

    protocol: str
    clients: int
    needed: int
    neighbours: int
    vanishing: int
    corrupt: int
    bits: int
    modulus: int
    active: bool

    def __str__(self) -> str:
        who = f"{self.clients} clients a round"
        if self.protocol == "secagg+":
            who += f", {self.neighbours} neighbours each"
        return (
            f"{self.protocol}: {who}; {self.vanishing} may vanish, {self.corrupt} may be corrupt; threshold "
            f"{self.needed}; {self.bits} bits a parameter before masking"
        )


def make_plan(
    protocol: str,
    clients: int,
    dropout: float,
    max_colluding: float,
    bits: int | None = None,
    malicious_server: bool = False,
    spread: float = 0.0,
) -> Plan:
    """Choose a protocol's numbers.

    Args:
        protocol: ``"secagg"``, ``"secagg+"`` or ``"lightsecagg"``.
        clients: Of a round.
        dropout: The largest part of them that vanishes.
        max_colluding: The largest part that works together with the server.
        bits: Of an encoded element; by default as many as the sum has room for, 24 at most.
        malicious_server: The server may lie about who is there.
        spread: How far noise may take the sum beyond its clients' share, in the largest elements of one client.

    Raises:
        ConfigError: No numbers withstand all that.

    >>> print(make_plan("secagg+", 100, 0.1, 0.1))  # doctest: +ELLIPSIS
    secagg+: 100 clients a round, 22 neighbours each; 10 may vanish, 10 may be corrupt; threshold 11; 24 bits ...
    """
    if clients < FEWEST_CLIENTS:
        raise ConfigError(
            f"[secure] clients_per_round = {clients}: in a sum over two, each learns the other's update; "
            f"{FEWEST_CLIENTS} clients or more are needed"
        )
    modulus = PRIME if protocol == "lightsecagg" else 1 << 32
    bits = _bits(bits, clients, spread, modulus)
    vanishing, corrupt = count(clients, dropout, "dropout"), count(clients, max_colluding, "max_colluding")
    neighbours = clients - 1
    if protocol == "lightsecagg":
        needed = _needed_by_lightsecagg(clients, vanishing, corrupt, malicious_server)
    elif protocol == "secagg":
        needed = _needed_by_secagg(clients, vanishing, dropout, max_colluding, malicious_server)
    else:
        neighbours, needed = choose(clients, max_colluding, dropout, malicious_server)
    return Plan(protocol, clients, needed, neighbours, vanishing, corrupt, bits, modulus, malicious_server)


def _bits(asked: int | None, clients: int, spread: float, modulus: int) -> int:
    """Return the bits of an encoded element: as asked, or as many as the sum has room for, 24 at most."""
    room = most_bits(clients + int(-(-spread // 1)), modulus)
    if room < 2:
        raise ConfigError(
            f"[secure] the sum of {clients} clients has no room for noise of that size: lower privacy.noise"
        )
    if asked is not None and asked > room:
        raise ConfigError(
            f"secure.bits = {asked}: a sum over {clients} clients has room for {room} bits: lower it, or leave it out"
        )
    return min(MOST_BITS, room) if asked is None else asked


def _needed_by_secagg(
    clients: int, vanishing: int, dropout: float, max_colluding: float, active: bool
) -> int:
    """Return t, for which enough clients must stay."""
    # More than half, where that many stay: the smallest threshold lets a sum be that of two honest clients.
    needed = max(secagg_threshold(clients, max_colluding, active), min(clients // 2 + 1, clients - vanishing))
    if needed > clients - vanishing:
        raise ConfigError(
            f"[secure] {needed} of {clients} clients must answer at max_colluding = {max_colluding}, and "
            f"{vanishing} vanish at dropout = {dropout}: lower one of the two, or raise clients_per_round"
        )
    return needed


def _needed_by_lightsecagg(clients: int, vanishing: int, corrupt: int, active: bool) -> int:
    """Return U: all who stay, so that coded pieces are as short as can be."""
    if active:
        raise ConfigError(
            '[secure] malicious_server = true is for protocol = "secagg" or "secagg+": LightSecAgg does not sign keys '
            "against a server that swaps them"
        )
    staying, least = clients - vanishing, fewest_in_sum(corrupt)
    if staying < least:
        raise ConfigError(
            f"[secure] lightsecagg: {staying} of {clients} clients stay, and with {corrupt} corrupt ones a sum must be "
            f"over {least} or more: lower dropout or max_colluding, or raise clients_per_round"
        )
    if 2 * staying <= clients + corrupt:
        raise ConfigError(
            f"[secure] lightsecagg: twice the {staying} clients that stay must be more than all {clients} and the "
            f"{corrupt} corrupt ones together: lower dropout or max_colluding"
        )
    return staying
