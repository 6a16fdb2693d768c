"""A client that trains for itself, without a server between its steps."""

from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fednlp.errors import DIVERGED
from fednlp.federated.store import ClientStore
from fednlp.federated.sums import NonFiniteUpdate, count_nonfinite
from fednlp.training.client import ClientTrainer
from fednlp.training.client_record import ClientInit
from fednlp.training.local import LocalTrainer
from fednlp.training.local_training import LocalTraining
from fednlp.training.replica import Replica
from fednlp.training.worker_spec import model_fields


def train_alone(
    trainer: ClientTrainer,
    client: int,
    examples: np.ndarray,
    options: LocalTraining,
    round_number: int,
    x: Tensor,
    init: ClientInit,
) -> LocalTrainer:
    """Train one client for itself, so that its model can be evaluated as it stands.

    Args:
        trainer: Trains it.
        client: Its id.
        examples: Its example numbers.
        options: Of its training.
        round_number: What its random streams are drawn by.
        x: The global model, flat.
        init: What it has of its own.

    Raises:
        NonFiniteUpdate: Training ended in NaN, infinity or huge numbers.
    """
    local = trainer.local(client, examples, round_number, x, init, options, all_words=True)
    local.steps(x)
    if trainer.replica.count_nonfinite() > count_nonfinite(x):
        raise NonFiniteUpdate(DIVERGED)
    return local


def keep_model(replica: Replica, path: Path, client: int, round_number: int) -> None:
    """Write the model as it stands into a client's record.

    Args:
        replica: Holds the model.
        path: The file of records.
        client: Its id.
        round_number: The round after which it stands so.
    """
    shared = torch.empty(replica.layout.numel)
    replica.store(shared)
    with closing(ClientStore(path, model_fields(replica))) as store:
        store.write(client, round_number, {"shared": shared, "personal": replica.own()})
