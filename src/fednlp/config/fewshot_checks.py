"""What goes together with few labels, and what does not."""

from collections.abc import Iterator

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES, Fewshot


def fewshot_problems(experiment: ExperimentFields) -> list[str]:
    """Return what is wrong with ``[fewshot]``, a sentence each."""
    fewshot, name, task = experiment.fewshot, experiment.algorithm.name, experiment.task.configured
    if fewshot is None:
        return []
    found = []
    if name in BASELINES:
        found.append(f"[fewshot] is not supported by {name}, which knows all labels: leave it out")
    if task not in (None, "text-classification", "prompt-classification"):
        found.append(
            f'[fewshot] labels texts, and {task} has no labels: say task.name = "prompt-classification"'
        )
    if not fewshot.gold and (task != "prompt-classification" or fewshot.pacing == "none"):
        found.append(
            "fewshot.gold = 0: without any label there is nothing to begin from but what a model says to a prompt: say "
            "gold = 64, or give task.prompt and a fewshot.pacing"
        )
    if fewshot.first_labelling != 1:
        found += _first_labelling_problems(fewshot, at_sites=experiment.data.at_sites)
    if fewshot.label_counts == "truth" and fewshot.class_balanced:
        found.append(
            'fewshot.label_counts = "truth" and fewshot.class_balanced are two rules for the number of pseudo labels '
            "of each class: leave out one of the two"
        )
    if experiment.privacy is not None:
        found.append(
            "[privacy] counts on cohorts drawn among all clients, and [fewshot] draws among those with labels: leave "
            "one of the two out"
        )
    kept = (
        experiment.client.keep_optimizer
        or experiment.pull.rule != "all"
        or experiment.exchange.error_feedback
    )
    if fewshot.pacing == "search" and kept:
        found.append(
            'fewshot.pacing = "search" puts the model back between trials, and not what clients keep to themselves: '
            "leave client.keep_optimizer, [pull] and exchange.error_feedback out"
        )
    if fewshot.pacing == "search":
        found += _search_problems(experiment, fewshot)
    if fewshot.detect_label_noise and experiment.secure.protocol != "none":
        found.append(
            "fewshot.detect_label_noise shows the server what single clients label and what the model says to it, "
            "which [secure] is there to hide: leave out one of the two"
        )
    return found


def _first_labelling_problems(fewshot: Fewshot, *, at_sites: bool) -> Iterator[str]:
    """Yield why clients cannot begin to label in a round after the first."""
    given = f"fewshot.first_labelling = {fewshot.first_labelling}"
    if fewshot.pacing in ("none", "search"):
        why = "no client labels" if fewshot.pacing == "none" else "the search says when clients label"
        yield f'{given}: {why} with fewshot.pacing = "{fewshot.pacing}": set it to 1'
    elif not fewshot.gold and not at_sites:
        yield f"{given}: without gold labels there is nothing to train on before: set it to 1"


def _search_problems(experiment: ExperimentFields, fewshot: Fewshot) -> Iterator[str]:
    """Yield why trials cannot be made as ``[fewshot]`` has them."""
    if fewshot.trial_rounds >= experiment.num_rounds:
        yield (
            f"fewshot.trial_rounds = {fewshot.trial_rounds}: a search for a pace takes so many rounds at least, and "
            f"the run has {experiment.num_rounds}: give num_rounds more, or lower fewshot.trial_rounds"
        )
    if fewshot.trials == "parallel" and experiment.secure.protocol != "none":
        yield (
            'fewshot.trials = "parallel" needs a sum of each group of clients, and [secure] gives one of the whole '
            'cohort: say fewshot.trials = "sequential"'
        )
    if fewshot.validation or experiment.data.at_sites:
        return
    if fewshot.trials == "sequential":
        yield (
            'fewshot.trials = "sequential" trains each trial on all gold labels, which then cannot judge it: say how '
            "many labelled texts the server has, fewshot.validation = 128"
        )
    elif not fewshot.gold:
        yield (
            "fewshot.gold = 0: there is no gold label to choose a pace by: say how many labelled texts the server has, "
            "fewshot.validation = 128, or set another fewshot.pacing"
        )
