"""The sum of whole numbers by a protocol: nothing is clipped, rounded or weighed, and the sum is exact."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.digits import digits_of, num_digits, numbers_of
from fednlp.secure.encoding import Encoding
from fednlp.secure.masks import add_masks, masks_from_json
from fednlp.secure.messages import HEADER_BYTES
from fednlp.secure.params import SecAggParams
from fednlp.secure.session import Channel, SessionFactory, open_session
from fednlp.secure.upload import add_own_masks


def masked_numbers(numbers: Sequence[int], bits: int, masking: Mapping[str, Any]) -> NDArray[np.uint32]:
    """Return a client's numbers as masked residues.

    Args:
        bits: Of a number at most.
        masking: As :meth:`NumberSum.begin` returns it.
    """
    encoding = Encoding(**masking["encoding"])
    residues = digits_of(numbers, encoding, bits)
    add_own_masks(residues, masks_from_json(masking["seeds"]), encoding.modulus)
    return residues


class NumberSum:
    """One secure sum of whole numbers.

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
        self.length = numbers * num_digits(params.encoding, bits)
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
        return numbers_of(residues, self.encoding, self.bits, len(self.arrived))
