"""What an experiment is, in words: for pages, model cards and captions."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fednlp.config.sections import BASELINES
from fednlp.config.tables import flatten, lookup
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.attacks import ATTACKS
from fednlp.federated.cohorts import COHORTS
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import HIDDEN, human_number, plural
from fednlp.partition.methods import METHODS
from fednlp.registry import Registry
from fednlp.reports.groups import algorithm_title
from fednlp.training.local_training import LocalTraining

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


_BASELINES = {
    "centralised": "Centralised training on the union of the clients' examples (a baseline, not federated).",
    "chained": "Sequential fine-tuning of one model, client after client (a baseline, not federated).",
    "local": "Local-only training: every client trains alone and nothing is exchanged (a baseline).",
    "majority": "The most frequent training label, of each client or of all: nothing is trained (a baseline).",
}
_OPTIMISERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "yogi": "Yogi"}


def describe_partition(config: Mapping[str, Any]) -> str:
    """Return how the examples were partitioned over the clients.

    >>> describe_partition({"partition": {"method": "label", "clients": 100, "alpha": 1.0}})
    'label shift, alpha 1, over 100 clients'
    """
    part = config.get("partition", {})
    method = str(part.get("method", "unknown"))
    words = [METHODS.find(method).title if method in METHODS.names() else clean(method)]
    words += [
        f"{clean(key)} {value:g}"
        for key, value in part.items()
        if isinstance(value, int | float) and key not in ("clients", "seed")
    ]
    if part.get("field") is not None:
        words.append(f"by the field {clean(part['field'])}")
    if part.get("clients") is not None:
        words.append(f"over {with_noun(part['clients'], 'client')}")
    return ", ".join(words)


def describe_method(
    config: Mapping[str, Any], baseline: str | None = None, clients: int | None = None
) -> str:
    """Return a sentence on how the model was trained, and one on which parts of it were sent, and how encoded.

    Args:
        config: The run's ``resolved.toml``.
        baseline: Which baseline it is, if one.
        clients: How many there are, where that is known: a cohort has no more.
    """
    name = str(lookup(config, "algorithm.name", "unknown"))
    baseline = baseline or (name if name in BASELINES else None)
    if baseline in _BASELINES:
        return " ".join(filter(None, [_BASELINES[baseline], frozen_summary(config)]))
    cohort, rounds = config.get("clients_per_round", "?"), config.get("num_rounds", "?")
    if clients is not None and isinstance(cohort, int):
        cohort = min(cohort, clients)
    buffered = lookup(config, "algorithm.buffer_size")
    who = (
        f"{with_noun(cohort, 'client')} a round"
        if buffered is None
        else f"{with_noun(cohort, 'client')} at any time, {buffered} a round"
    )
    cohort_text = f"{who}, {with_noun(rounds, 'round')} asked for"
    method = f"{algorithm_title(name)}{_options(config.get('algorithm'))}"
    text = f"{method}: {cohort_text}; {_describe_client(config)}{_server(config)}."
    rest = (_aggregation, _cohorts, _attack, communication_summary, _own_steps)
    return " ".join(filter(None, [text, *(say(config) for say in rest)]))


def _describe_client(config: Mapping[str, Any]) -> str:
    """Return how one client trains."""
    client = LocalTraining.model_construct(**config.get("client", {}))
    steps, epochs = client.max_steps, client.num_train_epochs
    length = _many(steps, "step") if steps > 0 else _many(epochs, "epoch")
    return (
        f"clients run {length} of {_optimiser(client.optimizer)} with learning rate {client.learning_rate}, "
        f"batches of {client.examples_per_step}"
    )


def _describe_server(config: Mapping[str, Any]) -> str:
    """Return how the server applies the mean update; empty where the configuration does not say."""
    server = config.get("server", {})
    if not server.get("optimizer"):
        return ""
    rest = [f"{key} {server[key]:g}" for key in ("momentum", "beta1", "beta2", "tau") if server.get(key)]
    rate = f"learning rate {server.get('learning_rate', '?')}"
    return f"the server applies {_optimiser(server['optimizer'])} with {', '.join([rate, *rest])}"


def with_noun(value: Any, noun: str) -> str:
    """Return a number of a run's settings with its noun.

    >>> with_noun(1, "round"), with_noun("?", "round")
    ('1 round', '? rounds')
    """
    return plural(value, noun) if isinstance(value, int) else f"{value} {noun}s"


def format_count(value: Any) -> str:
    """Return a count, of a number or of a list, with its thousands grouped.

    >>> format_count(11314), format_count(["a", "b"]), format_count(None)
    ('11,314', '2', 'unknown')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return f"{len(value):,}" if isinstance(value, list | tuple) else "unknown"


def told_count(data: Mapping[str, Any], key: str) -> str:
    """Return a number of examples or labels, and how many sites keep theirs to themselves.

    >>> told_count({"train": 1200, "not_told": {"train": 1}}, "train"), told_count({"train": 12}, "train")
    ('1,200 (1 site: not told)', '12')
    """
    hidden = lookup(data, f"not_told.{key}")
    more = f" ({plural(hidden, 'site')}: {HIDDEN})" if isinstance(hidden, int) and hidden else ""
    return format_count(data.get(key)) + more


def environment_facts(environment: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run was made with; its data, which are shown elsewhere, and fingerprints are left out.

    >>> environment_facts({"torch": "2.13.0", "cpu_count": 2, "data": {"name": "20news"}, "start": {"tokenizer": "5e"}})
    {'torch': '2.13.0', 'cpu_count': '2'}
    """
    made = {key: value for key, value in environment.items() if key not in ("data", "start")}
    return {clean(key): human_number(value) for key, value in flatten(made)}


def _own_steps(config: Mapping[str, Any]) -> str:
    steps = lookup(config, "client.finetune_steps")
    return (
        f"At the end each client takes {_many(steps, 'step')} more by itself for its own tests."
        if steps
        else ""
    )


def _server(config: Mapping[str, Any]) -> str:
    words = _describe_server(config)
    return f"; {words}" if words else ""


def _aggregation(config: Mapping[str, Any]) -> str:
    """Return the rule of ``[aggregator]``; nothing where the method's own is used.

    >>> _aggregation({"aggregator": {"name": "trimmed-mean", "options": {}, "fraction": 0.2}})
    'The updates are aggregated by: trimmed mean (fraction 0.2).'
    """
    section = config.get("aggregator")
    return f"The updates are aggregated by: {_named(section, AGGREGATORS)}." if section else ""


def _cohorts(config: Mapping[str, Any]) -> str:
    """Return the rule of ``[cohort]``; nothing where the method's own is used.

    >>> _cohorts({"cohort": {"name": "power-of-choice", "options": {}, "candidates": 8}})
    'Cohorts are drawn by: power-of-Choice (candidates 8).'
    """
    section = config.get("cohort")
    return f"Cohorts are drawn by: {_named(section, COHORTS)}." if section else ""


def _attack(config: Mapping[str, Any]) -> str:
    """Return what ``[attack]`` has some clients do; nothing without it.

    >>> _attack({"attack": {"name": "sign-flip", "fraction": 0.2, "options": {}, "scale": 2.0}})
    '20 % of the clients attack: sign flip (scale 2).'
    """
    section = config.get("attack")
    if not isinstance(section, Mapping):
        return ""
    return (
        f"{percent(section.get('fraction'))} of the clients attack: {_named(section, ATTACKS, 'fraction')}."
    )


def _named(section: Any, registry: Registry[Any], *apart: str) -> str:
    """Return the function that a section names, with its options; those ``apart`` are said elsewhere."""
    name = str(section.get("name")) if isinstance(section, Mapping) else ""
    title = registry.find(name).title if name in registry.names() else clean(name.rpartition(":")[2])
    return f"{title[:1].lower()}{title[1:]}{_options(section, *apart)}"


def _options(section: Any, *apart: str) -> str:
    """Return the options of a function that a section names, in brackets, those that are not zero.

    >>> _options({"name": "fedprox", "weighting": "examples", "options": {}, "mu": 0.1})
    ' (mu 0.1)'
    """
    given = dict(section) if isinstance(section, Mapping) else {}
    options = given.pop("options", None)
    given |= options if isinstance(options, Mapping) else {}
    own = {key: value for key, value in given.items() if key not in ("name", "weighting", *apart)}
    shown = [
        f"{key} {value:g}" if isinstance(value, (int, float)) else f"{key} {clean(value)}"
        for key, value in own.items()
        if value and not isinstance(value, bool)
    ]
    return f" ({', '.join(shown)})" if shown else ""


def _many(count: int, noun: str) -> str:
    return plural(count, f"local {noun}")


def _optimiser(name: Any) -> str:
    return _OPTIMISERS.get(str(name), clean(name or "an unnamed optimiser"))
