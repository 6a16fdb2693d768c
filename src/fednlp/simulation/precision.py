"""What a machine decides of a run: each ``"auto"`` is replaced once, by the process that begins the run."""

import torch

from fednlp.config import Experiment
from fednlp.errors import ConfigError
from fednlp.training.kernels.onednn import has_onednn, onednn_is_faster
from fednlp.training.precision import bf16_is_faster, low_dtype
from fednlp.training.worker_spec import pick_device


def with_precision(experiment: Experiment) -> Experiment:
    """Return an experiment in which ``"auto"`` is replaced by what is faster on this machine: bfloat16, or oneDNN.

    Workers and sites get the decision, and a resumed run finds it in its run directory.

    Args:
        experiment: Resolved.

    Raises:
        ConfigError: The experiment asks for float16, and this process has no GPU; or it asks for oneDNN, and PyTorch
            was built without.
    """
    client, evaluation, runtime = experiment.client, experiment.evaluation, experiment.runtime
    if runtime.onednn is True and not has_onednn():
        raise ConfigError("runtime.onednn = true: this PyTorch was built without oneDNN; leave onednn out")
    if runtime.onednn == "auto":
        on_cpu = runtime.device == "cpu" or (runtime.device == "auto" and not torch.cuda.is_available())
        runtime = runtime.model_copy(update={"onednn": on_cpu and onednn_is_faster()})
    if client.fp16 or "auto" in (client.bf16, evaluation.bf16_full_eval):
        device = pick_device(runtime.device, runtime.workers_per_gpu, runtime.gpu_mapping)
        low_dtype(device, False, client.fp16)
        if client.bf16 == "auto":
            client = client.model_copy(update={"bf16": bf16_is_faster(device.type)})
        if evaluation.bf16_full_eval == "auto":
            evaluation = evaluation.model_copy(update={"bf16_full_eval": bf16_is_faster(device.type)})
    return experiment.model_copy(update={"client": client, "evaluation": evaluation, "runtime": runtime})
