"""The numbers of a run for Prometheus, in its text format, version 0.0.4."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, get_args

from fednlp.deployment.operate.feed import Feed
from fednlp.deployment.server.status import State, Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_STATES: tuple[State, ...] = get_args(State)
_PHASES = ("waiting", "round", "evaluating", "finished", "stopped")


class Sample(NamedTuple):
    """A value and its labels."""

    value: float
    labels: Mapping[str, str] = {}


def metrics_text(feed: Feed, now: float) -> str:
    """Return the metrics of a run.

    Args:
        now: Seconds since 1970.
    """
    lines: list[str] = []
    for name, kind, what, samples in _metrics(feed, now):
        if samples:
            lines += [f"# HELP fednlp_{name} {what}", f"# TYPE fednlp_{name} {kind}"]
            lines += [f"fednlp_{name}{_labels(one.labels)} {one.value!r}" for one in samples]
    return "\n".join(lines) + "\n"


_Metric = tuple[str, str, str, list[Sample]]


def _metrics(feed: Feed, now: float) -> Iterator[_Metric]:
    if feed.status is not None:
        yield from _of_status(feed.status, now)
    yield "rounds_done_total", "counter", "Rounds that are saved.", [Sample(len(feed.points))]
    for key, what in (("up", "from the sites to the server"), ("down", "from the server to the sites")):
        total = sum(point[f"bytes_{key}"] for point in feed.points)
        yield f"model_{key}_bytes_total", "counter", f"Bytes of updates and models {what}.", [Sample(total)]
    dropped = sum(point["dropped"] for point in feed.points)
    yield "dropped_total", "counter", "Updates that did not count, over all rounds.", [Sample(dropped)]
    losses = [point["loss"] for point in feed.points if point["loss"] is not None]
    yield "train_loss", "gauge", "Training loss of the last round.", [Sample(one) for one in losses[-1:]]
    yield "score", "gauge", "Scores of the last evaluation.", _scores(feed)


def _scores(feed: Feed) -> list[Sample]:
    scores: dict[str, Any] = next((one["scores"] for one in reversed(feed.points) if one["scores"]), {})
    return [
        Sample(value, {"part": part, "metric": metric})
        for part, found in scores.items()
        for metric, value in found.items()
        if value is not None
    ]


def _of_status(status: Status, now: float) -> Iterator[_Metric]:
    names = {"run": status.run, "experiment": status.experiment}
    yield "run_info", "gauge", "Names of the run and of its experiment.", [Sample(1, names)]
    phase = status.phase.split()[0]
    at = [Sample(int(one == phase), {"phase": one}) for one in _PHASES]
    yield "phase", "gauge", "What the run does: 1 for the present phase.", at
    yield "round", "gauge", "The round under way, 0 before the first.", [Sample(status.round)]
    yield "rounds", "gauge", "Rounds of the whole run.", [Sample(status.rounds)]
    count = Counter(site.state for site in status.sites)
    states = [Sample(count[state], {"state": state}) for state in _STATES]
    yield "sites", "gauge", "Sites by state.", states
    for direction, what in (("in", "received from"), ("out", "sent to")):
        seen = [Sample(getattr(site, f"bytes_{direction}"), {"site": site.name}) for site in status.sites]
        verb = "received" if direction == "in" else "sent"
        yield f"{verb}_bytes_total", "counter", f"Bytes of all messages {what} a site.", seen
    longest = max((one.seconds for one in status.awaited), default=0.0)
    yield "awaited_seconds", "gauge", "How long the run has waited for an answer.", [Sample(longest)]
    yield "start_time_seconds", "gauge", "When the server started.", [Sample(status.started)]
    since = [] if status.round_ended is None else [Sample(max(0.0, now - status.round_ended))]
    yield "seconds_since_last_round", "gauge", "Seconds since the last round was saved.", since
    if status.privacy is not None:
        epsilon = float("inf") if status.privacy.epsilon is None else status.privacy.epsilon
        spent = [Sample(epsilon, {"delta": f"{status.privacy.delta:g}"})]
        yield "epsilon", "gauge", "Epsilon spent by the site that took part most often.", spent


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
