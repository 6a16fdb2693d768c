"""A round of several parts, each of which trains and labels with a model of its own."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from fednlp.federated.round import RoundReport, mean_over_examples
from fednlp.federated.state import State
from fednlp.fewshot.pacing import LabelQuota, Pace
from fednlp.fewshot.simulation.label_holder import Numbers


@dataclass
class RoundPart:
    """A part of a round: the clients that train one model, and those that label with it.

    Attributes:
        state: The server of this part.
        sizes: int64 (clients,), labelled examples of each client; 0 for one that has no part in it.
        labelling: The clients that label.
        quota: How many of a client's texts get a pseudo label; None if none labels.
        pace: The pace that is tried; None for a whole round, and for the control of trials.
    """

    state: State
    sizes: Numbers
    labelling: list[int] = field(default_factory=list)
    quota: LabelQuota | None = None
    pace: Pace | None = None


def whole_report(parts: Sequence[RoundPart], reports: Sequence[RoundReport]) -> RoundReport:
    """Return the numbers of a round of several parts.

    Args:
        parts: The parts, of disjoint clients.
        reports: The numbers of each.
    """
    examples = sum(report.examples for report in reports)
    results = sorted((r for report in reports for r in report.results), key=lambda result: result.client)
    trained = [report for report in reports if report.examples]
    loss = sum(report.train_loss * report.examples for report in trained)
    aborted = [report.aborted for report in reports if report.aborted is not None]
    return RoundReport(
        round=reports[0].round,
        cohort=sorted(client for report in reports for client in report.cohort),
        results=results,
        train_loss=loss / examples if examples else float("nan"),
        steps=sum(report.steps for report in reports),
        examples=examples,
        bytes_up=sum(report.bytes_up for report in reports),
        bytes_down=sum(report.bytes_down for report in reports),
        dropped=[result for result in results if result.error is not None],
        aborted=aborted[0] if len(aborted) == len(parts) else None,
        metrics=mean_over_examples([result for result in results if result.error is None]),
    )
