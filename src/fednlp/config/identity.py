"""What decides the result of a run, and the settings in which two experiments differ."""

from typing import Any

from fednlp.config.schema import Experiment
from fednlp.config.tables import flatten


def canonical(experiment: Experiment) -> dict[str, Any]:
    """Return what decides a run's result: not its name, its engine and workers, or what is kept."""
    document = experiment.model_dump(exclude_none=True)
    document |= {name: section.deciding() for name, section in experiment.sections()}
    for key in ("name", "report", "rounds", "variant", "variants"):
        document.pop(key, None)
    if experiment.rounds.over_selection != 1:
        document["rounds"] = {"over_selection": experiment.rounds.over_selection}
    for key in ("engine", "address", "workers", "workers_per_gpu", "gpu_mapping"):
        document["runtime"].pop(key, None)
    document["evaluation"].pop("keep_client_models")
    return document


def differences(one: Experiment, other: Experiment) -> list[str]:
    """List the settings in which two experiments differ, as ``key: 1 -> 2``.

    What is left to the machine in one of them, and decided in the other, is no difference.
    """
    a, b = (dict(flatten(canonical(e))) for e in (one, other))
    return [
        f"{key}: {a.get(key)} -> {b.get(key)}"
        for key in sorted(a | b)
        if a.get(key) != b.get(key) and not _decided(key, a.get(key), b.get(key))
    ]


def _decided(key: str, *values: Any) -> bool:
    """Return whether one value leaves the setting to the machine."""
    if key == "runtime.onednn":
        return None in values
    return key in ("client.bf16", "evaluation.bf16_full_eval") and "auto" in values
