"""The replica of a run's model, as a worker trains and evaluates it."""

from collections.abc import Collection

from torch import nn

from fednlp.hubs.cache import cache_dir
from fednlp.models.checkpointing import checkpoint_layers
from fednlp.tasks.base import Task
from fednlp.training.activation_cache import ActivationCache, activation_cache_folder
from fednlp.training.kernels.onednn import use_onednn
from fednlp.training.local_training import LocalTraining
from fednlp.training.replica import Replica
from fednlp.training.worker_spec import WorkerSpec, personal_names, pick_device


def open_replica(
    spec: WorkerSpec, model: nn.Module, task: Task, options: LocalTraining, derived: Collection[str]
) -> Replica:
    """Make the replica of a model: on the worker's device, with what the options of training ask of the model.

    Args:
        model: The architecture; changed in place.
        derived: Names of frozen parameters that the server sets.

    Raises:
        ModelError: The architecture does not allow gradient checkpointing, or batches without padding.
        RunError: There is no such device.
    """
    by_rows = options.leaves_zero_gradients_alone and task.uses_only_input_ids
    personal = personal_names(model, spec.train, spec.federated)
    if options.gradient_checkpointing:
        checkpoint_layers(model)
    if spec.onednn:
        use_onednn(model)
    padding_free = None
    if options.padding_free:
        from fednlp.training.kernels.padding_free import find_padding_free

        padding_free = find_padding_free(model)
    device = pick_device(spec.device, spec.workers_per_gpu, spec.gpu_mapping)
    replica = Replica(model, device, by_rows, personal, derived, options.weight_decay > 0)
    if padding_free is not None:
        padding_free.install(len(replica.frozen_prefix.blocks) if replica.frozen_prefix else 0)
    usual = not (options.bf16 is True or options.fp16 or spec.evaluation_bf16)
    steady = usual and not getattr(task, "draws_inputs", False)
    if replica.frozen_prefix is not None and steady:
        prefix = replica.frozen_prefix
        folder = activation_cache_folder(prefix, cache_dir()) if spec.cache_activations else None
        replica.activation_cache = ActivationCache(prefix, folder, 0)
    return replica
