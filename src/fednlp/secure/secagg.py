"""SecAgg and SecAgg+: the server learns the sum of the survivors' vectors modulo 2^32, and no single vector.

Bonawitz et al. 2017, *Practical Secure Aggregation for Privacy-Preserving Machine Learning*, figure 4, and
Bell et al. 2020, *Secure Single-Server Aggregation with (Poly)Logarithmic Overhead*, section 3. Both are one
machine on a graph of neighbours, complete in SecAgg. Client u adds to its vector its own mask PRG(b[u]) and,
for every neighbour v, the pair's mask PRG(s[u, v]), with opposite signs on the two sides, so that they cancel
in the sum. Neighbours hold shares of b[u] and of the key that the s[u, v] come of. For a client whose vector
arrived they reveal b[u]; for one that dropped out, the key; never both.

    =====================  ==================================  ====================================
    step                   client to server                    server to client
    =====================  ==================================  ====================================
    keys                   :class:`~.messages.AdvertiseKeys`   :class:`~.messages.KeyRoster`
    shares                 :class:`~.messages.SealedShares`    :class:`~.messages.DeliveredShares`
    vectors                the masked vector                   :class:`~.messages.Survivors`
    consistency check (*)  :class:`~.messages.Confirmation`    :class:`~.messages.Confirmed`
    unmasking              :class:`~.messages.Revealed`
    =====================  ==================================  ====================================

(*) In malicious-server mode only: the paper's "active adversary".

A client may drop out at any step and takes no further part. The parties have no connections and no clocks: they
take messages and return messages, and a driver (:mod:`fednlp.secure.session`) carries them.

>>> import numpy as np
>>> from fednlp.secure.masks import add_masks
>>> ids = (1, 2, 3, 4)
>>> everybody = {own: tuple({*ids} - {own}) for own in ids}
>>> spec = SecAggRoundSpec("secagg", ids, everybody, threshold=3, round_number=0)
>>> server, clients = SecAggServer(spec), {own: SecAggClient(spec.client_spec(own)) for own in ids}
>>> rosters = server.roster({own: client.advertise() for own, client in clients.items()})
>>> parcels = server.deliver({own: client.share(rosters[own]) for own, client in clients.items()})
>>> for own, client in clients.items():
...     client.receive(parcels[own])
>>> vectors = {own: np.array([own, 10 * own], dtype=np.uint32) for own in ids}
>>> total = sum(clients[own].masked(vectors[own]) for own in (1, 3, 4))  # client 2 dropped out
>>> survivors = server.survivors([1, 3, 4])
>>> add_masks(total, server.unmask({own: clients[own].reveal(survivors[own]) for own in (1, 3, 4)}))
>>> total.tolist()
[8, 80]
"""

from fednlp.secure.secagg_client import SecAggClient
from fednlp.secure.secagg_rules import LARGEST_ID, SECAGG, SECAGG_PLUS, SecAggClientSpec, SecAggRoundSpec
from fednlp.secure.secagg_server import SecAggServer

__all__ = [
    "LARGEST_ID",
    "SECAGG",
    "SECAGG_PLUS",
    "SecAggClient",
    "SecAggClientSpec",
    "SecAggRoundSpec",
    "SecAggServer",
]
