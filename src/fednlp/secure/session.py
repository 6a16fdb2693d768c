"""All parties of secure aggregation on this machine: messages go from one to the other, and are counted."""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import RunError, SecureAbort
from fednlp.secure import lightsecagg, secagg
from fednlp.secure.graph import neighbours
from fednlp.secure.keys import SigningKey
from fednlp.secure.lightsecagg_messages import Delivered as DeliveredPieces
from fednlp.secure.lightsecagg_messages import SealedPieces, size
from fednlp.secure.masks import Mask
from fednlp.secure.messages import Delivered
from fednlp.secure.plan import Plan
from fednlp.seeds import generator

Seeds = list[list[Any]]
"""Masks as JSON: a seed in hexadecimal digits and a sign each."""
PHASES = ("keys", "shares", "update", "answer")
"""What a client may no longer do: advertise keys, share secrets, send its masked update, answer at the end."""


class Parties(Protocol):
    """The clients and the server of one round of one protocol."""

    def meet(self) -> dict[int, Seeds]:
        """Go through all phases before the upload; return the masks of the clients that are still there."""

    def part(self, uploaded: Sequence[int]) -> "Remains":
        """Go through the rest, once masked updates have arrived from these clients."""


@dataclass(frozen=True)
class Remains:
    """What is left in the sum of masked vectors: masks to add, and residues to take away."""

    masks: list[Mask]
    residues: NDArray[np.uint32] | None = None


class Post:
    """Carries messages, counts their bytes by client, and loses those of clients that vanish.

    Args:
        lost: Which clients vanish, and before which phase.
    """

    def __init__(self, lost: Mapping[int, str]) -> None:
        self.lost = lost
        self.bytes_up: Counter[int] = Counter()
        self.bytes_down: Counter[int] = Counter()

    def there(self, clients: Mapping[int, Any], phase: str) -> dict[int, Any]:
        """Return the clients that do not vanish before a phase."""
        return {client: value for client, value in clients.items() if self.lost.get(client) != phase}

    def up(self, made: dict[int, Any]) -> dict[int, Any]:
        """Carry messages to the server."""
        self.bytes_up.update({client: size(message) for client, message in made.items()})
        return made

    def down(self, made: dict[int, Any]) -> dict[int, Any]:
        """Carry messages to clients."""
        self.bytes_down.update({client: size(message) for client, message in made.items()})
        return made


def written(masks: Sequence[Mask]) -> Seeds:
    """Return masks as JSON values."""
    return [[mask.seed.hex(), mask.sign] for mask in masks]


def _each(clients: Mapping[int, Any], step: Callable[[int], Any]) -> dict[int, Any]:
    """Let every client take a step; those that refuse are missing from then on."""
    made = {}
    for client in clients:
        try:
            made[client] = step(client)
        except SecureAbort:
            continue
    return made


class Pairwise:
    """SecAgg and SecAgg+."""

    def __init__(
        self, plan: Plan, seed: int, run: bytes, number: int, ids: list[int], length: int, post: Post
    ) -> None:
        # From the experiment's seed, so that who is needed by whom is the same in every run of it.
        order = generator(seed, "neighbours", number).permutation(len(ids)).tolist()
        parameters = secagg.Parameters(
            protocol=plan.protocol,
            ids=tuple(ids),
            neighbours=neighbours(ids, plan.neighbours, order),
            threshold=plan.needed,
            round_number=number,
            active=plan.active,
            run=run,
            corrupt=plan.corrupt,
            # In SecAgg any threshold of all clients is enough; in SecAgg+ the lost decide what holds together.
            fewest=plan.clients - plan.vanishing if plan.protocol == secagg.SECAGG_PLUS else 0,
        )
        self.post, self.active = post, plan.active
        signing = {client: SigningKey.new() for client in ids} if plan.active else {}
        identities = {client: key.public for client, key in signing.items()}
        self.clients = {
            client: secagg.Client(parameters.part(client), signing.get(client), identities) for client in ids
        }
        self.server = secagg.Server(parameters)

    def meet(self) -> dict[int, Seeds]:
        """Advertise keys and share secrets."""
        clients = self.clients
        keys = self.post.up(_each(self.post.there(clients, "keys"), lambda c: clients[c].advertise()))
        rosters = self.post.down(self.server.roster(keys))
        shared = self.post.up(
            _each(self.post.there(rosters, "shares"), lambda c: clients[c].share(rosters[c]))
        )
        delivered = self.post.down(self.server.deliver(shared))
        return _each(delivered, lambda client: self._masks(client, delivered[client]))

    def _masks(self, client: int, delivered: Delivered) -> Seeds:
        self.clients[client].receive(delivered)
        return written(self.clients[client].masks())

    def part(self, uploaded: Sequence[int]) -> Remains:
        """Reveal what takes the masks out that are left in the sum."""
        clients = self.clients
        shown = self.post.there(self.post.down(self.server.survivors(list(uploaded))), "answer")
        if self.active:
            confirmed = self.post.up(_each(shown, lambda c: clients[c].confirm(shown[c])))
            shown = self.post.down(self.server.confirmed(confirmed))
        revealed = self.post.up(_each(shown, lambda c: clients[c].reveal(shown[c])))
        return Remains(self.server.unmask(revealed))


class Light:
    """LightSecAgg."""

    def __init__(
        self, plan: Plan, seed: int, run: bytes, number: int, ids: list[int], length: int, post: Post
    ) -> None:
        self.parameters = lightsecagg.Parameters(
            ids=tuple(ids),
            pieces=plan.needed,
            privacy=plan.corrupt,
            dropped=plan.vanishing,
            round_number=number,
            length=length,
            run=run,
        )
        self.post = post
        self.clients = {client: lightsecagg.Client(self.parameters, client) for client in ids}
        self.server = lightsecagg.Server(self.parameters)

    def meet(self) -> dict[int, Seeds]:
        """Advertise keys, and share coded masks; the sealed pieces, N^2 of them, lie in a file meanwhile."""
        clients = self.clients
        keys = self.post.up(_each(self.post.there(clients, "keys"), lambda c: clients[c].advertise()))
        rosters = self.post.down(self.server.roster(keys))
        sharing = self.post.there(rosters, "shares")
        shared = self.post.up(_each(sharing, lambda c: self._put_away(clients[c].share(rosters[c]))))
        delivered = self.post.down(self.server.deliver(shared))
        return _each(delivered, lambda client: self._seed(client, delivered[client]))

    def _put_away(self, pieces: SealedPieces) -> SealedPieces:
        """Move sealed pieces from memory to the file."""
        try:
            with tempfile.TemporaryFile() as file:
                for row in pieces.sealed:
                    file.write(row.data)
                file.flush()
                rows = np.memmap(file, np.uint8, "r", shape=(len(pieces.sealed), pieces.width))
        except OSError as error:
            raise RunError(
                f"the sealed pieces of LightSecAgg do not fit in {tempfile.gettempdir()} ({error.strerror}): "
                'set TMPDIR to a larger disk, or say secure.protocol = "secagg+"'
            ) from None
        return SealedPieces(pieces.ids, tuple(rows))

    def _seed(self, client: int, delivered: DeliveredPieces) -> Seeds:
        self.clients[client].receive(delivered)
        return [[self.clients[client].mask().hex(), 1]]

    def part(self, uploaded: Sequence[int]) -> Remains:
        """Recover the sum of the survivors' masks."""
        shown = self.post.there(self.post.down(self.server.survivors(uploaded)), "answer")
        answers = self.post.up(_each(shown, lambda c: self.clients[c].answer(shown[c])))
        return Remains([], self.server.recover(answers))
