"""Load the model that a run starts from, and check on resume that it has not changed."""

from collections.abc import Callable
from typing import Any

from torch import nn

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.errors import RunError
from fednlp.federated.params import Layout
from fednlp.models.fingerprint import changed, fingerprints
from fednlp.models.pretrained import pretrained_model
from fednlp.simulation.run_dir import RunDir
from fednlp.tasks.base import Task
from fednlp.training.model_layout import layout_of
from fednlp.training.worker_spec import exact_adapters, personal_names


def start_model(
    experiment: Experiment, source: str, task: Task, log: Callable[[str], None] = lambda text: None
) -> nn.Module:
    """Load the model that a run starts from, with the head of its task.

    Args:
        source: The folder or hub name of the model.
        task: Selects the model class, and so the head.
        log: Told of outputs of the checkpoint's head that are not kept.

    Raises:
        ModelError: The model cannot be loaded.
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
        log=log,
    )


def start_fingerprints(experiment: Experiment, model: nn.Module, tokenizer: Any) -> dict[str, str]:
    """Return the fingerprints of the tensors that a resumed run reads from its starting model.

    These are the frozen tensors and the first values of personal ones. The checkpoint holds the shared tensors.

    Args:
        experiment: Resolved.
    """
    saved = [entry.name for entry in trained_layout(experiment, model).entries]
    return fingerprints(model, tokenizer, saved)


def trained_layout(experiment: Experiment, model: nn.Module) -> Layout:
    """Return the layout of the shared tensors of a run's model.

    Args:
        experiment: Resolved.
    """
    federated = experiment.algorithm.name not in BASELINES
    personal = personal_names(model, experiment.model.train, federated)
    derived = [pair.base for pair in exact_adapters(model, experiment.model.peft, federated)]
    return layout_of(model, personal, derived)


def check_start(
    run: RunDir,
    experiment: Experiment,
    known: dict[str, Any],
    found: dict[str, str],
    log: Callable[[str], None],
) -> None:
    """Check that a run's starting model and tokenizer are those that it began with.

    Args:
        known: The run's ``environment.json``.
        found: Fingerprints of the present files, from :func:`start_fingerprints`.
        log: Called with a warning if the run directory is of an older version without fingerprints.

    Raises:
        RunError: The model or the tokenizer has changed.
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
