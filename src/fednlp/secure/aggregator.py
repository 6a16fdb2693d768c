"""Secure aggregation as an aggregator: clients mask their updates, and the server learns their weighted mean alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from fednlp.errors import SecureAbort, TooFewClients
from fednlp.federated.aggregators.base import (
    AggregatedUpdate,
    Collection,
    Mean,
    Outcome,
    Reported,
    mean_metrics,
    requests_of,
)
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.federated.cohort import RoundPlan
from fednlp.federated.params import Layout
from fednlp.federated.runtime import Runtime
from fednlp.federated.sums import FRACTION_BITS, ExactSum
from fednlp.federated.upload import Residues
from fednlp.secure.masks import MaskSeeds
from fednlp.secure.params import SecAggParams
from fednlp.secure.round import SecureRound
from fednlp.secure.session import SessionFactory, open_session
from fednlp.secure.unmasking import UnmaskRequest
from fednlp.secure.upload import REPORT_BITS, REPORTS


class MaskedSum(WeightedMean):
    """The sum of masked updates, as workers add it up; only the server can finish it."""

    def add(self, total: Mapping[str, ExactSum], request: TrainRequest, update: Residues) -> None:  # type: ignore[override]
        """Add a client's masked update; its weight, the last residue, is added elsewhere."""
        total["model"].add_residues(update[: len(total["model"].storage)])


@dataclass(frozen=True)
class SecureMean(MaskedSum):
    """The weighted mean by a secure aggregation protocol.

    Attributes:
        params: The protocol's numbers.
        clip: The norm that clients cut their updates to, for differential privacy; None for none.
        denominator: What the weighted sum is divided by, whoever came through; None for the weight of those who did.
        sessions: Opens a round's session.
        sum_reports: Whether what clients report of their training is summed with their updates.
    """

    binds_model: ClassVar[bool] = True

    params: SecAggParams
    clip: float | None = None
    denominator: float | None = None
    sessions: SessionFactory = open_session
    sum_reports: bool = False

    @property
    def masked_extra(self) -> int:
        """How many residues a masked update has between the update and its weight."""
        return len(REPORTS) * self.params.encoding.num_digits(REPORT_BITS) if self.sum_reports else 0

    def open(self, plan: RoundPlan, layout: Layout) -> Collection:
        """Begin a round: keys are exchanged and secrets shared."""
        drawn, wanted = len(plan.cohort.clients), self.params.plan.clients
        if drawn < wanted:
            return _Refused(plan, f"{drawn} clients were drawn, and the protocol's numbers are for {wanted}")
        return SecureCollection(self, plan, layout)


class SecureCollection:
    """One round's collection of masked updates.

    Args:
        plan: Of the round.
    """

    def __init__(self, aggregator: SecureMean, plan: RoundPlan, layout: Layout) -> None:
        self.aggregator, self.plan, self.layout = aggregator, plan, layout
        self.secure = SecureRound(
            aggregator.params,
            plan.number,
            plan.weights,
            layout.numel,
            aggregator.sessions,
            aggregator.masked_extra,
        )
        self._aborted: str | None = None
        try:
            self._masking = self.secure.begin()
        except SecureAbort as abort:
            self._masking, self._aborted = {}, str(abort)

    def requests(self) -> list[TrainRequest]:
        """Return what the clients are told that are still there, with the masks of each."""
        clip = self.aggregator.clip
        return [
            replace(request, masking=self._masking[request.client] | {"clip": clip})
            for request in requests_of(self.plan)
            if request.client in self._masking
        ]

    def finish(self, runtime: Runtime, results: Sequence[ClientResult]) -> Outcome:
        """Unmask the sum."""
        for result in results:
            if result.error is None:
                facts = result.facts
                masked = facts["masked_weight"], facts["masking_seconds"], facts.get("masked_reports", ())
                self.secure.add(result.client, *masked)
        if results and all(result.error is not None for result in results):
            first = results[0]
            raise TooFewClients(
                f"round {self.plan.number}: no client came through (client {first.client}: {first.error}); the rounds "
                "before are saved"
            )
        update = None
        try:
            if self._aborted is None:
                update = self._unmasked(runtime, results)
        except SecureAbort as abort:
            self._aborted = str(abort)
        everyone, facts = self._everyone(results), {"secure": self.secure.metrics(len(runtime))}
        return Outcome(everyone, update, self._aborted, facts, self._reported())

    def _unmasked(self, runtime: Runtime, results: Sequence[ClientResult]) -> AggregatedUpdate:
        """Return the mean of the updates in the sum."""
        total: ExactSum = runtime.total["model"]

        def unmask(slices: int, length: int, seeds: MaskSeeds) -> None:
            numel = self.layout.numel
            starts = range(0, slices * length, length)
            runtime.do([UnmaskRequest(start, min(start + length, numel), seeds) for start in starts])

        unit, share = self.secure.finish(total, unmask)
        kept = [result for result in results if result.error is None]
        weight = share * unit
        if self.aggregator.denominator is not None:
            share = self.aggregator.denominator / unit
        delta, rows = total.mean(share)
        return AggregatedUpdate(
            {"model": Mean(delta, rows)}, weight, len(kept), mean_metrics(kept), self.plan
        )

    def _reported(self) -> Reported | None:
        """Return what the clients report, summed; None where the server has each client's."""
        if not self.aggregator.sum_reports:
            return None
        loss, examples, steps = self.secure.reports or (0, 0, 0)
        return Reported(loss / (1 << FRACTION_BITS), examples, steps)

    def _everyone(self, results: Sequence[ClientResult]) -> list[ClientResult]:
        """Return a result for each client of the cohort, with the lengths of the protocol's messages added."""
        known, whole = {result.client: result for result in results}, self.layout.message_bytes
        found = []
        for client, traffic in self.secure.traffic().items():
            result = known.get(client) or ClientResult(
                client,
                self.plan.weights[client] / self.plan.unit,
                error=traffic.reason,
                bytes_down=whole if traffic.got_model else 0,
                tensors_down=0,
            )
            down = whole if result.bytes_down is None else result.bytes_down
            found.append(
                replace(result, bytes_up=traffic.bytes_up, bytes_down=down + traffic.bytes_down, facts={})
            )
        return found


@dataclass(frozen=True)
class _Refused:
    """A round that the protocol does not begin."""

    plan: RoundPlan
    reason: str

    def requests(self) -> list[TrainRequest]:
        return []

    def finish(self, runtime: Runtime, results: Sequence[ClientResult]) -> Outcome:
        unit = self.plan.unit
        none = [
            ClientResult(client, weight / unit, error=self.reason, bytes_down=0, tensors_down=0)
            for client, weight in self.plan.weights.items()
        ]
        return Outcome(none, None, self.reason)
