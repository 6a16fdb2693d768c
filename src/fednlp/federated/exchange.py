"""What becomes of tensors between a client and the server: chosen, transformed, packed, and undone.

Up travels a client's update, down the global model. Both are sent as one message
(:mod:`fednlp.federated.message`), whose true length is what is counted, and the other side works with
what it unpacked, not with what was meant: a simulation loses to compression what a network would.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fednlp.errors import RunError
from fednlp.federated.lora import LoraPair, change_shapes
from fednlp.federated.message import message_bytes, pack, unpack
from fednlp.federated.params import Entry, Layout
from fednlp.federated.pulling import Pull
from fednlp.federated.sums import count_bad
from fednlp.federated.transforms import Chain, Key, Shapes, feedback


@dataclass(frozen=True)
class Exchange:
    """How tensors travel.

    Attributes:
        up: Transforms of an update.
        down: Transforms of the global model.
        feedback: Whether a client adds what the way up lost of an update to its next one.
        pull: Which tensors a client sends.
        adapters: Low-rank ones whose products are averaged exactly (:mod:`fednlp.federated.lora`).
    """

    up: Chain = field(default_factory=Chain)
    down: Chain = field(default_factory=Chain)
    feedback: bool = False
    pull: Pull = field(default_factory=Pull)
    adapters: tuple[LoraPair, ...] = ()

    @property
    def plain(self) -> bool:
        """Whether updates travel as they are, all of them."""
        return not self.up.steps and self.pull.rule == "all" and not self.adapters


@dataclass(frozen=True)
class Sent:
    """An update as the server has it.

    Attributes:
        update: Flat float32, zero in what was not sent.
        bytes: Length of the message.
        owed: What was lost, flat, for the client's next update; None without feedback.
    """

    update: Tensor
    bytes: int
    owed: Tensor | None


def entry_shapes(entries: Sequence[Entry]) -> Shapes:
    """Return the shapes of some of a layout's entries, as they travel untransformed."""
    return {entry.name: (entry.shape, torch.float32) for entry in entries}


def send(
    exchange: Exchange,
    layout: Layout,
    update: Tensor,
    key: Key,
    chosen: np.ndarray | None = None,
    owed: Tensor | None = None,
) -> Sent:
    """Send a client's update to the server, and return what arrives there.

    Args:
        exchange: How.
        layout: Of the update.
        update: Flat float32.
        key: Seed, round, client: what stochastic rounding and random choices are drawn from.
        chosen: A bool for each entry of the layout; None to send all.
        owed: What earlier messages lost, with feedback; None for nothing.
    """
    entries = _transformed(layout, chosen)
    received = torch.zeros(layout.numel)
    if not entries:
        return Sent(received, 0, owed)
    length = 0

    def carry(encoded: dict[str, Tensor]) -> dict[str, Tensor]:
        nonlocal length
        message = pack(encoded)
        length = len(message)
        return unpack(message, exchange.up.shapes(entry_shapes(entries)))

    tensors, residual = (
        {} if flat is None else {e.name: flat[e.start : e.stop].view(e.shape) for e in entries}
        for flat in (update, owed)
    )
    _, arrived, rest = feedback(tensors, residual, exchange.up, key, carry)
    still_owed = None
    if exchange.feedback:
        still_owed = torch.zeros(layout.numel) if owed is None else owed.clone()
    for e in entries:
        received[e.start : e.stop].view(e.shape).copy_(arrived[e.name])
        if still_owed is not None and e.name in rest:
            still_owed[e.start : e.stop].view(e.shape).copy_(rest[e.name])
    return Sent(received, length, still_owed)


def broadcast(exchange: Exchange, layout: Layout, x: Tensor, key: Key) -> Tensor:
    """Return the global model as clients unpack it: ``x`` itself where nothing is transformed.

    Derived entries arrive as they are: what they changed by travels in full precision (:func:`bytes_down`).

    Raises:
        RunError: It holds numbers that the transforms cannot.
    """
    if not exchange.down.steps or not layout.entries:
        return x
    views, shapes = layout.views(x), entry_shapes(_transformed(layout))
    message = pack(exchange.down.encode({name: views[name] for name in shapes}, key))
    arrived = exchange.down.decode(unpack(message, exchange.down.shapes(shapes)), shapes, key)
    flat = layout.flatten(views | arrived)
    if count_bad(flat) > count_bad(x):
        raise RunError(
            "the model holds numbers that exchange.down cannot: say bfloat16 in place of float16, or lower the "
            "learning rate; the rounds before are saved"
        )
    return flat


def bytes_down(exchange: Exchange, layout: Layout, chosen: np.ndarray | None = None, ranks: int = 0) -> int:
    """Return the length of the message that a client gets at the start of a round.

    Args:
        exchange: How.
        layout: Of the global model.
        chosen: Which entries it gets; None for all. Derived ones never travel themselves.
        ranks: How far the base weights of exactly averaged adapters moved since the client's last message
            (:func:`fednlp.federated.lora.change_ranks`).
    """
    shapes = dict(exchange.down.shapes(entry_shapes(_transformed(layout, chosen))))
    shapes |= change_shapes(layout, exchange.adapters, ranks)
    return message_bytes(shapes) if shapes else 0


def _transformed(layout: Layout, chosen: np.ndarray | None = None) -> list[Entry]:
    """Return the entries that are chosen and not derived."""
    return [
        entry
        for number, entry in enumerate(layout.entries)
        if number not in layout.derived and (chosen is None or chosen[number])
    ]
