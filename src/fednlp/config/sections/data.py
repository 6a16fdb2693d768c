"""The sections of an experiment that say what the clients have: ``[data]`` and ``[partition]``."""

from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    JsonValue,
    PlainValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from fednlp.config.sections.base import SITES, with_options
from fednlp.data.label_names import label_name
from fednlp.errors import ConfigError, PartitionError
from fednlp.option_types import Fraction, PositiveInt
from fednlp.partition.make import PartitionSpec, check_options, method_named
from fednlp.partition.methods import METHODS
from fednlp.plugins import is_own
from fednlp.section import Feature, Section


def _one_or_several(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(isinstance(one, str) for one in value):
        return value
    raise ValueError('give a file, a folder, a pattern such as "silos/*.csv", or a list of these')


def _one_or_by_silo(value: Any) -> Any:
    table = isinstance(value, dict)
    sizes = value.values() if table else [value]
    named = not table or all(type(name) is str for name in value)
    if value is None or (named and all(type(size) is int and size >= 1 for size in sizes)):
        return dict(value) if table else value
    wanted = (
        "give a whole number of 1 or more, or such a number for each silo that is named: { captions = 1000 }"
    )
    if isinstance(value, str) or (table and any(isinstance(size, dict) for size in value.values())):
        wanted += (
            '; put a name with other characters than A-Z, digits, - and _ in quotes: { "plone.app" = 1000 }'
        )
    raise PydanticCustomError("size_type", wanted)


def _one_spelling(labels: list[str] | None) -> list[str] | None:
    return None if labels is None else [label_name(label) for label in labels]


Size = Annotated[int | dict[str, int] | None, PlainValidator(_one_or_by_silo)]
"""How many examples are drawn: of all data, or of each silo that a table names."""


def _named_or_numbered(value: Any) -> Any:
    return str(value) if type(value) is int else value


class DataFiles(Section):
    """Files of examples, and how they are read: the arguments of :func:`fednlp.data.load_data`.

    ``path`` names silos, each the examples of one client, where it is a list, a pattern, or a folder of files or of
    folders that are a data set each.
    """

    path: Annotated[str | list[str] | None, PlainValidator(_one_or_several)] = None
    text: str = "text"
    label: str = "label"
    columns: dict[str, Annotated[str, BeforeValidator(_named_or_numbered)]] = {}
    test_path: str | None = None
    test_columns: dict[str, str | list[str]] | None = None
    test_fraction: Fraction = 0.2
    delimiter: str | None = None
    quoting: Literal["double", "none"] | None = None
    encoding: str | dict[str, str] | None = None
    validation: Literal["train", "test"] | None = None
    on_invalid_row: Literal["refuse", "drop"] = "refuse"

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of :func:`fednlp.data.load_data` that say which files these are."""
        return self.model_dump(include=set(DataFiles.model_fields))


class Data(DataFiles):
    """Where the examples come from: a known data set by ``name``, files by ``path``, or both.

    ``name = "sites"`` is for a deployment: the examples are at the sites, and the server knows the ``labels`` and a
    test set at most. For a search for a pace it also has labelled texts of its own, ``validation_path``.
    ``labels_map`` gives labels other names, and leaves the examples of those with an empty name out.
    ``train_size`` and ``test_size`` draw a sample of the examples: so many in all, or so many of each silo that a table
    names.
    """

    traits: ClassVar[tuple[Feature, ...]] = (
        Feature(
            'data.name = "sites"', breaks={"training_labels": "leaves the examples at the sites"}, remedy=""
        ),
    )

    name: str | None = None
    train_size: Size = None
    test_size: Size = None
    labels: Annotated[list[str] | None, Field(min_length=2), AfterValidator(_one_spelling)] = None
    labels_map: dict[str, str] | None = None
    validation_path: str | None = None

    @property
    def at_sites(self) -> bool:
        """Whether the examples are at the sites of a deployment."""
        return self.name == SITES

    def problems_at_sites(self, experiment: Any) -> Iterator[str]:
        """Yield that nothing compares models on the server's labelled texts."""
        fewshot = experiment.fewshot
        if self.validation_path is not None and (fewshot is None or fewshot.pacing != "search"):
            yield 'data.validation_path is for fewshot.pacing = "search" alone: leave it out'

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.labels is not None and not self.at_sites:
            raise ValueError('labels are for name = "sites": other data bring theirs; leave labels out')
        if self.labels is not None and len({*self.labels}) < len(self.labels):
            raise ValueError("labels: each is to be named once")
        if self.validation_path is not None and not self.at_sites:
            raise ValueError(
                'validation_path is for name = "sites": say fewshot.validation, and leave it out'
            )
        if self.at_sites and self.labels_map:
            raise ValueError(
                'name = "sites" has no labels_map: each site names its labels in [labels] of its own file'
            )
        if self.at_sites and (self.train_size or self.test_size):
            raise ValueError('name = "sites" has no train_size or test_size: each site names its own files')
        if self.at_sites and self.test_columns:
            raise ValueError(
                'name = "sites" has no test_columns: columns names those of the server\'s test file, and each site '
                "names its own"
            )
        if self.at_sites and self.path is not None:
            raise ValueError('name = "sites" has no path: each site names its own files')
        if self.name is None and self.path is None:
            raise ValueError('say name = "20news" (a known data set) or path = "my.csv" (your own file)')
        return self


@with_options(METHODS.option_types())
class Partition(Section):
    """How the examples are shared out over the clients.

    ``"auto"`` is ``"silos"`` where ``data.path`` names silos, and otherwise ``"uniform"``. With ``test_sets =
    "own-split"`` each client's examples are split into a training and a test set of its own, of ``data.test_fraction``.
    The further keys are the options of all methods: the parameters of their functions
    (:mod:`fednlp.partition.methods`).
    """

    later: ClassVar[tuple[str, ...]] = ("test_sets",)

    method: str = "auto"
    test_sets: Literal["assigned", "own-split"] = "assigned"
    clients: PositiveInt | None = None
    seed: int | None = None
    options: dict[str, JsonValue] = {}

    @field_validator("method")
    @classmethod
    def _known_method(cls, method: str) -> str:
        try:
            return method if method == "auto" else method_named(method)
        except PartitionError as error:
            raise ValueError(str(error)) from None

    @field_validator("options")
    @classmethod
    def _keys_stay(cls, options: dict[str, Any]) -> dict[str, Any]:
        for key in ("method", "seed", "test_sets"):
            if key in options:
                raise ValueError(f"{key} is no option of a partitioner: say partition.{key}")
        return options

    def given(self) -> dict[str, Any]:
        """Return the method's options that are set."""
        named = self.model_dump(exclude_none=True, exclude={"method", "seed", "test_sets", "options"})
        return named | dict(self.options)

    def spec(self) -> PartitionSpec:
        """Return what the partition is made of."""
        return PartitionSpec(self.method, seed=self.seed, **self.given())

    def problems(self, experiment: Any) -> Iterator[str]:
        """Yield what is wrong with the method's options, and with tests that somebody else names."""
        if self.options and not is_own(self.method):
            yield (
                f"[partition] options are for a partitioner of your own: write those of {self.method!r} into "
                "[partition], or leave them out"
            )
            return
        if self.test_sets == "own-split" and (self.method == "file" or experiment.data.at_sites):
            whose = (
                "each site names its tests" if experiment.data.at_sites else "the file has the clients' tests"
            )
            yield f'partition.test_sets = "own-split": {whose}: leave it out'
            return
        try:
            check_options(self.spec())
        except PartitionError as error:
            yield f"[partition] {error}"
        except ConfigError:  # reported already
            pass
