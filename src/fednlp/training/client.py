"""The client's half of a round: read what it kept, train, encode what it sends, keep what is its own."""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednlp.clock import DISK, timed
from fednlp.data.features import Features
from fednlp.errors import ConfigError, RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientResult, Result, TrainRequest, failed
from fednlp.federated.communication import bytes_down, encode_update
from fednlp.federated.pulling import choose, distances
from fednlp.federated.sent import Sent
from fednlp.federated.store import ClientStore
from fednlp.federated.sums import DIVERGED, NonFiniteUpdate, check_finite, count_nonfinite
from fednlp.federated.transforms import RngKey
from fednlp.federated.update import Update
from fednlp.federated.upload import Upload, masked_tail
from fednlp.tasks.base import Task
from fednlp.tasks.whole_sums import steps
from fednlp.training.client_record import (
    METHOD,
    OPTIMIZER,
    ClientInit,
    Record,
    init_of,
    last_sent,
    record_fields,
    recorded,
)
from fednlp.training.local import LocalTrainer
from fednlp.training.local_training import LocalTraining
from fednlp.training.replica import Replica


class ClientTrainer:
    """Trains one client after the other, in one replica.

    Args:
        replica: Trained in place.
        task: Makes batches and losses.
        features: Of the training set.
        options: Of local training.
        algorithm: The method.
        records: The file of the clients' records; None for a run that keeps nothing on disk.
        seed: The experiment's.
    """

    def __init__(
        self,
        replica: Replica,
        task: Task,
        features: Features,
        options: LocalTraining,
        algorithm: Algorithm,
        records: Path | None,
        seed: int,
    ) -> None:
        self.replica, self.task, self.features = replica, task, features
        self.options, self.algorithm, self.seed = options, algorithm, seed
        fields = record_fields(replica, options, algorithm)
        self.store = ClientStore(records, fields) if fields and records is not None else None
        self._whole = self._length(None), len(replica.layout.entries)

    @timed(DISK)
    def record(self, client: int, saved: int) -> Record:
        """Return what a client kept as of the last saved round; nothing if it has not taken part."""
        return (self.store and self.store.read(client, saved)) or {}

    @timed(DISK)
    def sync(self) -> None:
        """See all records to the disk, before the round is saved."""
        if self.store is not None:
            self.store.sync()

    def init(self, client: int, saved: int, x: Tensor) -> ClientInit:
        """Return what a client has of its own after a broadcast.

        Args:
            client: Its id.
            saved: The last round that is saved.
            x: The global model, flat.
        """
        return init_of(self.record(client, saved), self.algorithm, self.replica.layout, x)

    def local(
        self, client: int, examples: np.ndarray, round_number: int, x: Tensor, init: ClientInit
    ) -> LocalTrainer:
        """Return a client's local trainer.

        Args:
            client: Its id.
            examples: Its example numbers.
            round_number: From 1.
            x: The global model, flat.
            init: What it has of its own.
        """
        trainer = LocalTrainer(
            self.replica, self.task, self.features, examples, self.options, x, self.seed, round_number, client
        )
        trainer.personal, trainer.begin, trainer.memory = init.personal, init.shared, init.optimizer
        return trainer

    def encode(self, request: TrainRequest, local: LocalTrainer, result: Result, record: Record) -> "Encoded":
        """Encode what a client sends.

        Args:
            request: What it was told.
            local: Its trained model.
            result: What the algorithm's client returned.
            record: What it had kept.

        Raises:
            NonFiniteUpdate: Training ended in NaN, infinity or huge numbers, in what is sent or in what is kept.
            ConfigError: The client's function sends, reports or keeps something else than the algorithm declares.
        """
        self._check_names(result)
        uplink, layout = self.algorithm.uplink, self.replica.layout
        change, key = result.update["model"], RngKey(self.seed, request.began, request.client)
        others = {
            name: value if isinstance(value, Tensor) else value.flat()
            for name, value in result.update.items()
            if name != "model"
        }
        if local.trained_personal is not None:
            check_finite(local.trained_personal)
        for vector in result.keep.values():
            if (bad := count_nonfinite(vector)) and bad > count_nonfinite(
                local.x
            ):  # a model may begin with numbers as bad
                raise NonFiniteUpdate(DIVERGED)
        if uplink.plain and request.masking is None and not isinstance(change, Tensor):
            plain = change.take()  # in place: the last thing that is done with the trained weights
            return Encoded(Upload(model=plain, others=others))
        update = change if isinstance(change, Tensor) else change.flat()
        check_finite(update)
        if request.masking is not None:
            from fednlp.secure.upload import mask_update

            chain = uplink.chain
            whole = layout.flatten(chain.encode(layout.views(update), key)) if chain.steps else update
            reported = steps(local.total_loss), local.total_examples, local.total_steps
            masked = mask_update(whole, request.masking, key, reported)
            return Encoded(Upload(masked=masked.residues), masking_seconds=masked.seconds)
        if uplink.plain:
            return Encoded(Upload(model=Update.of(update, layout), others=others))
        chosen = self._chosen(record, update, local.x, key)
        encoded = encode_update(uplink, layout, update, key, chosen.sent, record.get("residual"), local.x)
        return Encoded(Upload(encoded=encoded, others=others), chosen)

    def _check_names(self, result: Result) -> None:
        """Check that a client sends, reports and keeps what the algorithm declares."""
        algorithm = self.algorithm
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
        for name, number in result.metrics.items():
            if not hasattr(number, "__float__"):
                raise ConfigError(
                    f"{algorithm.name}: the client's function reports {name} = {number!r}: no number"
                )
        for name, vector in result.keep.items():
            if not isinstance(vector, Tensor) or vector.numel() != self.replica.layout.numel:
                raise ConfigError(
                    f"{algorithm.name}: the client's function keeps {name}, which is no flat tensor of the model's "
                    f"{self.replica.layout.numel:,} elements"
                )

    def _chosen(self, record: Record, update: Tensor, x: Tensor, key: RngKey) -> "ChosenTensors":
        """Choose which tensors to send, by how far each moved since the client's last round."""
        pull = self.algorithm.uplink.pull
        if pull.rule == "all":
            return ChosenTensors()
        model = x + update
        norms = distances(self.replica.layout, model, record.get("model", x), pull.norm)
        return ChosenTensors(model, norms, choose(pull, self.replica.layout, norms, key))

    def down(self, record: Record) -> tuple[int, int]:
        """Return the bytes and the tensors that a client gets at the start of a round."""
        if self.algorithm.uplink.pull.push == "all" or "sent" not in record:
            return self._whole
        layout = self.replica.layout
        got = last_sent(record, self.algorithm.uplink.pull, layout)
        return self._length(got), len(got.pieces(layout))

    def _length(self, sent: Sent | None) -> int:
        algorithm = self.algorithm
        return bytes_down(algorithm.downlink, self.replica.layout, sent, vectors=len(algorithm.receives))

    @timed(DISK)
    def keep(self, request: TrainRequest, local: LocalTrainer, result: Result, sent: "Encoded") -> None:
        """Write a client's record; it counts once the round is saved.

        Args:
            request: What it was told.
            local: Its trained model.
            result: What the algorithm's client returned.
            sent: What it sends.
        """
        if self.store is None:
            return
        kept = {OPTIMIZER + name: value.reshape(-1) for name, value in local.memory.items()}
        kept |= {METHOD + name: value for name, value in result.keep.items()}
        if local.trained_personal is not None and self.replica.personal.numel:
            kept["personal"] = local.trained_personal
        encoded = sent.upload.encoded
        if encoded is not None and encoded.residual is not None:
            kept["residual"] = encoded.residual
        if sent.chosen.model is not None and sent.chosen.sent is not None:
            marks = recorded(sent.chosen.sent, self.algorithm.uplink.pull, self.replica.layout)
            kept |= {"model": sent.chosen.model, "sent": marks}
        self.store.write(request.client, request.round, kept)

    def forget(self, request: TrainRequest) -> None:
        """Take back what an earlier attempt at the round kept: the client fails in this one."""
        if self.store is not None:
            self.store.forget(request.client, request.round)

    def failure(self, request: TrainRequest, error: Exception, record: Record) -> ClientResult:
        """Return the result of a client that failed.

        Args:
            request: What it was told.
            error: Why.
            record: What it had kept.
        """
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
            error = RunError(
                f"{self.replica.device} has no memory left for a batch: lower client.per_device_train_batch_size and "
                "raise client.gradient_accumulation_steps by the same factor, or set client.max_tokens_per_batch or "
                "client.gradient_checkpointing = true, or lower model.max_length or runtime.workers_per_gpu"
            )
        return failed(request, error, *self.down(record))

    def result(
        self, request: TrainRequest, local: LocalTrainer, result: Result, sent: "Encoded", record: Record
    ) -> ClientResult:
        """Return what a client reports of its training and of what it sends.

        Args:
            request: What it was told.
            local: Its trained model.
            result: What the algorithm's client returned.
            sent: What it sends.
            record: What it had kept.
        """
        down, tensors = self.down(record)
        norms, chosen, facts = sent.chosen.norms, sent.chosen.sent, {}
        if norms is not None:
            facts = {"update_norms": norms.tolist()}
        if sent.upload.masked is not None:
            facts = masked_tail(sent.upload.masked, self.replica.layout.numel, sent.masking_seconds)
        summed = bool(request.masking and request.masking.get("reports"))
        return ClientResult(
            request.client,
            request.weight,
            0 if summed else local.total_examples,
            0 if summed else local.total_steps,
            0.0 if summed else local.total_loss,
            bytes_down=down,
            tensors_down=tensors,
            bytes_up=self._bytes_up(sent.upload),
            entries=None if chosen is None else list(chosen.entries),
            slices=[list(one) for one in chosen.slices] or None if chosen is not None else None,
            metrics={name: float(value) for name, value in result.metrics.items()},
            facts=facts,
            gradient_examples=0 if summed else local.gradient_examples,
        )

    def _bytes_up(self, upload: Upload) -> int | None:
        """Return the length of what travels; None for the whole model alone, uncompressed."""
        whole = self.replica.layout.message_bytes
        extra = len(upload.others) * whole
        if upload.encoded is not None:
            return len(upload.encoded.message) + extra
        return whole + extra if extra else None


@dataclass(frozen=True)
class ChosenTensors:
    """What a client sends by dynamic pulling.

    Attributes:
        model: Its whole model, flat.
        norms: How far each tensor moved since its last round.
        sent: What is sent.
    """

    model: Tensor | None = None
    norms: np.ndarray | None = None
    sent: Sent | None = None


@dataclass(frozen=True)
class Encoded:
    """A client's upload, and what only the client knows of it.

    Attributes:
        upload: What it sends.
        chosen: By dynamic pulling.
        masking_seconds: What clipping, rounding, noise and masks took, under secure aggregation.
    """

    upload: Upload
    chosen: ChosenTensors = field(default_factory=ChosenTensors)
    masking_seconds: float = 0.0
