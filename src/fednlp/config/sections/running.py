"""The sections of an experiment that change no weights: costs, where the work is done, evaluation, reports."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal

from pydantic import PlainValidator, field_validator
from pydantic_core import PydanticCustomError

from fednlp.costs.devices import load_profile
from fednlp.costs.fleet import check_mix
from fednlp.errors import ConfigError
from fednlp.option_types import Count, Fraction, PositiveFloat, PositiveInt
from fednlp.plugins import is_own
from fednlp.runtime import ENGINES
from fednlp.section import IN_ROUNDS, Feature, Section

Tracker = Literal["none", "tensorboard", "wandb", "mlflow"]


def _one_or_mixed(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict) and value and all(type(name) is str for name in value):
        shares = [1.0 if type(share) is int and share == 1 else share for share in value.values()]
        if all(type(share) is float for share in shares):
            return dict(zip(value, shares, strict=True))
    wanted = 'give a profile, or a mix with its shares: { "jetson-tx2" = 0.5, "raspberry-pi-4b" = 0.5 }'
    raise PydanticCustomError("device_type", wanted)


class Costs(Section):
    """What time and bytes are priced with: bandwidths in MB/s (10^6 bytes), and a device's profile.

    ``device`` is one profile for all clients, or a mix: shares of the clients by profile.
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature("costs.device", {"each_report": "counts the examples that each client has seen"}),
    )

    bandwidth_up: PositiveFloat | None = None
    bandwidth_down: PositiveFloat | None = None
    device: Annotated[str | dict[str, float] | None, PlainValidator(_one_or_mixed)] = None

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield that a profile cannot be read, or a mix of them is none."""
        try:
            if isinstance(self.device, dict):
                check_mix(self.device)
            for name in [self.device] if isinstance(self.device, str) else self.device or ():
                load_profile(name)
        except ConfigError as error:
            yield f"costs.device: {error}"


class Runtime(Section):
    """Where the work is done. ``engine``, ``address`` and ``workers`` change the speed, never the result.

    ``address`` is that of a cluster of Ray. ``workers_per_gpu`` and ``gpu_mapping``, a file, lay the workers over GPUs.
    ``cache_activations`` keeps what frozen bottom layers make of each text on disk, in place of running them again.
    ``clients_at_once`` trains the adapters or heads of so many clients in one pass over a frozen base; weights are then
    not those of one client after the other, bit for bit. ``onednn`` has oneDNN compute the linear layers in float32;
    ``"auto"`` where this is faster.
    """

    later: ClassVar[tuple[str, ...]] = (
        "clients_at_once",
        "onednn",
    )
    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "runtime.clients_at_once",
            {
                **IN_ROUNDS,
                "plain_steps": "computes the steps of several clients over one frozen base in one pass",
                "fixed_base": "trains adapters or heads over a frozen base",
                "simulation": "trains clients of several sites in one process",
            },
        ),
    )

    engine: str = "pool"
    address: str | None = None
    workers: Count = 0
    threads: PositiveInt = 1
    device: str = "auto"
    workers_per_gpu: PositiveInt = 1
    gpu_mapping: str | None = None
    cache_activations: bool = True
    clients_at_once: PositiveInt = 1
    onednn: bool | Literal["auto"] = "auto"

    @field_validator("engine")
    @classmethod
    def _known_engine(cls, name: str) -> str:
        if name in ENGINES or is_own(name):
            return name
        raise ValueError(
            f'there is no engine "{name}": known are {", ".join(ENGINES)}, or "module:Class" of your own'
        )

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield what the engine has no use for."""
        if self.address is not None and self.engine in ENGINES and self.engine != "ray":
            yield 'runtime.address is that of a cluster of Ray: say runtime.engine = "ray", or leave it out'
        elif self.gpu_mapping is not None and self.engine == "ray":
            yield "runtime.gpu_mapping: Ray lays its actors over the GPUs by itself: leave it out"


class Evaluation(Section):
    """When the model is tried on test examples: every so many rounds, and always at the end.

    With ``federated`` the clients evaluate the global model on their own test examples, and its metrics are made of
    sums over all clients. With ``cross_client_evaluation`` the clients' own models are tried at the end on every
    client's test examples. With ``server_model`` the server's model is tried where clients have models of their own: it
    has the first personal tensors, those that every client began with. The models after ``client.finetune_steps`` are
    kept where there are at most ``keep_client_models`` clients. With ``bf16_full_eval`` predictions are made in
    bfloat16. With ``validation_fraction`` each client sets aside that share of its training examples, and all tests are
    made on these; the test sets are not used. It is for choosing settings.
    """

    later: ClassVar[tuple[str, ...]] = (
        "federated",
        "server_model",
    )
    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "evaluation.federated",
            {**IN_ROUNDS, "one_model": "sums over tests of one model"},
            {
                "noised_sums": (
                    "publishes exact sums over the clients' test examples",
                    "leave it out, and test the model on examples of the server (data.test_path)",
                )
            },
        ),
        Feature("evaluation.validation_fraction", {"training_labels": "needs labels of training examples"}),
    )

    every: PositiveInt = 1
    personal: bool = True
    federated: bool = False
    batch_size: PositiveInt = 64
    bf16_full_eval: bool | Literal["auto"] = False
    local_models: PositiveInt = 10
    cross_client_evaluation: bool = False
    server_model: bool = False
    keep_client_models: Count = 100
    validation_fraction: Fraction | None = None


class Report(Section):
    """Where the numbers go beside the run directory."""

    report_to: list[Tracker] = []

    @field_validator("report_to", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        names = [value] if isinstance(value, str) else value
        return [name for name in names if name != "none"] if isinstance(names, list) else value
