"""Estimates before anything is trained: the memory of a client, and the memory and time of training plans."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.config import Experiment
from fednlp.costs import (
    Fleet,
    ModelSizes,
    TrainingDepth,
    client_memory,
    client_seconds,
    layer_sizes,
    local_examples,
    make_fleet,
)
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.communication import bytes_down, bytes_up
from fednlp.federated.params import Layout
from fednlp.partition import Partition

if TYPE_CHECKING:
    from torch import nn

    from fednlp.tasks.base import Task
    from fednlp.training.worker import ClientWorker


def fleet_of(experiment: Experiment, model: "nn.Module", num_clients: int) -> Fleet | None:
    """Return the clients' devices and their cost models; None where ``[costs]`` configures none.

    Args:
        experiment: Resolved.
        model: The model, of which the frozen parameters are marked.
        num_clients: Number of clients of the partition.
    """
    from fednlp.models.trainable_depth import trainable_depth

    costs, depth = experiment.costs, trainable_depth(model)
    return make_fleet(
        costs.bandwidth_up,
        costs.bandwidth_down,
        costs.device,
        model=experiment.model.name_or_path,
        parameters=sum(p.numel() for p in model.parameters()),
        num_clients=num_clients,
        seed=experiment.seed,
        depth=None if depth is None else TrainingDepth(*depth, cached=experiment.runtime.cache_activations),
    )


def examples_of_round(
    experiment: Experiment, algorithm: Algorithm, sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the number of examples of each client's local steps in a round, int64 (clients,).

    Args:
        experiment: Resolved.
        algorithm: The method, which may have some clients do more or less than others.
        sizes: int64 (clients,), training examples of each client.
    """
    options = experiment.client
    examples = local_examples(
        sizes,
        epochs=options.num_train_epochs,
        batch_size=options.examples_per_step,
        max_steps=options.max_steps,
    )
    return algorithm.local_work(examples, sizes)


def seconds_of_round(
    fleet: Fleet, algorithm: Algorithm, layout: Layout, examples: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the simulated seconds of a round for each client: messages and local steps, float64 (clients,).

    Args:
        fleet: The devices of all clients.
        algorithm: The method, which says what is sent.
        examples: int64 (clients,), examples of each client's local steps.
    """
    ranks, vectors = algorithm.uplink.adapters.ranks or (0,), len(algorithm.sends) - 1
    turns = range(len(ranks))  # a rank has the clients that it is dealt to in turn
    up = [bytes_up(algorithm.uplink, layout, vectors=vectors, client=turn) for turn in turns]
    down = [length_down(algorithm, layout, client=turn) for turn in turns]
    clients = len(fleet.kinds)
    return client_seconds(fleet, examples, np.resize(down, clients), np.resize(up, clients))


def length_down(algorithm: Algorithm, layout: Layout, rank: int = 0, client: int = -1) -> int:
    """Return the bytes that a client receives at the start of a round.

    Args:
        rank: Of the changes that are sent as factors.
        client: By its number; -1 for one that receives most.
    """
    return bytes_down(
        algorithm.downlink,
        layout,
        vectors=len(algorithm.receives),
        adapters=algorithm.uplink.adapters,
        client=client,
        rank=rank,
    )


def model_sizes(task: "Task", model: "nn.Module", length: int) -> ModelSizes:
    """Return the sizes that the memory of a client depends on, of a task and its model.

    Args:
        task: The task, which selects the head: for labels, or over the vocabulary at one position of a row, at the
            masked ones, or at those of the target.
        model: The model, of which only the sizes are read.
        length: Maximum number of tokens of a row.

    Raises:
        ConfigError: The model's configuration does not state the sizes of its layers.
    """
    from fednlp.tasks.blocks import MAX_LOGITS, MAX_ROWS
    from fednlp.tasks.language_modeling import LanguageModeling
    from fednlp.tasks.prompt_classification import PromptClassification

    config: Any = getattr(model, "config", None)
    shape, parameters = layer_sizes(config), sum(parameter.numel() for parameter in model.parameters())
    if task.model_class not in ("AutoModelForMaskedLM", "AutoModelForCausalLM"):
        return ModelSizes(parameters, shape, length)
    words: int = config.vocab_size
    places = 1
    if task.model_class == "AutoModelForCausalLM" and not isinstance(task, PromptClassification):
        places = getattr(task, "max_target_length", length)
    elif (hidden := getattr(task, "mlm_probability", None)) is not None:
        places = max(1, round(hidden * length))
    rows = max(1, min(MAX_ROWS, MAX_LOGITS // (length * words)))
    return ModelSizes(parameters, shape, length, places * words, rows, isinstance(task, LanguageModeling))


def memory_of_depth(
    experiment: Experiment, sizes: ModelSizes, depth: TrainingDepth, trained: int, held: int, tied: int = 0
) -> int:
    """Return the peak memory of a client that trains to some depth, in bytes.

    Args:
        experiment: Resolved; its batch sizes, optimiser and labelling are used.
        sizes: Sizes of model and texts.
        trained: Number of trained parameters.
        held: Number of values that the method holds beside the model that it trains.
        tied: Number of these in a word embedding whose matrix is the head's too.

    Raises:
        ConfigError: The optimiser is unknown.
    """
    client = experiment.client
    labels, tokens = experiment.pseudo_labels, client.max_tokens_per_batch
    return client_memory(
        sizes,
        depth,
        trained,
        batch=client.examples_per_step if tokens else client.per_device_train_batch_size,
        labelled=experiment.evaluation.batch_size if labels else 0,
        optimizer="momentum" if client.momentum else client.optimizer,
        tied=tied,
        held=held,
        max_tokens=tokens,
        checkpointing=client.gradient_checkpointing,
    )


def memory_of_run(experiment: Experiment, worker: "ClientWorker") -> int | None:
    """Return the peak memory of a client of a run, in bytes; None where no estimate applies.

    There is no estimate where :func:`memory_of_model` has none, nor where an example is longer than a row, since the
    number of rows of a batch is then unknown.

    Args:
        experiment: Resolved.
        worker: The worker, with the model, of which the frozen parameters are marked, and the features.
    """
    length = worker.spec.longest
    if not experiment.data.at_sites and _longest_example(worker) > length:
        return None
    held = worker.algorithm.held_vectors * worker.layout.numel
    return memory_of_model(experiment, worker.task, worker.replica.model, length, held)


def memory_of_model(
    experiment: Experiment, task: "Task", model: "nn.Module", length: int, held: int
) -> int | None:
    """Return the peak memory of a client that trains a model, in bytes; None where no estimate applies.

    There is no estimate for models with adapters, with two stacks of layers, without attention, or that run a layer
    several times.

    Args:
        experiment: Resolved.
        model: The model, of which the frozen parameters are marked.
        length: Maximum number of tokens of a row; 0 where it is not known.
        held: Number of values that the method holds beside the model that it trains.
    """
    from fednlp.models.trainable_depth import backward_depth

    depth = backward_depth(model)
    if experiment.model.peft is not None or depth is None or not length:
        return None
    try:
        sizes = model_sizes(task, model, length)
    except ConfigError:
        return None
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    return memory_of_depth(experiment, sizes, TrainingDepth(*depth), trained, held, _tied(model))


def _longest_example(worker: "ClientWorker") -> int:
    """Return the most tokens of a training example."""
    partition = worker.partition
    numbers = partition.train_indices if isinstance(partition, Partition) else partition.train_numbers
    return int(worker.train_features.lengths(numbers).max(initial=0))


def _tied(model: Any) -> int:
    """Return the number of parameters of a trained word embedding whose matrix is the head's too; 0 without one."""
    words: Any = getattr(model.get_input_embeddings(), "weight", None)
    head: Any = getattr(model.get_output_embeddings(), "weight", None)
    tied = words is not None and words is head and words.requires_grad
    return int(words.numel()) if tied else 0
