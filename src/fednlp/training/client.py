"""One client's part in a round: read what it kept, train, send, keep what is its own.

What a client keeps between rounds lies in its record (:mod:`fednlp.federated.store`):

* ``own``: its personal tensors;
* ``owed``: what compression lost of its updates so far (error feedback);
* ``model`` and ``sent``: its own model at the end of its last round and which tensors of it were sent,
  for dynamic pulling;
* ``memory.*``: its optimiser's.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fednlp.data.features import Features
from fednlp.federated.exchange import Exchange, Sent, bytes_down, send
from fednlp.federated.lora import LoraPair, fill_products
from fednlp.federated.params import Layout
from fednlp.federated.pulling import Pull, choose, distances
from fednlp.federated.round import Reply, failed
from fednlp.federated.store import ClientStore
from fednlp.federated.sums import ExactSum, check_finite
from fednlp.federated.transform_spec import parse_chain
from fednlp.federated.transforms import Clip, Key, make_chain
from fednlp.tasks.base import Task
from fednlp.training.local import Begin, Trained, train_client
from fednlp.training.optimizers import LocalTraining, memory_sizes
from fednlp.training.replica import Replica

if TYPE_CHECKING:
    from fednlp.training.secure_upload import MaskedUpdate

Record = Mapping[str, Tensor]
_MEMORY = "memory."


def exchange_from(
    options: Mapping[str, Any], groups: tuple[str, ...] = (), adapters: Sequence[LoraPair] = ()
) -> Exchange:
    """Build how tensors travel from JSON values.

    Args:
        options: ``up``, ``down``, ``error_feedback`` as in ``[exchange]``, and ``pull`` as in ``[pull]``.
        groups: The stack of each entry of the layout, for ``pull``.
        adapters: Those that are averaged exactly.
    """
    up, down = parse_chain(options["up"], "up"), parse_chain(options["down"], "down")
    pull = Pull(**options["pull"], groups=groups)
    chains = make_chain(up), make_chain(down, nearest=True)
    return Exchange(*chains, options["error_feedback"], pull, tuple(adapters))


def record_fields(replica: Replica, options: LocalTraining, exchange: Exchange) -> dict[str, int]:
    """Return what a client's record holds: names and sizes; nothing for a method without anything personal."""
    fields = {}
    shared = replica.layout.numel
    if replica.personal.numel:
        fields["own"] = replica.personal.numel
    if exchange.feedback:
        fields["owed"] = shared
    if exchange.pull.rule != "all":
        fields |= {"model": shared, "sent": len(replica.layout.entries)}
    if options.keep_memory:
        groups = replica.groups
        fields |= {_MEMORY + name: size for name, size in memory_sizes(options, groups).items()}
    return fields


def begin_of(record: Record, exchange: Exchange, layout: Layout, x: Tensor) -> Begin:
    """Return what a client has after a push, by its record, beside the global model ``x``."""
    memory = {name.removeprefix(_MEMORY): value for name, value in record.items() if name.startswith(_MEMORY)}
    if exchange.pull.push == "all" or "sent" not in record:
        return Begin(record.get("own"), None, memory)
    mixed = record["model"].clone()
    for entry, sent in zip(layout.entries, record["sent"].tolist(), strict=True):
        if sent:
            mixed[entry.start : entry.stop] = x[entry.start : entry.stop]
    return Begin(record.get("own"), mixed, memory)


class Participant:
    """Takes the part of one client after the other, in one replica.

    Args:
        replica: Trained in place.
        task: Makes batches and losses.
        features: Of the training set.
        options: Of local training.
        exchange: How updates travel.
        records: The file of the clients' records; None for a run that keeps nothing on disk.
        seed: The experiment's.
        clip: The norm that every update is cut to as it enters the sum, for differential privacy; None for none.
    """

    def __init__(
        self,
        replica: Replica,
        task: Task,
        features: Features,
        options: LocalTraining,
        exchange: Exchange,
        records: Path | None,
        seed: int,
        clip: float | None = None,
    ) -> None:
        self.replica, self.task, self.features = replica, task, features
        self.options, self.exchange, self.seed, self.clip = options, exchange, seed, clip
        fields = record_fields(replica, options, exchange)
        self.store = ClientStore(records, fields) if fields and records is not None else None
        self._whole = bytes_down(exchange, replica.layout), len(replica.layout.entries)

    def record(self, client: int, saved: int) -> Record:
        """Return what a client kept as of the last saved round; nothing if it has not taken part."""
        return (self.store and self.store.read(client, saved)) or {}

    def sync(self) -> None:
        """See all records to the disk, before the round is saved."""
        if self.store is not None:
            self.store.sync()

    def begin(self, record: Record, x: Tensor) -> Begin:
        """Return what a client begins its local steps from, the global model apart."""
        return begin_of(record, self.exchange, self.replica.layout, x)

    def take_part(
        self,
        client: int,
        examples: np.ndarray,
        factor: float,
        round_number: int,
        x: Tensor,
        total: ExactSum,
        masking: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Train one client and add its update; a client that fails is reported, not raised.

        Args:
            client: Its id.
            examples: Its example numbers.
            factor: Its weight in the sum.
            round_number: From 1.
            x: The global model as clients have it, flat.
            total: What its update is added to.
            masking: How it masks its update (:func:`fednlp.training.secure_upload.mask_update`); None in other sums.
        """
        record, key = self.record(client, round_number - 1), Key(self.seed, round_number, client)
        bytes_got, tensors_got = self._down(record)
        try:
            trained = train_client(
                self.replica,
                self.task,
                self.features,
                examples,
                self.options,
                x,
                self.seed,
                round_number,
                client,
                all_words=self.exchange.pull.rule != "all",
                begin=self.begin(record, x),
            )
            if self.exchange.plain and self.clip is None and masking is None:
                self.replica.add_update(total, factor)
                made = _Made()
            else:
                made = self._make(record, x, key, masking)
        except Exception as error:
            if self.store is not None:
                self.store.forget(client, round_number)
            return asdict(failed(client, factor, error, bytes_got, tensors_got))
        self._keep(client, round_number, trained, made)
        reply = _reply(client, factor, trained, made, bytes_got, tensors_got)
        return asdict(reply) | self._add(total, factor, made)

    def _make(self, record: Record, x: Tensor, key: Key, masking: dict[str, Any] | None) -> "_Made":
        """Make what the server gets of the update, and bound what it can change."""
        update = self.replica.update()
        check_finite(update)
        check_finite(self.replica.own())
        if masking is not None:
            from fednlp.training.secure_upload import mask_update

            layout, up = self.replica.layout, self.exchange.up
            whole = layout.flatten(up.encode(layout.views(update), key)) if up.steps else update
            return _Made(masked=mask_update(self._bounded(whole, key), masking, key))
        chosen = self._chosen(record, update, x, key)
        sent = send(self.exchange, self.replica.layout, update, key, chosen.sent, record.get("owed"))
        fill_products(self.replica.layout, x, sent.update, self.exchange.adapters)
        check_finite(sent.update)
        return _Made(chosen, replace(sent, update=self._bounded(sent.update, key)))

    def _bounded(self, update: Tensor, key: Key) -> Tensor:
        """Cut an update to the norm that differential privacy speaks of."""
        return update if self.clip is None else Clip(self.clip).encode({"": update}, key)[""]

    def _add(self, total: ExactSum, factor: float, made: "_Made") -> dict[str, Any]:
        """Add what was made to the sum; return what the reply says beside the rest."""
        if made.masked is not None:
            return made.masked.add_to(total)
        if made.sent is not None:
            layout = self.replica.layout
            table = layout.rows(made.sent.update) if layout.table is not None else None
            total.add(factor, made.sent.update[: layout.dense], None, table)
        return {}

    def _chosen(self, record: Record, update: Tensor, x: Tensor, key: Key) -> "_Chosen":
        """Choose which tensors to send, by how far each moved since the client's last round."""
        if self.exchange.pull.rule == "all":
            return _Chosen()
        model = x + update
        moved = distances(self.replica.layout, model, record.get("model", x))
        return _Chosen(model, moved, choose(self.exchange.pull, self.replica.layout, moved, key))

    def _down(self, record: Record) -> tuple[int, int]:
        """Return the bytes and the tensors that the client gets at the start of a round."""
        if self.exchange.pull.push == "all" or "sent" not in record:
            return self._whole
        got = record["sent"].numpy() > 0
        return bytes_down(self.exchange, self.replica.layout, got), int(got.sum())

    def _keep(self, client: int, round_number: int, trained: Trained, made: "_Made") -> None:
        """Write a client's record; it counts once the round is saved."""
        if self.store is None:
            return
        chosen, sent = made.chosen, made.sent
        kept = {_MEMORY + name: value.reshape(-1) for name, value in trained.memory.items()}
        if self.replica.personal.numel:
            kept["own"] = self.replica.own()
        if sent is not None and sent.owed is not None:
            kept["owed"] = sent.owed
        if chosen.model is not None and chosen.sent is not None:
            kept |= {"model": chosen.model, "sent": torch.from_numpy(chosen.sent).float()}
        self.store.write(client, round_number, kept)


@dataclass(frozen=True)
class _Chosen:
    """What a client sends by dynamic pulling: its whole model, how far each tensor moved, which are sent."""

    model: Tensor | None = None
    moved: np.ndarray | None = None
    sent: np.ndarray | None = None


@dataclass(frozen=True)
class _Made:
    """What became of a client's update; nothing where it was added to the sum as it is."""

    chosen: _Chosen = _Chosen()
    sent: Sent | None = None
    masked: "MaskedUpdate | None" = None


def _reply(
    client: int, factor: float, trained: Trained, made: _Made, bytes_down: int, tensors_down: int
) -> Reply:
    """Return what a client says of its training and of what it sends."""
    chosen, sent = made.chosen, made.sent
    return Reply(
        client,
        factor,
        trained.examples,
        trained.steps,
        trained.loss,
        bytes_down=bytes_down,
        tensors_down=tensors_down,
        bytes_up=None if sent is None else sent.bytes,
        sent=None if chosen.sent is None else np.flatnonzero(chosen.sent).tolist(),
        moved=None if chosen.moved is None else chosen.moved.tolist(),
    )
