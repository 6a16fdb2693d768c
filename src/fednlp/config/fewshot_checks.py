"""What goes together with few labels, and what does not."""

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES


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
    if fewshot.detect_label_noise and experiment.secure.protocol != "none":
        found.append(
            "fewshot.detect_label_noise shows the server what single clients label and what the model says to it, "
            "which [secure] is there to hide: leave out one of the two"
        )
    return found
