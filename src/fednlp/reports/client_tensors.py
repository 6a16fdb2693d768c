"""Whether the clients of a run have models, or tensors, of their own."""

from collections.abc import Mapping
from typing import Any

from fednlp.config.tables import lookup
from fednlp.reports.read import Run


def keeps_tensors(config: Mapping[str, Any]) -> bool:
    """Return whether a configuration leaves tensors of the model to each client.

    With ``critical_layer`` it does unless that is the number of the model's layers, which is not known here.

    >>> keeps_tensors({"model": {"train": {"personal": "head"}}}), keeps_tensors({"pull": {"push": "all"}})
    (True, False)
    """
    return has_personal(config) or lookup(config, "pull.push") == "selected"


def has_personal(config: Mapping[str, Any]) -> bool:
    """Return whether parts of the model are personal; see :func:`keeps_tensors`."""
    train = lookup(config, "model.train", "all")
    table = train if isinstance(train, Mapping) else {}
    states = (table.get("rest"), table.get("embeddings"))
    return bool(table.get("personal")) or "critical_layer" in table or "personal" in states


def own_models(run: Run) -> bool:
    """Return whether a run's clients have models of their own.

    A common model is tried on the whole test set in every evaluation, clients' own models at the end alone.
    """
    if run.baseline or not keeps_tensors(run.config):
        return False
    recorded = (run.summary or {}).get("personalised")
    if recorded is not None:
        return bool(recorded)
    tried = [line["round"] for line in run.rounds if lookup(line, "evaluation.global")]
    return tried in ([], [run.setting("num_rounds")])
