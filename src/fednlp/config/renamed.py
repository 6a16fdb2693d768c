"""Keys that had another name in an earlier version: understood for one release with a warning, then an error."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fednlp.errors import NEXT_RELEASE, RunError

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


def with_new_names(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Return an experiment's sections, and those of its variants, with old keys under their new names; each warns.

    A key that stands there by both names keeps the old one, which is then refused as unknown.
    """
    named = dict(sections)
    for old, new in RENAMED.items():
        (section, key), name = old.split("."), new.split(".")[1]
        table = named.get(section)
        if isinstance(table, Mapping) and key in table and name not in table:
            named[section] = {name if one == key else one: value for one, value in table.items()}
            warnings.warn(f"{old} is now {new}: rename it; {NEXT_RELEASE}", FutureWarning, stacklevel=3)
    variants = named.get("variants")
    if isinstance(variants, Mapping):
        named["variants"] = {
            name: with_new_names(table) if isinstance(table, Mapping) else table
            for name, table in variants.items()
        }
    return named


def require_new_names(path: Path, sections: Mapping[str, Any]) -> None:
    """Refuse the settings of a run directory that have old names: its other files go by old names as well.

    They would be read as if they held less.

    Raises:
        RunError: A key stands there by an old name.
    """
    tables = {name: table for name, table in sections.items() if isinstance(table, Mapping)}
    found = [
        f"{old} is now {new}"
        for old, new in RENAMED.items()
        for one, key in [old.split(".")]
        if key in tables.get(one, ())
    ]
    if found:
        raise RunError(
            f"{path} was written by an earlier version of fednlp ({'; '.join(found)}): run the experiment again, or "
            "read it with that version"
        )
