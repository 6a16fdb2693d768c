"""A client's upload: what travels to the server at the end of a round, and what the server makes of it.

The client's half makes an :class:`Upload`, and the server's half adds what it holds to a total. In one process it is
handed over as it is. Over a network it travels as bytes (:func:`pack_upload`), of the length that is counted in either
case.
"""

import math
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fednlp.errors import RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientResult
from fednlp.federated.communication import EncodedUpdate, decode_update, entry_shapes, sent_shapes
from fednlp.federated.links import Uplink
from fednlp.federated.message import message_bytes, message_pieces, raw_tensors
from fednlp.federated.pages import give_back
from fednlp.federated.params import Layout
from fednlp.federated.sent import Sent, require_sent
from fednlp.federated.sums import ExactSum, check_finite
from fednlp.federated.transforms import RngKey
from fednlp.federated.update import AnyUpdate, Update

Residues = NDArray[np.uint32]
"""A masked update: uint32 (parameters + 1,), the masked weight last."""
_MASKED = b"\x10"
"""The first byte of a masked update, before the number of its residues: 4 bytes, the least significant first."""
MASKED_HEADER = 5
_PIECE = 1 << 20
"""Bytes that are copied at a time."""


@dataclass(frozen=True)
class Upload:
    """What a client sends: one of ``model``, ``encoded`` and ``masked``, and the method's other vectors.

    Attributes:
        model: The update as it is: in one process no bytes are made that would say the same.
        others: The method's other vectors, flat, by name.
    """

    model: AnyUpdate | None = None
    encoded: EncodedUpdate | None = None
    masked: Residues | None = None
    others: Mapping[str, Tensor] = field(default_factory=dict)


class StoredUpdate:
    """An update in a file that is mapped, as it travelled: it is read tensor by tensor, without a copy of it all.

    Args:
        data: The message; of a file that is mapped privately (``mmap.ACCESS_COPY``).

    Raises:
        RunError: The message is not what the layout asks for.
    """

    def __init__(self, data: memoryview, layout: Layout) -> None:
        raw = raw_tensors(data, entry_shapes(layout.entries))
        self._stretches = [
            (e.start, torch.from_numpy(raw[e.name]).view(torch.float32)) for e in layout.entries
        ]

    def stretches(self) -> Iterator[tuple[int, Tensor]]:
        """Yield (first element, values) of all tensors; the memory of each is given back once it was looked at."""
        for start, values in self._stretches:
            yield start, values
            give_back(values)

    def flat(self, layout: Layout) -> Tensor:
        """Return it as one flat vector."""
        flat = torch.empty(layout.numel)
        for start, values in self.stretches():
            flat[start : start + len(values)] = values
        return flat

    def check_finite(self) -> None:
        """Check its numbers.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number.
        """
        for _, values in self.stretches():
            check_finite(values)

    def add_to(self, total: ExactSum, factor: float) -> None:
        """Add ``factor`` times the update to a sum.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number; nothing was added.
        """
        total.add_stretches(factor, self.stretches)


@dataclass(frozen=True)
class Trained:
    """The answer of a client that was told to train: what it reports, and its upload; None if it failed."""

    result: ClientResult
    upload: Upload | None


def require_reported(result: ClientResult, algorithm: Algorithm) -> None:
    """Check that a client reports finite numbers under the names that its method declares.

    Raises:
        RunError: It does not.
    """
    if result.model not in ("model", *algorithm.models):
        raise RunError(f"the client names a model that {algorithm.name} does not have")
    if {*result.metrics} != {*algorithm.reports}:
        raise RunError(f"the client does not report what {algorithm.name} declares")
    bad = [name for name, value in result.metrics.items() if not math.isfinite(value)]
    if bad:
        raise RunError(f"the client reports {bad[0]} = {result.metrics[bad[0]]}: no finite number")


def received(
    upload: Upload, algorithm: Algorithm, layout: Layout, x: Tensor, key: RngKey
) -> Mapping[str, AnyUpdate] | Residues:
    """Return what the server makes of an upload, as the aggregator adds it.

    Args:
        x: The global model that the client had, flat.
        key: Seed, round, client.

    Raises:
        NonFiniteUpdate: It holds NaN, infinity or huge numbers.
        RunError: The message is not what the layout asks for.
    """
    if upload.masked is not None:
        return upload.masked
    model = upload.model
    if upload.encoded is not None:
        adapters = algorithm.uplink.adapters
        began = adapters.start(layout, x, key.client) if algorithm.uplink.weights else None
        flat = decode_update(algorithm.uplink, layout, upload.encoded, key, began)
        adapters.arrived(layout, x, flat, key.client)
        check_finite(flat)
        model = Update.of(flat, layout)
    assert model is not None
    return {"model": model} | {name: Update.of(value, layout) for name, value in upload.others.items()}


def pack_upload(upload: Upload, layout: Layout) -> bytes:
    """Return an upload as it travels; see :func:`upload_pieces`."""
    return b"".join(upload_pieces(upload, layout))


def upload_pieces(upload: Upload, layout: Layout) -> Iterator[bytes | memoryview]:
    """Yield an upload as it travels: the model's message, then one for each other vector in their order."""
    if upload.masked is not None:
        yield pack_masked(upload.masked)
        return
    if upload.encoded is not None:
        yield upload.encoded.message
    else:
        assert upload.model is not None
        model = upload.model
        views = model.views(layout) if isinstance(model, Update) else layout.views(model.flat(layout))
        yield from message_pieces(views)
    for vector in upload.others.values():
        yield from message_pieces(layout.views(vector))


def pack_masked(masked: Residues) -> bytes:
    """Return a masked update as it travels."""
    return _MASKED + len(masked).to_bytes(4, "little") + masked.astype("<u4").tobytes()


def masked_tail(masked: Residues, parameters: int, seconds: float) -> dict[str, Any]:
    """Return the facts of a masked update that the sum of updates has no place for.

    Args:
        masked: The masked update, what is reported if that is summed too, and the weight.
    """
    reports = masked[parameters:-1].tolist()
    facts = {"masked_weight": int(masked[-1]), "masking_seconds": seconds}
    return facts | ({"masked_reports": reports} if reports else {})


def unpack_upload(
    data: bytes | memoryview,
    algorithm: Algorithm,
    layout: Layout,
    result: ClientResult,
    *,
    masked: bool,
    number: int = 0,
) -> Upload:
    """Return the upload that bytes hold. Their length is checked before any memory is taken.

    Args:
        data: What arrived, from anybody. From a file that is mapped privately (``mmap.ACCESS_COPY``), a plain update is
            not copied.
        result: What the client reports: which entries it sent, and which parts of others.
        masked: Whether the client was told to mask its update.
        number: Of the round in which it began, from 1; 0 for one in which most is sent.

    Raises:
        RunError: They are not what the method's clients send.
    """
    pull = algorithm.uplink.pull
    if result.entries is not None and pull.rule == "all":
        raise RunError("the client says which tensors it sent, and it was to send all of them")
    if masked:
        return Upload(masked=_residues(data, layout.numel + algorithm.aggregator.masked_extra + 1))
    require_sent(result.entries, result.slices, layout, sliced=pull.rule != "all" and pull.of == "parameters")
    sent = result.sent
    length = model_bytes(algorithm.uplink, layout, sent, result.client, number)
    whole, names = layout.message_bytes, algorithm.sends[1:]
    _require(len(data) == length + whole * len(names), len(data), length + whole * len(names))
    others = {}
    for number, name in enumerate(names):
        start = length + number * whole
        others[name] = flat_of(data[start : start + whole], layout)
    model = data[:length]
    if not algorithm.uplink.plain:
        return Upload(encoded=EncodedUpdate(bytes(model), sent, None), others=others)
    if _is_mapped_privately(model):
        return Upload(model=StoredUpdate(model, layout), others=others)
    return Upload(model=Update.of(flat_of(model, layout), layout), others=others)


def upload_bytes(algorithm: Algorithm, layout: Layout, sent: Sent | None, *, masked: bool) -> int:
    """Return the length of an upload.

    Args:
        sent: What of the model's update the client sends; None for all.
        masked: Whether it masks its update.
    """
    if masked:
        return MASKED_HEADER + 4 * (layout.numel + algorithm.aggregator.masked_extra + 1)
    return model_bytes(algorithm.uplink, layout, sent) + (len(algorithm.sends) - 1) * layout.message_bytes


def model_bytes(uplink: Uplink, layout: Layout, sent: Sent | None, client: int = -1, number: int = 0) -> int:
    """Return the length of the message that holds the model's update.

    Args:
        sent: What of it is in the message; None for all.
        client: By its number; -1 for one that sends most.
        number: Of the round, from 1; 0 for one in which most is sent.
    """
    if uplink.plain:
        return layout.message_bytes
    shapes = sent_shapes(uplink, layout, sent, client, number)
    return message_bytes(shapes) if shapes else 0


def flat_of(data: bytes | memoryview, layout: Layout, into: Tensor | None = None) -> Tensor:
    """Return the tensors of an untrusted message as one flat float32 vector of a layout.

    Args:
        data: The message. Of a file that is mapped privately (``mmap.ACCESS_COPY``), little is in memory at a time.
        into: A vector that is overwritten; None for a new one.

    Raises:
        RunError: The message is not what the layout asks for.
    """
    raw = raw_tensors(data, entry_shapes(layout.entries))
    flat = torch.empty(layout.numel) if into is None else into
    in_file = _is_mapped_privately(data)
    for entry in layout.entries:
        there, found = flat[entry.start : entry.stop].view(torch.uint8).numpy(), raw[entry.name]
        for first in range(0, len(found), _PIECE):
            piece = found[first : first + _PIECE]
            there[first : first + _PIECE] = piece
            if in_file:
                give_back(torch.from_numpy(piece))
    return flat


def _is_mapped_privately(data: bytes | memoryview) -> TypeGuard[memoryview]:
    return isinstance(data, memoryview) and isinstance(data.obj, mmap.mmap) and not data.readonly


def _residues(data: bytes | memoryview, count: int) -> Residues:
    length = MASKED_HEADER + 4 * count
    _require(len(data) == length, len(data), length)
    if bytes(data[:1]) != _MASKED or int.from_bytes(data[1:MASKED_HEADER], "little") != count:
        raise RunError("the upload is no masked update of this model")
    return np.frombuffer(data, "<u4", count, MASKED_HEADER).astype(np.uint32)


def _require(fits: bool, found: int, expected: int) -> None:
    if not fits:
        raise RunError(f"the upload has {found:,} bytes where {expected:,} are expected")
