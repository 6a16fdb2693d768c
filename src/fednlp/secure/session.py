"""Sessions of secure aggregation: all parties of one round, and the channel that carries and counts their messages.

Each protocol is a state machine a party. A session lets the clients and the server of one round, all on this machine,
exchange messages: :meth:`SecureSession.setup` comes before the upload, :meth:`SecureSession.unmask` after it.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import RunError, SecureAbort
from fednlp.secure import lightsecagg, secagg
from fednlp.secure.keys import SigningKey
from fednlp.secure.lightsecagg_messages import DeliveredPieces, SealedPieces, size
from fednlp.secure.lightsecagg_rules import LightSecAggRoundSpec
from fednlp.secure.masks import Mask, MaskSeeds, masks_to_json
from fednlp.secure.messages import DeliveredShares
from fednlp.secure.params import SecAggParams
from fednlp.secure.secagg_rules import SecAggRoundSpec
from fednlp.secure.specs import LIGHTSECAGG, lightsecagg_spec, secagg_spec

PHASES = ("keys", "shares", "update", "answer")
"""What a client that drops out no longer does: advertise keys, share secrets, upload its masked update, answer."""


@dataclass(frozen=True)
class UnmaskingInfo:
    """What takes the masks out of the sum of masked updates.

    Attributes:
        masks: Masks to add to the sum, modulo 2^32.
        residues: uint32 (length,), to be subtracted from the sum modulo the protocol's prime; None for nothing.
    """

    masks: list[Mask]
    residues: NDArray[np.uint32] | None = None


class Channel:
    """Carries messages between clients and server, counts their bytes, and simulates dropouts.

    Args:
        dropped_out: Clients that drop out, and the phase (of :data:`PHASES`) before which each does.
    """

    def __init__(self, dropped_out: Mapping[int, str]) -> None:
        self.dropped_out = dropped_out
        self.bytes_up: Counter[int] = Counter()
        self.bytes_down: Counter[int] = Counter()

    def present(self, clients: Mapping[int, Any], phase: str) -> dict[int, Any]:
        """Return the clients that do not drop out before a phase."""
        return {client: value for client, value in clients.items() if self.dropped_out.get(client) != phase}

    def to_server(self, messages: dict[int, Any]) -> dict[int, Any]:
        """Carry a message of each client to the server."""
        self.bytes_up.update({client: size(message) for client, message in messages.items()})
        return messages

    def to_clients(self, messages: dict[int, Any]) -> dict[int, Any]:
        """Carry a message of the server to each client."""
        self.bytes_down.update({client: size(message) for client, message in messages.items()})
        return messages


class SecureSession(Protocol):
    """The clients and the server of one round of one protocol.

    Attributes:
        channel: Has counted the bytes of all messages but the masked updates.
    """

    channel: Channel

    def setup(self) -> dict[int, MaskSeeds]:
        """Go through all phases before the upload.

        Returns:
            The masks of each client that is still there.

        Raises:
            SecureAbort: Too few clients are left.
        """

    def unmask(self, uploaded: Sequence[int]) -> UnmaskingInfo:
        """Go through the phases after the upload.

        Args:
            uploaded: The clients whose masked updates are in the sum.

        Raises:
            SecureAbort: Too few clients uploaded or answered.
        """


SessionFactory = Callable[[SecAggParams, Sequence[int], Channel, int, int], SecureSession]
"""(numbers of the run, cohort, channel, round, elements of a masked vector) -> a fresh session of the protocol."""


def open_session(
    params: SecAggParams, clients: Sequence[int], channel: Channel, round_number: int, length: int
) -> SecureSession:
    """Return a fresh session of the run's protocol, with all its parties in this process.

    Args:
        params: The numbers of the run.
        round_number: The round, never twice in a run.
        length: Elements of a masked vector, the weight included.
    """
    if params.plan.protocol == LIGHTSECAGG:
        return LightSecAggSession(lightsecagg_spec(params, clients, round_number, length), channel)
    return SecAggSession(secagg_spec(params, clients, round_number), channel)


class SecAggSession:
    """SecAgg and SecAgg+.

    Args:
        spec: The round.
    """

    def __init__(self, spec: SecAggRoundSpec, channel: Channel) -> None:
        self.channel = channel
        signing = {client: SigningKey.new() for client in spec.ids} if spec.malicious_server else {}
        identities = {client: key.public for client, key in signing.items()}
        self.clients = {
            client: secagg.SecAggClient(spec.client_spec(client), signing.get(client), identities)
            for client in spec.ids
        }
        self.server = secagg.SecAggServer(spec)
        self._malicious_server = spec.malicious_server

    def setup(self) -> dict[int, MaskSeeds]:
        """Advertise keys and share secrets."""
        clients, channel = self.clients, self.channel
        keys = channel.to_server(_each(channel.present(clients, "keys"), lambda c: clients[c].advertise()))
        rosters = channel.to_clients(self.server.roster(keys))
        sharing = channel.present(rosters, "shares")
        shared = channel.to_server(_each(sharing, lambda c: clients[c].share(rosters[c])))
        delivered = channel.to_clients(self.server.deliver(shared))
        return _each(delivered, lambda client: self._masks(client, delivered[client]))

    def _masks(self, client: int, delivered: DeliveredShares) -> MaskSeeds:
        self.clients[client].receive(delivered)
        return masks_to_json(self.clients[client].masks())

    def unmask(self, uploaded: Sequence[int]) -> UnmaskingInfo:
        """Reveal the secrets of the masks that are left in the sum."""
        clients, channel = self.clients, self.channel
        shown = channel.present(channel.to_clients(self.server.survivors(list(uploaded))), "answer")
        if self._malicious_server:
            confirmed = channel.to_server(_each(shown, lambda c: clients[c].confirm(shown[c])))
            shown = channel.to_clients(self.server.confirmed(confirmed))
        revealed = channel.to_server(_each(shown, lambda c: clients[c].reveal(shown[c])))
        return UnmaskingInfo(self.server.unmask(revealed))


class LightSecAggSession:
    """LightSecAgg.

    Args:
        spec: The round.
    """

    def __init__(self, spec: LightSecAggRoundSpec, channel: Channel) -> None:
        self.channel = channel
        self.clients = {client: lightsecagg.LightSecAggClient(spec, client) for client in spec.ids}
        self.server = lightsecagg.LightSecAggServer(spec)

    def setup(self) -> dict[int, MaskSeeds]:
        """Advertise keys and share coded masks; the N^2 sealed pieces lie in a file meanwhile."""
        clients, channel = self.clients, self.channel
        keys = channel.to_server(_each(channel.present(clients, "keys"), lambda c: clients[c].advertise()))
        rosters = channel.to_clients(self.server.roster(keys))
        sharing = channel.present(rosters, "shares")
        shared = channel.to_server(_each(sharing, lambda c: _to_file(clients[c].share(rosters[c]))))
        delivered = channel.to_clients(self.server.deliver(shared))
        return _each(delivered, lambda client: self._masks(client, delivered[client]))

    def _masks(self, client: int, delivered: DeliveredPieces) -> MaskSeeds:
        self.clients[client].receive(delivered)
        return masks_to_json(self.clients[client].masks())

    def unmask(self, uploaded: Sequence[int]) -> UnmaskingInfo:
        """Recover the sum of the survivors' masks."""
        clients, channel = self.clients, self.channel
        shown = channel.present(channel.to_clients(self.server.survivors(uploaded)), "answer")
        answers = channel.to_server(_each(shown, lambda c: clients[c].answer(shown[c])))
        return UnmaskingInfo([], self.server.recover(answers))


def _each(clients: Mapping[int, Any], step: Callable[[int], Any]) -> dict[int, Any]:
    """Let every client take a step; return what those made that did not refuse."""
    made = {}
    for client in clients:
        try:
            made[client] = step(client)
        except SecureAbort:
            continue
    return made


def _to_file(pieces: SealedPieces) -> SealedPieces:
    """Move sealed pieces from memory to a temporary file, which is mapped."""
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
