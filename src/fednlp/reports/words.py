"""What an experiment is, in words: for pages, model cards and captions."""

from collections.abc import Mapping
from typing import Any

from fednlp.formatting.units import clean, human_number
from fednlp.reports.groups import algorithm_title, flatten
from fednlp.reports.read import BASELINES, lookup
from fednlp.reports.travel import frozen_words, travel_words

_PARTITIONS = {
    "uniform": "uniform (IID)",
    "label": "label shift",
    "quantity": "quantity shift",
    "label+quantity": "label and quantity shift",
    "cluster": "feature shift (clusters of sentence embeddings)",
    "natural": "natural",
    "silos": "silos, each a client",
    "proportions": "given label proportions",
}
_OPTIMISERS = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "yogi": "Yogi"}


def partition_words(config: Mapping[str, Any]) -> str:
    """Say how the examples were shared out.

    >>> partition_words({"partition": {"method": "label", "clients": 100, "alpha": 1.0}})
    'label shift, alpha 1, over 100 clients'
    """
    part = config.get("partition", {})
    method = str(part.get("method", "unknown"))
    words = [_PARTITIONS.get(method, clean(method))]
    for key, said in (
        ("alpha", "alpha"),
        ("beta", "beta"),
        ("clusters", "clusters"),
        ("field", "by the field"),
    ):
        if part.get(key) is not None:
            value = part[key]
            words.append(f"{said} {value:g}" if isinstance(value, int | float) else f"{said} {clean(value)}")
    if part.get("clients") is not None:
        words.append(f"over {part['clients']} clients")
    return ", ".join(words)


def method_words(config: Mapping[str, Any], reference: str | None = None, clients: int | None = None) -> str:
    """Say in a sentence how the model was trained, and in another which parts of it travelled, and as what.

    Args:
        config: The run's ``resolved.toml``.
        reference: Which reference it is, if one.
        clients: How many there are, where that is known: a cohort has no more.
    """
    name = str(lookup(config, "algorithm.name", "unknown"))
    reference = reference or (name if name in BASELINES else None)
    if reference == "centralised":
        said = (
            "Centralised training on the union of the clients' examples (a reference point, not federated)."
        )
        return " ".join(filter(None, [said, frozen_words(config)]))
    if reference == "chained":
        said = "One model fine-tuned on one client's examples after the other (a reference point, not federated)."
        return " ".join(filter(None, [said, frozen_words(config)]))
    if reference == "local":
        said = "Local training only: every client trains alone and nothing is exchanged (a reference point)."
        return " ".join(filter(None, [said, frozen_words(config)]))
    cohort, rounds = config.get("clients_per_round", "?"), config.get("num_rounds", "?")
    if clients is not None and isinstance(cohort, int):
        cohort = min(cohort, clients)
    asked = f"{cohort} clients a round, {rounds} rounds asked for"
    said = f"{algorithm_title(name)}{_mu(config)}: {asked}; {client_words(config)}{_server(config)}."
    return " ".join(filter(None, [said, travel_words(config), _own_steps(config)]))


def client_words(config: Mapping[str, Any]) -> str:
    """Say how one client trains."""
    client = config.get("client", {})
    steps = client.get("max_steps", -1)
    epochs = client.get("num_train_epochs", 1)
    length = _many(steps, "step") if steps and steps > 0 else _many(epochs, "epoch")
    optimiser = _optimiser(client.get("optimizer"))
    rate, size = client.get("learning_rate", "?"), client.get("per_device_train_batch_size", "?")
    return f"clients run {length} of {optimiser} with learning rate {rate}, batches of {size}"


def server_words(config: Mapping[str, Any]) -> str:
    """Say what the server does with the mean update, empty where the configuration does not."""
    server = config.get("server", {})
    if not server.get("optimizer"):
        return ""
    rest = [f"{key} {server[key]:g}" for key in ("momentum", "beta1", "beta2", "tau") if server.get(key)]
    rate = f"learning rate {server.get('learning_rate', '?')}"
    return f"the server applies {_optimiser(server['optimizer'])} with {', '.join([rate, *rest])}"


def count_words(value: Any) -> str:
    """Return a count, of a number or of a list, with its thousands grouped.

    >>> count_words(11314), count_words(["a", "b"]), count_words(None)
    ('11,314', '2', 'unknown')
    """
    if isinstance(value, int):
        return f"{value:,}"
    return f"{len(value):,}" if isinstance(value, list | tuple) else "unknown"


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
    words = server_words(config)
    return f"; {words}" if words else ""


def _mu(config: Mapping[str, Any]) -> str:
    mu = lookup(config, "algorithm.mu")
    return f" (mu {mu:g})" if mu else ""


def _many(count: int, noun: str) -> str:
    return f"{count} local {noun}{'' if count == 1 else 's'}"


def _optimiser(name: Any) -> str:
    return _OPTIMISERS.get(str(name), clean(name or "an unnamed optimiser"))
