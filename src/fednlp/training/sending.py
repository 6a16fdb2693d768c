"""What a client sends of what its training returned: checked, chosen, compressed and masked."""

from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from fednlp.errors import DIVERGED, ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import Result, TrainRequest
from fednlp.federated.communication import encode_update
from fednlp.federated.params import Layout
from fednlp.federated.pulling import Pull, choose, distances
from fednlp.federated.sent import Sent
from fednlp.federated.sums import NonFiniteUpdate, check_finite, count_nonfinite
from fednlp.federated.transforms import RngKey
from fednlp.federated.update import Update
from fednlp.federated.upload import Upload
from fednlp.tasks.whole_sums import steps
from fednlp.training.client_record import Record
from fednlp.training.local import LocalTrainer


@dataclass(frozen=True)
class ChosenTensors:
    """What a client sends by dynamic pulling.

    Attributes:
        model: Its whole model, flat.
        norms: How far each tensor moved since its last round.
    """

    model: Tensor | None = None
    norms: np.ndarray | None = None
    sent: Sent | None = None


@dataclass(frozen=True)
class EncodedResult:
    """A client's upload, and what only the client knows of it.

    Attributes:
        masking_seconds: What clipping, rounding, noise and masks took, under secure aggregation.
    """

    upload: Upload
    chosen: ChosenTensors = field(default_factory=ChosenTensors)
    masking_seconds: float = 0.0

    def bytes_up(self, layout: Layout) -> int | None:
        """Return the length of what travels; None for the whole model alone, uncompressed."""
        extra = len(self.upload.others) * layout.message_bytes
        if self.upload.encoded is not None:
            return len(self.upload.encoded.message) + extra
        return layout.message_bytes + extra if extra else None


def encode(
    algorithm: Algorithm, request: TrainRequest, local: LocalTrainer, result: Result, record: Record
) -> EncodedResult:
    """Encode what a client sends.

    Args:
        result: What the algorithm's client returned.

    Raises:
        NonFiniteUpdate: Training ended in NaN, infinity or huge numbers, in what is sent or in what is kept.
        ConfigError: The client's function sends, reports or keeps something else than the algorithm declares.
    """
    uplink, layout = algorithm.uplink, local.replica.layout
    _check_declared(result, algorithm, layout.numel)
    change, key = result.update["model"], RngKey(local.seed, request.began, request.client)
    others = {
        name: value if isinstance(value, Tensor) else value.flat()
        for name, value in result.update.items()
        if name != "model"
    }
    if local.trained_personal is not None:
        check_finite(local.trained_personal)
    for vector in result.keep.values():
        bad = count_nonfinite(vector)
        if bad and bad > count_nonfinite(local.x):  # a model may begin with numbers as bad
            raise NonFiniteUpdate(DIVERGED)
    if uplink.plain and request.masking is None and not isinstance(change, Tensor):
        plain = change.take()  # in place: the last thing that is done with the trained weights
        return EncodedResult(Upload(model=plain, others=others))
    update = change if isinstance(change, Tensor) else change.flat()
    check_finite(update)
    if request.masking is not None:
        from fednlp.secure.upload import mask_update

        chain = uplink.chain
        whole = layout.flatten(chain.encode(layout.views(update), key)) if chain.steps else update
        reported = steps(local.total_loss), local.total_examples, local.total_steps
        masked = mask_update(whole, request.masking, key, reported)
        return EncodedResult(Upload(masked=masked.residues), masking_seconds=masked.seconds)
    if uplink.plain:
        return EncodedResult(Upload(model=Update.of(update, layout), others=others))
    chosen = _chosen(uplink.pull, layout, record, update, local.x, key)
    encoded = encode_update(uplink, layout, update, key, chosen.sent, record.get("residual"), local.x)
    return EncodedResult(Upload(encoded=encoded, others=others), chosen)


def _check_declared(result: Result, algorithm: Algorithm, numel: int) -> None:
    """Check that a client sends, reports and keeps what the algorithm declares; a model has ``numel`` elements."""
    for what, names, declared in (
        ("sends", result.update, algorithm.sends),
        ("reports", result.metrics, algorithm.reports),
        ("keeps", result.keep, algorithm.keeps),
    ):
        if {*names} != {*declared}:
            raise ConfigError(
                f"{algorithm.name}: the client's function {what} {', '.join(names) or 'nothing'}, and "
                f"Algorithm({what}=...) says {', '.join(declared) or 'nothing'}: make them the same"
            )
    if result.model not in ("model", *algorithm.models):
        raise ConfigError(
            f"{algorithm.name}: the client's function sends an update of {result.model!r}, which is none of the "
            f"server's models: {', '.join(('model', *algorithm.models))}"
        )
    for name, number in result.metrics.items():
        if not hasattr(number, "__float__"):
            raise ConfigError(
                f"{algorithm.name}: the client's function reports {name} = {number!r}: no number"
            )
    for name, vector in result.keep.items():
        if not isinstance(vector, Tensor) or vector.numel() != numel:
            raise ConfigError(
                f"{algorithm.name}: the client's function keeps {name}, which is no flat tensor of the model's "
                f"{numel:,} elements"
            )


def _chosen(
    pull: Pull, layout: Layout, record: Record, update: Tensor, x: Tensor, key: RngKey
) -> ChosenTensors:
    """Choose which tensors to send, by how far each moved since the client's last round."""
    if pull.rule == "all":
        return ChosenTensors()
    model = x + update
    norms = distances(layout, model, record.get("model", x), pull.norm)
    return ChosenTensors(model, norms, choose(pull, layout, norms, key))
