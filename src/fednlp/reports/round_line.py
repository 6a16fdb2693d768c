"""One round in one line, and what went wrong in it."""

from collections.abc import Iterator, Mapping
from typing import Any

from fednlp.federated.adapters import GAP
from fednlp.federated.cohort import failures
from fednlp.formatting.units import human_bytes, human_seconds, metric_title, plural

_WHOLE = ("global", "federated")
"""The parts of an evaluation that are of one model, the first of them for a round's line."""


def round_score(line: Mapping[str, Any], metric: str) -> float | None:
    """Return the score of the global model after a round; None where it was not evaluated.

    >>> round_score({"evaluation": {"federated": {"accuracy": 0.5}}}, "accuracy")
    0.5
    """
    scores = line.get("evaluation", {})
    found = (scores.get(part, {}).get(metric) for part in _WHOLE)
    return next((score for score in found if score is not None), None)


def round_text(
    line: Mapping[str, Any], rounds: int, metric: str, left: float | None, at_sites: bool = False
) -> str:
    """Return a round as a line for people.

    Args:
        rounds: Number of rounds of the run.
        left: Estimate of the remaining seconds; None if unknown.
        at_sites: Whether the clients are sites, which may keep their losses and scores.

    >>> line = {"round": 2, "train_loss": 0.5, "bytes_up": 0, "seconds": 3.0}
    >>> round_text(line, 10, "accuracy", 24.0)
    'round  2/10  loss 0.500  3 s  24 s left'
    """
    parts = [f"round {line['round']:>{len(str(rounds))}}/{rounds}"]
    if line["train_loss"] is not None:
        parts.append(f"loss {line['train_loss']:.3f}")
    elif at_sites:
        parts.append("loss not told")
    score = round_score(line, metric)
    if score is not None:
        parts.append(f"{metric_title(metric)} {score:.3f}")
    own = line.get("evaluation", {}).get("personal", {})
    if at_sites and own and score is None:
        mean = own.get(metric)
        told = "not told" if mean is None else f"{mean:.3f} of {plural(own['clients'], 'site')}"
        parts.append(f"own {metric_title(metric)} {told}")
    if own.get(metric) is not None:
        parts.append(f"worst decile {own[f'{metric}_worst_decile']:.3f}")
    if "staleness" in line:
        parts.append(f"staleness {line['staleness']['mean']:.1f} (max {line['staleness']['largest']})")
    if GAP in line:
        parts.append(f"averaging gap {100 * line[GAP]:.1f} %")
    if line["bytes_up"]:
        parts.append(f"up {human_bytes(line['bytes_up'])} down {human_bytes(line['bytes_down'])}")
    if "secure" in line:
        added = line["secure"]
        parts.append(f"secure +{human_bytes(added['bytes'])} +{added['seconds']:.1f} s")
    parts.append(human_seconds(line["seconds"]))
    if left is not None:
        parts.append(f"{human_seconds(left)} left")
    return "  ".join(parts)


def round_warnings(line: Mapping[str, Any]) -> Iterator[str]:
    """Yield what went wrong in a round.

    >>> list(round_warnings({"aborted": "one client is left"}))
    ['no sum, the model stays as it was: one client is left']
    """
    if "aborted" in line:
        yield f"no sum, the model stays as it was: {line['aborted']}"
    for dropped in failures(line):
        yield f"client {dropped['client']} was dropped: {dropped['reason']}"
