"""Keys that had another name in an earlier version: the old name is refused with the new one."""

from collections.abc import Mapping
from typing import Any

RENAMED: Mapping[str, str] = {
    "client.final_steps": "client.finetune_steps",
    "data.invalid": "data.on_invalid_row",
    "evaluation.matrix": "evaluation.cross_client_evaluation",
    "fewshot.bad_clients": "fewshot.noisy_client_fraction",
    "fewshot.check": "fewshot.detect_label_noise",
    "fewshot.keep": "fewshot.filter_ratio",
    "fewshot.paces": "fewshot.pace_grid",
    "fewshot.per_label": "fewshot.class_balanced",
    "fewshot.switches": "fewshot.max_searches",
    "runtime.remember": "runtime.cache_activations",
    "secure.active": "secure.malicious_server",
    "secure.corruption": "secure.max_colluding",
}
"""The old name of a key, with its section, and the new one."""


def renamed_keys(document: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each key of an experiment's sections that stands there by its old name.

    >>> renamed_keys({"runtime": {"remember": False, "workers": 2}})
    ['runtime.remember is now runtime.cache_activations']
    """
    found = []
    for old, new in RENAMED.items():
        section, key = old.split(".")
        table = document.get(section)
        if isinstance(table, Mapping) and key in table:
            found.append(f"{old} is now {new}")
    return found
