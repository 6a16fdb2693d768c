"""What goes together in an experiment, what does not, and what an algorithm's name stands for."""

from typing import Any

from fednlp.config.at_once_checks import at_once_problems
from fednlp.config.clock_checks import clock_problems
from fednlp.config.compatibility import conflicts
from fednlp.config.fewshot_checks import fewshot_problems
from fednlp.config.fields import ExperimentFields
from fednlp.config.method_options import foreign_options, found_or_none, named_functions
from fednlp.config.over_selection import over_selection_problems
from fednlp.config.protection_checks import privacy_problems, secure_problems
from fednlp.config.round_schedules import CONSTANT, schedule_problems
from fednlp.config.sections import (
    BASELINES,
    GIVEN,
    Data,
    Exchange,
    Partition,
    Pull,
)
from fednlp.config.values import SERVER_NUMBERS, aggregator_of, algorithm_of, attack_of
from fednlp.costs.devices import load_profile
from fednlp.costs.fleet import check_mix
from fednlp.data.silos.paths import names_silos
from fednlp.errors import ConfigError, ModelError, PartitionError
from fednlp.federated.algorithm import Algorithm as AlgorithmValue
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.transform_spec import HALVES, INTEGERS, check_exchange
from fednlp.partition.make import check_options
from fednlp.plugins import is_own, load
from fednlp.runtime import ENGINES

_SCHEDULE = ("round_schedule", "warmup_rounds", "minimum_rate")


def problems(
    experiment: ExperimentFields, given: AlgorithmValue | None = None, *, real_clients: bool = False
) -> list[str]:
    """Return every mistake in how the parts go together, a sentence each.

    Args:
        experiment: With the method and the cohort that the data leave.
        given: The algorithm that was given as a value, if it was.
        real_clients: Clients are processes of their own, whose time need not be simulated.
    """
    return [
        *_own_code_problems(experiment),
        *_partition_problems(experiment),
        *_method_problems(experiment, given),
        *schedule_problems(experiment),
        *_cohort_problems(experiment),
        *over_selection_problems(experiment),
        *([] if real_clients else clock_problems(experiment)),
        *_exchange_problems(experiment),
        *_selection_problems(experiment),
        *secure_problems(experiment),
        *privacy_problems(experiment),
        *fewshot_problems(experiment),
        *_costs_problems(experiment),
        *_evaluation_problems(experiment),
        *_runtime_problems(experiment),
        *at_once_problems(experiment),
    ]


def own_code(experiment: ExperimentFields) -> list[tuple[str, str]]:
    """Return the settings that name code of the user's own, each with the ``"module:attribute"`` that it names."""
    named = [
        ("task.name", experiment.task.name or ""),
        ("partition.method", experiment.partition.method),
        ("algorithm.name", experiment.algorithm.name),
        ("aggregator.name", experiment.aggregator.name if experiment.aggregator else ""),
        ("attack.name", experiment.attack.name if experiment.attack else ""),
        ("runtime.engine", experiment.runtime.engine),
        *(("exchange.up", word) for word in experiment.exchange.up),
        *(("exchange.down", word) for word in experiment.exchange.down),
    ]
    return [(key, name) for key, name in named if is_own(name)]


def partition_defaults(partition: Partition, data: Data) -> Partition:
    """Choose the method where it is left to the data; nothing said at all is uniform over 10 clients.

    Raises:
        DataError: ``data.path`` is a pattern that fits nothing, or a folder of silos and something else.
    """
    if partition.method != "auto":
        return partition
    if data.at_sites or (
        data.name is None and data.path is not None and names_silos(data.path, data.columns)
    ):
        return partition.model_copy(update={"method": "silos"})
    clients = 10 if partition == Partition() else partition.clients
    return partition.model_copy(update={"method": "uniform", "clients": clients})


def cohort_defaults(experiment: ExperimentFields) -> dict[str, int]:
    """Return the size of the cohort where it is not given and the default is more than all clients; else nothing."""
    clients, cohort = experiment.partition.clients, experiment.clients_per_round
    given = "clients_per_round" in experiment.model_fields_set or experiment.algorithm.name in BASELINES
    return {} if given or clients is None or cohort <= clients else {"clients_per_round": clients}


def _own_code_problems(experiment: ExperimentFields) -> list[str]:
    found = []
    registries = {f"{registry.kind.section}.name": registry for _, registry in named_functions(experiment)}
    for key, name in own_code(experiment):
        try:
            if key in registries:
                registries[key].find(name)
            else:
                load(name, key)
        except ConfigError as error:
            found.append(str(error))
    return found


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


def _method_problems(experiment: ExperimentFields, given: AlgorithmValue | None) -> list[str]:
    """Return what is wrong with the method, the aggregator and the attack: their options, then what they refuse."""
    named = [
        (section, registry, found_or_none(registry, section.name))
        for section, registry in named_functions(experiment)
        if section.name not in (*BASELINES, GIVEN)
    ]
    found = [*_baseline_problems(experiment), *_server_problems(experiment)]
    if experiment.algorithm.order is not None and experiment.algorithm.name != "chained":
        found.append(
            'algorithm.order is for the baseline chained: say algorithm.name = "chained", or leave it out'
        )
    for section, registry, plugin in named:
        found += [] if plugin is None else foreign_options(section, registry, plugin)
    if found or any(
        plugin is None for *_, plugin in named
    ):  # code that cannot be imported is reported already
        return found
    for section, _, plugin in named:
        try:
            found += [] if plugin is None else plugin.refused(section.function_options, experiment)
        except ConfigError as error:
            found.append(str(error))
    return found + _value_problems(experiment, given)


def _baseline_problems(experiment: ExperimentFields) -> list[str]:
    """Return the options and sections that a baseline does not have."""
    name = experiment.algorithm.name
    if name not in BASELINES:
        return []
    found = [
        f"algorithm.{key} is not supported by {name}: leave it out"
        for key in experiment.algorithm.function_options
    ]
    for section, why in (("aggregator", "nothing is aggregated"), ("attack", "no client sends anything")):
        if getattr(experiment, section) is not None:
            found.append(f"[{section}] is not supported by {name}, where {why}: leave it out")
    return found


def _value_problems(experiment: ExperimentFields, given: AlgorithmValue | None) -> list[str]:
    """Return what the values that the names stand for do not go with."""
    name, attack = experiment.algorithm.name, experiment.attack
    if name in BASELINES or (name == GIVEN and given is None):
        return []
    try:
        algorithm = given or algorithm_of(experiment)
        aggregator = aggregator_of(experiment, algorithm)
        if attack is not None:
            attack_of(attack)
    except ConfigError as error:
        return [str(error)]
    return conflicts(algorithm, aggregator, experiment)


def _server_problems(experiment: ExperimentFields) -> list[str]:
    """Return what of ``[server]`` the method has no place for."""
    server, name = experiment.server, experiment.algorithm.name
    given = {
        key: value for key, value in server.model_dump(exclude_defaults=True).items() if value is not None
    }
    method = None if name in (*BASELINES, GIVEN) else found_or_none(ALGORITHMS, name)
    begun = None if method is None else method.server
    if name == GIVEN:
        given = {key: value for key, value in given.items() if key not in CONSTANT}
    if begun is None:
        plain = {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.0}
        return [_no_server(name, given)] if any(plain.get(k) != v for k, v in given.items()) else []
    found = []
    if method is not None and method.fixed_server and server.optimizer not in {None, begun.name}:
        found.append(
            f'{name} means server.optimizer = "{begun.name}", not "{server.optimizer}": '
            'say algorithm.name = "fedopt" to choose freely'
        )
    optimizer = server.optimizer or begun.name
    useful = {"optimizer", "learning_rate", *SERVER_NUMBERS[optimizer], *_SCHEDULE}
    return found + [
        f"server.{key} is not supported by the server optimiser {optimizer}: leave it out"
        for key in given
        if key not in useful
    ]


def _no_server(name: str, given: dict[str, Any]) -> str:
    what = f"({', '.join(given)} given): leave it out, or"
    if name == GIVEN:
        return f"[server] does not reach an algorithm that is given as a value {what} build the value with that server"
    if is_own(name):
        return (
            f"[server] is not supported by {name} {what} let the function take server by name "
            "(server=fednlp.ServerOptimizer())"
        )
    return f'[server] is not supported by {name} {what} say algorithm.name = "fedopt"'


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


def _weights_problems(experiment: ExperimentFields) -> list[str]:
    """Return what does not go together with clients that send their weights, a sentence each."""
    exchange, found = experiment.exchange, []
    if not exchange.up:
        found.append(
            'exchange.send = "weights" has no effect without a transform: say exchange.up = ["float16"], or leave it '
            "out"
        )
    for word in exchange.up:
        if word.partition(":")[0] not in (*HALVES, *INTEGERS):
            found.append(
                f'exchange.send = "weights": {word} is for updates: say "float16", "bfloat16", "int8" or "int4"'
            )
    if exchange.error_feedback:
        found.append('exchange.error_feedback is for updates: leave it out, or say exchange.send = "updates"')
    if experiment.privacy is not None:
        found.append('[privacy] bounds updates: say exchange.send = "updates"')
    if experiment.algorithm.name == "fedbuff":
        found.append(
            'fedbuff adds updates to newer models than they were made of: say exchange.send = "updates"'
        )
    return found


def _exchange_problems(experiment: ExperimentFields) -> list[str]:
    exchange, pull, name = experiment.exchange, experiment.pull, experiment.algorithm.name
    found = []
    for section, given in (("exchange", exchange != Exchange()), ("pull", pull != Pull())):
        if given and name in BASELINES:
            found.append(f"[{section}] is not supported by {name}, where nothing is exchanged: leave it out")
    if pull.rule == "all" and pull != Pull():
        found.append(
            '[pull] share, of, push, norm and embeddings have no effect with pull.rule = "all": say pull.rule = "low", '
            '"high" or "random"'
        )
    if exchange.send == "weights":
        found += _weights_problems(experiment)
    try:
        check_exchange(exchange.up, exchange.down, exchange.error_feedback)
    except ConfigError as error:
        found.append(str(error))
    return found


def _evaluation_problems(experiment: ExperimentFields) -> list[str]:
    found, name = _validation_problems(experiment), experiment.algorithm.name
    if not experiment.evaluation.federated:
        return found
    if name in BASELINES:
        found.append(f"evaluation.federated has no part in {name}, where clients send nothing: leave it out")
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
    from fednlp.models.peft_options import averaging_of, check_peft
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
