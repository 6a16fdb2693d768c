"""A round under secure aggregation, and what all rounds of a run have in common.

The protocols are in :mod:`fednlp.secure`, one state machine a party, and :mod:`fednlp.secure.session` lets them
speak to each other. Here clients vanish where they are told to, masked updates are added up wherever they are made,
and the masks that are left in the sum are taken out of it in pieces, by all workers.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fednlp.config import Experiment
from fednlp.errors import ConfigError, SecureAbort
from fednlp.federated.round import Reply
from fednlp.federated.sums import FRACTION_BITS, ExactSum
from fednlp.privacy.noise import local_sigma, noise_bound
from fednlp.secure.encoding import Encoding
from fednlp.secure.graph import count
from fednlp.secure.keys import new_run
from fednlp.secure.masks import add_masks
from fednlp.secure.messages import HEADER_BYTES
from fednlp.secure.plan import Plan, make_plan
from fednlp.secure.session import PHASES, Light, Pairwise, Parties, Post, Seeds, written
from fednlp.seeds import generator

_TAIL = 11.0
"""Standard deviations that there must be room for: what :func:`noise_bound` gives for 10^10 parameters."""
_STRETCH = 1 << 20
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Terms:
    """What all rounds of a run have in common.

    Attributes:
        plan: The protocol and its numbers.
        encoding: How updates become whole numbers.
        noise: Standard deviation of each client's noise, in steps of the encoding; 0 for none.
        honest: How many clients' noise is enough: those who stay, less those who may tell the server theirs.
        least: How many updates must be in a sum for the noise to be enough.
        vanishing: The probability that a client is lost in a round, for trying what that does.
        seed: The experiment's: decides who vanishes. Keys and masks come from the operating system.
        run: The nonce that keys and signatures are good for: fresh each time a run is begun or resumed.
    """

    plan: Plan
    encoding: Encoding
    noise: float
    honest: int
    least: int
    vanishing: float
    seed: int
    run: bytes


def terms_of(
    experiment: Experiment, clients: int, largest_weight: float, multiplier: float, parameters: int
) -> Terms:
    """Work out the terms of a run.

    Args:
        experiment: With ``[secure]``.
        clients: All of them.
        largest_weight: No client's weight is larger.
        multiplier: Standard deviation of the noise on the sum that is asked for, over ``privacy.clip``; 0 for none.
        parameters: Elements of an update.

    Raises:
        ConfigError: No numbers of the protocol withstand what they must, or the sum has no room.
    """
    secure, privacy = experiment.secure, experiment.privacy
    cohort = min(experiment.clients_per_round, clients)
    staying = cohort - count(cohort, secure.dropout, "dropout")
    honest = staying - count(cohort, secure.max_colluding, "max_colluding")
    if multiplier and honest < 1:
        raise ConfigError(
            f"[privacy] of {cohort} clients nobody is left whose noise counts at secure.dropout = {secure.dropout} and "
            f"secure.max_colluding = {secure.max_colluding}: lower one of the two"
        )
    spread = cohort * _TAIL * multiplier / honest**0.5 if multiplier else 0.0
    plan = make_plan(
        secure.protocol,
        cohort,
        secure.dropout,
        secure.max_colluding,
        secure.bits,
        secure.malicious_server,
        spread,
    )
    clip = secure.clip if privacy is None else privacy.clip
    encoding = Encoding(clip, plan.bits, largest_weight, cohort, plan.modulus, secure.stochastic)
    noise = 0.0
    if multiplier:
        noise = local_sigma(multiplier, encoding.top, honest, parameters, stochastic=secure.stochastic)
        encoding = replace(encoding, noise_bound=noise_bound(noise, 1, parameters))
    return Terms(
        plan,
        encoding,
        noise,
        honest,
        staying if multiplier else 1,
        secure.simulated_dropout,
        experiment.seed,
        new_run(),
    )


class SecureRound:
    """One round: open it, let clients upload, close it.

    Args:
        terms: Of the run.
        number: The round.
        weights: The cohort's clients, and what each weighs.
        parameters: Elements of an update.
    """

    def __init__(self, terms: Terms, number: int, weights: Mapping[int, float], parameters: int) -> None:
        self.terms, self.weights, self.parameters = terms, weights, parameters
        self.lost = _vanishing(terms, number, list(weights))
        self.post = Post(self.lost)
        self.uploaded = 0
        self.seconds, self.seconds_hiding = 0.0, 0.0
        plan = terms.plan
        make = Light if plan.protocol == "lightsecagg" else Pairwise
        self.parties: Parties = make(
            plan, terms.seed, terms.run, number, list(weights), parameters + 1, self.post
        )

    def open(self) -> dict[int, dict[str, Any]]:
        """Go through what comes before the upload; return how each client that is there hides its update.

        Raises:
            SecureAbort: Too few are left.
        """
        with self._timed():
            seeds = self.parties.meet()
        encoding = asdict(self.terms.encoding)
        return {
            client: {
                "encoding": encoding,
                "noise": self.terms.noise,
                "weight": self.weights[client],
                "seeds": seeds[client],
            }
            for client in seeds
            if self.lost.get(client) != "update"
        }

    def take(self, said: list[dict[str, Any]]) -> dict[int, int]:
        """Take out of the replies what is for the sum alone; return the masked weights of those that uploaded."""
        masked = {}
        for reply in said:
            self.seconds_hiding += reply.pop("hiding_seconds", 0.0)
            if reply["error"] is None:
                masked[reply["client"]] = reply.pop("masked_weight")
        self.uploaded = len(masked)
        return masked

    def priced(self, replies: Sequence[Reply], factors: Mapping[int, float], whole: int) -> list[Reply]:
        """Return a reply for everybody in the cohort, with the true lengths of all messages.

        Args:
            replies: Of those that were told to train.
            factors: Of the whole cohort.
            whole: Length of the model's message.
        """
        known = {reply.client: reply for reply in replies}
        priced = []
        for client, factor in factors.items():
            phase = self.lost.get(client)
            gone = f"lost before its {phase} (simulated)" if phase else "did not get as far as training"
            model = whole if phase == "update" else 0
            reply = known.get(client) or Reply(client, factor, error=gone, bytes_down=model, tensors_down=0)
            up = self.upload_bytes() if reply.error is None else 0
            down = (whole if reply.bytes_down is None else reply.bytes_down) + self.post.bytes_down[client]
            priced.append(replace(reply, bytes_up=up + self.post.bytes_up[client], bytes_down=down))
        return priced

    def facts(self, workers: int) -> dict[str, Any]:
        """Return what the protocol added, for the round's line.

        Args:
            workers: How many hid updates side by side.

        Returns:
            ``lost``: who vanished, and before what. ``bytes``: all messages but the model and the updates' own 4
            bytes a parameter. ``seconds``: of this machine.
        """
        messages = sum(self.post.bytes_up.values()) + sum(self.post.bytes_down.values())
        return {
            "lost": dict(sorted(self.lost.items())),
            "bytes": messages + self.uploaded * (self.upload_bytes() - 4 * self.parameters),
            "seconds": round(self.seconds + self.seconds_hiding / workers, 4),
        }

    def upload_bytes(self) -> int:
        """Return the length of a masked update: a residue of 4 bytes a parameter, and one for the weight."""
        return HEADER_BYTES + 4 * (self.parameters + 1)

    def close(
        self,
        total: ExactSum,
        masked_weights: Mapping[int, int],
        unmask: Callable[[int, int, Seeds], None],
    ) -> tuple[float, float]:
        """Turn the sum of masked updates into that of the updates.

        Args:
            total: The sum of the masked updates of the clients that uploaded; overwritten.
            masked_weights: Their masked weights.
            unmask: ``unmask(pieces, stretch, seeds)`` has the workers add masks to ``total``.

        Returns:
            The unit of the weights, and their sum over it.

        Raises:
            SecureAbort: Too few answered, or what was opened is no sum of their updates.
        """
        with self._timed():
            return self._opened(total, masked_weights, unmask)

    def _opened(
        self, total: ExactSum, masked_weights: Mapping[int, int], unmask: Callable[[int, int, Seeds], None]
    ) -> tuple[float, float]:
        arrived = len(masked_weights)
        if not arrived:
            raise SecureAbort("no update arrived")
        if arrived < self.terms.least:
            raise SecureAbort(
                f"{arrived} updates arrived, and the noise of differential privacy needs {self.terms.least}"
            )
        remains = self.parties.part(list(masked_weights))
        weight = np.zeros(1 + self.parameters % 4, dtype=np.uint32)
        add_masks(weight, remains.masks, self.parameters - self.parameters % 4)
        if remains.masks:
            unmask(-(-self.parameters // _STRETCH), _STRETCH, written(remains.masks))
        residues = self._residues(total, sum(masked_weights.values()) + int(weight[-1]), remains.residues)
        encoding = self.terms.encoding
        sums, share = encoding.decode(residues, arrived)
        storage = total.storage.numpy()
        for start in range(0, self.parameters, _CHUNK):
            storage[start : start + _CHUNK] = np.rint(sums[start : start + _CHUNK] * 2.0**FRACTION_BITS)
        return encoding.unit, share

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the seconds of a block, whatever becomes of it."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds += time.perf_counter() - begun

    def _residues(self, total: ExactSum, weight: int, taken: NDArray[np.uint32] | None) -> NDArray[np.uint32]:
        """Return the sum, weight last, modulo what the protocol sums by."""
        modulus, storage = self.terms.encoding.modulus, total.storage.numpy()
        residues = np.empty(self.parameters + 1, dtype=np.uint32)
        for start in range(0, self.parameters, _CHUNK):
            part = storage[start : start + _CHUNK]
            if taken is not None:
                part = part - taken[start : min(start + _CHUNK, self.parameters)]
            residues[start : start + len(part)] = part % modulus
        residues[-1] = (weight - (0 if taken is None else int(taken[-1]))) % modulus
        return residues


def _vanishing(terms: Terms, number: int, clients: list[int]) -> dict[int, str]:
    """Draw who is lost in a round, and in which phase."""
    rng = generator(terms.seed, "vanishing", number)
    lost = rng.random(len(clients)) < terms.vanishing
    phases = rng.integers(len(PHASES), size=len(clients))
    return {client: PHASES[phase] for client, gone, phase in zip(clients, lost, phases, strict=True) if gone}
