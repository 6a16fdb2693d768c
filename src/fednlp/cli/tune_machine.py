"""fednlp tune-machine."""

from typing import Annotated

import typer

from fednlp.cli.experiment_options import Changes, ExperimentName


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
