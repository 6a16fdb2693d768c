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
from fednlp.secure.keys import SigningKey
from fednlp.secure.lightsecagg import (
    LIGHTSECAGG,
    LightSecAggClient,
    LightSecAggRoundSpec,
    LightSecAggServer,
    lightsecagg_spec,
)
from fednlp.secure.masks import Mask, MaskSeeds, masks_to_json
from fednlp.secure.messages import SealedPieces, size
from fednlp.secure.params import SecAggParams
from fednlp.secure.secagg import SecAggClient, SecAggRoundSpec, SecAggServer, secagg_spec

RoundSpec = SecAggRoundSpec | LightSecAggRoundSpec
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


def round_spec(params: SecAggParams, clients: Sequence[int], round_number: int, length: int) -> RoundSpec:
    """Return a round of the run's protocol: the same for whoever knows the cohort and the numbers.

    Args:
        params: The numbers of the run.
        round_number: The round, never twice in a run.
        length: Elements of a masked vector, the weight included.

    Raises:
        SecureAbort: The cohort does not go with the numbers.
    """
    if params.plan.protocol == LIGHTSECAGG:
        return lightsecagg_spec(params, clients, round_number, length)
    return secagg_spec(params, clients, round_number)


def open_session(
    params: SecAggParams, clients: Sequence[int], channel: Channel, round_number: int, length: int
) -> SecureSession:
    """Return a fresh session of the run's protocol, with all its parties in this process.

    Args:
        params: The numbers of the run.
        round_number: The round, never twice in a run.
        length: Elements of a masked vector, the weight included.
    """
    spec = round_spec(params, clients, round_number, length)
    return (
        _LightSecAggSession(spec, channel)
        if isinstance(spec, LightSecAggRoundSpec)
        else _SecAggSession(spec, channel)
    )


class _LocalSession:
    """All parties of one round, whichever the protocol is: the phases before the upload."""

    channel: Channel
    clients: Mapping[int, Any]
    server: Any

    def setup(self) -> dict[int, MaskSeeds]:
        """Advertise keys and share secrets."""
        clients, channel = self.clients, self.channel
        keys = channel.to_server(_each(channel.present(clients, "keys"), lambda c: clients[c].advertise()))
        rosters = channel.to_clients(self.server.roster(keys))
        sharing = channel.present(rosters, "shares")
        shared = channel.to_server(_each(sharing, lambda c: self._shared(c, rosters[c])))
        delivered = channel.to_clients(self.server.deliver(shared))
        return _each(delivered, lambda c: self._masks(c, delivered[c]))

    def _shared(self, client: int, roster: Any) -> Any:
        return self.clients[client].share(roster)

    def _masks(self, client: int, delivered: Any) -> MaskSeeds:
        self.clients[client].receive(delivered)
        return masks_to_json(self.clients[client].masks())


class _SecAggSession(_LocalSession):
    """SecAgg and SecAgg+."""

    def __init__(self, spec: SecAggRoundSpec, channel: Channel) -> None:
        self.channel = channel
        signing = {client: SigningKey.new() for client in spec.ids} if spec.malicious_server else {}
        identities = {client: key.public for client, key in signing.items()}
        self.clients = {
            client: SecAggClient(spec.client_spec(client), signing.get(client), identities)
            for client in spec.ids
        }
        self.server = SecAggServer(spec)
        self._malicious_server = spec.malicious_server

    def unmask(self, uploaded: Sequence[int]) -> UnmaskingInfo:
        """Reveal the secrets of the masks that are left in the sum."""
        clients, channel = self.clients, self.channel
        shown = channel.present(channel.to_clients(self.server.survivors(list(uploaded))), "answer")
        if self._malicious_server:
            confirmed = channel.to_server(_each(shown, lambda c: clients[c].confirm(shown[c])))
            shown = channel.to_clients(self.server.confirmed(confirmed))
        revealed = channel.to_server(_each(shown, lambda c: clients[c].reveal(shown[c])))
        return UnmaskingInfo(self.server.unmask(revealed))


class _LightSecAggSession(_LocalSession):
    """LightSecAgg; the N^2 sealed pieces lie in a file until the clients answer."""

    def __init__(self, spec: LightSecAggRoundSpec, channel: Channel) -> None:
        self.channel = channel
        self.clients = {client: LightSecAggClient(spec, client) for client in spec.ids}
        self.server = LightSecAggServer(spec)

    def _shared(self, client: int, roster: Any) -> SealedPieces:
        return _to_file(super()._shared(client, roster))

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
