"""The mean of clipped updates over a fixed denominator, with Gaussian noise: differential privacy on the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from fednlp.federated.aggregators.base import AggregatedUpdate, Mean
from fednlp.federated.aggregators.weighted_mean import WeightedMean
from fednlp.federated.client import ClientResult, TrainRequest
from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.cohort import RoundPlan
    from fednlp.federated.sums import ExactSum
    from fednlp.federated.update import AnyUpdate

_CHUNK = 1 << 20


@dataclass(frozen=True)
class NoisyMean(WeightedMean):
    """McMahan et al. 2018, "Learning Differentially Private Recurrent Language Models", Algorithm 1.

    Attributes:
        clip: The norm that every update is cut to as it is added.
        denominator: What the weighted sum is divided by, whoever came through.
        deviation: Standard deviation of the noise on each element of the mean.
        seed: The experiment's: what noise is drawn from.
    """

    clip: float
    denominator: float
    deviation: float
    seed: int

    needs_clients: ClassVar[bool] = False

    def add(
        self, total: Mapping[str, ExactSum], request: TrainRequest, update: Mapping[str, AnyUpdate]
    ) -> None:
        """Add a client's update, cut to the norm.

        Raises:
            NonFiniteUpdate: It holds NaN, infinity or a huge number; nothing was added.
        """
        from fednlp.federated.sums import check_finite
        from fednlp.federated.transforms import Clip, RngKey
        from fednlp.federated.update import Update

        layout = total["model"].layout
        flat = update["model"].flat(layout)
        check_finite(flat)
        cut = Clip(self.clip).encode({"": flat}, RngKey(self.seed, request.round, request.client))[""]
        super().add(total, request, {"model": Update.of(cut, layout)})

    def finish(
        self, total: Mapping[str, ExactSum], plan: RoundPlan, results: Sequence[ClientResult]
    ) -> AggregatedUpdate:
        """Return the noisy mean, in all rows: which ones clients touched is not told."""
        one = total["model"]
        one.touched_rows.fill_(True)
        delta, rows = one.mean(self.denominator / plan.unit)
        self._add_noise(delta, plan.number)
        update = super().finish({}, plan, results)
        return replace(update, vectors={"model": Mean(delta, rows)})

    def _add_noise(self, mean: Tensor, round_number: int) -> None:
        import torch

        rng = generator(self.seed, "privacy", round_number)
        for start in range(0, mean.numel(), _CHUNK):
            part = mean[start : start + _CHUNK]
            part += torch.from_numpy(self.deviation * rng.standard_normal(part.numel())).float()
