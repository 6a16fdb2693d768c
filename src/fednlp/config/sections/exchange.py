"""The sections of an experiment that say what is sent, and what the server learns of it."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from fednlp.errors import ConfigError
from fednlp.federated.transform_spec import HALVES, INTEGERS, check_exchange
from fednlp.option_types import Fraction
from fednlp.section import IN_ROUNDS, Feature, Section


class Exchange(Section):
    """What is done to tensors on their way to the server (``up``) and from it (``down``), in this order.

    With ``error_feedback`` a client adds what the way up lost of an update to its next one. With ``send = "weights"``
    clients send their weights and not what these changed by, and the server goes on from the model that it sent.
    """

    later: ClassVar[tuple[str, ...]] = ("send",)
    traits: ClassVar[tuple[Feature, ...]] = (
        Feature("[exchange]", IN_ROUNDS),
        Feature(
            'exchange.send = "weights"',
            {"one_model": "rounds one model"},
            {"updates": "has clients send their weights"},
        ),
        Feature(
            "exchange.error_feedback",
            {"one_model": "adds what was lost of an update to the next one of the same model"},
            {"bounded_update": "carries one update into others"},
        ),
        Feature(
            "clip in exchange.up",
            breaks={"bounded_update": "cuts updates too"},
            given=lambda e: any(word.startswith("clip") for word in e.exchange.up),
        ),
    )

    up: list[str] = []
    down: list[str] = []
    error_feedback: bool = False
    send: Literal["updates", "weights"] = "updates"

    @field_validator("up", "down", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield what is wrong with the transforms, and with settings that have no effect."""
        if self.send == "weights":
            for word in self.up:
                if word.partition(":")[0] not in (*HALVES, *INTEGERS):
                    yield (
                        f'exchange.send = "weights": {word} is for updates: say "float16", "bfloat16", "int8" or "int4"'
                    )
            if not self.up:
                yield (
                    'exchange.send = "weights" has no effect without a transform: say exchange.up = ["float16"], or '
                    "leave it out"
                )
            if self.error_feedback:
                yield 'exchange.error_feedback is for updates: leave it out, or say exchange.send = "updates"'
        try:
            check_exchange(self.up, self.down, self.error_feedback)
        except ConfigError as error:
            yield str(error)


class Pull(Section):
    """Which of the shared tensors a client sends in a round, by how far they moved since its last one.

    With ``embeddings = "apart"`` these are always sent, and not counted in ``share``.
    """

    later: ClassVar[tuple[str, ...]] = (
        "norm",
        "embeddings",
    )
    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            "[pull]",
            {
                **IN_ROUNDS,
                "one_vector": "chooses tensors of the model's update",
                "one_model": "compares a client's tensors with one model",
            },
            {
                "same_tensors": "sends different tensors for each client",
                "plain_steps": "compares with what each client sent before",
            },
        ),
        Feature('pull.push = "selected"', breaks={"whole_model": "sends no client the whole model"}),
    )

    rule: Literal["all", "low", "high", "random"] = "all"
    share: Fraction = 0.5
    of: Literal["tensors", "parameters"] = "tensors"
    push: Literal["all", "selected"] = "all"
    norm: Literal["l2", "l1"] = "l2"
    embeddings: Literal["chosen", "apart"] = "chosen"

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield that the other keys have no effect without a rule."""
        if self.rule == "all" and self != Pull():
            yield (
                '[pull] share, of, push, norm and embeddings have no effect with pull.rule = "all": say pull.rule = '
                '"low", "high" or "random"'
            )
