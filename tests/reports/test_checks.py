"""A result that its own records speak against says so, with a setting to try; a sound one says nothing."""

from typing import Any

import pytest

from fednlp.errors import DIVERGED
from fednlp.reports.checks import find_checks
from fednlp.reports.content import build
from fednlp.reports.read import read_run
from fednlp.reports.render import to_text
from fednlp.reports.table import compare_table
from tests.reports.conftest import MakeRun

CONFIG: dict[str, Any] = {
    "num_rounds": 4,
    "data": {"name": "20news", "test_fraction": 0.2},
    "client": {"learning_rate": 0.003},
}
SITES: dict[str, Any] = CONFIG | {"data": {"name": "sites", "test_fraction": 0.2}}


def summary(score: float = 0.9, guess: float | None = 0.5, tests: int = 200, **more: Any) -> dict[str, Any]:
    """Return the summary of a run."""
    return {
        "metric": "accuracy",
        "evaluation": {"global": {"accuracy": score}},
        "data": {"test": tests, "labels": 3},
        "clients": 4,
        "trivial_baseline": guess and {"name": "the most frequent label", "accuracy": guess},
    } | more


PERPLEXED = summary(
    evaluation={"global": {"accuracy": 0.125, "perplexity": 226.0}},
    trivial_baseline={"name": "each token as often as in training", "accuracy": 0.1, "perplexity": 19.8},
)


NO_SPANS = summary(
    metric="f1",
    evaluation={"global": {"f1": 0.0, "precision": 0.0, "recall": 0.0}},
    trivial_baseline={"name": "O", "f1": 0.0},
)


def lines(*losses: float | None, reason: str = "") -> list[dict[str, Any]]:
    """Return the lines of rounds with these losses, the last of which lost a client for a reason."""
    found: list[dict[str, Any]] = [{"round": n, "train_loss": loss} for n, loss in enumerate(losses, 1)]
    if reason:
        found[-1]["dropped"] = [{"client": 1, "reason": reason}]
    return found


@pytest.mark.parametrize(
    ("config", "rounds", "summed", "by_label", "names", "said"),
    [
        (CONFIG, lines(1.0, 0.5), summary(), None, [], ""),
        (CONFIG, lines(1.0, 0.5), summary(0.3), None, ["below-baseline"], "0.3000 is below the baseline's 0.5000"),
        (CONFIG, lines(1.0, 0.5), summary(0.3), None, ["below-baseline"], "--set num_rounds=8"),
        (CONFIG, lines(1.0, 0.5), summary(0.5), None, ["below-baseline"], "no better than the baseline's"),
        (CONFIG, lines(1.0, 0.5), summary(0.5, reference="majority"), None, [], ""),
        (CONFIG, lines(1.0, 9.0), summary(), None, ["diverged"], "rose from 1 to 9"),
        (CONFIG, lines(1.0, 9.0), summary(), None, ["diverged"], "--set client.learning_rate=0.001"),
        (CONFIG, lines(4213.0), summary(0.5), None, ["diverged", "below-baseline"], "a uniform guess among 3 labels"),
        (CONFIG, lines(1.0, 1.0, reason=DIVERGED), summary(), None, ["diverged"], "1 update of clients"),
        (CONFIG, lines(1.0, float("nan")), summary(), None, ["diverged"], "not finite"),
        (CONFIG, lines(9.0, 1.0), summary(reference="local"), None, [], ""),
        (CONFIG, lines(1.0), summary(), {"labels": ["a", "b"], "confusion": [[0, 9], [0, 8]]}, ["one-class"], "'b'"),
        (CONFIG, lines(1.0), summary(), {"labels": ["a", "b"], "confusion": [[1, 9], [0, 8]]}, [], ""),
        (CONFIG, lines(1.0), summary(), {"labels": ["a", "b"], "confusion": [[0, 0], [0, 8]]}, [], ""),
        (CONFIG, lines(1.0), summary(1.0, tests=1), None, ["few-tests"], "one example; hold out more: --set data.test"),
        (CONFIG, lines(1.0), summary(0.9, tests=29), None, ["few-tests"], "anything from 0.74 to 0.97"),
        (CONFIG, lines(1.0), summary(0.9, tests=29, metric="f1", evaluation={"global": {"f1": 0.9}}), None,
         ["few-tests"], "is that of 29 examples; hold out"),
        (CONFIG, lines(1.0), summary(0.9, tests=29, task="causal-lm"), None, ["few-tests"], "of 29 examples; hold out"),
        (CONFIG | {"data": {"test_size": 5, "test_fraction": 0.2}}, lines(1.0), summary(0.9, tests=5), None,
         ["few-tests"], "draw more: --set data.test_size=300"),
        (CONFIG, lines(1.0, 0.9), PERPLEXED, None, ["below-baseline"], "perplexity 226.0 is above the baseline's 19.8"),
        (CONFIG, lines(1.0, 0.9), PERPLEXED | {"trivial_baseline": {"perplexity": 300.0}}, None, [], ""),
        (CONFIG, lines(1.0), NO_SPANS, None, ["below-baseline", "one-class"], "no span of tags that is right"),
        (CONFIG | {"client": {"learning_rate": 1e-12}}, lines(1.0, 1.0), summary(0.3), None, ["below-baseline"],
         "raise the learning rate: --set client.learning_rate=1e-05"),
        (CONFIG | {"client": {"learning_rate": 10}}, lines(283.0, 790.0), summary(), None, ["diverged"],
         "--set client.learning_rate=0.1"),
        (SITES, lines(1.0), summary(guess=None), None, ["no-baseline"], "evaluation.federated=true"),
        (SITES, lines(1.0), summary(guess=None, data={"test": 4, "not_told": {"test": 2}}), None, ["no-baseline"], ""),
        (SITES, lines(1.0), summary(tests=4), None, ["few-tests"], "--test-data FILE"),
        (SITES, lines(1.0), summary(evaluation={"federated": {"accuracy": 0.5, "mcc": 0.0, "examples": 9}}), None,
         ["below-baseline", "one-class", "few-tests"], "one label alone"),
        (CONFIG | {"privacy": {"clip": 1.0}}, lines(1.0, 9.0), summary(), None, ["diverged"], "more clients a round"),
    ],
)  # fmt: skip
def test_what_speaks_against_a_run(
    config: dict[str, Any],
    rounds: list[dict[str, Any]],
    summed: dict[str, Any],
    by_label: dict[str, Any] | None,
    names: list[str],
    said: str,
) -> None:
    found = find_checks(config, rounds, summed, by_label)
    assert [check.name for check in found] == names
    assert said in " ".join(f"{check.sentence}; {check.advice}" for check in found)


def test_the_report_and_the_table_mark_such_a_run(new_run: MakeRun) -> None:
    guess = {"name": "the most frequent label", "accuracy": 1.1}
    bad = read_run(new_run("bad", summary={"metric": "accuracy", "trivial_baseline": guess}))
    good = read_run(new_run("good", algorithm="fedavg"))
    table = compare_table({"Bad": [bad], "Good": [good]})
    text = to_text(table)
    assert "Bad (!)" in text
    assert "Good (!)" not in text
    assert "is below the baseline's 1.1000" in text
    results = build([bad]).sections[0]
    assert "below the baseline" in str(results)
    assert "Without a model (the most frequent label)" in str(results)
