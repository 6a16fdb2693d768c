"""The sections of an experiment that say what is learnt: ``[task]`` and ``[model]``."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, JsonValue, field_validator

from fednlp.config.sections.base import with_options
from fednlp.errors import ConfigError, ModelError
from fednlp.federated.adapters import features, problems, ranks_of
from fednlp.formulations import TASKS, option_types
from fednlp.models.selection_spec import layer_places
from fednlp.section import Feature, Section


@with_options(option_types())
class Task(Section):
    """What is learnt: a formulation by ``name``, inferred from the data if left out, and its options.

    The further keys are the options of all tasks (:mod:`fednlp.formulations`).
    """

    name: str | None = None
    options: dict[str, JsonValue] = {}

    @field_validator("name")
    @classmethod
    def _known_name(cls, name: str | None) -> str | None:
        if name is None or name in TASKS or ":" in name:
            return name
        near = difflib.get_close_matches(name, TASKS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(f'there is no task "{name}": {hint}known are {", ".join(TASKS)}')

    @property
    def configured(self) -> str | None:
        """The task that is named, or prompt classification where only a prompt is; None for the data set's own."""
        return self.name or ("prompt-classification" if self.given().get("prompt") else None)

    def given(self) -> dict[str, Any]:
        """Return the options that are set, without the name."""
        named = self.model_dump(exclude_none=True, exclude={"name", "options"})
        return named | dict(self.options)


class AddedLayers(Section):
    """Layers put into the trained model, numbered as in the model with them, and what their weights begin as."""

    at: Annotated[list[str], Field(min_length=1)]
    initial: Literal["copy", "zero", "random"] = "copy"

    @field_validator("at")
    @classmethod
    def _are_layers(cls, at: list[str]) -> list[str]:
        try:
            layer_places(at)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return at


def _keeps_layers(experiment: Any) -> bool:
    train = experiment.model.train
    return isinstance(train, Mapping) and (
        bool({"critical_layer", "personal"} & {*train}) or "personal" in train.values()
    )


class Model(Section):
    """The starting point: a name known here, a folder, or a hub name; ``config`` overrides its settings.

    ``added_layers`` puts layers into it, ``peft`` adapters on it; ``vocabulary_size`` and ``vocabulary`` (of source
    and target) are for models that are built over the texts at hand;
    ``train`` says which parameters are shared, personal or frozen (:mod:`fednlp.models.selection`).
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        *features(),
        Feature(
            'model.train = "all"',
            breaks={"plain_steps": "trains all weights"},
            remedy='add [model.peft], or freeze layers, such as by model.train = "head"',
            given=lambda e: e.model.train == "all" and e.model.peft is None,
        ),
        Feature(
            "model.train",
            {"one_model": "keeps layers that clients train with one model"},
            {"whole_model": "keeps layers with each client"},
            remedy='share all layers; to share all but the embeddings, say model.train.frozen = "embeddings"',
            given=_keeps_layers,
        ),
    )

    name_or_path: str = "bert-tiny"
    max_length: Annotated[int, Field(ge=4)] = 128
    config: dict[str, JsonValue] = {}
    vocabulary_size: Annotated[int, Field(ge=300)] | None = None
    vocabulary: Literal["shared", "separate"] = "shared"
    added_layers: AddedLayers | None = None
    peft: dict[str, JsonValue] | None = None
    train: JsonValue = "all"

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield what is wrong with the choice of parameters, and with the adapters."""
        from fednlp.models.peft_methods import check_peft
        from fednlp.models.selection_spec import parse_selection

        try:
            parse_selection(self.train)
        except ConfigError as error:
            yield f"model.train: {error}"
        try:
            if self.peft is not None:
                check_peft(self.peft)
                yield from (f"[model.peft] {problem}" for problem in problems(self.peft))
                if experiment.client.finetune_steps and ranks_of(self.peft):
                    yield (
                        "client.finetune_steps trains the server's whole model further, and [model.peft] ranks gives "
                        "clients a part of it: leave one of the two out"
                    )
        except ModelError as error:
            yield str(error)
