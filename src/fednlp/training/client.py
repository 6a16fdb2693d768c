"""The client's half of a round: read what it kept, train, report, keep what is its own."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fednlp.clock import DISK, timed
from fednlp.data.features import Features
from fednlp.errors import RunError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.client import ClientResult, Result, TrainRequest, failed
from fednlp.federated.communication import bytes_down
from fednlp.federated.runtime import MODEL
from fednlp.federated.sent import Sent
from fednlp.federated.store import ClientStore
from fednlp.federated.upload import masked_tail
from fednlp.tasks.base import Task
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
from fednlp.training.sending import EncodedResult


class ClientTrainer:
    """Trains one client after the other, in one replica.

    Args:
        records: The file of the clients' records; None for a run that keeps nothing on disk.
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
            saved: The last round that is saved.
            x: The global model, flat.
        """
        return init_of(self.record(client, saved), self.algorithm, self.replica.layout, x)

    def local(
        self,
        client: int,
        examples: np.ndarray,
        round_number: int,
        x: Tensor,
        init: ClientInit,
        options: LocalTraining | None = None,
        **how: Any,
    ) -> LocalTrainer:
        """Return a client's local trainer.

        Args:
            examples: Its example numbers.
            round_number: From 1.
            x: The global model, flat.
            init: What it has of its own.
            options: Of its training; None for those of all.
            how: Further arguments of :class:`LocalTrainer`.
        """
        given = self.replica, self.task, self.features, examples, options or self.options
        return LocalTrainer(*given, x, self.seed, round_number, client, init=init, **how)

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
    def keep(self, request: TrainRequest, local: LocalTrainer, result: Result, sent: EncodedResult) -> None:
        """Write a client's record; it counts once the round is saved.

        Args:
            result: What the algorithm's client returned.
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

    def forget(self, client: int, round_number: int, before: int | None = None) -> None:
        """Take back what a client kept in rounds that came to nothing (:meth:`ClientStore.forget`)."""
        if self.store is not None:
            self.store.forget(client, round_number, before)

    def failure(self, request: TrainRequest, error: Exception, record: Record) -> ClientResult:
        """Return the result of a client that failed."""
        if isinstance(error, torch.OutOfMemoryError):
            torch.cuda.empty_cache()
            error = RunError(
                f"{self.replica.device} has no memory left for a batch: lower client.per_device_train_batch_size and "
                "raise client.gradient_accumulation_steps by the same factor, or set client.max_tokens_per_batch or "
                "client.gradient_checkpointing = true, or lower model.max_length or runtime.workers_per_gpu"
            )
        return failed(request, error, *self.down(record))

    def result(
        self, request: TrainRequest, local: LocalTrainer, result: Result, sent: EncodedResult, record: Record
    ) -> ClientResult:
        """Return what a client reports of its training and of what it sends.

        Args:
            result: What the algorithm's client returned.
        """
        down, tensors = self.down(record)
        norms, chosen = sent.chosen.norms, sent.chosen.sent
        facts: dict[str, Any] = {}
        if norms is not None:
            facts = {"update_norms": norms.tolist()}
        if sent.upload.masked is not None:
            facts = masked_tail(sent.upload.masked, self.replica.layout.numel, sent.masking_seconds)
        if result.model != MODEL:
            facts["model"] = result.model
        summed = bool(request.masking and request.masking.get("reports"))
        return ClientResult(
            request.client,
            request.weight,
            0 if summed else local.total_examples,
            0 if summed else local.total_steps,
            0.0 if summed else local.total_loss,
            bytes_down=down,
            tensors_down=tensors,
            bytes_up=sent.bytes_up(self.replica.layout),
            entries=None if chosen is None else list(chosen.entries),
            slices=[list(one) for one in chosen.slices] or None if chosen is not None else None,
            metrics={name: float(value) for name, value in result.metrics.items()},
            facts=facts,
            gradient_examples=0 if summed else local.gradient_examples,
        )
