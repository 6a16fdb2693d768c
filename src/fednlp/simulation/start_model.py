"""The model that a run starts from, and whether it is still the same when the run goes on."""

from collections.abc import Callable
from typing import Any

from torch import nn

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.errors import RunError
from fednlp.models import pretrained_model
from fednlp.models.fingerprint import changed, fingerprints
from fednlp.simulation.run_dir import RunDir
from fednlp.tasks.base import Task
from fednlp.training.replica import layout_of
from fednlp.training.worker_spec import exact_adapters, personal_names


def start_model(experiment: Experiment, source: str, task: Task) -> nn.Module:
    """Load the model that a run starts from, with a fresh head.

    Args:
        experiment: The configuration.
        source: The folder or hub name of the model.
        task: Says which head.
    """
    model = experiment.model
    return pretrained_model(
        source,
        task.model_class,
        task.settings(),
        model.config,
        experiment.seed,
        model.peft,
        require_head=task.name == "prompt-classification",
    )


def start_fingerprints(experiment: Experiment, model: nn.Module, tokenizer: Any) -> dict[str, str]:
    """Return the fingerprints of what a run reads again from its starting model when it is resumed.

    The shared tensors lie in the checkpoint. What is frozen, and what a client's personal tensors begin with, does not.
    """
    federated = experiment.algorithm.name not in BASELINES
    personal = personal_names(model, experiment.model.train, federated)
    derived = [pair.base for pair in exact_adapters(model, experiment.model.peft, federated)]
    saved = [entry.name for entry in layout_of(model, personal, derived).entries]
    return fingerprints(model, tokenizer, saved)


def check_start(
    run: RunDir,
    experiment: Experiment,
    known: dict[str, Any],
    found: dict[str, str],
    log: Callable[[str], None],
) -> None:
    """Check that a run's starting model and tokenizer are those that it began with.

    Args:
        run: The run directory.
        experiment: Its configuration.
        known: Its ``environment.json``.
        found: From :func:`start_fingerprints`, now.
        log: Told if the run directory is of an older version, which did not write down what it began with.

    Raises:
        RunError: They are not.
    """
    if "start" not in known:
        log(
            f"warning: {run.folder} does not say which model it began with: it goes on with the one there is now"
        )
        return
    parts = changed(known["start"], found)
    if parts:
        raise RunError(
            f"{experiment.model.name_or_path} has changed since {run.folder} was begun (its {', its '.join(parts)}): "
            "put the earlier files back, or start again with another --out"
        )
