"""Which parameters are shared, how they are compressed and which of them a client sends, in words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fednlp.config.tables import lookup
from fednlp.formatting.safe_text import clean

_STATES = ("shared", "personal", "frozen")
_PLAIN = {"embeddings": "embeddings", "head": "the head", "bias": "biases"}
_LAYERS = re.compile(r"((?:encoder\.|decoder\.)?)layer\.([\d,-]+)")
_NUMBERS = {"int8": "8-bit integers", "int4": "4-bit integers", "sign": "signs"}
_KEPT = {"topk": "the largest", "randomk": "a random"}
_RULES = {"low": "that moved least since its last round", "high": "that moved most since its last round"}


def communication_summary(config: Mapping[str, Any]) -> str:
    """Return which tensors are shared, how they are compressed, and which a client sends; one sentence.

    >>> communication_summary({"model": {"train": ["layer.4-5", "head"]}, "exchange": {"up": ["float16"]}})
    'Layers 4-5, the head shared, the rest frozen; updates sent as float16.'
    >>> communication_summary({})
    ''
    """
    parts = [*_selection(config), *_exchange(config), *_pulling(config)]
    text = "; ".join(part for part in parts if part)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def frozen_summary(config: Mapping[str, Any]) -> str:
    """Return what stays frozen, which is all that a selection means where nothing is sent; empty if nothing does."""
    train = lookup(config, "model.train", "all")
    if isinstance(train, Mapping) and "critical_layer" in train:
        return "Embeddings stay frozen." if train.get("embeddings", "frozen") == "frozen" else ""
    table = _table(train)
    if table.get("rest") == "frozen":
        trained = [part for state in ("shared", "personal") if (part := _parts(table.get(state)))]
        return f"All but {', '.join(trained)} stays frozen."
    return f"Frozen: {_parts(table['frozen'])}." if table.get("frozen") else ""


def _selection(config: Mapping[str, Any]) -> Iterator[str]:
    train = lookup(config, "model.train", "all")
    if train in ("all", ["all"]):
        return
    if isinstance(train, Mapping) and "critical_layer" in train:
        yield _split(train)
        return
    table = _table(train)
    states = [f"{_parts(table[state])} {state}" for state in _STATES if table.get(state)]
    yield ", ".join([*states, f"the rest {clean(table['rest'])}"])


def _split(table: Mapping[str, Any]) -> str:
    """Return where FedSplitBERT splits; with all layers shared the head is shared too."""
    layer, state = table["critical_layer"], clean(table.get("embeddings", "frozen"))
    lower = "no layer"
    if isinstance(layer, int) and layer > 0:
        lower = "layer 0" if layer == 1 else f"layers 0-{layer - 1}"
    rest = f"the layers from {clean(layer)} on, if any, and with them the head personal"
    return f"{lower} shared, {rest}, embeddings {state}"


def _table(train: Any) -> Mapping[str, Any]:
    """Return a selection as a table with the state of the rest; everything is shared by default."""
    if train in ("all", ["all"]):
        return {"rest": "shared"}
    if not isinstance(train, Mapping):
        return {"shared": train, "rest": "frozen"}
    return {"rest": "frozen" if train.get("shared") else "shared"} | dict(train)


def _parts(terms: Any) -> str:
    given = terms if isinstance(terms, Sequence) and not isinstance(terms, str) else [terms]
    return ", ".join(_part(str(term)) for term in given if term)


def _part(term: str) -> str:
    """Return the name of one part of a model.

    >>> _part("layer.0-3"), _part("encoder.layer.2:bias"), _part("head")
    ('layers 0-3', 'encoder layer 2 (bias)', 'the head')
    """
    if term.startswith("re:"):
        return f"what fits {clean(term.removeprefix('re:'))}"
    part, _, narrower = term.partition(":")
    found = _LAYERS.fullmatch(part)
    text = _PLAIN.get(part) or clean(part).replace(".", " ")
    if found:
        side = found[1].replace(".", " ")
        text = f"{side}layer{'' if found[2].isdecimal() else 's'} {found[2]}"
    return f"{text} ({clean(narrower)})" if narrower else text


def _exchange(config: Mapping[str, Any]) -> Iterator[str]:
    exchange = lookup(config, "exchange", {})
    if not isinstance(exchange, Mapping):
        return
    sent = "weights" if exchange.get("send") == "weights" else "updates"
    for key, what in (("up", sent), ("down", "the model")):
        steps = exchange.get(key)
        if isinstance(steps, list) and steps:
            yield f"{what} sent as {', then '.join(_step(str(step)) for step in steps)}"
    if exchange.get("error_feedback"):
        yield "what an update loses is added to the client's next one"


def _step(word: str) -> str:
    """Return what one step of a chain of transforms does.

    >>> _step("topk:0.01"), _step("int8:64"), _step("clip:1.0")
    ('the largest 1 % of the values', '8-bit integers in blocks of 64', 'clipped to the norm 1.0')
    """
    name, _, argument = word.partition(":")
    if name in _KEPT:
        return f"{_KEPT[name]} {percent(argument)} of the values"
    if name == "clip":
        return f"clipped to the norm {clean(argument)}"
    return _NUMBERS.get(name, clean(name)) + (f" in blocks of {clean(argument)}" if argument else "")


def percent(share: Any) -> str:
    """Return a share as a percentage, and anything else as safe text.

    >>> percent(0.05), percent("all")
    ('5 %', 'all')
    """
    try:
        return f"{100 * float(share):g} %"
    except (TypeError, ValueError):
        return clean(share)


def _pulling(config: Mapping[str, Any]) -> Iterator[str]:
    pull = lookup(config, "pull", {})
    if not isinstance(pull, Mapping) or pull.get("rule", "all") == "all":
        return
    rule, share = pull["rule"], percent(pull.get("share", 0.5))
    which = _RULES.get(str(rule), "drawn again each time" if rule == "random" else clean(rule))
    of = "the tensors" if pull.get("of", "tensors") == "tensors" else "the parameters"
    back = ", and gets these alone back" if pull.get("push") == "selected" else ""
    yield f"each client sends {share} of {of} {which}{back}"
