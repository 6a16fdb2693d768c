"""Load the final model of a run, or the model of one of its clients."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from fednlp.config import Experiment
from fednlp.config.sections import Runtime
from fednlp.data.features import Features
from fednlp.errors import ConfigError, RunError
from fednlp.inference.client_models import load_client
from fednlp.models.peft_methods import virtual_tokens
from fednlp.models.pretrained import load_tokenizer, longest_text, pretrained_model
from fednlp.models.prompt_tuning import with_saved_prompt
from fednlp.simulation.components import trained_source
from fednlp.simulation.run_dir import RunDir
from fednlp.simulation.start_model import check_start, start_fingerprints, start_model
from fednlp.tasks import require_trusted, task_at
from fednlp.tasks.base import Predictions, Row, Task
from fednlp.tasks.label_scores import defined_together
from fednlp.training.batches import evaluation_batches
from fednlp.training.kernels.onednn import use_onednn
from fednlp.training.reference import has_reference, reference_columns
from fednlp.training.worker_spec import pick_device

_AT_SITE = "at a site"
_NO_MODEL = {
    "local": "clients that train alone share none; the model of one of them is that of: fednlp run "
    "{folder}/resolved.toml --set algorithm.name=centralised --set 'algorithm.clients=[\"NAME\"]'",
    "majority": "nothing was trained",
    _AT_SITE: "the server keeps the final one (rounds.send_model = false), and this site has its own: say --own",
}
"""Why the runs of some baselines, and a site whose server keeps its model, have no model."""

OnProgress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Trained:
    """The final model of a run, ready to predict.

    Attributes:
        task_spec: Name of the task, or ``"module:Class"``.
        task: The task as it was trained.
        model: The model, in evaluation mode, on ``device``.
        device: Where the model computes.
        starting: Loads the model that the run began with.
    """

    experiment: Experiment
    task_spec: str
    task: Task
    model: nn.Module
    tokenizer: Any
    device: torch.device
    starting: Callable[[], nn.Module]

    def encode(self, rows: Iterable[Row]) -> list[dict[str, Any]]:
        """Return the features of rows, truncated as in training."""
        return self.task.encode(rows, self.tokenizer, self._readable)

    @property
    def _readable(self) -> int:
        """Tokens that the model reads at once, as in training."""
        section = self.experiment.model
        readable = longest_text(self.tokenizer.name_or_path, self.tokenizer) - virtual_tokens(section.peft)
        return min(section.max_length, readable)

    def with_reference(self, features: Features) -> Features:
        """Return features with what the run's starting model says of them, where the task compares with it.

        Raises:
            RunError: That model has changed since.
        """
        if not has_reference(self.task):
            return features
        model = self.starting().to(self.device)
        numbers = np.arange(len(features))
        return features.with_columns(reference_columns(self.task, model, features, numbers, self.device))

    def replies(self, rows: Sequence[Row]) -> list[str]:
        """Return the answer to the last message of each conversation."""
        found: list[str] = self.task.replies(  # type: ignore[attr-defined]
            self.model, rows, self.tokenizer, self._readable, self.device
        )
        return found

    def predict(
        self, features: Features, on_progress: OnProgress = lambda done, of, what: None
    ) -> list[Predictions]:
        """Predict every example, the longest first.

        Args:
            features: The examples.
            on_progress: Called with batches done, of how many, and ``"batches"``.
        """
        return list(self._batches(features, self.task.predict, on_progress))

    @property
    def knows_probabilities(self) -> bool:
        """True if the task gives the probability of each label."""
        return defined_together(self.task, "predict_with_probabilities", "predict")

    def require_probabilities(self) -> None:
        """Check that the task gives the probability of each label.

        Raises:
            RunError: The task gives no probabilities.
        """
        if not self.knows_probabilities:
            raise RunError(
                f"{self.task.name} gives no probabilities of labels: leave out --probabilities and --top"
            )

    def predict_with_probabilities(
        self, features: Features, on_progress: OnProgress = lambda done, of, what: None
    ) -> list[tuple[Predictions, np.ndarray]]:
        """Predict every example, the longest first, with the probability of each label.

        Args:
            features: The examples.
            on_progress: Called with batches done, of how many, and ``"batches"``.

        Returns:
            For each batch the predictions, and the probabilities, float (examples, labels), 0 to 1.

        Raises:
            RunError: The task gives no probabilities.
        """
        self.require_probabilities()
        predict = self.task.predict_with_probabilities  # type: ignore[attr-defined]
        return list(self._batches(features, predict, on_progress))

    def _batches(
        self, features: Features, predict: Callable[..., Any], on_progress: OnProgress
    ) -> Iterator[Any]:
        numbers = np.arange(len(features))
        batches = evaluation_batches(
            numbers, features.lengths(numbers), self.experiment.evaluation.batch_size
        )
        for done, batch in enumerate(batches, 1):
            with torch.inference_mode():
                found = predict(self.model, features, batch, self.device)
            on_progress(done, len(batches), "batches")
            yield found


def open_trained(
    folder: str | PathLike[str],
    client: str | int | None = None,
    task: str | None = None,
    device: str | None = None,
    own: bool = False,
) -> Trained:
    """Load the model of a run, finished or stopped, or of a federation that this machine took part in.

    Args:
        client: Name or number of the client whose model to load, where clients have models of their own.
        task: The run's task. Needed where it is a user's own class, ``"module:Class"``, since code that only a run
            directory names is never imported.
        device: Where the model computes, as for :func:`device_for`.
        own: Whether it is a site's own model, in the folder of a federation that it took part in.

    Raises:
        RunError: The folder is no run directory, its run has written no model yet, there is no such client or no
            such device, or ``task`` is not the run's, or is missing where it is a user's own class.
    """
    run = RunDir(Path(folder))
    experiment = run.experiment()
    kept = run.own_model if own else run.model
    if own:
        _require_own(run, client)
    if not (kept / "config.json").is_file():
        why = _NO_MODEL.get(
            _AT_SITE if run.is_at_site else experiment.algorithm.name,
            "its run is not at its end: go on with: fednlp run --resume {folder}",
        ).format(folder=folder)
        raise RunError(f"{folder} holds no model: {why}")
    known = run.read_json("task.json")
    require_trusted(folder, known["task"], task)
    source = str(kept)
    made = task_at(source, known["task"], known["fields"])
    computes = device_for(experiment.runtime, device)
    adapted = client is not None and experiment.model.peft is not None
    if adapted and not run.is_at_site:
        model = _starting_model(run, experiment, made).to(computes).eval()
    else:
        model = _saved_model(kept, experiment, made).to(computes).eval()
    if not own:
        load_client(run, experiment, model, client)
    if experiment.runtime.onednn is True:
        use_onednn(model)
    starting = partial(_starting_model, run, experiment, made)
    return Trained(experiment, known["task"], made, model, load_tokenizer(source), computes, starting)


def device_for(runtime: Runtime, chosen: str | None = None) -> torch.device:
    """Return the device on which the model of a run computes.

    It is that of the run's first worker, if none is chosen. The run's mapping of workers to GPUs counts if it fits this
    machine, which need not be one of those that trained the model.

    Args:
        chosen: ``"auto"``, ``"cpu"``, ``"cuda"``, ``"cuda:1"``, ...; None for the device of the run.

    Raises:
        RunError: There is no such device.
    """
    name = runtime.device if chosen is None else chosen
    try:
        if chosen is None:
            with suppress(ConfigError):
                return pick_device(name, runtime.workers_per_gpu, runtime.gpu_mapping)
        return pick_device(name)
    except RunError:
        raise RunError(f'there is no device "{name}" here: say --device cpu, or --device auto') from None


def _require_own(run: RunDir, client: str | int | None) -> None:
    """Check that a folder has a site's own model.

    Raises:
        RunError: It has none; the message says what to do.
    """
    if client is not None:
        raise RunError(
            "--own is this site's own model, and --client that of a client of a run: leave one out"
        )
    if not run.is_at_site:
        raise RunError(
            f"{run.folder} is no federation that this machine took part in: say --client, not --own"
        )
    if not (run.own_model / "config.json").is_file():
        raise RunError(
            f"this site has no model of its own in {run.folder.name}: all sites have the final model; leave out --own"
        )


def _saved_model(folder: Path, experiment: Experiment, task: Task) -> nn.Module:
    """Load a model from its folder; adapters are merged into it."""
    model = pretrained_model(str(folder), task.model_class, task.settings(), {}, experiment.seed)
    return with_saved_prompt(model, folder)


def _starting_model(run: RunDir, experiment: Experiment, task: Task) -> nn.Module:
    """Load the starting model of a run, with separate adapters if it has any.

    Raises:
        RunError: It has changed since.
    """
    if run.is_at_site:
        return start_model(experiment, str(run.start), task)
    source = trained_source(experiment)
    model = start_model(experiment, source, task)
    found = start_fingerprints(experiment, model, load_tokenizer(source), task)
    check_start(run, experiment, run.read_json("environment.json"), found, lambda text: None)
    return model
