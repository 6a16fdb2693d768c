"""What goes together in an experiment, and what does not."""

from fednlp.config.at_once_checks import at_once_problems
from fednlp.config.clock_checks import clock_problems
from fednlp.config.exchange_checks import exchange_problems
from fednlp.config.fewshot_checks import fewshot_problems
from fednlp.config.fields import ExperimentFields
from fednlp.config.method_checks import method_problems
from fednlp.config.over_selection import over_selection_problems
from fednlp.config.own_code import own_code_problems
from fednlp.config.protection_checks import privacy_problems, secure_problems
from fednlp.config.round_schedules import schedule_problems
from fednlp.config.sections import BASELINES
from fednlp.costs.devices import load_profile
from fednlp.costs.fleet import check_mix
from fednlp.errors import ConfigError, ModelError, PartitionError
from fednlp.federated.algorithm import Algorithm
from fednlp.partition.make import check_options
from fednlp.plugins import is_own
from fednlp.runtime import ENGINES


def problems(
    experiment: ExperimentFields, given: Algorithm | None = None, *, real_clients: bool = False
) -> list[str]:
    """Return every mistake in how the parts go together, a sentence each.

    Args:
        experiment: With the method and the cohort that the data leave.
        given: The algorithm that was given as a value, if it was.
        real_clients: Clients are processes of their own, whose time need not be simulated.
    """
    return [
        *own_code_problems(experiment),
        *_partition_problems(experiment),
        *method_problems(experiment, given),
        *schedule_problems(experiment),
        *_cohort_problems(experiment),
        *over_selection_problems(experiment),
        *([] if real_clients else clock_problems(experiment)),
        *exchange_problems(experiment),
        *_selection_problems(experiment),
        *secure_problems(experiment),
        *privacy_problems(experiment),
        *fewshot_problems(experiment),
        *_costs_problems(experiment),
        *_evaluation_problems(experiment),
        *_runtime_problems(experiment),
        *at_once_problems(experiment),
    ]


def _partition_problems(experiment: ExperimentFields) -> list[str]:
    partition = experiment.partition
    if partition.options and not is_own(partition.method):
        return [
            f"[partition] options are for a partitioner of your own: write those of {partition.method!r} into "
            "[partition], or leave them out"
        ]
    if partition.test_sets == "own-split" and (partition.method == "file" or experiment.data.at_sites):
        whose = "each site names its tests" if experiment.data.at_sites else "the file has the clients' tests"
        return [f'partition.test_sets = "own-split": {whose}: leave it out']
    try:
        check_options(partition.spec())
    except PartitionError as error:
        return [f"[partition] {error}"]
    except ConfigError:  # reported already
        pass
    return []


def _cohort_problems(experiment: ExperimentFields) -> list[str]:
    clients, cohort = experiment.partition.clients, experiment.clients_per_round
    found = []
    if clients is not None and cohort > clients and experiment.algorithm.name not in BASELINES:
        found.append(
            f"clients_per_round = {cohort} is more than partition.clients = {clients}: lower the first"
        )
    if experiment.min_clients > cohort:
        found.append(
            f"min_clients = {experiment.min_clients} is more than clients_per_round = {cohort}: lower it"
        )
    return found


def _evaluation_problems(experiment: ExperimentFields) -> list[str]:
    found, name = _validation_problems(experiment), experiment.algorithm.name
    if not experiment.evaluation.federated:
        return found
    if name in BASELINES:
        found.append(
            f"evaluation.federated is not supported by {name}, where clients send nothing: leave it out"
        )
    if experiment.privacy is not None:
        found.append(
            "evaluation.federated publishes exact sums over the clients' test examples, which the guarantee of "
            "[privacy] does not cover: leave it out, and test the model on examples of the server (data.test_path)"
        )
    return found


def _validation_problems(experiment: ExperimentFields) -> list[str]:
    if experiment.evaluation.validation_fraction is None:
        return []
    if experiment.data.at_sites:
        return [
            "evaluation.validation_fraction is for simulations: the examples are at the sites; leave it out"
        ]
    if experiment.fewshot is not None:
        return [
            "evaluation.validation_fraction needs labels of training examples, which [fewshot] does not have: "
            "leave it out"
        ]
    return []


def _costs_problems(experiment: ExperimentFields) -> list[str]:
    try:
        device = experiment.costs.device
        if isinstance(device, dict):
            check_mix(device)
        for name in [device] if isinstance(device, str) else device or ():
            load_profile(name)
    except ConfigError as error:
        return [f"costs.device: {error}"]
    return []


def _runtime_problems(experiment: ExperimentFields) -> list[str]:
    runtime = experiment.runtime
    if runtime.address is not None and runtime.engine in ENGINES and runtime.engine != "ray":
        return ['runtime.address is that of a cluster of Ray: say runtime.engine = "ray", or leave it out']
    if runtime.gpu_mapping is not None and runtime.engine == "ray":
        return ["runtime.gpu_mapping: Ray lays its actors over the GPUs by itself: leave it out"]
    return []


def _selection_problems(experiment: ExperimentFields) -> list[str]:
    from fednlp.models.peft_methods import averaging_of, check_peft
    from fednlp.models.selection_spec import parse_selection

    model, found = experiment.model, []
    try:
        parse_selection(model.train)
    except ConfigError as error:
        found.append(f"model.train: {error}")
    try:
        if model.peft is not None:
            check_peft(model.peft)
            if averaging_of(model.peft) == "exact" and experiment.pull.rule != "all":
                found.append(
                    '[model.peft] averaging = "exact" needs all adapters of all clients: leave [pull] out'
                )
    except ModelError as error:
        found.append(str(error))
    return found
