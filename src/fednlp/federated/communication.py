"""What becomes of tensors between a client and the server: chosen, transformed, packed, and undone.

Up travels a client's update, down the global model. Both are sent as one message
(:mod:`fednlp.federated.message`), whose true length is what is counted, and the other side works with
what it unpacked, not with what was meant: a simulation loses to compression what a network would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fednlp.errors import RunError
from fednlp.federated.adapters import Adapters
from fednlp.federated.links import Downlink, Uplink
from fednlp.federated.message import message_bytes, pack, unpack
from fednlp.federated.params import Entry, Layout
from fednlp.federated.sent import Piece, Sent
from fednlp.federated.sums import count_nonfinite
from fednlp.federated.transforms import RngKey, Shapes, feedback


@dataclass(frozen=True)
class EncodedUpdate:
    """An update on its way.

    Attributes:
        message: The bytes that travel; empty where no tensor is sent.
        sent: What of the layout is in it; None for all that is not derived.
        residual: What was lost, flat, for the client's next update; None without error feedback.
        decoded: Named tensors that the server will make of the message, where the client knows them already: in one
            process they need not be decoded again.
    """

    message: bytes
    sent: Sent | None
    residual: Tensor | None
    decoded: Mapping[str, Tensor] | None = None


def entry_shapes(entries: Sequence[Entry | Piece]) -> Shapes:
    """Return the shapes of some of a layout's entries, or of pieces of them, as they travel untransformed."""
    return {entry.name: (entry.shape, torch.float32) for entry in entries}


def derived_entries(layout: Layout) -> list[Entry]:
    """Return the entries of a layout that the server computes, which are never transformed."""
    return [layout.entries[number] for number in sorted(layout.derived)]


def sent_pieces(
    uplink: Uplink, layout: Layout, sent: Sent | None, client: int = -1, number: int = 0
) -> list[Piece]:
    """Return what of an update a client sends, tensor by tensor.

    Args:
        sent: What it says that it sends; None for all.
        client: By its number; -1 for one that sends most.
        number: Of the round, from 1; 0 for one in which most is sent.
    """
    return uplink.adapters.pieces(_transformed(layout, sent), layout, client, number)


def sent_shapes(
    uplink: Uplink, layout: Layout, sent: Sent | None, client: int = -1, number: int = 0
) -> Shapes:
    """Return the shapes of an update's tensors as they travel, with the arguments of :func:`sent_pieces`."""
    return uplink.chain.shapes(entry_shapes(sent_pieces(uplink, layout, sent, client, number)))


def encode_update(
    uplink: Uplink,
    layout: Layout,
    update: Tensor,
    key: RngKey,
    sent: Sent | None = None,
    residual: Tensor | None = None,
    x: Tensor | None = None,
) -> EncodedUpdate:
    """Encode a client's update: the client's half.

    Args:
        update: Flat float32.
        key: Seed, round, client: what stochastic rounding and random choices are drawn from.
        sent: What is sent; None for all.
        residual: What earlier messages lost, with error feedback; None for nothing.
        x: The model that the client was sent, flat; it is needed where weights are sent.
    """
    pieces = sent_pieces(uplink, layout, sent, key.client, key.round)
    if not pieces:
        return EncodedUpdate(b"", sent, residual, {})
    message, start = b"", _start(uplink, x)

    def carry(encoded: dict[str, Tensor]) -> dict[str, Tensor]:
        nonlocal message
        message = pack(encoded)
        return unpack(message, uplink.chain.shapes(entry_shapes(pieces)))

    tensors, lost = (
        {} if flat is None else {piece.name: piece.read(flat) for piece in pieces}
        for flat in (update if start is None else update + start, residual)
    )
    _, decoded, rest = feedback(tensors, lost, uplink.chain, key, carry)
    still_lost = None
    if uplink.error_feedback:
        still_lost = torch.zeros(layout.numel) if residual is None else residual.clone()
        for piece in pieces:
            if piece.name in rest:
                piece.write(still_lost, rest[piece.name])
    return EncodedUpdate(message, sent, still_lost, decoded)


def decode_update(
    uplink: Uplink, layout: Layout, update: EncodedUpdate, key: RngKey, x: Tensor | None = None
) -> Tensor:
    """Decode a client's update: the server's half.

    Args:
        key: As the client had it.
        x: As the client had it.

    Returns:
        Flat float32, zero in what was not sent.

    Raises:
        RunError: The message is not what the layout asks for.
    """
    pieces = sent_pieces(uplink, layout, update.sent, key.client, key.round)
    received = torch.zeros(layout.numel)
    if not pieces:
        return received
    decoded = update.decoded
    if decoded is None:
        shapes = entry_shapes(pieces)
        decoded = uplink.chain.decode(unpack(update.message, uplink.chain.shapes(shapes)), shapes, key)
    start = _start(uplink, x)
    for piece in pieces:
        values = decoded[piece.name]
        piece.write(received, values if start is None else values - piece.read(start))
    return received


@dataclass(frozen=True)
class Broadcast:
    """The global model on its way.

    Attributes:
        model: Flat, as clients unpack it: the server's own where nothing is transformed.
        message: The bytes that travel; None where they say what ``model`` says.
    """

    model: Tensor
    message: bytes | None = None


def broadcast(downlink: Downlink, layout: Layout, x: Tensor, key: RngKey) -> Broadcast:
    """Encode the global model, and decode it as clients do.

    Derived entries arrive as they are: what they changed by travels in full precision (:func:`bytes_down`).

    Raises:
        RunError: It holds numbers that the transforms cannot.
    """
    if downlink.plain or not layout.entries:
        return Broadcast(x)
    views, shapes = layout.views(x), entry_shapes(_transformed(layout))
    message = pack(downlink.chain.encode({name: views[name] for name in shapes}, key))
    arrived = decode_broadcast(downlink, layout, message, key)
    flat = layout.flatten(views | arrived)
    if count_nonfinite(flat) > count_nonfinite(x):
        raise RunError(
            "the model holds numbers that exchange.down cannot: say bfloat16 in place of float16, or lower the "
            "learning rate; the rounds before are saved"
        )
    return Broadcast(flat, message)


def decode_broadcast(
    downlink: Downlink, layout: Layout, message: bytes | memoryview, key: RngKey
) -> dict[str, Tensor]:
    """Return the named tensors of a transformed model: the client's half.

    Args:
        key: Seed, round and -1, since it is one message for all.

    Raises:
        RunError: The message is not what the layout asks for.
    """
    shapes = entry_shapes(_transformed(layout))
    return dict(downlink.chain.decode(unpack(message, downlink.chain.shapes(shapes)), shapes, key))


def bytes_down(
    downlink: Downlink,
    layout: Layout,
    sent: Sent | None = None,
    *,
    vectors: int = 0,
    adapters: Adapters | None = None,
    client: int = -1,
    rank: int = 0,
) -> int:
    """Return the length of what a client gets at the start of a round.

    Args:
        sent: What of the model it gets; None for all. Derived tensors never travel themselves.
        vectors: How many of the server's vectors travel with the model.
        adapters: Low-rank ones.
        client: By its number; -1 for one that gets most.
        rank: Of the change of their base weights since the client's last message, at most
            (:meth:`fednlp.federated.adapters.Adapters.change_rank`).
    """
    pieces, there = _transformed(layout, sent), adapters or Adapters()
    shapes = dict(downlink.chain.shapes(entry_shapes(there.pieces(pieces, layout, client, 0))))
    shapes |= there.change_shapes(layout, rank)
    return (message_bytes(shapes) if shapes else 0) + vectors * layout.message_bytes


def bytes_up(uplink: Uplink, layout: Layout, *, vectors: int = 0, client: int = -1) -> int:
    """Return the length of what a client sends at the end of a round, if it sends all tensors.

    Args:
        vectors: How many of the client's vectors travel with the update.
        client: By its number; -1 for one that sends most.
    """
    shapes = sent_shapes(uplink, layout, None, client)
    return (message_bytes(shapes) if shapes else 0) + vectors * layout.message_bytes


def _start(uplink: Uplink, x: Tensor | None) -> Tensor | None:
    """Return the model that sent weights are compared with; None where updates are sent."""
    if not uplink.weights:
        return None
    if x is None:
        raise ValueError("weights are sent: say which model the client was sent")
    return x


def _transformed(layout: Layout, sent: Sent | None = None) -> list[Piece]:
    """Return what is sent and not derived, tensor by tensor."""
    if sent is not None:
        return sent.pieces(layout)
    return [Piece.whole(e) for number, e in enumerate(layout.entries) if number not in layout.derived]
