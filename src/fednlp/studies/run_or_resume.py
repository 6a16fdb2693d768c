"""What is left of a run: all of it, the rest, or nothing. It is done in this process, or in a process for jobs."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fednlp.config import Experiment
from fednlp.disk import require_no_link
from fednlp.errors import ConfigError
from fednlp.runtime.job import Say
from fednlp.runtime.jobs import JobProcess, Jobs
from fednlp.simulation.callback import Callback
from fednlp.simulation.engines import stays_here
from fednlp.simulation.run import resume, run
from fednlp.simulation.run_dir import RunDir


def run_or_resume(
    experiment: Experiment, folder: Path, callback: Callback, process: JobProcess | None = None
) -> None:
    """Do what is left of a run.

    Args:
        experiment: Its configuration, resolved.
        callback: Reports progress; what it raises ends the run at that point.
        process: Where it is done; None for this process.

    Raises:
        FednlpError: As for :func:`fednlp.run` and :func:`fednlp.resume`, or some code exists only in this process and
            another is to run it.
    """
    require_no_link(folder)
    if process is not None:
        if stays_here(experiment):
            raise ConfigError(
                "what a notebook or a script defines lies in its own process alone: write it into a file and name it "
                '"module:function", or leave out --jobs'
            )
        arguments = {"experiment": experiment.model_dump(mode="json"), "folder": str(folder)}
        process.do(f"{__name__}:go_on_here", arguments, _Hearing(callback).hear)
    elif RunDir(folder).finished:
        return
    elif (folder / "resolved.toml").is_file():
        resume(folder, expected=experiment, callback=callback)
    else:
        run(experiment, folder, callback=callback)


def jobs_of(experiments: Iterable[Experiment], number: int) -> Jobs:
    """Return the processes for jobs of some experiments; GPUs are divided if they are left to us.

    Args:
        experiments: Resolved.
        number: Jobs at once; no more than there are experiments.

    Raises:
        ConfigError: As for :class:`fednlp.runtime.jobs.Jobs`.
    """
    where = [one.runtime for one in experiments]
    free = all(one.device in ("auto", "cuda") and one.gpu_mapping is None for one in where)
    return Jobs(min(number, max(1, len(where))), on_gpus=free)


def go_on_here(experiment: dict[str, Any], folder: str, say: Say) -> None:
    """Do what is left of a run, as a function for a process for jobs.

    Args:
        experiment: The sections of the resolved configuration.
        say: Told of each call of the callback.
    """
    run_or_resume(Experiment(**experiment), Path(folder), _Saying(say))


class _Saying:
    """A callback that passes its calls on to another process."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def log(self, text: str) -> None:
        """Pass on a message."""
        self._say({"log": text})

    def started(self, run: RunDir, experiment: Experiment, rounds: int, done: int) -> None:
        """Pass on the beginning."""
        sections = experiment.model_dump(mode="json")
        self._say({"started": [str(run.folder), sections, rounds, done]})

    def on_progress(self, done: int, of: int, what: str) -> None:
        """Pass on how far a round is: nobody shows it, but a run that nobody waits for any more ends here."""
        self._say({"on_progress": [done, of, what]})

    def on_round(self, line: dict[str, Any], left: float | None) -> None:
        """Pass on a round."""
        self._say({"on_round": [line, left]})

    def finished(self, run: RunDir, summary: dict[str, Any]) -> None:
        """Pass on the end."""
        self._say({"finished": [str(run.folder), summary]})


class _Hearing:
    """Calls a callback as :class:`_Saying` was called."""

    def __init__(self, callback: Callback) -> None:
        self._to = callback

    def hear(self, said: dict[str, Any]) -> None:
        """Make one call."""
        match said:
            case {"log": text}:
                self._to.log(text)
            case {"started": [folder, sections, rounds, done]}:
                self._to.started(RunDir(Path(folder)), Experiment(**sections), rounds, done)
            case {"on_progress": [done, of, what]}:
                self._to.on_progress(done, of, what)
            case {"on_round": [line, left]}:
                self._to.on_round(line, left)
            case {"finished": [folder, summary]}:
                self._to.finished(RunDir(Path(folder)), summary)
