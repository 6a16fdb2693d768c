"""What a run is made of where the examples are at the sites: the server's components, and a site's."""

from dataclasses import replace

import numpy as np

from fednlp.config import Experiment
from fednlp.config.sections import SITES
from fednlp.data import TextData, load_data
from fednlp.data.labels import unknown_labels, with_labels
from fednlp.deployment.servable import require_servable
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
    """Return the server's data: no training examples, and the global test set if there is one.

    Raises:
        DataError: The test set cannot be loaded, or has labels that ``data.labels`` lacks.
    """
    task, labels = experiment.task.configured, tuple(experiment.data.labels or ())
    kind = task if task in TASKS else None
    if experiment.data.test_path is None:
        return _no_data(kind or "text-classification", labels)
    configured = experiment.data
    tests = load_data(
        path=configured.test_path,
        task=kind,
        text=configured.text,
        label=configured.label,
        columns=configured.columns,
        delimiter=configured.delimiter,
        on_invalid_row=configured.on_invalid_row,
        test_fraction=None,
    )
    unknown = unknown_labels(tests, labels)
    if unknown:
        raise DataError(
            f"the test set {configured.test_path} has labels that data.labels lacks: {', '.join(list(unknown)[:5])}"
        )
    tests = with_labels(tests, labels) if labels else tests
    return replace(
        tests,
        name=SITES,
        train=tests.train,
        test=tests.train,
        train_numbers=_NO_NUMBERS,
        test_numbers=tests.train_numbers,
        held_out=True,
    )


def _no_data(task: str, labels: tuple[str, ...]) -> TextData:
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
    }
    table = pa.table({name: pa.array([row[name]], pa.string()) for name in schema.needed})
    columns, none = {name: name for name in schema.needed}, _NO_NUMBERS
    return TextData(
        SITES, "the sites", task, table, table, none, none, True, columns, labels, 0, "", "0" * 64
    )
