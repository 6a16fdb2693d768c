"""fednlp device list, fednlp device measure, fednlp tune-machine: how fast this machine is, and others."""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from fednlp.cli.experiment_options import Changes, ExperimentName

_UNKNOWN = "not known"
app = typer.Typer(
    help="Profiles of devices: how long one takes for an example, and what it draws.",
    invoke_without_command=True,
    rich_markup_mode=None,
)


@app.callback()
def device(context: typer.Context) -> None:
    """Profiles of devices: how long one takes for an example, and what it draws."""
    if context.invoked_subcommand is None:
        listed(sources=False)


@app.command("list")
def listed(
    sources: Annotated[
        bool, typer.Option("--sources", help="Say of each profile where its figures come from.")
    ] = False,
) -> None:
    """List the profiles that come with fednlp or were saved here."""
    from rich.table import Table

    from fednlp.cli.tables import plain_console
    from fednlp.costs import load_profile, profile_names
    from fednlp.costs.devices import saved_profiles
    from fednlp.formatting.units import human_bytes

    output = plain_console()
    table = Table("name", "training", "inference", "watts", "memory", box=None, pad_edge=False)
    profiles = [load_profile(name) for name in (*profile_names(), *saved_profiles())]
    for profile in profiles:
        watts = [f"{w:g}" for w in (profile.watts_computing, profile.watts_sending) if w is not None]
        table.add_row(
            profile.name,
            _seconds(profile.training.models),
            _seconds(profile.inference.models),
            ", ".join(watts) or _UNKNOWN,
            _UNKNOWN if profile.memory is None else human_bytes(profile.memory),
        )
    output.print(table)
    output.print("training, inference: seconds an example; watts: computing, sending", style="dim")
    for profile in profiles if sources else []:
        output.print(f"\n{profile.name}: {profile.source}", style="dim", markup=False)
    if not sources:
        output.print("where the figures come from: fednlp device list --sources", style="dim")


def _seconds(models: Any) -> str:
    by_figures: dict[float, str] = {}
    for model, seconds in models.items():  # further names of a model have its figure
        by_figures.setdefault(seconds, model)
    return ", ".join(f"{model} {seconds:g}" for seconds, model in by_figures.items()) or _UNKNOWN


@app.command("measure")
def measure(
    model: Annotated[
        list[str] | None,
        typer.Option(help="bert-tiny, minilm, a model folder or a hub name; may be repeated."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="The file to write, e.g. mine.toml; else it is printed.")
    ] = None,
    save: Annotated[
        bool,
        typer.Option("--save", help="Keep it on this machine: its name is then that of a profile here."),
    ] = False,
    name: Annotated[str, typer.Option(help="What the device is to be called.")] = "this-machine",
    batch: Annotated[int, typer.Option(help="Examples a batch.")] = 8,
    length: Annotated[int, typer.Option(help="Tokens an example.")] = 64,
) -> None:
    """Measure this machine: make a profile with seconds an example, by how deep a model is trained."""
    import tomli_w

    from fednlp.cli.console import Console
    from fednlp.cli.tables import plain_console
    from fednlp.costs import profile_names
    from fednlp.costs.devices import saved_folder
    from fednlp.costs.measure import measure_device
    from fednlp.disk import atomic
    from fednlp.errors import ConfigError

    if save and (not re.fullmatch(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}", name) or name in profile_names()):
        raise ConfigError(
            f"--name {name} cannot name a profile of this machine: use letters, digits and ._-, and no name of "
            "fednlp device list"
        )
    output = plain_console(stderr=True)
    with Console(again="type the command again", output=output) as console:
        console.begin()
        table = measure_device(
            model or ["bert-tiny"], name, batch=batch, length=length, on_progress=console.on_progress
        )
        text = tomli_w.dumps(table)
        console.close()
        if save:
            path = saved_folder() / f"{name}.toml"
            with atomic(path, "set FEDNLP_HOME to another folder") as file:
                file.write(text.encode())
            console.log(f'{path} is kept: use it with [costs] device = "{name}"')
        if out is None:
            if not save:
                print(text, end="")
            return
        with atomic(out, "name a file elsewhere") as file:
            file.write(text.encode())
        console.log(f'{out} is a profile: use it with [costs] device = "{out}"')


def tune_machine(
    experiment: ExperimentName = "experiments/quickstart.toml",
    changes: Changes = None,
    seconds: Annotated[float, typer.Option(min=0, help="No trial is begun after so many seconds.")] = 60,
) -> None:
    """Try workers, threads and precision on this machine, and show which are the fastest for an experiment."""
    from fednlp import config
    from fednlp.studies.tuning import BF16, ONEDNN, as_text, as_toml, fastest, tried

    found = []
    for trial in tried(config.load(experiment, changes or []), seconds):
        found.append(trial)
        said = trial.error if trial.seconds is None else f"{trial.seconds:.2f} s a round"
        print(f"{as_text(trial.changes):40} {said}", flush=True)
    best = fastest(found)
    print(f"\nThe fastest of these, as lines of the experiment file:\n\n{as_toml(best.changes)}")
    if BF16 in best.changes:
        print("\nLow precision changes the weights: leave client.bf16 out to compare with float32 runs.")
    if ONEDNN in best.changes:
        print(
            "\nWith oneDNN the weights differ by rounding: leave runtime.onednn out to compare with runs without it."
        )
