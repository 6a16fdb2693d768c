"""Whether a model fits this machine's memory, before it is built: a process without memory is killed without a word."""

from pathlib import Path

import torch

from fednlp.config import Experiment
from fednlp.deployment.session.setup import Setup
from fednlp.deployment.site.machine import machine_memory
from fednlp.deployment.site.policy import SitePolicy
from fednlp.deployment.site.refusals import Refusal
from fednlp.formatting.units import human_bytes
from fednlp.models.loading import without_memory
from fednlp.models.pretrained import new_model
from fednlp.models.selection import apply_selection
from fednlp.models.selection_spec import parse_selection
from fednlp.simulation.configured_algorithm import build_algorithm
from fednlp.simulation.resource_estimation import memory_of_model
from fednlp.tasks import task_at
from fednlp.training.worker_spec import pick_device

_BYTES = 4
"""Of a parameter in float32."""


def device_memory(device: torch.device) -> int | None:
    """Return the bytes of memory of what a site trains with; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return machine_memory()[0]


def predicted_memory(setup: Setup, experiment: Experiment, source: Path) -> int:
    """Return the bytes that training is predicted to need, from the model's configuration alone.

    Where there is no estimate, such as with adapters, it is the size of the model.

    Args:
        source: Folder of the model; its weights are not read.
    """
    settings = experiment.model
    task = task_at(str(source), setup.task, setup.task_fields)
    with without_memory():
        model = new_model(str(source), task.model_class, task.settings(), settings.config)
    apply_selection(model, parse_selection(settings.train))
    trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    held = build_algorithm(experiment).held_vectors * trained
    found = memory_of_model(experiment, task, model, setup.longest, held)
    return found or _BYTES * sum(parameter.numel() for parameter in model.parameters())


def check_memory(policy: SitePolicy, setup: Setup, experiment: Experiment, source: Path) -> list[Refusal]:
    """Return a refusal if training is predicted to need more memory than there is.

    Args:
        policy: The site's, which may allow less than there is (:func:`fednlp.deployment.site.refusals.check`).
        experiment: Its experiment, which the policy allows.
        source: Folder of the model.
    """
    device = pick_device(policy.device.device)
    there, needed = device_memory(device), predicted_memory(setup, experiment, source)
    if there is None or needed <= there:
        return []
    settings = ("model.name_or_path", "model.max_length", "client.per_device_train_batch_size")
    reason = (
        f"the experiment is predicted to need {human_bytes(needed)} of memory ({', '.join(settings)}), and "
        f"{device} has {human_bytes(there)} here: take a machine with more, or a smaller model, length or batch"
    )
    return [Refusal("device.device", settings, reason)]
