"""The model card of a trained model: what it is, what it was trained on and how, what to expect."""

import math
from collections.abc import Iterator

from fednlp.config.sections import BASELINES, SITES
from fednlp.config.tables import lookup
from fednlp.formatting.places import data_source
from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import (
    HIDDEN,
    capital,
    human_bytes,
    human_number,
    human_seconds,
    metric_title,
    metric_value,
)
from fednlp.formulations import TASKS
from fednlp.models.origins import origin
from fednlp.reports.client_tensors import has_personal, keeps_tensors
from fednlp.reports.describe import (
    describe_method,
    describe_partition,
    environment_facts,
    format_count,
    told_count,
    with_noun,
)
from fednlp.reports.groups import algorithm_title
from fednlp.reports.hub_metadata import Values, data_name, front_matter, hub_metrics, task_of, use
from fednlp.reports.markdown import escape, fence, markdown_table
from fednlp.reports.read import COUNTS


def model_card(summary: Values, config: Values, environment: Values) -> str:
    """Return a Hugging Face model card: front matter, data, partition, method, results and limits.

    Args:
        summary: A run's ``summary.json``.
        config: Its ``resolved.toml``.
        environment: Its ``environment.json``.
    """
    metrics = [] if _own_models_alone(summary, config) else hub_metrics(lookup(summary, "evaluation.global"))
    incomplete = _incomplete(summary, config)
    sections = [
        front_matter(summary, config, metrics, "", not incomplete),
        f"# {_title(summary, config)}\n",
        _intro(summary, config),
        f"## Use\n\n{_export(config) if incomplete else fence(use(summary, config), 'python')}",
        f"## Data\n\n{_data(summary, config)}",
        f"## Partition\n\n{escape(_sentence(describe_partition(config)))}\n",
        f"## Training\n\n{_training(summary, config)}",
        f"## Results\n\n{_results(summary, config)}",
        "## Limits\n\n" + "".join(f"- {escape(limit)}\n" for limit in _limits(summary, config)),
        f"## Made with\n\n{markdown_table(['', ''], list(environment_facts(environment).items()))}",
    ]
    return "\n".join(sections)


def client_card(summary: Values, config: Values, environment: Values, client: Values) -> str:
    """Return the card of one client's own model, with its scores on its own tests and no others.

    Args:
        summary: The run's ``summary.json``.
        config: Its ``resolved.toml``.
        environment: Its ``environment.json``.
        client: ``name``; ``finetuned``: whether it is the model after the client's fine-tuning steps; and the client's
            row of ``clients.csv``, as far as there is one.
    """
    name, metric = clean(str(client["name"])), str(summary.get("metric", "accuracy"))
    scored = client.get(f"{metric}_finetuned" if client["finetuned"] else metric)
    scores = {metric: float(scored)} if scored else {}
    sections = [
        front_matter(summary, config, hub_metrics(scores), f" (test examples of client {name})"),
        f"# {_title(summary, config)}, client {escape(name)}\n",
        _intro(summary, config),
        escape(f"This is the model of one client, {name}: {_whose(config, client)}.") + "\n",
        f"## Use\n\n{fence(use(summary, config), 'python')}",
        f"## Data\n\n{markdown_table(['', ''], [*_data_rows(summary, config), *_client_rows(client)])}",
        f"## Partition\n\n{escape(_sentence(describe_partition(config)))}\n",
        f"## Training\n\n{_training(summary, config)}",
        f"## Results\n\n{_client_results(name, scores, client)}",
        "## Limits\n\n" + "".join(f"- {escape(limit)}\n" for limit in _client_limits(summary, config)),
        f"## Made with\n\n{markdown_table(['', ''], list(environment_facts(environment).items()))}",
    ]
    return "\n".join(sections)


def _export(config: Values) -> str:
    """Return how a whole model is had where this one is a part."""
    at_sites = lookup(config, "data.name") == SITES
    whose, command = (
        ("site's whole model, at the site,", "fednlp export FEDERATION --own --out FOLDER")
        if at_sites
        else ("client's whole model", "fednlp export RUN --client NAME --out FOLDER")
    )
    return (
        "These are the shared weights alone. The layers that clients keep to themselves hold the values that they "
        f"began with, so this model makes no useful predictions. Write a {whose} with:\n\n{fence(command, 'sh')}"
    )


def _title(summary: Values, config: Values) -> str:
    return escape(summary.get("name") or config.get("name") or "A federated model")


def _whose(config: Values, client: Values) -> str:
    """Return what a client's own model consists of."""
    if not client["finetuned"] and not keeps_tensors(config):
        return "the personal model that it had after its last round"
    if not client["finetuned"]:
        return "the shared layers after the last round, with those that the client keeps to itself"
    steps = lookup(config, "client.finetune_steps")
    return f"after the last round it took {with_noun(steps, 'step')} on its own texts"


def _client_rows(client: Values) -> list[tuple[str, str]]:
    sizes = (("train_examples", "Its training examples"), ("test_examples", "Its test examples"))
    counts = ((heading, client[key]) for key, heading in sizes if client.get(key))
    return [(heading, count if count == HIDDEN else format_count(int(count))) for heading, count in counts]


def _client_results(name: str, scores: Values, client: Values) -> str:
    if not scores:
        return f"{escape(name)} has no score: it has no test examples, or clients' own tests were left out.\n"
    rows = [
        (f"Its own test set, {metric_title(key)}", metric_value(key, value)) for key, value in scores.items()
    ]
    return markdown_table([f"{escape(name)}, {_number_of_tests(client)}", ""], rows)


def _number_of_tests(client: Values) -> str:
    number = client.get("test_examples", "unknown")
    return f"number of test examples {number}" if number in ("unknown", HIDDEN) else f"{number} test examples"


def _client_limits(summary: Values, config: Values) -> Iterator[str]:
    yield "It was tested on this client's own test examples alone; on those of other clients it may do much worse."
    yield (
        "It was fitted to one client's texts, and models can give away what they were trained on: pass it on only to "
        "people who may see these texts."
    )
    yield _KNOWS.format(data=clean(data_name(summary, config)))
    yield _LICENCES


def _intro(summary: Values, config: Values) -> str:
    base = clean(
        origin(summary.get("model") or lookup(config, "model.name_or_path", "") or "a language model")
    )
    size = summary.get("parameters")
    counted = f" ({size:,} {_counted(config)})" if isinstance(size, int) else ""
    task = task_of(summary)
    what = f"for the task {clean(task)}"
    if task in TASKS:  # the name of another task is a stranger's, and no format string
        what = TASKS[task].purpose.format(labels=format_count(lookup(summary, "data.labels")))
    name = str(summary.get("algorithm") or lookup(config, "algorithm.name", "unknown"))
    how = f"federated learning with {algorithm_title(name)}"
    if name in BASELINES:
        how = {
            "centralised": "centralised training",
            "chained": "sequential fine-tuning",
            "local": "local-only training",
        }[name]
    if config.get("variant"):
        how += f" (variant {clean(config['variant'])})"
    data = clean(data_name(summary, config))
    return escape(f"{base}{counted}, trained on {data} {what}, by {how}.") + "\n"


def _counted(config: Values) -> str:
    """Return what is counted: a run counts the parameters that are sent."""
    whole = lookup(config, "model.train", "all") == "all" and not lookup(config, "model.peft")
    return "parameters" if whole else "shared parameters"


def _data(summary: Values, config: Values) -> str:
    return markdown_table(["", ""], _data_rows(summary, config))


def _data_rows(summary: Values, config: Values) -> list[tuple[str, str]]:
    data = summary.get("data") or {}
    return [
        ("Data set", clean(data_name(summary, config))),
        ("Source", clean(data_source(data.get("source") or "unknown", config))),
        *((heading, told_count(data, key)) for key, heading in _COUNTS if key in data),
    ]


_COUNTS = (("train", "Training examples"), ("test", "Test examples"), ("labels", "Labels"))


def _training(summary: Values, config: Values) -> str:
    rows = [
        ("Rounds done", human_number(summary.get("rounds"))),
        ("Seed", str(summary.get("seed", config.get("seed", "unknown")))),
        ("Text cut after", f"{lookup(config, 'model.max_length', 'unknown')} tokens"),
        *((heading, human_bytes(summary[key])) for key, heading in _BYTES if key in summary),
    ]
    if "seconds" in summary:
        rows.append(("Time, evaluation included", human_seconds(summary["seconds"])))
    method = describe_method(config, summary.get("reference"), summary.get("clients"))
    return f"{escape(method)}\n\n{markdown_table(['', ''], rows)}"


_BYTES = (("bytes_up", "Sent by the clients"), ("bytes_down", "Sent to the clients"))


def _results(summary: Values, config: Values) -> str:
    rows = [
        (
            f"{heading} {metric_title(key)}",
            format_count(value) if key in COUNTS else metric_value(key, value),
        )
        for part, heading in _PARTS
        for key, value in (lookup(summary, f"evaluation.{part}") or {}).items()
    ]
    if not rows:
        return "The run ended before its first evaluation.\n"
    own = "The whole test set was tried with some clients' own models: the mean of these."
    note = summary.get("note") or (own if _own_models_alone(summary, config) else None)
    return markdown_table(["After the last round", ""], rows) + (f"\n{escape(note)}\n" if note else "")


_PARTS = (
    ("global", "Whole test set,"),
    ("federated", "Clients' test sets, summed,"),
    ("personal", "Clients' own test sets,"),
    ("finetuned", "Clients' own test sets after own steps,"),
)


def _personalised(summary: Values, config: Values) -> bool:
    """Return whether clients had models of their own; the baselines have nothing of the kind."""
    personalised = summary.get("personalised")
    if personalised is not None or summary.get("algorithm") in BASELINES:
        return bool(personalised)
    return keeps_tensors(config)


def _own_models_alone(summary: Values, config: Values) -> bool:
    """Return whether the clients' models are the only ones that are used: the server's is none by itself."""
    tried = lookup(config, "evaluation.server_model") is True
    return _personalised(summary, config) and keeps_tensors(config) and not tried


def _incomplete(summary: Values, config: Values) -> bool:
    """Return whether the shared weights are no whole model: clients keep layers to themselves."""
    return _personalised(summary, config) and has_personal(config)


def _own_tensors(summary: Values, config: Values) -> Iterator[str]:
    """Yield what this model is where clients have models of their own."""
    if not _personalised(summary, config):
        return
    if has_personal(config):
        yield (
            "The clients kept some tensors to themselves. This model has the common tensors, and in the personal "
            "places the first ones, those that every client began with: by itself it is not what any client uses. The "
            "results above are those of the clients' own models."
        )
    elif not keeps_tensors(config):
        yield "Each client has a personal model beside this one, which is the server's."
    else:
        yield (
            "The clients kept tensors that they did not send, so that each has a model of its own; this is the "
            "server's."
        )
    if lookup(config, "data.name") == SITES:
        yield "A site's own model is written at the site: fednlp export FEDERATION --own --out FOLDER."
    else:
        yield "A client's own model is written from the run directory: fednlp export RUN --client NAME --out FOLDER."


def _limits(summary: Values, config: Values) -> Iterator[str]:
    stopped = summary.get("stopped")
    if stopped:
        yield f"The run stopped early: {_sentence(clean(stopped))}"
    elif not summary.get("finished"):
        yield "The run is unfinished; this is the model of its last complete round."
    yield from _own_tensors(summary, config)
    if config.get("attack"):
        yield "Some clients attacked the training on purpose: this model shows what an attack does, and is not for use."
    yield _KNOWS.format(data=clean(data_name(summary, config)))
    metric = str(summary.get("metric", "accuracy"))
    worst = lookup(summary, f"evaluation.personal.{metric}_worst_decile")
    if isinstance(worst, int | float) and math.isfinite(worst):
        yield (
            f"It does not serve every client alike: for the worst decile of the clients the {metric_title(metric)} is "
            f"{metric_value(metric, worst)}."
        )
    best = summary.get("best") or {}
    tests = "the clients' own tests" if _personalised(summary, config) else "the test set"
    if best.get("round") not in (None, summary.get("rounds")):
        yield (
            f"The results are those of the last round. Round {best['round']} reached "
            f"{metric_title(metric)} {metric_value(metric, best.get(metric))} on {tests}; it was not chosen, since "
            "that would be choosing by the test examples."
        )
    yield (
        f"{_whose_clients(summary, config)} Keeping texts on the clients does not by itself keep them secret: models "
        "can give away what they were trained on."
    )
    yield _LICENCES


def _whose_clients(summary: Values, config: Values) -> str:
    """Return what the clients were: simulated, processes of one machine, or sites."""
    clients = with_noun(summary.get("clients", "unknown"), "client")
    kind = summary.get("clients_were")
    if kind is None and lookup(config, "data.name") != SITES:
        return "The clients were simulated."
    if kind == "rehearsed sites":
        return f"The {clients} were processes of one machine, a rehearsal of a federation."
    told = told_count(summary.get("data") or {}, "train")
    return (
        f"The {clients} were real sites. Each trained on its own machine, on texts that did not leave it: who trained "
        f"this model has not seen them. The training examples of which the sites told: {told}. No site's texts or "
        "tests were checked by anybody else."
    )


_KNOWS = (
    "It knows the kind of text of {data}, its labels if it has any, and nothing else; on other text, other languages "
    "or other labels it is untested."
)
_LICENCES = (
    "What the base model and the data allow (their licences) and what biases they carry hold here too."
)


def _sentence(text: str) -> str:
    return capital(text) + ("" if text.endswith(".") else ".")
