"""Averaging of low-rank adapters: one file for each rule, named after its paper.

A mean of products of two matrices is not the product of the means: the rules differ in what they do about it
(:mod:`fednlp.federated.adapters.base`). Nothing here needs torch before a round begins.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fednlp.federated.adapters.base import Adapters, LoraPair, Rule
from fednlp.federated.adapters.exact import GAP, Exact, MeasuredPlain
from fednlp.federated.adapters.fedsa import SharedA
from fednlp.federated.adapters.ffa import FrozenA
from fednlp.federated.adapters.flexlora import Nearest
from fednlp.federated.adapters.flora import Stacked
from fednlp.federated.adapters.hetlora import NormWeighted
from fednlp.federated.adapters.rolora import Alternating
from fednlp.section import Feature

__all__ = [
    "GAP",
    "RULES",
    "Adapters",
    "LoraPair",
    "Rule",
    "features",
    "is_low_rank",
    "problems",
    "ranks_of",
    "rule_of",
]

RULES: Mapping[str, Rule] = {
    rule.name: rule
    for rule in (
        Adapters().rule,
        FrozenA(),
        Exact(),
        SharedA(),
        Alternating(),
        Stacked(),
        Nearest(),
        NormWeighted(),
    )
}
"""By the names that ``[model.peft] averaging`` takes."""
_USUAL: Mapping[str, Any] = {"averaging": "plain", "ranks": (), "averaging_gap": False}


def rule_of(options: Mapping[str, Any] | None) -> Rule:
    """Return how the server averages adapters, by the options of ``[model.peft]``.

    >>> rule_of({"method": "lora", "averaging": "exact"}).name, rule_of(None).name
    ('exact', 'plain')
    """
    given = options or {}
    rule = RULES.get(str(given.get("averaging", "plain")), RULES["plain"])
    return MeasuredPlain() if given.get("averaging_gap") and rule is RULES["plain"] else rule


def is_low_rank(options: Mapping[str, Any] | None) -> bool:
    """Return whether a rule has something to average: whether ``[model.peft]`` is LoRA.

    >>> is_low_rank({"r": 8}), is_low_rank({"method": "ia3"}), is_low_rank(None)
    (True, False, False)
    """
    return options is not None and options.get("method", "lora") == "lora"


def ranks_of(options: Mapping[str, Any] | None) -> tuple[int, ...]:
    """Return the ranks that clients are dealt in turn; none where all have the same.

    >>> ranks_of({"ranks": [4, 8]}), ranks_of({"r": 8}), ranks_of({"ranks": [4, 4]})
    ((4, 8), (), ())
    """
    ranks = tuple((options or {}).get("ranks") or ())
    return ranks if len({*ranks}) > 1 else ()


def problems(options: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the options of ``[model.peft]`` that say how adapters are averaged, a sentence each.

    >>> list(problems({"averaging": "flora", "ranks": [2, 0]}))
    ['ranks = [2, 0]: give the ranks that clients are dealt in turn, whole numbers from 1, such as [4, 8, 16]']
    """
    name, ranks, gap = (options.get(key, usual) for key, usual in _USUAL.items())
    if not isinstance(name, str) or name not in RULES:
        yield f"averaging = {name!r}: give one of {', '.join(RULES)}"
        return
    if type(gap) is not bool:
        yield f"averaging_gap = {gap!r}: give true or false"
    whole = isinstance(ranks, (list, tuple)) and all(type(rank) is int and rank >= 1 for rank in ranks)
    if "ranks" in options and not (whole and ranks):
        given = "give the ranks that clients are dealt in turn, whole numbers from 1, such as [4, 8, 16]"
        yield f"ranks = {ranks!r}: {given}"
        return
    rule = RULES[name]
    if options.get("use_dora") and rule.by_products:
        yield (
            f'averaging = "{name}" goes by products of the factors, which use_dora = true scales besides: say '
            'averaging = "plain" or "ffa", or leave use_dora out'
        )
    if ranks and "r" in options:
        yield f"r and ranks: leave r out, since the server's rank is the largest of ranks, {max(ranks)}"
    if gap is True and (name != "plain" or ranks_of(options)):
        yield 'averaging_gap is for averaging = "plain" and one rank ("exact" measures it in any case): leave it out'
    if ranks_of(options) and not rule.unequal:
        able = ", ".join(f'"{one}"' for one, its in RULES.items() if its.unequal)
        yield f'averaging = "{name}" has one rank for all: leave ranks out, or say averaging = one of {able}'


def _given(rule: Rule) -> Feature:
    key = "averaging_gap = true" if isinstance(rule, MeasuredPlain) else f'averaging = "{rule.name}"'
    return Feature(
        f"[model.peft] {key}",
        rule.needs,
        rule.breaks,
        remedy=rule.remedy,
        given=lambda e: type(rule_of(e.model.peft)) is type(rule),
    )


def features() -> tuple[Feature, ...]:
    """Return what the rules, and unequal ranks, need of an experiment and break for others."""
    ranks = Feature(
        "[model.peft] ranks",
        {
            "sees_updates": "pads what each client sends by its rank",
            "same_tensors": "pads the adapters of all clients",
            "one_model": "cuts one model to each client's rank",
            "whole_model": "cuts a whole model to each client's rank",
            "one_vector": "pads the update alone",
            "nothing_kept": "gives each client a model of its own rank",
            "fixed_labels": "cuts the model that clients train, and none that labels texts",
        },
        {"plain_steps": "gives clients different models"},
        given=lambda e: bool(ranks_of(e.model.peft)),
    )
    rules = [rule for rule in (*RULES.values(), MeasuredPlain()) if rule.needs or rule.breaks]
    return (*map(_given, rules), ranks)
