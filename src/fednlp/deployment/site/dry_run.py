"""What ``fednlp join --dry-run`` prints: what a run would fetch, train, send and tell at a site, and its price."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from fednlp.config import Experiment
from fednlp.deployment.site.disclosure import num_evaluations, tells_own_scores, tells_score, tells_sums
from fednlp.deployment.site.facts import Facts, update_examples
from fednlp.deployment.site.policy import Allow, SitePolicy
from fednlp.deployment.site.refusals import SHORTEST_DIGEST, Refusal
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import human_bytes, human_seconds, plural
from fednlp.reports.describe import describe_method

_WIDTH = 12


def dry_run(
    federation: str,
    site: str,
    policy: SitePolicy,
    experiment: Experiment,
    facts: Facts | None,
    refusals: Sequence[Refusal],
    *,
    clients: int,
) -> list[str]:
    """Return the lines that tell a site what it would take part in.

    Args:
        federation: The federation, with its address.
        site: The site's name in it.
        experiment: Resolved.
        facts: From :func:`fednlp.deployment.site.facts.facts_of`; None where the site refuses before it looks further.
        refusals: From :func:`fednlp.deployment.site.refusals.check`.
        clients: Number of sites.
    """
    config: dict[str, Any] = experiment.model_dump(exclude_none=True)
    model = experiment.model.name_or_path
    task = experiment.task.configured if facts is None else facts.task
    has = "" if facts is None else f", {plural(facts.examples, 'training example')}{_with_label(facts)}"
    sections = {
        "federation": [f"{federation}, {plural(clients, 'site')}"],
        "this site": [f"{site}{has}"],
        "experiment": [f"{experiment.name}: {task} with {model}", describe_method(config, clients=clients)],
    }
    if facts is not None:
        sections |= {
            "downloads": [*_downloads(facts), _final_model(policy, experiment)],
            "trains": list(_trains(experiment, facts)),
            "sends": list(_sends(experiment, facts)),
            "tells": list(_tells(policy, experiment, facts)),
            "privacy": [facts.privacy.statement if facts.privacy else "no differential privacy"],
        }
    allowed = ["nothing: the site's file allows all of this"]
    sections["refused"] = [str(refusal) for refusal in refusals] or allowed
    lines = [
        f"{name if number == 0 else '':<{_WIDTH}}{clean(text)}"
        for name, texts in sections.items()
        for number, text in enumerate(texts)
    ]
    return [*lines, "nothing was sent"]


def _with_label(facts: Facts) -> str:
    return "" if facts.gold is None else f", {facts.gold:,} of them with a label"


def _downloads(facts: Facts) -> Iterator[str]:
    for one in facts.downloads:
        yield f"{one.name}: {human_bytes(one.size)}, sha256:{one.digest[:SHORTEST_DIGEST]}"
    yield f"each round: {human_bytes(facts.bytes_down)}"


def _final_model(policy: SitePolicy, experiment: Experiment) -> str:
    if not experiment.rounds.send_model:
        return "at the end: nothing (rounds.send_model = false)"
    if not policy.allow.final_model:
        return "at the end: nothing (allow.final_model = false)"
    return "at the end: the final model, which is kept here"


def _trains(experiment: Experiment, facts: Facts) -> Iterator[str]:
    whole = facts.total
    personal = f", {whole.personal:,} of them personal: they stay here" if whole.personal else ""
    yield f"{whole.tunable:,} of {whole.parameters:,} parameters{personal}"
    memory = (
        "memory is not predicted" if facts.memory is None else f"about {human_bytes(facts.memory)} of memory"
    )
    seconds = "" if facts.seconds is None else f", about {human_seconds(facts.seconds)}"
    yield f"each round: {plural(facts.steps, 'local step')}{seconds}; {memory}"
    behind = update_examples(experiment.client, facts.gold or facts.examples)
    yield f"each update is made of {plural(behind, 'example')} (allow.fewest_examples)"
    if experiment.pseudo_labels:
        yield "labels: texts without a label are given one by the model; these labels stay here"


def _sends(experiment: Experiment, facts: Facts) -> Iterator[str]:
    exchange, most = experiment.exchange.up, "at most " if experiment.pull.rule != "all" else ""
    how = f"compressed by {', '.join(exchange)}" if exchange else "not compressed"
    seen = "masked: the server sees sums alone" if facts.masked else "the server sees this site's update"
    if facts.smallest_sum is not None:
        seen += f", each of {facts.smallest_sum:,} sites or more; {experiment.secure.protocol} adds keys and shares"
    yield f"each round: {most}{human_bytes(facts.bytes_up)}, {how}, {seen}"
    if len(facts.vectors) > 1:
        yield f"{len(facts.vectors)} vectors of the same tensors: {', '.join(facts.vectors)}"
    yield from _by_group(facts)


def _by_group(facts: Facts) -> Iterator[str]:
    """Yield a line for each part of the model that is sent; equal layers, one above the other, share a line."""
    sizes = dict.fromkeys((part.group for part in facts.parts), 0)
    for tensor in facts.tensors:
        sizes[tensor.group] += tensor.parameters
    sent = [(group, size) for group, size in sizes.items() if size]
    for (_, size), parts in groupby(sent, _stack_and_size):
        groups = [group for group, _ in parts]
        if len(groups) == 1:
            yield f"  {groups[0]}: {size:,} parameters"
        else:
            last = groups[-1].rpartition(".")[2]
            yield f"  {groups[0]}-{last}: {len(groups)} x {size:,} parameters"


def _stack_and_size(part: tuple[str, int]) -> tuple[str, int]:
    """Return the stack of a layer and the size; the part itself where it is no layer.

    >>> _stack_and_size(("encoder.layer.3", 10)), _stack_and_size(("head", 5))
    (('encoder.layer', 10), ('head', 5))
    """
    group, size = part
    stack, _, number = group.rpartition(".")
    return (stack if number.isdecimal() else group), size


def _tells(policy: SitePolicy, experiment: Experiment, facts: Facts) -> Iterator[str]:
    allow = policy.allow
    size = f"its number of training examples, {facts.examples:,}"
    yield size if allow.tell_size else "not its number of training examples (allow.tell_size = false)"
    if facts.gold is not None:
        counts = "how many of its examples have a label, and how many texts it can label and has labelled"
        yield counts if allow.tell_size else "whether any of its examples have a label, or have been labelled"
    summed = experiment.secure.sum_reports
    if summed:
        yield "its training loss, examples seen and local steps, masked: the server sees their sums alone"
    yield from _told_scores(experiment, allow)
    if experiment.evaluation.federated:
        yield _told_sums(policy, experiment)
    if facts.asks_losses:
        yield "the loss of the global model on its training examples, where it may be drawn for a round (cohort.name)"
    yield "the names of its labels" if facts.asks_labels and allow.tell_labels else "no names of its labels"
    told = num_evaluations(allow, experiment)
    if told:
        yield f"scores or sums over its tests after {plural(told, 'round')} (allow.most_evaluations)"
    yield "when it takes part, and for how long it trains"


def _told_scores(experiment: Experiment, allow: Allow) -> Iterator[str]:
    """Yield what the server learns of the losses and scores of this site alone."""
    losses, scores = not experiment.secure.sum_reports, tells_own_scores(experiment)
    if not allow.tell_scores:
        yield f"{'no losses and no scores' if losses else 'no scores'} (allow.tell_scores = false)"
    elif scores and not tells_score(allow):
        yield f"{'its mean losses, and ' if losses else ''}no scores of its own (allow.tell_size = false)"
    elif scores:
        yield (
            "its losses, and its scores on its own test examples"
            if losses
            else "its scores on its own test examples"
        )
    else:
        yield f"{'its losses, and ' if losses else ''}no scores of its own (evaluation.personal = false)"


def _told_sums(policy: SitePolicy, experiment: Experiment) -> str:
    """Return what the server learns of the sums over this site's tests."""
    if not tells_sums(policy.allow, experiment):
        return "no sums over its test examples (allow.tell_scores, allow.sum_scores)"
    if experiment.secure.protocol == "none":
        return "sums over its test examples, such as how often each label is predicted; the server sees them"
    return "sums over its test examples, masked: the server sees sums over all sites with tests alone"
