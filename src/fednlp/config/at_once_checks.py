"""What ``runtime.clients_at_once`` does not go with."""

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES
from fednlp.models.peft_methods import averaging_of


def at_once_problems(experiment: ExperimentFields) -> list[str]:
    """Return what an experiment that trains several clients at once cannot have, a sentence each.

    Args:
        experiment: Whose sections are looked at.
    """
    if experiment.runtime.clients_at_once == 1:
        return []
    client, model, defaults = experiment.client, experiment.model, type(experiment.client)()
    found = [
        f"runtime.clients_at_once computes each local step in one pass with those of others, without client.{key}: "
        "leave one of the two out"
        for key in ("gradient_accumulation_steps", "max_tokens_per_batch", "gradient_checkpointing", "fp16")
        if getattr(client, key) != getattr(defaults, key)
    ]
    if experiment.algorithm.name in BASELINES:
        found.append(
            f"runtime.clients_at_once is for clients of a round, and {experiment.algorithm.name} has none: leave it out"
        )
    if model.train == "all" and model.peft is None:
        found.append(
            "runtime.clients_at_once trains adapters or heads over a frozen base: add [model.peft], freeze layers with "
            'model.train, such as model.train = "head", or leave clients_at_once out'
        )
    if averaging_of(model.peft) == "exact":
        found.append(
            'runtime.clients_at_once does not go with [model.peft] averaging = "exact", which moves the base: say '
            'averaging = "ffa" or "plain"'
        )
    others = {
        "attack": experiment.attack is not None,
        "fewshot": experiment.fewshot is not None,
        "pull": experiment.pull.rule != "all",
    }
    found += [
        f"runtime.clients_at_once does not go with [{section}]: leave one of the two out"
        for section, given in others.items()
        if given
    ]
    return found
