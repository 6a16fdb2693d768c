"""Which tensors travel and as what, in words."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fednlp.formatting.safe_text import clean
from fednlp.reports.read import Run, lookup

_STATES = ("shared", "personal", "frozen")
_PLAIN = {"embeddings": "embeddings", "head": "the head", "bias": "biases"}
_LAYERS = re.compile(r"((?:encoder\.|decoder\.)?)layer\.([\d,-]+)")
_NUMBERS = {"int8": "8-bit integers", "int4": "4-bit integers", "sign": "signs"}
_KEPT = {"topk": "the largest", "randomk": "a random"}
_RULES = {"low": "that moved least since its last round", "high": "that moved most since its last round"}


def travel_words(config: Mapping[str, Any]) -> str:
    """Say which tensors are shared, what is done to them on their way, and which a client sends.

    >>> travel_words({"model": {"train": ["layer.4-5", "head"]}, "exchange": {"up": ["float16"]}})
    'Layers 4-5, the head shared, the rest frozen; updates sent as float16.'
    >>> travel_words({})
    ''
    """
    parts = [*_selection(config), *_exchange(config), *_pulling(config)]
    text = "; ".join(part for part in parts if part)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def frozen_words(config: Mapping[str, Any]) -> str:
    """Say what stays frozen, all that a selection means where nothing is exchanged; empty if nothing does."""
    train = lookup(config, "model.train", "all")
    if isinstance(train, Mapping) and "critical_layer" in train:
        return "Embeddings stay frozen." if train.get("embeddings", "frozen") == "frozen" else ""
    table = _table(train)
    if table.get("rest") == "frozen":
        trained = [part for state in ("shared", "personal") if (part := _parts(table.get(state)))]
        return f"All but {', '.join(trained)} stays frozen."
    return f"Frozen: {_parts(table['frozen'])}." if table.get("frozen") else ""


def keeps_tensors(config: Mapping[str, Any]) -> bool:
    """Tell whether a configuration leaves tensors of the model to each client.

    With ``critical_layer`` it does unless that is the number of the model's layers, which is not known here.

    >>> keeps_tensors({"model": {"train": {"personal": "head"}}}), keeps_tensors({"pull": {"push": "all"}})
    (True, False)
    """
    return has_personal(config) or lookup(config, "pull.push") == "selected"


def has_personal(config: Mapping[str, Any]) -> bool:
    """Tell whether parts of the model are personal; see :func:`keeps_tensors`."""
    train = lookup(config, "model.train", "all")
    table = train if isinstance(train, Mapping) else {}
    states = (table.get("rest"), table.get("embeddings"))
    return bool(table.get("personal")) or "critical_layer" in table or "personal" in states


def own_models(run: Run) -> bool:
    """Tell whether a run's clients have models of their own.

    A common model is tried on the whole test set in every evaluation, clients' own models at the end alone.
    """
    if run.reference or not keeps_tensors(run.config):
        return False
    told = (run.summary or {}).get("personalised")
    if told is not None:
        return bool(told)
    tried = [line["round"] for line in run.rounds if lookup(line, "evaluation.global")]
    return tried in ([], [run.setting("num_rounds")])


def _selection(config: Mapping[str, Any]) -> Iterator[str]:
    train = lookup(config, "model.train", "all")
    if train in ("all", ["all"]):
        return
    if isinstance(train, Mapping) and "critical_layer" in train:
        yield _split(train)
        return
    table = _table(train)
    said = [f"{_parts(table[state])} {state}" for state in _STATES if table.get(state)]
    yield ", ".join([*said, f"the rest {clean(table['rest'])}"])


def _split(table: Mapping[str, Any]) -> str:
    """Say where FedSplitBERT splits; with all layers shared the head is shared too."""
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
    """Say one part of a model.

    >>> _part("layer.0-3"), _part("encoder.layer.2:bias"), _part("head")
    ('layers 0-3', 'encoder layer 2 (bias)', 'the head')
    """
    if term.startswith("re:"):
        return f"what fits {clean(term.removeprefix('re:'))}"
    part, _, narrower = term.partition(":")
    found = _LAYERS.fullmatch(part)
    said = _PLAIN.get(part) or clean(part).replace(".", " ")
    if found:
        side = found[1].replace(".", " ")
        said = f"{side}layer{'' if found[2].isdecimal() else 's'} {found[2]}"
    return f"{said} ({clean(narrower)})" if narrower else said


def _exchange(config: Mapping[str, Any]) -> Iterator[str]:
    exchange = lookup(config, "exchange", {})
    if not isinstance(exchange, Mapping):
        return
    for key, what in (("up", "updates"), ("down", "the model")):
        steps = exchange.get(key)
        if isinstance(steps, list) and steps:
            yield f"{what} sent as {', then '.join(_step(str(step)) for step in steps)}"
    if exchange.get("error_feedback"):
        yield "what an update loses is added to the client's next one"


def _step(word: str) -> str:
    """Say one step of a chain.

    >>> _step("topk:0.01"), _step("int8:64"), _step("clip:1.0")
    ('the largest 1 % of the values', '8-bit integers in blocks of 64', 'clipped to the norm 1.0')
    """
    name, _, argument = word.partition(":")
    if name in _KEPT:
        return f"{_KEPT[name]} {_percent(argument)} of the values"
    if name == "clip":
        return f"clipped to the norm {clean(argument)}"
    return _NUMBERS.get(name, clean(name)) + (f" in blocks of {clean(argument)}" if argument else "")


def _percent(share: Any) -> str:
    try:
        return f"{100 * float(share):g} %"
    except (TypeError, ValueError):
        return clean(share)


def _pulling(config: Mapping[str, Any]) -> Iterator[str]:
    pull = lookup(config, "pull", {})
    if not isinstance(pull, Mapping) or pull.get("rule", "all") == "all":
        return
    rule, share = pull["rule"], _percent(pull.get("share", 0.5))
    which = _RULES.get(str(rule), "drawn anew each time" if rule == "random" else clean(rule))
    of = "the tensors" if pull.get("of", "tensors") == "tensors" else "the parameters, in tensors"
    back = ", and gets these alone back" if pull.get("push") == "selected" else ""
    yield f"each client sends {share} of {of} {which}{back}"
