"""The precision of a run: what ``"auto"`` means is decided once, by the process that begins it."""

from fednlp.config import Experiment
from fednlp.training.precision import bf16_is_faster, low_dtype
from fednlp.training.worker_spec import pick_device


def with_precision(experiment: Experiment) -> Experiment:
    """Return an experiment in which ``"auto"`` is replaced by whether bfloat16 is faster on this machine.

    Workers and sites get the decision, and a resumed run finds it in its run directory.

    Args:
        experiment: Resolved.

    Raises:
        ConfigError: The experiment asks for float16, and this process has no GPU.
    """
    client, evaluation, runtime = experiment.client, experiment.evaluation, experiment.runtime
    if not client.fp16 and "auto" not in (client.bf16, evaluation.bf16_full_eval):
        return experiment
    device = pick_device(runtime.device, runtime.workers_per_gpu, runtime.gpu_mapping)
    low_dtype(device, False, client.fp16)
    if client.bf16 == "auto":
        client = client.model_copy(update={"bf16": bf16_is_faster(device.type)})
    if evaluation.bf16_full_eval == "auto":
        evaluation = evaluation.model_copy(update={"bf16_full_eval": bf16_is_faster(device.type)})
    return experiment.model_copy(update={"client": client, "evaluation": evaluation})
