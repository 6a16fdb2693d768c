"""What a run's own records say against its result: worse than a guess, one class, a loss that rose, too few tests."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fednlp.config.tables import lookup
from fednlp.errors import DIVERGED
from fednlp.federated.cohort import failures
from fednlp.formatting.units import metric_title, plural
from fednlp.reports.read import Run, read_file, trivial_baseline
from fednlp.tasks.intervals import wilson

_FEWEST_TESTS = 30
_COUNTED = ("accuracy", "exact_match", "preference_accuracy")
"""Metrics that are a share of examples, for which there is an interval; but not of words and tokens."""
_OF_WORDS = ("token-classification", "causal-lm", "masked-lm", "text-generation", "chat")
_SMALL_STEPS = 1e-3
"""Below this learning rate a model that learnt too little may need larger steps; above it, smaller ones."""
_RISEN = 1.05
"""A last loss above the first by this factor has risen; less is the noise of cohorts."""
_GUESSING = 2.0
"""A loss beyond so many times that of a uniform guess among the labels is no guess any more."""


@dataclass(frozen=True)
class Check:
    """Something that speaks against a run's result.

    Attributes:
        name: The same for all runs in which it is found.
        sentence: The finding, with its figures.
        advice: A setting to try, with a value.
    """

    name: str
    sentence: str
    advice: str


def find_checks(
    config: Mapping[str, Any],
    rounds: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    by_label: Mapping[str, Any] | None = None,
) -> list[Check]:
    """Return what speaks against the result of a run that is at its end; empty where nothing does.

    Args:
        config: The resolved settings as nested tables.
        rounds: The lines of ``rounds.jsonl``.
        summary: ``summary.json``.
        by_label: ``by_label.json``, where the run has one.
    """
    if summary.get("reference") == "majority":  # it is a guess, and says so
        return []
    diverged = _divergence(config, rounds, summary)
    found = [
        diverged,
        _below_baseline(config, summary, diverged is not None),
        _one_class(config, summary, by_label),
        _few_tests(config, summary),
        _no_baseline(config, summary),
    ]
    return [check for check in found if check is not None]


def checks_of(run: Run) -> list[Check]:
    """Return what speaks against the result of a run directory, as :func:`find_checks`; empty while it is under way."""
    if run.summary is None:
        return []
    return find_checks(run.config, run.rounds, run.summary, read_file(run.folder / "by_label.json"))


def _score_of(summary: Mapping[str, Any]) -> tuple[float | None, str]:
    """Return the score that stands for a run, and the part of the evaluation that it is of."""
    metric, scores = summary.get("metric"), summary.get("evaluation") or {}
    parts = ("global", "federated", "personal")
    for part in (*parts[2:], *parts[:2]) if summary.get("personalised") else parts:
        value = (scores.get(part) or {}).get(metric)
        if isinstance(value, int | float):
            return float(value), part
    return None, ""


def _divergence(
    config: Mapping[str, Any], rounds: Sequence[Mapping[str, Any]], summary: Mapping[str, Any]
) -> Check | None:
    lost = sum(DIVERGED in str(one.get("reason")) for line in rounds for one in failures(line))
    losses = [line["train_loss"] for line in rounds if isinstance(line.get("train_loss"), int | float)]
    labels = lookup(summary, "data.labels")
    if lost:
        sentence = f"{plural(lost, 'update')} of clients were not finite, and were left out"
    elif losses and not all(map(math.isfinite, losses)):
        sentence = "the training loss is not finite"
    elif len(losses) > 1 and summary.get("reference") != "local" and losses[-1] > _RISEN * losses[0]:
        sentence = f"the training loss rose from {losses[0]:.3g} to {losses[-1]:.3g}"
    elif losses and isinstance(labels, int) and labels > 1 and losses[-1] > _GUESSING * math.log(labels):
        sentence = (
            f"the training loss is {losses[-1]:.3g}, and a uniform guess among {labels:,} labels has "
            f"{math.log(labels):.3g}"
        )
    else:
        return None
    return Check("diverged", sentence, _smaller_steps(config))


def _below_baseline(config: Mapping[str, Any], summary: Mapping[str, Any], diverged: bool) -> Check | None:
    metric, baseline = str(summary.get("metric")), trivial_baseline(summary)
    score, part = _score_of(summary)
    guess = baseline.get(metric)
    if score is None or not isinstance(guess, int | float) or score > guess:
        return _above_perplexity(config, summary)
    level = "no better than" if score == guess else "below"
    sentence = (
        f"the {part} test {metric_title(metric)} {score:.4f} is {level} the baseline's {guess:.4f} "
        f"({baseline.get('name')})"
    )
    return Check("below-baseline", sentence, _smaller_steps(config) if diverged else _more_training(config))


def _above_perplexity(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Check | None:
    """Return that a language model's perplexity, of which less is better, is not below the baseline's."""
    guess, part = trivial_baseline(summary).get("perplexity"), _score_of(summary)[1]
    found = lookup(summary, f"evaluation.{part}.perplexity")
    if not isinstance(guess, int | float) or not isinstance(found, int | float) or found < guess:
        return None
    sentence = f"the {part} test perplexity {found:,.1f} is above the baseline's {guess:,.1f}"
    return Check(
        "below-baseline", f"{sentence} ({trivial_baseline(summary).get('name')})", _more_training(config)
    )


def _one_class(
    config: Mapping[str, Any], summary: Mapping[str, Any], by_label: Mapping[str, Any] | None
) -> Check | None:
    confusion = (by_label or {}).get("confusion")
    if confusion:
        predicted = [sum(column) for column in zip(*confusion, strict=True)]
        used = [place for place, count in enumerate(predicted) if count]
        if len(used) != 1 or sum(any(row) for row in confusion) < 2:
            return None
        which = f"{(by_label or {})['labels'][used[0]]!r} alone"
    elif (scores := lookup(summary, "evaluation.global") or {}).get("recall") == 0 == scores.get("precision"):
        which = "no span of tags that is right: O alone, or others"
    else:  # of sums over clients: the correlation is 0 to the last bit where all predictions are the same
        scores = lookup(summary, "evaluation.federated") or {}
        if scores.get("mcc") != 0 or not scores.get("accuracy"):
            return None
        which = "one label alone"
    return Check("one-class", f"the model predicts {which}", _more_training(config))


def _few_tests(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Check | None:
    score, part = _score_of(summary)
    tests = lookup(summary, "evaluation.federated.examples")
    if not isinstance(tests, int):
        tests = lookup(summary, "data.test")
        if not isinstance(tests, int) or lookup(summary, "data.not_told.test"):
            return None
    if score is None or not 0 < tests < _FEWEST_TESTS:
        return None
    metric = metric_title(str(summary.get("metric")))
    if tests == 1:
        sentence = f"the {part} test {metric} is that of one example"
    else:
        sentence = f"the {part} test {metric} is that of {tests} examples"
        if summary.get("metric") in _COUNTED and summary.get("task") not in _OF_WORDS:
            low, high = wilson(score, tests)
            sentence += f": by chance alone it may be anything from {low:.2f} to {high:.2f}"
    fraction = lookup(config, "data.test_fraction")
    larger = isinstance(fraction, int | float) and fraction < 0.5 and not lookup(config, "data.test_path")
    advice = "give more test examples"
    if lookup(config, "data.name") == "sites":
        advice = "have the sites give more: fednlp join ... --test-data FILE, or --test-fraction 0.5"
    elif lookup(config, "data.test_size"):
        advice = f"draw more: --set data.test_size={_FEWEST_TESTS * 10}, or leave it out"
    elif larger:
        advice = f"hold out more: --set data.test_fraction={min(0.5, 2 * fraction):g}"
    return Check("few-tests", sentence, advice)


def _no_baseline(config: Mapping[str, Any], summary: Mapping[str, Any]) -> Check | None:
    if lookup(config, "data.name") != "sites" or trivial_baseline(summary):
        return None
    sentence = "there is no baseline to compare with: no site tells how often it has each label"
    advice = "--set evaluation.federated=true has it from sums over the sites' tests"
    if lookup(config, "evaluation.federated"):
        sentence, advice = (
            "there is no baseline to compare with: the texts are at the sites",
            "compare with their own",
        )
    return Check("no-baseline", sentence, advice)


def _smaller_steps(config: Mapping[str, Any]) -> str:
    return " or ".join(_lower(config))


def _lower(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield what lowers the noise, and each learning rate that is set, to a third; to a hundredth if it is huge."""
    if lookup(config, "privacy"):
        yield "take more clients a round, or less noise in [privacy]"
    for number, key in enumerate(("client.learning_rate", "server.learning_rate")):
        rate = lookup(config, key)
        if isinstance(rate, int | float) and rate > 0 and (number == 0 or rate < 1):
            yield f"lower the learning rate: --set {key}={rate / (3 if rate < 1 else 100):.1g}"


def _more_training(config: Mapping[str, Any]) -> str:
    rounds = lookup(config, "num_rounds")
    more = [f"train for more rounds: --set num_rounds={2 * rounds}"] if isinstance(rounds, int) else []
    rate = lookup(config, "client.learning_rate")
    if isinstance(rate, int | float) and 0 < rate < _SMALL_STEPS and not lookup(config, "privacy"):
        return " or ".join(
            [*more, f"raise the learning rate: --set client.learning_rate={max(3 * rate, 1e-5):.1g}"]
        )
    return " or ".join([*more, *_lower(config)])
