"""What a site refuses of an experiment: each reason as one line, for the site and for the server."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from fednlp.config import Experiment, own_code
from fednlp.deployment.session.setup import ENCODER_FILES, Setup
from fednlp.deployment.site.disclosure import num_evaluations, tells_sums
from fednlp.deployment.site.facts import Download, Facts, update_examples
from fednlp.deployment.site.policy import Allow, Limits, SitePolicy
from fednlp.federated.adapters import is_low_rank, rule_of
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import digits, plural
from fednlp.formulations import OWN_METRIC, TASKS
from fednlp.models.selection import matching

SHORTEST_DIGEST = 16
"""Hexadecimal digits of a digest that are enough to name a file."""
_DIGEST = "sha256:"
_LONGEST = 60
_NOT_RUN_HERE = ("partition.method", "runtime.engine")
"""Settings that name code of the server's."""


@dataclass(frozen=True)
class Refusal:
    """One reason why a site does not take part.

    Attributes:
        key: The policy's key, such as ``"allow.largest_epsilon"``.
        settings: The settings of the experiment that decide it.
        reason: One line that names both, with their values.
    """

    key: str
    settings: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return self.reason


def refused_by(site: str, refusals: Iterable[Refusal]) -> list[str]:
    """Return the lines that tell a site and the server why the site does not take part.

    Args:
        refusals: From :func:`check`.

    >>> refused_by("nord", [Refusal("allow.most_rounds", ("num_rounds",), "allow.most_rounds = 5, ...")])
    ['site nord refuses: allow.most_rounds = 5, ...']
    """
    return [f"site {clean(site)} refuses: {refusal}" for refusal in refusals]


def check_settings(policy: SitePolicy, experiment: Experiment) -> list[Refusal]:
    """Return what a policy refuses of an experiment's text alone.

    Nothing that the experiment names is imported or loaded. It comes first: :meth:`Experiment.resolved` imports the
    code that an experiment names.
    """
    allow = policy.allow
    return [*_code(allow, experiment), *_method(allow, experiment), *_protection(allow, experiment)]


def check_call(
    policy: SitePolicy, setup: Setup, experiment: Experiment, downloads: Sequence[Download]
) -> list[Refusal]:
    """Return what a policy refuses of a setup before anything that comes with it is fetched.

    Args:
        downloads: The files that come with it.
    """
    allow = policy.allow
    return [
        *check_settings(policy, experiment),
        *_task(allow, experiment, setup.task),
        *_code_of_task(allow, setup),
        *_model(allow, experiment, downloads),
        *(_labels(allow) if setup.asked_labels else ()),
        *_downloads(policy.limits, downloads),
    ]


def check_model(policy: SitePolicy, model: Download) -> list[Refusal]:
    """Return what a policy refuses of the final model before it is fetched."""
    refusals = list(_downloads(policy.limits, [model], "at the end", "rounds.send_model"))
    if not policy.allow.final_model:
        refusals.append(_refusal("allow.final_model", False, "sends its final model", "rounds.send_model"))
    return refusals


def check_labels(policy: SitePolicy, experiment: Experiment) -> list[Refusal]:
    """Return what a policy refuses of an experiment whose server asks for the names of labels, by its text alone."""
    allow = policy.allow
    return [
        *check_settings(policy, experiment),
        *_task(allow, experiment, experiment.task.configured or ""),
        *_labels(allow),
    ]


def check(policy: SitePolicy, experiment: Experiment, facts: Facts) -> list[Refusal]:
    """Return everything that a policy refuses of an experiment; it is allowed if that is nothing.

    Args:
        experiment: Resolved.
        facts: What is known of the run (:func:`fednlp.deployment.site.facts.facts_of`).
    """
    allow = policy.allow
    return [
        *check_settings(policy, experiment),
        *_task(allow, experiment, facts.task),
        *_model(allow, experiment, facts.downloads),
        *_tensors(allow, facts),
        *_examples(allow, experiment, facts),
        *_privacy(allow, experiment, facts),
        *_told(allow, experiment, facts),
        *_resources(policy, facts),
    ]


def _code(allow: Allow, experiment: Experiment) -> Iterator[Refusal]:
    for setting, name in own_code(experiment):
        known = setting in _NOT_RUN_HERE and name.startswith("fednlp.")
        if name not in allow.code and not known:
            yield _refusal("allow.code", allow.code, f"names the code {_shown(name)}", setting)


def _code_of_task(allow: Allow, setup: Setup) -> Iterator[Refusal]:
    for name in setup.task.split(OWN_METRIC):
        if name not in TASKS and name not in allow.code:
            yield _refusal("allow.code", allow.code, f"names the code {_shown(name)}", "task.name")


def _method(allow: Allow, experiment: Experiment) -> Iterator[Refusal]:
    name, rounds = experiment.algorithm.name, experiment.num_rounds
    if name not in allow.code and not _fits_any(name, allow.algorithms):
        yield _refusal("allow.algorithms", allow.algorithms, f"has {_shown(name)}", "algorithm.name")
    rule = rule_of(experiment.model.peft).name
    if is_low_rank(experiment.model.peft) and not _fits_any(rule, allow.averaging):
        yield _refusal("allow.averaging", allow.averaging, f"has {_shown(rule)}", "model.peft.averaging")
    if allow.most_rounds is not None and rounds > allow.most_rounds:
        yield _refusal("allow.most_rounds", allow.most_rounds, f"has {rounds:,}", "num_rounds")
    if experiment.pseudo_labels and not allow.pseudo_labels:
        yield _refusal("allow.pseudo_labels", False, "has sites label texts by the model", "fewshot.pacing")


def _protection(allow: Allow, experiment: Experiment) -> Iterator[Refusal]:
    privacy = experiment.privacy
    if allow.require_secure and experiment.secure.protocol == "none":
        yield _refusal("allow.require_secure", True, "shows the server each update", "secure.protocol")
    if privacy is None and allow.require_privacy:
        yield _refusal("allow.require_privacy", True, "has no differential privacy", "privacy")
    if privacy is None and allow.largest_epsilon is not None:
        yield _refusal("allow.largest_epsilon", allow.largest_epsilon, "bounds no epsilon", "privacy")


def _task(allow: Allow, experiment: Experiment, task: str) -> Iterator[Refusal]:
    if experiment.task.name not in allow.code and not _fits_any(task, allow.tasks):
        yield _refusal("allow.tasks", allow.tasks, f"has {_shown(task)}", "task.name")


def _model(allow: Allow, experiment: Experiment, downloads: Iterable[Download]) -> Iterator[Refusal]:
    model = experiment.model.name_or_path
    digests = [one.digest for one in downloads if not one.name.startswith(ENCODER_FILES)]
    if not _fits_any(model, allow.models) and not any(_is_digest(one, digests) for one in allow.models):
        yield _refusal("allow.models", allow.models, f"has {_shown(model)}", "model.name_or_path")


def _tensors(allow: Allow, facts: Facts) -> Iterator[Refusal]:
    groups = {tensor.name: tensor.group for tensor in facts.tensors}
    meant = {name for term in allow.tensor_terms for name in matching(term, groups, "allow.tensors:")}
    others = [tensor for tensor in facts.tensors if allow.tensor_terms and tensor.name not in meant]
    if others:
        parameters = sum(tensor.parameters for tensor in others)
        what = f"also sends {plural(len(others), 'tensor')} of {parameters:,} parameters, such as"
        yield _refusal("allow.tensors", allow.tensors, f"{what} {_shown(others[0].name)}", "model.train")


def _examples(allow: Allow, experiment: Experiment, facts: Facts) -> Iterator[Refusal]:
    """Refuse updates of few examples; how many the site has is not said, as the server reads it."""
    fewest, own = allow.fewest_examples, facts.gold or facts.examples
    behind = update_examples(experiment.client, max(own, fewest))
    if behind < fewest:
        does = f"makes an update of {plural(behind, 'example')}"
        steps = ("client.max_steps", "client.per_device_train_batch_size")
        yield _refusal("allow.fewest_examples", fewest, does, *steps)
    elif own < fewest:
        does = "makes an update of all examples here, which are fewer"
        yield _refusal("allow.fewest_examples", fewest, does, "client.num_train_epochs")


def _privacy(allow: Allow, experiment: Experiment, facts: Facts) -> Iterator[Refusal]:
    fewest, price, most = facts.smallest_sum, facts.privacy, allow.largest_epsilon
    if fewest is not None and fewest < allow.smallest_cohort:
        does, settings = f"may sum over {fewest} sites", ("clients_per_round", "secure.dropout")
        yield _refusal("allow.smallest_cohort", allow.smallest_cohort, does, *settings)
    if price is None or experiment.privacy is None:
        return
    given = "privacy.epsilon" if experiment.privacy.noise is None else "privacy.noise"
    settings = (given, "num_rounds")
    if math.isinf(price.epsilon) and allow.require_privacy:
        yield _refusal("allow.require_privacy", True, "adds too little noise for any epsilon", *settings)
    if most is not None and price.epsilon > most:
        rounds = plural(experiment.num_rounds, "round")
        spent = f"{price.epsilon:.4g}" if math.isfinite(price.epsilon) else "an unbounded epsilon"
        yield _refusal("allow.largest_epsilon", most, f"spends {spent} in {rounds}", *settings)


def _told(allow: Allow, experiment: Experiment, facts: Facts) -> Iterator[Refusal]:
    if facts.tells_size and not allow.tell_size:
        does = "weighs sites by their numbers of examples"
        yield _refusal("allow.tell_size", False, does, "algorithm.weighting")
    more = [*facts.vectors[1:], *facts.reports]
    if more and experiment.client.max_steps <= 0 and not allow.tell_size:
        does = f"has sites send {_shown(more[0])}, from which the number of local steps follows"
        yield _refusal("allow.tell_size", False, does, "algorithm.name", "client.max_steps")
    plain = experiment.secure.protocol == "none"
    if plain and not allow.tell_size and tells_sums(allow, experiment):
        does = "shows the server how many test examples a site has of each label"
        yield _refusal("allow.tell_size", False, does, "evaluation.federated", "secure.protocol")
    told, most = num_evaluations(allow, experiment), allow.most_evaluations
    if most is not None and told > most:
        does = f"asks for scores or sums over tests after {plural(told, 'round')}"
        yield _refusal("allow.most_evaluations", most, does, "evaluation.every", "num_rounds")
    if facts.asks_losses and not allow.tell_scores:
        does = "draws cohorts by the sites' losses"
        yield _refusal("allow.tell_scores", False, does, "cohort.name")
    if experiment.secure.sum_reports and not (allow.tell_scores or allow.sum_scores):
        does = "sums losses of training"
        yield _refusal("allow.sum_scores", False, does, "secure.sum_reports")
    if facts.asks_labels:
        yield from _labels(allow)


def _labels(allow: Allow) -> Iterator[Refusal]:
    if not allow.tell_labels:
        yield _refusal("allow.tell_labels", False, "asks sites for the names of their labels", "data.labels")


def _downloads(
    limits: Limits,
    downloads: Iterable[Download],
    when: str = "before the first round",
    setting: str = "model.name_or_path",
) -> Iterator[Refusal]:
    size, most = sum(one.size for one in downloads), limits.download_mb
    if most is not None and size > most * 1e6:
        does = f"has a site fetch {digits(size / 1e6)} MB {when}"
        yield _refusal("limits.download_mb", most, does, setting)


def _resources(policy: SitePolicy, facts: Facts) -> Iterator[Refusal]:
    limits, device = policy.limits, policy.device
    model = ("model.name_or_path", "model.train")
    for key, most, size, does, settings in (
        (
            "limits.download_mb",
            limits.download_mb,
            facts.bytes_down,
            "sends a site",
            (*model, "exchange.down"),
        ),
        ("limits.upload_mb", limits.upload_mb, facts.bytes_up, "has a site send", (*model, "exchange.up")),
        (
            "device.memory_mb",
            device.memory_mb,
            facts.memory or 0,
            "is predicted to need",
            ("model.name_or_path", "model.max_length", "client.per_device_train_batch_size"),
        ),
    ):
        if most is not None and size > most * 1e6:
            unit = "" if key == "device.memory_mb" else " a round"
            yield _refusal(key, most, f"{does} {digits(size / 1e6)} MB{unit}", *settings)


def _refusal(key: str, value: Any, does: str, *settings: str) -> Refusal:
    """Return a refusal as one line: the policy's key and value, and what the experiment does by its settings."""
    given = clean(json.dumps(value, ensure_ascii=False))
    return Refusal(key, settings, f"{key} = {given}, the experiment {does} ({', '.join(settings)})")


def _fits_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_digest(entry: str, digests: Iterable[str]) -> bool:
    """Return whether an entry of ``allow.models`` is the beginning of a digest.

    >>> _is_digest("sha256:" + "ab" * 8, ["ab" * 32]), _is_digest("sha256:ab", ["ab" * 32])
    (True, False)
    """
    begins = entry.removeprefix(_DIGEST)
    is_one = begins != entry and len(begins) >= SHORTEST_DIGEST
    return is_one and any(digest.startswith(begins) for digest in digests)


def _shown(text: str) -> str:
    """Return a text of the experiment as it is typed, cut where it is long."""
    return json.dumps(clean(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"), ensure_ascii=False)
