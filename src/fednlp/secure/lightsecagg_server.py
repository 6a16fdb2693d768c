"""The server of LightSecAgg: it passes sealed pieces on, and recovers the sum of the survivors' masks."""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.coding import decode
from fednlp.secure.field import Residues
from fednlp.secure.lightsecagg_messages import (
    AdvertiseSealKey,
    CodedSum,
    DeliveredPieces,
    SealedPieces,
    SealKeyRoster,
)
from fednlp.secure.lightsecagg_rules import LightSecAggRoundSpec
from fednlp.secure.messages import Survivors
from fednlp.secure.secagg_rules import Steps


class LightSecAggServer:
    """The server's side of one round: it passes sealed pieces on, and recovers the sum of the masks.

    Its methods are called once each, in this order: :meth:`roster`, :meth:`deliver`, :meth:`survivors`,
    :meth:`recover`. Every one raises :class:`~fednlp.errors.SecureAbort` when called out of order or after a
    refusal. A client may be missing in any of them, and is then left out of those that follow.

    Args:
        spec: The round.
    """

    def __init__(self, spec: LightSecAggRoundSpec) -> None:
        self.spec = spec
        self._steps = Steps("roster", "deliver", "survivors", "recover")
        self._present: list[int] = []

    def roster(self, advertised: Mapping[int, AdvertiseSealKey]) -> dict[int, SealKeyRoster]:
        """Return what each client that advertised a key is to be shown.

        Raises:
            SecureAbort: They are too few, or one is unknown.
        """
        with self._steps.take("roster"):
            self._present = self.spec.check(advertised, self.spec.ids, "advertised keys")
            ids = np.array(self._present, dtype=np.uint32)
            roster = SealKeyRoster(ids, np.concatenate([message.keys for message in advertised.values()]))
            return dict.fromkeys(self._present, roster)

    def deliver(self, shared: Mapping[int, SealedPieces]) -> dict[int, DeliveredPieces]:
        """Return for each client that shared what the others sealed for it: the very rows, not copies.

        Raises:
            SecureAbort: They are too few, one is unknown, or one did not share with all the roster.
        """
        with self._steps.take("deliver"):
            roster = set(self._present)
            self._present = self.spec.check(shared, roster, "shared pieces")
            rows = {sender: self._by_receiver(sender, roster, message) for sender, message in shared.items()}
            return {
                receiver: DeliveredPieces(
                    np.array([one for one in self._present if one != receiver], dtype=np.uint32),
                    tuple(rows[one][receiver] for one in self._present if one != receiver),
                )
                for receiver in self._present
            }

    def _by_receiver(
        self, sender: int, roster: set[int], message: SealedPieces
    ) -> dict[int, NDArray[np.uint8]]:
        rows = dict(zip(message.ids.tolist(), message.sealed, strict=True))
        if rows.keys() != roster - {sender} or len(rows) < len(message.sealed):
            raise SecureAbort(f"client {sender} did not seal one piece for each of the others")
        if message.width not in (0, self.spec.sealed_bytes):
            raise SecureAbort(
                f"client {sender} sealed pieces of {message.width} bytes instead of {self.spec.sealed_bytes}"
            )
        return rows

    def survivors(self, uploaded: Collection[int]) -> dict[int, Survivors]:
        """Return what each survivor is to be shown, given whose masked vectors arrived.

        Raises:
            SecureAbort: They are too few, or one is unknown or repeated.
        """
        with self._steps.take("survivors"):
            self._present = self.spec.check(uploaded, self._present, "sent a vector")
            return dict.fromkeys(self._present, Survivors(np.array(self._present, dtype=np.uint32)))

    def recover(self, answers: Mapping[int, CodedSum]) -> Residues:
        """Return the sum of the survivors' masks, modulo 2^31 - 1.

        :func:`fednlp.secure.field.subtract` takes it from the sum of the masked vectors. Any U answers do;
        more are held against them.

        Returns:
            uint32 (length,), residues.

        Raises:
            SecureAbort: They are too few, one is unknown, or they do not fit each other.
        """
        with self._steps.take("recover"):
            answered = self.spec.check(answers, self._present, "answered")
            sums = [answers[one].values for one in answered]
            if any(len(values) != self.spec.piece for values in sums):
                raise SecureAbort(f"a coded sum must have {self.spec.piece} elements")
            n, u, t = len(self.spec.ids), self.spec.threshold, self.spec.max_colluding
            return decode(sums, n, self.spec.points(answered), u, t)[: self.spec.length]
