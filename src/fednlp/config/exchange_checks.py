"""What ``[exchange]`` and ``[pull]`` do not go with."""

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES, Exchange, Pull
from fednlp.errors import ConfigError
from fednlp.federated.transform_spec import HALVES, INTEGERS, check_exchange


def exchange_problems(experiment: ExperimentFields) -> list[str]:
    """Return what does not go together in ``[exchange]`` and ``[pull]``, a sentence each."""
    exchange, pull, name = experiment.exchange, experiment.pull, experiment.algorithm.name
    found = []
    for section, given in (("exchange", exchange != Exchange()), ("pull", pull != Pull())):
        if given and name in BASELINES:
            found.append(f"[{section}] is not supported by {name}, where nothing is exchanged: leave it out")
    if pull.rule == "all" and pull != Pull():
        found.append(
            '[pull] share, of, push, norm and embeddings have no effect with pull.rule = "all": say pull.rule = "low", '
            '"high" or "random"'
        )
    if exchange.send == "weights":
        found += _weights_problems(experiment)
    try:
        check_exchange(exchange.up, exchange.down, exchange.error_feedback)
    except ConfigError as error:
        found.append(str(error))
    return found


def _weights_problems(experiment: ExperimentFields) -> list[str]:
    """Return what does not go together with clients that send their weights, a sentence each."""
    exchange, found = experiment.exchange, []
    if not exchange.up:
        found.append(
            'exchange.send = "weights" has no effect without a transform: say exchange.up = ["float16"], or leave it '
            "out"
        )
    for word in exchange.up:
        if word.partition(":")[0] not in (*HALVES, *INTEGERS):
            found.append(
                f'exchange.send = "weights": {word} is for updates: say "float16", "bfloat16", "int8" or "int4"'
            )
    if exchange.error_feedback:
        found.append('exchange.error_feedback is for updates: leave it out, or say exchange.send = "updates"')
    if experiment.privacy is not None:
        found.append('[privacy] bounds updates: say exchange.send = "updates"')
    if experiment.algorithm.name == "fedbuff":
        found.append(
            'fedbuff adds updates to newer models than they were made of: say exchange.send = "updates"'
        )
    return found
