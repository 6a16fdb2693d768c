"""What a run is made of where the examples are at the sites: the server's components, and a site's."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fednlp.config import Experiment
from fednlp.config.sections import SITES
from fednlp.data import TextData, load_data
from fednlp.data.labels import unknown_labels, with_labels
from fednlp.deployment.session.servable import require_servable
from fednlp.errors import DataError
from fednlp.formulations import TASKS
from fednlp.simulation.components import Log, RunComponents, build_components

_NO_NUMBERS = np.zeros(0, dtype=np.int64)


def server_components(experiment: Experiment, log: Log) -> RunComponents:
    """Return what the server has: the task, the tokenizer, and the features of the global test set, if there is one.

    Args:
        experiment: Resolved; its data are at the sites.
        log: Called with a message before each slow step.

    Raises:
        ConfigError: The experiment needs what only the sites have.
        DataError: The test set cannot be loaded, or has labels that ``data.labels`` lacks.
        ModelError: The model or its tokenizer cannot be loaded.
    """
    require_servable(experiment)
    return build_components(experiment, log, server_data(experiment))


def server_data(experiment: Experiment) -> TextData:
    """Return the server's data: no training examples, the global test set if there is one, and validation texts if any.

    The training table holds the validation texts, of which no example is trained on.

    Raises:
        DataError: A file cannot be loaded, or has labels that ``data.labels`` lacks.
    """
    task, configured = experiment.task.configured, experiment.data
    tests = None if configured.test_path is None else _labelled(experiment, configured.test_path, "test set")
    texts = (
        None
        if configured.validation_path is None
        else _labelled(experiment, configured.validation_path, "validation set")
    )
    base = tests or texts
    if base is None:
        return _no_data((task if task in TASKS else None) or "text-classification", configured.labels or ())
    both = tests is not None and texts is not None
    return replace(
        base,
        name=SITES,
        source=" and ".join(
            Path(path).name for path in (configured.test_path, configured.validation_path) if path
        ),
        train=(texts or base).train,
        test=base.train,
        train_numbers=_NO_NUMBERS,
        test_numbers=_NO_NUMBERS if tests is None else tests.train_numbers,
        held_out=not both,
        fingerprint=_joined(tests, texts) if both else base.fingerprint,
    )


def _joined(*parts: TextData | None) -> str:
    """Return a fingerprint of several data sets."""
    return hashlib.sha256("".join(part.fingerprint for part in parts if part).encode()).hexdigest()


def _labelled(experiment: Experiment, path: str, what: str) -> TextData:
    """Load a file of the server's own, with the experiment's labels.

    Raises:
        DataError: It cannot be loaded, or has labels that ``data.labels`` lacks.
    """
    task, configured, labels = experiment.task.configured, experiment.data, experiment.data.labels or ()
    found = load_data(
        path=path,
        task=task if task in TASKS else None,
        text=configured.text,
        label=configured.label,
        columns=configured.columns,
        delimiter=configured.delimiter,
        quoting=configured.quoting,
        encoding=configured.encoding,
        on_invalid_row=configured.on_invalid_row,
        test_fraction=None,
    )
    unknown = unknown_labels(found, labels)
    if unknown:
        raise DataError(
            f"the {what} {path} has labels that data.labels lacks: {', '.join(list(unknown)[:5])}"
        )
    return with_labels(found, labels) if labels else found


def _no_data(task: str, labels: Sequence[str]) -> TextData:
    """Return data of no examples: one row that no number names, so that features have their columns."""
    import pyarrow as pa

    schema = TASKS[task].schema
    row = dict.fromkeys(schema.needed, "none")
    row |= {
        "label": (labels or ("none",))[0],
        "score": "0",
        "words": '["none"]',
        "tags": '["O"]',
        "answers": "[]",
        "messages": '[{"role": "user", "content": "none"}]',
    }
    table = pa.table({name: pa.array([row[name]], pa.string()) for name in schema.needed})
    columns, none = {name: name for name in schema.needed}, _NO_NUMBERS
    return TextData(
        SITES, "the sites", task, table, table, none, none, True, columns, tuple(labels), 0, "", "0" * 64
    )
