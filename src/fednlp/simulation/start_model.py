"""Load the model that a run starts from, and check on resume that it has not changed."""

import hashlib
import json
from collections.abc import Callable, Collection
from typing import Any

from torch import Tensor, nn

from fednlp.config import Experiment
from fednlp.config.sections import BASELINES
from fednlp.errors import RunError
from fednlp.federated.params import Layout
from fednlp.models.pretrained import pretrained_model, target_tokenizer
from fednlp.simulation.facts import computed_on
from fednlp.simulation.run_dir import RunDir
from fednlp.tasks.base import Task
from fednlp.training.model_layout import layout_of
from fednlp.training.reference import has_reference
from fednlp.training.worker_spec import adapters_of, personal_names, pick_device

_NOT_OURS = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}
"""Keys of a configuration that describe its file and not the model."""


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


def start_fingerprints(
    experiment: Experiment, model: nn.Module, tokenizer: Any, task: Task
) -> dict[str, str]:
    """Return a fingerprint of each part that a resumed run reads again, by a readable name of the part.

    Of the model's tensors these are the frozen ones and the first values of personal ones. The checkpoint holds the
    shared tensors; a task that compares with the model of round 0 needs their first values too.

    Args:
        experiment: Resolved.
    """
    saved = [] if has_reference(task) else [entry.name for entry in trained_layout(experiment, model).entries]
    targets = target_tokenizer(tokenizer.name_or_path)
    return {
        "frozen and personal weights": _of_tensors(model, saved),
        "configuration": _of_json(_own(_configuration(model))),
        "tokenizer": _of_json([_vocabulary(one) for one in (tokenizer, targets) if one is not None]),
    }


def trained_layout(experiment: Experiment, model: nn.Module) -> Layout:
    """Return the layout of the shared tensors of a run's model.

    Args:
        experiment: Resolved.
    """
    federated = experiment.algorithm.name not in BASELINES
    personal = personal_names(model, experiment.model.train, federated, experiment.model.peft)
    derived = adapters_of(model, experiment.model.peft, federated).derived
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
        log: Called with a warning if the run directory is of an older version without fingerprints, or was begun on a
            machine or with libraries that round otherwise.

    Raises:
        RunError: The model or the tokenizer has changed.
    """
    runtime = experiment.runtime
    now = computed_on(pick_device(runtime.device, runtime.workers_per_gpu, runtime.gpu_mapping))
    others = [name for name, value in now.items() if name in known and known[name] != value]
    if others:
        before = ", ".join(f"{name} {_said(known[name])}, now {_said(now[name])}" for name in others)
        log(
            f"warning: {run.folder} was begun elsewhere ({before}): it goes on, and its results may differ by rounding "
            "from those of a run in one place"
        )
    if "start" not in known:
        log(
            f"warning: {run.folder} does not say which model it began with: it goes on with the one there is now"
        )
        return
    parts = [part for part, digest in found.items() if known["start"].get(part, digest) != digest]
    if parts:
        raise RunError(
            f"{experiment.model.name_or_path} has changed since {run.folder} was begun (its {', its '.join(parts)}): "
            "put the earlier files back, or start again with another --out"
        )


def _said(value: Any) -> str:
    return " ".join(value) if isinstance(value, list) else str(value)


def _of_tensors(model: nn.Module, saved: Collection[str]) -> str:
    """Return the digest of a model's parameters and saved buffers but some; about as fast as a disk reads."""
    digest, persistent = hashlib.blake2b(digest_size=16), model.state_dict().keys()
    tensors: dict[str, Tensor] = dict(model.named_parameters())
    tensors |= {name: buffer for name, buffer in model.named_buffers() if name in persistent}
    for name in sorted(tensors.keys() - set(saved)):
        values = tensors[name].detach().cpu().contiguous().numpy()
        digest.update(json.dumps([name, list(values.shape), str(values.dtype)]).encode())
        digest.update(values.reshape(-1).view("u1").data)
    return digest.hexdigest()


def _of_json(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _configuration(model: Any) -> dict[str, Any]:
    """Return the settings that are not the library's defaults; none for a module without a configuration."""
    config: Any = getattr(model, "config", None)
    return dict(config.to_diff_dict()) if hasattr(config, "to_diff_dict") else {}


def _own(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _own(one) for key, one in value.items() if key not in _NOT_OURS}
    return [_own(one) for one in value] if isinstance(value, list | tuple) else value


def _vocabulary(tokenizer: Any) -> dict[str, Any]:
    """Return all that decides how a text is cut into tokens, but for how it was last truncated and padded."""
    made = json.loads(tokenizer.backend_tokenizer.to_str())
    for passing in ("truncation", "padding"):
        made.pop(passing, None)
    return {"tokenizer": made, "longest": tokenizer.model_max_length, "special": tokenizer.special_tokens_map}
