"""The numbers of a secure aggregation protocol, from the size of a cohort and what the protocol must withstand."""

from dataclasses import dataclass

from fednlp.errors import ConfigError
from fednlp.secure.encoding import most_bits
from fednlp.secure.field import PRIME
from fednlp.secure.graph import FEWEST_CLIENTS, choose, count, fewest_in_sum, secagg_threshold

_MOST_BITS = 24
"""Bits of an encoded element unless the experiment says otherwise: the precision of 32-bit floats."""


@dataclass(frozen=True)
class ProtocolPlan:
    """What all parties of a round agree on beforehand. Clients are counted, not given as fractions.

    Attributes:
        protocol: ``"secagg"``, ``"secagg+"`` or ``"lightsecagg"``.
        clients: Size of the cohort (n).
        threshold: How many must answer at the end: of a client's neighbours (t), or of all clients in LightSecAgg (U).
        neighbours: Neighbours of each client (k).
        max_dropouts: How many clients may drop out.
        max_colluding: How many clients may collude with the server (T of LightSecAgg).
        bits: Bits of an encoded element of a client's update.
        modulus: The modulus of the sums.
        malicious_server: Whether clients sign their keys and the list of survivors.
    """

    protocol: str
    clients: int
    threshold: int
    neighbours: int
    max_dropouts: int
    max_colluding: int
    bits: int
    modulus: int
    malicious_server: bool

    def __str__(self) -> str:
        who = f"{self.clients} clients a round"
        if self.protocol == "secagg+":
            who += f", {self.neighbours} neighbours each"
        return (
            f"{self.protocol}: {who}; {self.max_dropouts} may drop out, {self.max_colluding} may collude; threshold "
            f"{self.threshold}; {self.bits} bits a parameter before masking"
        )


def make_plan(
    protocol: str,
    clients: int,
    dropout: float,
    max_colluding: float,
    bits: int | None = None,
    malicious_server: bool = False,
    spread: float = 0.0,
) -> ProtocolPlan:
    """Choose the numbers of a protocol.

    Args:
        protocol: ``"secagg"``, ``"secagg+"`` or ``"lightsecagg"``.
        dropout: The largest fraction of the cohort that drops out, in [0, 1).
        max_colluding: The largest fraction of the cohort that colludes with the server, in [0, 1).
        bits: Bits of an encoded element; by default as many as the sum has room for, at most 24.
        malicious_server: Whether the server may lie about who is there.
        spread: How far noise may take the sum beyond what the updates reach, in units of the largest element of one
            client's update.

    Raises:
        ConfigError: No numbers withstand all that.

    >>> print(make_plan("secagg+", 100, 0.1, 0.1))  # doctest: +ELLIPSIS
    secagg+: 100 clients a round, 22 neighbours each; 10 may drop out, 10 may collude; threshold 11; 24 bits ...
    """
    if clients < FEWEST_CLIENTS:
        raise ConfigError(
            f"[secure] clients_per_round = {clients}: in a sum over two, each learns the other's update; "
            f"{FEWEST_CLIENTS} clients or more are needed"
        )
    modulus = PRIME if protocol == "lightsecagg" else 1 << 32
    bits = _bits(bits, clients, spread, modulus)
    dropouts, colluding = count(clients, dropout, "dropout"), count(clients, max_colluding, "max_colluding")
    neighbours = clients - 1
    if protocol == "lightsecagg":
        threshold = _lightsecagg_threshold(clients, dropouts, colluding, malicious_server)
    elif protocol == "secagg":
        threshold = _secagg_threshold(clients, dropout, max_colluding, malicious_server)
    else:
        neighbours, threshold = choose(clients, max_colluding, dropout, malicious_server)
    return ProtocolPlan(
        protocol, clients, threshold, neighbours, dropouts, colluding, bits, modulus, malicious_server
    )


def _bits(configured: int | None, clients: int, spread: float, modulus: int) -> int:
    """Return the bits of an encoded element: as configured, or as many as the sum has room for, at most 24."""
    room = most_bits(clients + int(-(-spread // 1)), modulus)
    if room < 2:
        raise ConfigError(
            f"[secure] the sum of {clients} clients has no room for noise of that size: lower privacy.noise"
        )
    if configured is not None and configured > room:
        raise ConfigError(
            f"secure.bits = {configured}: a sum over {clients} clients has room for {room} bits: lower it, or leave it "
            "out"
        )
    return min(_MOST_BITS, room) if configured is None else configured


def _secagg_threshold(clients: int, dropout: float, max_colluding: float, malicious_server: bool) -> int:
    """Return t, having checked that enough clients stay for it."""
    dropouts = count(clients, dropout, "dropout")
    # More than half, where that many stay: the smallest threshold lets a sum be that of two honest clients.
    threshold = max(
        secagg_threshold(clients, max_colluding, malicious_server), min(clients // 2 + 1, clients - dropouts)
    )
    if threshold > clients - dropouts:
        raise ConfigError(
            f"[secure] {threshold} of {clients} clients must answer at max_colluding = {max_colluding}, and {dropouts} "
            f"drop out at dropout = {dropout}: lower one of the two, or raise clients_per_round"
        )
    return threshold


def _lightsecagg_threshold(clients: int, dropouts: int, colluding: int, malicious_server: bool) -> int:
    """Return U: all clients that stay, so that coded pieces are as short as possible."""
    if malicious_server:
        raise ConfigError(
            '[secure] malicious_server = true is for protocol = "secagg" or "secagg+": LightSecAgg does not sign keys '
            "against a server that swaps them"
        )
    staying, least = clients - dropouts, fewest_in_sum(colluding)
    if staying < least:
        raise ConfigError(
            f"[secure] lightsecagg: {staying} of {clients} clients stay, and with {colluding} colluding ones a sum "
            f"must be over {least} or more: lower dropout or max_colluding, or raise clients_per_round"
        )
    if 2 * staying <= clients + colluding:
        raise ConfigError(
            f"[secure] lightsecagg: twice the {staying} clients that stay must be more than all {clients} and the "
            f"{colluding} colluding ones together: lower dropout or max_colluding"
        )
    return staying
