"""LightSecAgg: one mask a client, and the sum of the survivors' masks recovered at once.

Every client adds one mask to its vector and gives every other client a coded piece of the mask. When the
server has the masked vectors of the survivors, each survivor adds up its coded pieces of their masks, and any
U such sums give the sum of the masks, whoever dropped out: nothing is done for each client that did. (So et
al. 2022, "LightSecAgg: a lightweight and versatile design for secure aggregation in federated learning",
Algorithm 1, in the field modulo 2^31 - 1.)

The server and T clients together learn the sum of the survivors' vectors and nothing else of the others, if
they follow the protocol. (Keys are not signed, so this does not hold against a malicious server, which could put its
own keys in their place.)
Two lists of survivors in one round would give the sum over their difference. That takes U answers to each;
only the T colluding ones of N clients answer twice, and 2 U > N + T rules it out.
"""

from fednlp.secure.lightsecagg_client import LightSecAggClient
from fednlp.secure.lightsecagg_rules import LightSecAggRoundSpec
from fednlp.secure.lightsecagg_server import LightSecAggServer

__all__ = ["LightSecAggClient", "LightSecAggRoundSpec", "LightSecAggServer"]
