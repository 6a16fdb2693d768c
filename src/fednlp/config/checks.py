"""All checks of an experiment: what goes with what, and the rules of each section's own values."""

from collections.abc import Iterator

from fednlp.config.compatibility import WITHOUT_CLOCK, conflicts, settings_features
from fednlp.config.fields import ExperimentFields
from fednlp.config.method_checks import method_problems
from fednlp.config.own_code import own_code_problems
from fednlp.config.round_schedules import schedule_problems
from fednlp.config.sections import BASELINES, LARGEST_CLIP, Fewshot, Pull, Secure
from fednlp.costs.devices import load_profile
from fednlp.costs.fleet import check_mix
from fednlp.errors import ConfigError, ModelError, PartitionError
from fednlp.federated.algorithm import Algorithm
from fednlp.federated.transform_spec import HALVES, INTEGERS, check_exchange
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
    method, features = method_problems(experiment, given)
    features = [*settings_features(experiment), *features]
    if not real_clients and WITHOUT_CLOCK.in_experiment(experiment):
        features.append(WITHOUT_CLOCK)
    return [
        *own_code_problems(experiment),
        *_partition_problems(experiment),
        *method,
        *conflicts(features),
        *schedule_problems(experiment),
        *_cohort_problems(experiment),
        *_exchange_problems(experiment),
        *_model_problems(experiment),
        *_secure_problems(experiment),
        *_fewshot_problems(experiment),
        *_costs_problems(experiment),
        *_runtime_problems(experiment),
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


def _exchange_problems(experiment: ExperimentFields) -> list[str]:
    exchange, pull, found = experiment.exchange, experiment.pull, []
    if pull.rule == "all" and pull != Pull():
        found.append(
            '[pull] share, of, push, norm and embeddings have no effect with pull.rule = "all": say pull.rule = "low", '
            '"high" or "random"'
        )
    if exchange.send == "weights":
        found += [
            f'exchange.send = "weights": {word} is for updates: say "float16", "bfloat16", "int8" or "int4"'
            for word in exchange.up
            if word.partition(":")[0] not in (*HALVES, *INTEGERS)
        ]
        if not exchange.up:
            found.append(
                'exchange.send = "weights" has no effect without a transform: say exchange.up = ["float16"], or leave '
                "it out"
            )
        if exchange.error_feedback:
            found.append(
                'exchange.error_feedback is for updates: leave it out, or say exchange.send = "updates"'
            )
    try:
        check_exchange(exchange.up, exchange.down, exchange.error_feedback)
    except ConfigError as error:
        found.append(str(error))
    return found


def _secure_problems(experiment: ExperimentFields) -> list[str]:
    """Return what is wrong with the numbers of ``[secure]``, and with those of ``[privacy]`` under it."""
    from fednlp.secure.plan import make_plan

    secure, privacy, cohort = experiment.secure, experiment.privacy, experiment.clients_per_round
    if secure.protocol == "none":
        given = secure != Secure()
        return (
            ['[secure] has no protocol: say secure.protocol = "secagg+", or leave the section out']
            if given
            else []
        )
    if experiment.algorithm.name in BASELINES:
        return []
    found = []
    if privacy is not None and privacy.clip > LARGEST_CLIP:
        found.append(
            f"privacy.clip = {privacy.clip} is more than a secure sum has room for: {LARGEST_CLIP} at most"
        )
    try:
        make_plan(
            secure.protocol,
            cohort,
            secure.dropout,
            secure.max_colluding,
            secure.bits,
            secure.malicious_server,
        )
    except ConfigError as error:
        found.append(str(error))
    return found


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


def _model_problems(experiment: ExperimentFields) -> list[str]:
    from fednlp.models.peft_methods import check_peft
    from fednlp.models.selection_spec import parse_selection

    model, found = experiment.model, []
    try:
        parse_selection(model.train)
    except ConfigError as error:
        found.append(f"model.train: {error}")
    try:
        if model.peft is not None:
            check_peft(model.peft)
    except ModelError as error:
        found.append(str(error))
    return found


def _fewshot_problems(experiment: ExperimentFields) -> list[str]:
    fewshot, task, found = experiment.fewshot, experiment.task.configured, []
    if fewshot is None:
        return []
    if not fewshot.gold and (task != "prompt-classification" or fewshot.pacing == "none"):
        found.append(
            "fewshot.gold = 0: without any label there is nothing to begin from but what a model says to a prompt: say "
            "gold = 64, or give task.prompt and a fewshot.pacing"
        )
    if fewshot.first_labelling != 1:
        found += _first_labelling_problems(fewshot, at_sites=experiment.data.at_sites)
    if fewshot.label_counts == "truth" and fewshot.class_balanced:
        found.append(
            'fewshot.label_counts = "truth" and fewshot.class_balanced are two rules for the number of pseudo labels '
            "of each class: leave out one of the two"
        )
    if fewshot.pacing == "search":
        found += _search_problems(experiment, fewshot)
    return found


def _first_labelling_problems(fewshot: Fewshot, *, at_sites: bool) -> Iterator[str]:
    """Yield why clients cannot begin to label in a round after the first."""
    given = f"fewshot.first_labelling = {fewshot.first_labelling}"
    if fewshot.pacing in ("none", "search"):
        why = "no client labels" if fewshot.pacing == "none" else "the search says when clients label"
        yield f'{given}: {why} with fewshot.pacing = "{fewshot.pacing}": set it to 1'
    elif not fewshot.gold and not at_sites:
        yield f"{given}: without gold labels there is nothing to train on before: set it to 1"


def _search_problems(experiment: ExperimentFields, fewshot: Fewshot) -> Iterator[str]:
    """Yield why trials cannot be made as ``[fewshot]`` has them."""
    if fewshot.trial_rounds >= experiment.num_rounds:
        yield (
            f"fewshot.trial_rounds = {fewshot.trial_rounds}: a search for a pace takes so many rounds at least, and "
            f"the run has {experiment.num_rounds}: give num_rounds more, or lower fewshot.trial_rounds"
        )
    if fewshot.validation or experiment.data.at_sites:
        return
    if fewshot.trials == "sequential":
        yield (
            'fewshot.trials = "sequential" trains each trial on all gold labels, which then cannot judge it: say how '
            "many labelled texts the server has, fewshot.validation = 128"
        )
    elif not fewshot.gold:
        yield (
            "fewshot.gold = 0: there is no gold label to choose a pace by: say how many labelled texts the server has, "
            "fewshot.validation = 128, or set another fewshot.pacing"
        )
