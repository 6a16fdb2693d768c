"""One round of secure aggregation: what clients are told before the upload, and the sum that comes out of it.

The protocol's messages are the session's (:mod:`fednlp.secure.session`). Masked updates are added up wherever they are
made, and :class:`SecureRound` only counts them in. The masks that are left in their sum are taken out in slices, which
several workers may share. :class:`NumberSum` is the sum of a few whole numbers, which is exact.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.federated.sums import FRACTION_BITS, ExactSum
from fednlp.secure.masks import MaskSeeds, add_masks, masks_to_json
from fednlp.secure.messages import HEADER_BYTES
from fednlp.secure.params import SecAggParams
from fednlp.secure.session import PHASES, Channel, SecureSession, SessionFactory, open_session
from fednlp.secure.upload import REPORT_BITS
from fednlp.seeds import generator

_AddMasks = Callable[[int, int, MaskSeeds], None]
"""``add_masks(slices, length, seeds)``: have workers add masks to the sum, in so many slices of that length."""
_SLICE = 1 << 20
_CHUNK = 1 << 16


@dataclass(frozen=True)
class _ClientTraffic:
    """What one client of the cohort cost in the protocol's messages, and what became of it.

    Attributes:
        bytes_up: Bytes that it sent, its masked update included.
        bytes_down: Bytes that it received, the model not included.
        got_model: Whether it was sent the model.
        reason: Why its update is not in the sum, as far as the protocol knows; None where it is.
    """

    bytes_up: int
    bytes_down: int
    got_model: bool
    reason: str | None


class SecureRound:
    """One round under secure aggregation.

    :meth:`begin` comes first, :meth:`add` once for each masked update that is in the sum, and :meth:`finish` last.

    Args:
        params: The numbers of the run.
        round_number: The round.
        weights: Weight of each client of the cohort.
        sessions: Opens the session: with all parties in this process, or with the clients elsewhere.
        extra: Residues between the update and its weight: the digits of what clients report, which is summed too.

    Attributes:
        reports: The sums of what clients report, after :meth:`finish`.
    """

    def __init__(
        self,
        params: SecAggParams,
        round_number: int,
        weights: Mapping[int, float],
        parameters: int,
        sessions: SessionFactory = open_session,
        extra: int = 0,
    ) -> None:
        self.params, self.weights, self.parameters, self.extra = params, weights, parameters, extra
        self.dropped_out = _simulated_dropouts(params, round_number, list(weights))
        channel = Channel(self.dropped_out)
        length = parameters + extra + 1
        self.session: SecureSession = sessions(params, list(weights), channel, round_number, length)
        self._asked: Set[int] = frozenset()
        self._masked_weights: dict[int, int] = {}
        self._masked_reports = np.zeros(extra, dtype=np.int64)
        self.reports: list[int] = []
        self._seconds, self._masking_seconds = 0.0, 0.0

    def begin(self) -> dict[int, dict[str, Any]]:
        """Go through all phases before the upload.

        Returns:
            For each client that is still there, how it masks its update, as JSON values: ``encoding``, ``noise_std``,
            ``weight`` and ``seeds``, as :func:`fednlp.secure.upload.mask_update` takes them.

        Raises:
            SecureAbort: Too few clients are left.
        """
        with self._timed():
            seeds = self.session.setup()
        encoding = asdict(self.params.encoding)
        reports = {"reports": True} if self.extra else {}
        asked = self.session.channel.present(seeds, "update")
        self._asked = asked.keys()
        return {
            client: {
                "encoding": encoding,
                "noise_std": self.params.noise_std,
                "weight": self.weights[client],
                "seeds": seeds[client],
                **reports,
            }
            for client in asked
        }

    def add(
        self, client: int, masked_weight: int, seconds: float = 0.0, masked_reports: Sequence[int] = ()
    ) -> None:
        """Count in a client whose masked update was added to the sum.

        Args:
            masked_weight: The last residue of its masked vector, which the sum of updates has no place for.
            masked_reports: The residues before that one, of what it reports.
        """
        self._masked_reports += np.array(masked_reports, dtype=np.int64)
        self._masked_weights[client] = masked_weight
        self._masking_seconds += seconds

    def finish(self, total: ExactSum, unmask: _AddMasks) -> tuple[float, float]:
        """Turn the sum of masked updates into the weighted sum of the updates.

        Args:
            total: The sum of the masked updates of the clients that were added; overwritten.
            unmask: Adds masks to ``total``.

        Returns:
            The unit of the weights, and the sum of the weights over that unit.

        Raises:
            SecureAbort: Too few clients uploaded or answered, or the unmasked numbers are no sum of their updates.
        """
        with self._timed():
            return self._unmasked(total, unmask)

    def traffic(self) -> dict[int, _ClientTraffic]:
        """Return what each client of the cohort cost so far, by the true lengths of all messages."""
        channel = self.session.channel
        found = {}
        for client in self.weights:
            uploaded = client in self._masked_weights
            found[client] = _ClientTraffic(
                bytes_up=channel.bytes_up[client] + (self.upload_bytes() if uploaded else 0),
                bytes_down=channel.bytes_down[client],
                got_model=client in self._asked or self.dropped_out.get(client) == "update",
                reason=None if uploaded else self._reason(client),
            )
        return found

    def _reason(self, client: int) -> str:
        """Return why no update of a client arrived."""
        if client in self._asked:
            return "its masked update did not arrive"
        if client in self.dropped_out:
            return f"dropped out before its {self.dropped_out[client]} (simulated)"
        return "did not get as far as training"

    def metrics(self, workers: int) -> dict[str, Any]:
        """Return what the protocol added to the round.

        Args:
            workers: How many workers masked updates side by side.

        Returns:
            ``dropped_out``: who dropped out in simulation, and before which phase. ``bytes``: all messages but the
            model and 4 bytes for each parameter of an update. ``seconds``: on this machine.
        """
        channel = self.session.channel
        messages = sum(channel.bytes_up.values()) + sum(channel.bytes_down.values())
        return {
            "dropped_out": dict(sorted(self.dropped_out.items())),
            "bytes": messages + len(self._masked_weights) * (self.upload_bytes() - 4 * self.parameters),
            "seconds": round(self._seconds + self._masking_seconds / workers, 4),
        }

    def upload_bytes(self) -> int:
        """Return the length of a masked update: residues of 4 bytes for its parameters, the reports and the weight."""
        return HEADER_BYTES + 4 * (self.parameters + self.extra + 1)

    def _unmasked(self, total: ExactSum, unmask: _AddMasks) -> tuple[float, float]:
        arrived = len(self._masked_weights)
        if not arrived:
            raise SecureAbort("no update arrived")
        if arrived < self.params.min_updates:
            raise SecureAbort(
                f"{arrived} updates arrived, and the noise of differential privacy needs {self.params.min_updates}"
            )
        info = self.session.unmask(list(self._masked_weights))
        block = self.parameters % 4
        # Masks are drawn in blocks of four residues: the last one holds the weight.
        tail = np.zeros(block + self.extra + 1, dtype=np.uint32)
        add_masks(tail, info.masks, self.parameters - block)
        if info.masks:
            unmask(-(-self.parameters // _SLICE), _SLICE, masks_to_json(info.masks))
        encoding, behind = self.params.encoding, tail[block:].astype(np.int64)
        behind[:-1] += self._masked_reports
        behind[-1] += sum(self._masked_weights.values())
        residues, reports = self._residues(total, behind, info.residues)
        sums, share = encoding.decode(residues, arrived)
        if self.extra:
            self.reports = encoding.decode_numbers(reports, REPORT_BITS, arrived)
        storage = total.storage.numpy()
        for start in range(0, self.parameters, _CHUNK):
            storage[start : start + _CHUNK] = np.rint(sums[start : start + _CHUNK] * 2.0**FRACTION_BITS)
        return encoding.unit, share

    def _residues(
        self, total: ExactSum, tail: NDArray[np.int64], subtracted: NDArray[np.uint32] | None
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """Return the unmasked sum, the weight last, and that of the reports, modulo the protocol's modulus."""
        modulus, storage = self.params.encoding.modulus, total.storage.numpy()
        residues = np.empty(self.parameters + 1, dtype=np.uint32)
        for start in range(0, self.parameters, _CHUNK):
            chunk = storage[start : start + _CHUNK]
            if subtracted is not None:
                chunk = chunk - subtracted[start : min(start + _CHUNK, self.parameters)]
            residues[start : start + len(chunk)] = chunk % modulus
        if subtracted is not None:
            tail = tail - subtracted[self.parameters :]
        *reports, residues[-1] = tail % modulus
        return residues, np.array(reports, dtype=np.uint32)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds of a block, whether or not it raises."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - begun


class NumberSum:
    """One secure sum of whole numbers: nothing is clipped, rounded or weighed, and the sum is exact.

    :meth:`begin` comes first, :meth:`add` once for each client that answers, and :meth:`finish` last.

    Args:
        params: The numbers of the protocol.
        round_number: The round.
        numbers: How many numbers each client adds.
        bits: Of a number at most.
        sessions: Opens the session: with all parties in this process, or with the clients elsewhere.

    Attributes:
        arrived: The clients whose numbers were added.
    """

    def __init__(
        self,
        params: SecAggParams,
        clients: Sequence[int],
        round_number: int,
        numbers: int,
        bits: int,
        sessions: SessionFactory = open_session,
    ) -> None:
        self.encoding, self.bits = params.encoding, bits
        self.length = numbers * params.encoding.num_digits(bits)
        self.channel = Channel({})
        self.session = sessions(params, clients, self.channel, round_number, self.length)
        self._total = np.zeros(self.length, dtype=np.int64)
        self.arrived: list[int] = []

    def begin(self) -> dict[int, dict[str, Any]]:
        """Go through all phases before the upload.

        Returns:
            For each client that is still there, how it masks its numbers, as JSON values.

        Raises:
            SecureAbort: Too few clients are left.
        """
        encoding = asdict(self.encoding)
        return {
            client: {"encoding": encoding, "seeds": seeds} for client, seeds in self.session.setup().items()
        }

    def add(self, client: int, residues: Sequence[int]) -> None:
        """Add a client's masked numbers.

        Raises:
            SecureAbort: They are no such residues; nothing was added.
        """
        fits = len(residues) == self.length and all(0 <= one < self.encoding.modulus for one in residues)
        if not fits:
            raise SecureAbort(f"client {client} sent no {self.length} residues")
        self._total += np.array(residues, dtype=np.int64)
        self.arrived.append(client)

    @property
    def bytes(self) -> int:
        """The length of all messages so far, the masked numbers included, of 4 bytes a residue."""
        channel = self.channel
        messages = sum(channel.bytes_up.values()) + sum(channel.bytes_down.values())
        return messages + len(self.arrived) * (HEADER_BYTES + 4 * self.length)

    def finish(self) -> list[int]:
        """Return the sums.

        Raises:
            SecureAbort: Too few clients answered, or the unmasked numbers are no sums over them.
        """
        if not self.arrived:
            raise SecureAbort("no client answered")
        info, modulus = self.session.unmask(list(self.arrived)), self.encoding.modulus
        total = self._total - (0 if info.residues is None else info.residues.astype(np.int64))
        residues = (total % modulus).astype(np.uint32)
        add_masks(residues, info.masks)
        return self.encoding.decode_numbers(residues, self.bits, len(self.arrived))


def _simulated_dropouts(params: SecAggParams, round_number: int, clients: list[int]) -> dict[int, str]:
    """Draw which clients drop out of a round, and before which phase each does."""
    rng = generator(params.seed, "vanishing", round_number)  # the stream's name decides the draws
    drops = rng.random(len(clients)) < params.simulated_dropout
    phases = rng.integers(len(PHASES), size=len(clients))
    return {client: PHASES[phase] for client, out, phase in zip(clients, drops, phases, strict=True) if out}
