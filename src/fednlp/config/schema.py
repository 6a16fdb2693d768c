"""A typed experiment: its sections, every default written out, and paths that hold from anywhere."""

import glob
from typing import Any

from pydantic import BaseModel, ValidationError

from fednlp.config import cross_checks, method_options
from fednlp.config.error_messages import explain, report
from fednlp.config.fields import ExperimentFields
from fednlp.config.renamed import with_new_names
from fednlp.config.sections import BASELINES, Costs, Data, Model, Partition
from fednlp.config.values import server_defaults
from fednlp.costs.devices import profile_names, saved_profiles
from fednlp.data.silos.paths import names_silos
from fednlp.disk import expanded
from fednlp.errors import ConfigError
from fednlp.federated.algorithm import Algorithm
from fednlp.option_types import files_among
from fednlp.partition.methods import METHODS

_PARTITION_FILES = files_among(METHODS.option_types())


class Experiment(ExperimentFields):
    """Everything a run depends on; a run is a function of this and nothing else."""

    def __init__(self, /, **sections: Any) -> None:
        """Check the sections, given as values or as dictionaries.

        Raises:
            ConfigError: Every mistake, one a line; its ``problems`` are these, one by one.

        >>> Experiment(data={"name": "20news"}, client={"learning_rate": 1e-3}).client.learning_rate
        0.001
        """
        sections = with_new_names(sections)
        found = method_options.unknown_options(sections)
        try:
            super().__init__(**sections)
        except ValidationError as error:
            explained = dict.fromkeys(explain(dict(detail), Experiment) for detail in error.errors())
            found += explained
            raise ConfigError(report("the experiment", found), found) from error
        if found:
            raise ConfigError(report("the experiment", found), found)

    def settled(self) -> "Experiment":
        """Return the experiment with what is left to data and partition chosen: the method, the size of the cohort.

        Raises:
            DataError: ``data.path`` is a pattern that fits nothing, or a folder of silos and something else.
        """
        partition = _partition_defaults(self.partition, self.data)
        settled = self.model_copy(update={"partition": partition})
        return settled.model_copy(update=_cohort_defaults(settled))

    def resolved(self, algorithm: Algorithm | None = None, *, real_clients: bool = False) -> "Experiment":
        """Return the experiment with every default of its algorithm written out, and paths made absolute.

        Args:
            algorithm: The method that is given as a value, if one is; it is checked against the other sections.
            real_clients: Each client is a process of its own, as in a rehearsal, and no time need be simulated.

        Raises:
            ConfigError: The parts cannot work together; the message says which and what to do.
            DataError: As for :meth:`settled`.
        """
        settled = self.settled()
        problems = cross_checks.problems(settled, algorithm, real_clients=real_clients)
        if problems:
            raise ConfigError(report(self.name, problems), problems)
        seed = self.seed if self.partition.seed is None else self.partition.seed
        partition = {"seed": seed, **_anchored(self.partition, *_PARTITION_FILES)}
        return self.model_copy(
            update={
                "variants": {},
                **method_options.with_defaults(self),
                "server": server_defaults(self.algorithm.name, self.server),
                "clients_per_round": settled.clients_per_round,
                "partition": settled.partition.model_copy(update=partition),
                "data": self.data.model_copy(
                    update=_anchored(self.data, "path", "test_path", "validation_path")
                ),
                "model": self.model.model_copy(update=_anchored_model(self.model)),
                "costs": self.costs.model_copy(update=_anchored_device(self.costs)),
                "runtime": self.runtime.model_copy(update=_anchored(self.runtime, "gpu_mapping")),
            }
        )


def _partition_defaults(partition: Partition, data: Data) -> Partition:
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


def _cohort_defaults(experiment: ExperimentFields) -> dict[str, int]:
    """Return the size of the cohort where it is not given and the default is more than all clients; else nothing."""
    clients, cohort = experiment.partition.clients, experiment.clients_per_round
    given = "clients_per_round" in experiment.model_fields_set or experiment.algorithm.name in BASELINES
    return {} if given or clients is None or cohort <= clients else {"clients_per_round": clients}


def _anchored(section: BaseModel, *keys: str) -> dict[str, str | list[str]]:
    """Return the paths of a section that exist, made absolute: a run may be resumed from another folder."""
    given = {key: getattr(section, key) for key in keys}
    return {key: _absolute(value) for key, value in given.items() if value is not None}


def _absolute(value: str | list[str]) -> str | list[str]:
    """Return paths made absolute, those that exist and patterns that fit something."""
    if not isinstance(value, str):
        return [path for one in value for path in [_absolute(one)] if isinstance(path, str)]
    path = expanded(value)
    return str(path.absolute()) if path.exists() or glob.glob(str(path), recursive=True) else value


def _anchored_model(model: Model) -> dict[str, str | list[str]]:
    """Return the model's folder made absolute; a known name stays one, whatever lies in the working folder."""
    from fednlp.models.registry import ALL_NAMES

    return {} if model.name_or_path in ALL_NAMES else _anchored(model, "name_or_path")


def _anchored_device(costs: Costs) -> dict[str, Any]:
    if costs.device is None:
        return {}
    if not isinstance(costs.device, dict):
        return {"device": _profile(costs.device)}
    mix: dict[str, float] = {}
    for name, share in costs.device.items():
        path = _profile(name)
        mix[path] = mix.get(path, 0.0) + share
    return {"device": mix}


def _profile(name: str) -> str:
    """Return the name of a device's profile that comes with fednlp; the path of any other."""
    if name in profile_names():
        return name
    saved = saved_profiles().get(name)
    return str(_absolute(name) if saved is None else saved.absolute())
