"""The parameters of an experiment's model: which are trained and sent, and how many bytes that is."""

from collections.abc import Callable

from fednlp.config import Experiment
from fednlp.models.parameter_table import ParameterRow, parameter_table
from fednlp.models.pretrained import load_tokenizer, pretrained_model
from fednlp.simulation.components import make_task, model_source, open_data
from fednlp.training.model_layout import layout_of
from fednlp.training.worker_spec import selected


def inspect_model(
    experiment: Experiment, log: Callable[[str], None] = lambda text: None
) -> tuple[list[ParameterRow], int]:
    """Build the model of an experiment as a run does, and count its parameters.

    Args:
        experiment: A resolved experiment.
        log: Called with what is worth knowing about the model.

    Returns:
        A row for each part of the model, and the length in bytes of the message with the shared parameters; 0 where
        none are shared.

    Raises:
        FednlpError: The data set or the model cannot be loaded, or the selection does not suit the model.
    """
    settings = experiment.model
    data = open_data(experiment, log)
    source = model_source(experiment, data, log)
    task = make_task(experiment.task.name or data.task, data, load_tokenizer(source), experiment.task.given())
    model = pretrained_model(
        source, task.model_class, task.settings(), settings.config, experiment.seed, settings.peft
    )
    selection = selected(model, settings.train, settings.peft)
    message = layout_of(model, selection.personal).message_bytes if selection.shared else 0
    return parameter_table(model, selection), message
