"""A folder of a reproduction that was moved: some of its runs begin with a model in it, named by its full path."""

from pathlib import Path

from fednlp.simulation.compare import Planned
from fednlp.simulation.run_dir import RunDir


def follow(planned: Planned, out: Path) -> None:
    """Have a run that was begun name the model that it begins with where it lies now.

    Args:
        planned: Begins with a model in the reproduction's folder.
        out: This folder.

    Raises:
        DamagedError: The run's configuration cannot be read.
        RunError: It cannot be written.
    """
    if planned.state == "new":
        return
    directory = RunDir(planned.folder)
    experiment = directory.experiment()
    here, there = (Path(one.model.name_or_path) for one in (planned.experiment, experiment))
    inside = here.relative_to(out.absolute()).parts
    if there != here and there.parts[-len(inside) :] == inside:
        model = experiment.model.model_copy(update={"name_or_path": str(here)})
        directory.write_experiment(experiment.model_copy(update={"model": model}))
