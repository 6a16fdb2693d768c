"""What goes together with secure aggregation and with differential privacy, and what does not."""

from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES, LARGEST_CLIP, Privacy, Secure
from fednlp.errors import ConfigError
from fednlp.federated.transform_spec import additive, parse_chain


def secure_problems(experiment: ExperimentFields) -> list[str]:
    """Return what is wrong with ``[secure]``, a sentence each."""
    from fednlp.models.peft_methods import averaging_of

    secure, exchange = experiment.secure, experiment.exchange
    if secure.protocol == "none":
        if secure != Secure():
            return ['[secure] has no protocol: say secure.protocol = "secagg+", or leave the section out']
        return []
    if experiment.algorithm.name in BASELINES:
        return [
            f"[secure] is not supported by {experiment.algorithm.name}, where nothing is summed: leave it out"
        ]
    found = []
    try:
        adds, why = additive(parse_chain(exchange.up, "up"))
    except ConfigError:  # said already
        adds, why = True, ""
    if not adds:
        found.append(
            f"exchange.up = {exchange.up} cannot be summed unopened ({why}): leave it out; secure.bits says how "
            "finely updates are rounded, and model.train or model.peft sends fewer parameters"
        )
    if secure.sum_reports and experiment.costs.device is not None:
        found.append(
            "costs.device counts the examples that each client has seen, which secure.sum_reports does not show: leave "
            "one of the two out"
        )
    if exchange.error_feedback:
        found.append("exchange.error_feedback has nothing to feed back under [secure]: leave it out")
    if experiment.pull.rule != "all":
        found.append(
            "[pull] sends different tensors for each client, and a masked sum needs the same ones of all: leave one "
            "of [pull] and [secure] out, or select tensors for the whole run with model.train"
        )
    if averaging_of(experiment.model.peft) == "exact":
        found.append(
            '[model.peft] averaging = "exact" needs the product of each client\'s two factors, which a sum does not '
            'show: say averaging = "ffa" or "plain"'
        )
    return found + _plan_problems(experiment)


def _plan_problems(experiment: ExperimentFields) -> list[str]:
    from fednlp.secure.plan import make_plan

    secure, cohort = experiment.secure, experiment.clients_per_round
    try:
        make_plan(
            secure.protocol,
            cohort,
            secure.dropout,
            secure.max_colluding,
            secure.bits,
            secure.malicious_server,
        )
    except ConfigError as error:
        return [str(error)]
    return []


def privacy_problems(experiment: ExperimentFields) -> list[str]:
    """Return what is wrong with ``[privacy]``, a sentence each."""
    from fednlp.models.peft_methods import averaging_of

    privacy, name = experiment.privacy, experiment.algorithm.name
    if privacy is None:
        return []
    if name in BASELINES:
        return [f"[privacy] is not supported by {name}, which has no federated rounds: leave it out"]
    found = []
    if any(word.startswith("clip") for word in experiment.exchange.up):
        found.append("privacy.clip cuts updates already: leave clip out of exchange.up")
    if experiment.exchange.error_feedback:
        found.append(
            "exchange.error_feedback carries one update into others, beyond privacy.clip: leave it out"
        )
    if experiment.pull.rule != "all":
        found.append(
            "[pull] reveals how far a client's tensors moved by which of them it sends: leave [pull] or [privacy] out"
        )
    if averaging_of(experiment.model.peft) == "exact":
        found.append(
            '[model.peft] averaging = "exact" multiplies what [privacy] bounds: say averaging = "ffa" or "plain"'
        )
    if experiment.secure.protocol != "none":
        found += _private_sum_problems(privacy, experiment.secure)
    if privacy.sampling == "poisson" and experiment.min_clients > 1:
        found.append(
            'min_clients is not supported with privacy.sampling = "poisson", whose cohorts vary in size: leave it out'
        )
    return found


def _private_sum_problems(privacy: Privacy, secure: Secure) -> list[str]:
    found = []
    if privacy.sampling == "poisson":
        found.append('[secure] needs cohorts of one size: say privacy.sampling = "fixed"')
    if secure.clip != Secure().clip:
        found.append(
            "secure.clip is not used alongside [privacy], whose clip bounds updates already: leave it out"
        )
    if secure.sum_reports:
        found.append(
            "secure.sum_reports publishes exact sums of the clients' losses, which the guarantee of [privacy] does not "
            "cover: leave it out"
        )
    if privacy.clip > LARGEST_CLIP:
        found.append(
            f"privacy.clip = {privacy.clip} is more than a secure sum has room for: {LARGEST_CLIP} at most"
        )
    if secure.malicious_server:
        found.append(
            "secure.malicious_server is for a server that may lie, and the clients' noise counts on one that sums the "
            "updates of all who stay: leave out malicious_server or [privacy]"
        )
    return found
