"""fednlp plan."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fednlp.cli.experiment_options import Changes, ExperimentName, Full

if TYPE_CHECKING:
    from rich.table import Table

    from fednlp.cli.console import Console
    from fednlp.studies.training_plan import PlanSearchResult


def plan(
    experiment: ExperimentName,
    target: Annotated[float, typer.Option(help="The accuracy to come to, e.g. 0.8.")],
    device: Annotated[
        str | None, typer.Option(help="A device profile, by name or path; that of [costs] if left out.")
    ] = None,
    bandwidth: Annotated[
        float | None, typer.Option(help="MB/s of a client, both ways; those of [costs] if left out.")
    ] = None,
    memory: Annotated[
        int | None, typer.Option(help="Bytes that training may take; the device's if left out.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="Rounds for which each plan is tried.")] = 5,
    out: Annotated[
        Path | None, typer.Option(help="The file to write the chosen plan to, e.g. selection.toml.")
    ] = None,
    variant: Annotated[str | None, typer.Option(help="One of the experiment's variants, e.g. FeS.")] = None,
    changes: Changes = None,
    public: Annotated[
        str | None,
        typer.Option(
            help="A public data set to try plans on, by NAME or NAME=PATH, e.g. agnews=ag_news_csv."
        ),
    ] = None,
    full: Full = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is found as JSON.")] = False,
) -> None:
    """Find a training plan: the layers to train for the least simulated time to an accuracy."""

    from fednlp import config
    from fednlp.cli.console import Console
    from fednlp.cli.tables import plain_console
    from fednlp.studies.training_plan import PlanLimits, find_training_plan, on_public_set

    settings = config.load(experiment, changes or [], full)
    if variant is not None:
        settings = config.with_method(settings, variant, settings.seed)
    tested = settings.data.name or settings.data.path
    if public is not None:
        settings = on_public_set(settings, public)
    limits = PlanLimits(target, rounds, device, bandwidth, memory)
    output = plain_console(stderr=as_json)
    with Console(again="type the command again", output=output) as console:
        console.begin()
        if public is None:
            console.log(
                f"plans are tried on the test set of {tested}, so runs on it that use the plan are tuned on their test "
                "set: name another data set with --public"
            )
        found = find_training_plan(settings, limits, console.log, console.on_progress)
        console.close()
        _show(found, console, as_json)
        _keep(found, out, console, as_json)


def _keep(found: "PlanSearchResult", out: Path | None, console: "Console", as_json: bool) -> None:
    """Print the chosen plan as TOML, and write it into a file."""
    from fednlp.disk import atomic
    from fednlp.errors import RunError
    from fednlp.studies.training_plan import selection_text

    if found.chosen is None:
        raise RunError(_why(found))
    text = selection_text(found)
    if not as_json:
        print(f"\n{text}")
    if out is not None:
        with atomic(out, "name a file elsewhere") as file:
            file.write(text.encode())
        console.log(f"written {out}: put its table into an experiment on the same model")


def _show(found: "PlanSearchResult", console: "Console", as_json: bool) -> None:
    """Print all evaluated plans: as JSON, or as two tables with a sentence for each violation of monotonicity."""
    from fednlp.cli.tables import show

    if as_json:
        print(json.dumps(_document(found), indent=1))
    elif found.decisions:
        results, costs = _tables(found)
        show(console.output, results)
        console.output.print()
        show(console.output, costs)
        for line in _violations(found):
            console.log(line)


def _document(found: "PlanSearchResult") -> dict[str, Any]:
    """Return the result of the search as JSON values."""
    tried = [
        asdict(one.candidate)
        | {"step": one.step, "reached": one.reached}
        | asdict(found.costs[one.candidate])
        | asdict(found.runs[one.candidate])
        for one in found.decisions
    ]
    fell = [
        [asdict(one.candidate), asdict(other.candidate)] for one, other in found.monotonicity_violations()
    ]
    chosen = None if found.chosen is None else asdict(found.chosen)
    own = {
        "model": found.model,
        "data": found.data,
        "layers": found.layers,
        "metric": found.metric,
        "least_memory": found.least,
    }
    asked = asdict(found.limits) | {"device": found.device, "memory": found.budget}
    return own | asked | {"candidates": tried, "falls": fell, "chosen": chosen, "train": found.train}


def _tables(found: "PlanSearchResult") -> "tuple[Table, Table]":
    """Return what each evaluated plan comes to, in order and with the chosen one marked, and what it requires."""
    from rich.table import Table

    from fednlp.formatting.units import DASH, human_bytes, human_seconds, metric_title, metric_value

    results, costs = (Table(box=None, pad_edge=False, header_style="dim") for _ in range(2))
    results.add_column("tried for")
    for name in ("depth", "in full", "trained", metric_title(found.metric), "a round", "to target"):
        results.add_column(name, justify="right")
    results.add_column("")
    for name in ("depth", "in full", "labelling, a text", "bytes a round", "memory"):
        costs.add_column(name, justify="right")
    for one in found.decisions:
        price, done = found.costs[one.candidate], found.runs[one.candidate]
        taken = done.seconds_to_target
        plan = str(one.candidate.depth), str(one.candidate.capacity)
        results.add_row(
            one.step,
            *plan,
            f"{price.parameters:,}",
            metric_value(found.metric, done.accuracy),
            human_seconds(done.seconds),
            DASH if taken is None else human_seconds(taken),
            "chosen" if one.candidate == found.chosen else "",
        )
        costs.add_row(
            *plan, human_seconds(price.inference), human_bytes(done.bytes), human_bytes(price.memory)
        )
    return results, costs


def _violations(found: "PlanSearchResult") -> list[str]:
    """Return a sentence for each plan that trains more than another and is less accurate."""
    lines = []
    for less, more in found.monotonicity_violations():
        missed = less.reached and not more.reached
        lines.append(
            f"training more gave less: {_short(more)} than {_short(less)}"
            + ("; the search may have missed a better plan: try more rounds" if missed else "")
        )
    return lines


def _short(one: Any) -> str:
    from fednlp.formatting.units import plural

    plan, score = one.candidate, one.outcome.accuracy
    return f"{score:.3f} with {plural(plan.depth, 'layer')}, {plan.capacity} in full"


def _why(found: "PlanSearchResult") -> str:
    """Return the reason why there is no plan, with advice."""
    from fednlp.formatting.units import human_bytes, plural

    if not found.decisions:
        assert found.budget is not None
        return (
            f"no plan for {found.model} fits {human_bytes(found.budget)} of memory, the smallest requires "
            f"{human_bytes(found.least)}: lower model.max_length or client.per_device_train_batch_size, or raise "
            "--memory"
        )
    best = max(found.decisions, key=lambda one: one.outcome.accuracy)
    return (
        f"no plan reaches {found.limits.target:g} in {plural(found.limits.rounds, 'round')}; the best is "
        f"{_short(best)}: lower --target, or raise --rounds"
    )
