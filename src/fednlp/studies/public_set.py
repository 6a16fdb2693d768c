"""An experiment on a public data set in place of its own, to choose settings without its test set."""

from fednlp.config import Experiment
from fednlp.config.sections import Data
from fednlp.errors import ConfigError
from fednlp.prompts.prompt_sets import prompt_names


def on_public_set(experiment: Experiment, public: str) -> Experiment:
    """Return an experiment on another data set, with its prompt where the experiment has one.

    Plans are chosen "offline on cloud", on a public set as hard as the private one (FeS, section 3.3), so that the
    test set of the experiment chooses nothing.

    Args:
        experiment: The experiment for which a plan is wanted.
        public: Name of a known data set, and its files where it is not fetched: ``"bbc"``, ``"agnews=DIR"``.

    Raises:
        ConfigError: It is the experiment's own data set, or has no prompt.
    """
    name, _, path = public.partition("=")
    if name == experiment.data.name:
        raise ConfigError(f"--public {name} is the experiment's own data set: name another, or leave it out")
    task = experiment.task
    if task.given().get("prompt"):
        if name not in prompt_names():
            raise ConfigError(f"{name} has no prompt: name one of {', '.join(prompt_names())}")
        task = task.model_copy(update={"prompt": name})
    return experiment.model_copy(update={"data": Data(name=name, path=path or None), "task": task})
