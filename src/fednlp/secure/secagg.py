"""SecAgg and SecAgg+: the server learns the sum of the survivors' vectors modulo 2^32, and no vector.

Bonawitz et al. 2017, *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, figure 4, and
Bell et al. 2020, *Secure Single-Server Aggregation with (Poly)Logarithmic Overhead*, section 3. Both are one
machine on a graph of neighbours, complete in SecAgg. Client u adds to its vector its own mask PRG(b[u]) and,
for every neighbour v, the pair's mask PRG(s[u, v]), with opposite signs on the two sides, so that they cancel
in the sum. Neighbours hold shares of b[u] and of the key that the s[u, v] come of. For a client whose vector
arrived they reveal b[u]; for one that dropped out, the key; never both.

    ======================  ========================================  =========================================
    step                    client to server                          server to client
    ======================  ========================================  =========================================
    keys                    :class:`~.messages.Advertise`             :class:`~.messages.Roster`
    shares                  :class:`~.messages.SealedShares`          :class:`~.messages.Delivered`
    vectors                 the masked vector                         :class:`~.messages.Survivors`
    check (active mode)     :class:`~.messages.Confirmation`          :class:`~.messages.Confirmed`
    unmasking               :class:`~.messages.Revealed`
    ======================  ========================================  =========================================

A client may be missing at any step and takes no further part. Parties have no connections and no clocks:
messages go in and come out, and a driver carries them.

>>> import numpy as np
>>> from fednlp.secure.masks import add_masks
>>> ids = (1, 2, 3, 4)
>>> everybody = {own: tuple({*ids} - {own}) for own in ids}
>>> parameters = Parameters("secagg", ids, everybody, threshold=3, round_number=0)
>>> server, clients = Server(parameters), {own: Client(parameters.part(own)) for own in ids}
>>> rosters = server.roster({own: client.advertise() for own, client in clients.items()})
>>> parcels = server.deliver({own: client.share(rosters[own]) for own, client in clients.items()})
>>> for own, client in clients.items():
...     client.receive(parcels[own])
>>> vectors = {own: np.array([own, 10 * own], dtype=np.uint32) for own in ids}
>>> total = sum(clients[own].masked(vectors[own]) for own in (1, 3, 4))  # client 2 is gone
>>> survivors = server.survivors([1, 3, 4])
>>> add_masks(total, server.unmask({own: clients[own].reveal(survivors[own]) for own in (1, 3, 4)}))
>>> total.tolist()
[8, 80]
"""

from fednlp.secure.secagg_client import Client
from fednlp.secure.secagg_rules import LARGEST_ID, SECAGG, SECAGG_PLUS, Parameters, Part
from fednlp.secure.secagg_server import Server

__all__ = ["LARGEST_ID", "SECAGG", "SECAGG_PLUS", "Client", "Parameters", "Part", "Server"]
