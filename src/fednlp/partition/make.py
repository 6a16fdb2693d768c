"""Make a partition: check the options, assign the training examples, then the test examples."""

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ValidationError

from fednlp.errors import PartitionError
from fednlp.formatting.suggestions import did_you_mean
from fednlp.partition.embed import Progress
from fednlp.partition.entities import Entities
from fednlp.partition.index import IntArray, Partition, from_owners
from fednlp.partition.methods import ALIASES, COMMON_NAMES, METHODS, Method
from fednlp.partition.request import Assignment, Request
from fednlp.partition.test_sets import assign_test_examples
from fednlp.plugins import is_own, with_colon


@dataclasses.dataclass(frozen=True, init=False)
class PartitionSpec:
    """The method of a partition and its options.

    Args:
        method: A name in ``METHODS``, a name of the original FedNLP partition files (``ALIASES``), or
            ``"module:function"`` for a user's own partitioner.
        seed: Any integer; 0 if None.
        options: The options of the method, by name: the parameters of its function
            (:mod:`fednlp.partition.methods`). None is as good as left out.

    >>> PartitionSpec("label", clients=100, alpha=0.1)
    PartitionSpec(method='label', seed=0, options={'clients': 100, 'alpha': 0.1})
    """

    method: str
    seed: int | None
    options: Mapping[str, Any]

    def __init__(self, method: str, *, seed: int | None = 0, **options: Any) -> None:
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "seed", seed)
        object.__setattr__(
            self, "options", {name: value for name, value in options.items() if value is not None}
        )


def make_partition(
    spec: PartitionSpec,
    train_labels: ArrayLike,
    test_labels: ArrayLike,
    *,
    num_labels: int | None = None,
    label_names: Sequence[str] | None = None,
    train_numbers: ArrayLike | None = None,
    test_numbers: ArrayLike | None = None,
    train_field: Sequence[object] | None = None,
    test_field: Sequence[object] | None = None,
    field_names: Sequence[str] | None = None,
    train_texts: Sequence[str] | None = None,
    test_texts: Sequence[str] | None = None,
    train_entities: Entities | None = None,
    test_entities: Entities | None = None,
    max_length: int = 64,
    progress: Progress | None = None,
) -> Partition:
    """Return a partition of examples over clients.

    A function of labels (or field values, or texts), options and seed only. Every training example goes to
    one client, and every client gets at least one. Every test example goes to one client, so that the client's test
    set follows its training set; only a natural partition leaves out test examples of values that no client has.

    Args:
        spec: The method and its options.
        train_labels: The label of each training example, 0 to K-1, or its score (floats).
        test_labels: The label or score of each test example; -1 for a label that training does not have.
        num_labels: K; None for scores.
        label_names: The K names, for a table of proportions; ``"0"`` to ``"K-1"`` if left out.
        train_numbers: The example numbers of the training examples; 0 to N-1 if left out.
        test_numbers: The example numbers of the test examples, in the same form.
        train_field: The value of the field of each training example (natural).
        test_field: The value of the field of each test example.
        field_names: The values of the field in order, where ``train_field`` and ``test_field`` are positions
            among them, -1 for none: so that millions of examples need no strings.
        train_texts: The text of each training example (cluster).
        test_texts: The text of each test example.
        train_entities: How many entities of each type each training example has (label shift of tagged texts).
        test_entities: The same for each test example.
        max_length: Tokens of a text that the encoder reads (cluster).
        progress: Called with texts embedded and texts in all (cluster).

    Raises:
        PartitionError: The options do not fit the method, or cannot be met by the examples.

    >>> spec = PartitionSpec("label", clients=2, alpha=0.1)
    >>> part = make_partition(spec, [0, 0, 1, 1], [0, 1], num_labels=2)
    >>> part.num_clients, sorted(part.train_indices.tolist())
    (2, [0, 1, 2, 3])
    """
    method, options = check_options(spec)
    seed = 0 if spec.seed is None else spec.seed
    train, test = np.asarray(train_labels), np.asarray(test_labels)
    numbers = _numbers(train_numbers, len(train), "train"), _numbers(test_numbers, len(test), "test")
    names = None
    if num_labels is not None:
        _check_labels(train, num_labels, numbers[0])
        names = tuple(map(str, range(num_labels))) if label_names is None else tuple(label_names)
    request = Request(
        seed=seed,
        train_labels=train,
        test_labels=test,
        label_names=names,
        train_numbers=numbers[0],
        train_field=train_field,
        test_field=test_field,
        field_names=field_names,
        train_texts=train_texts,
        test_texts=test_texts,
        train_entities=train_entities,
        test_entities=test_entities,
        max_length=max_length,
        progress=progress,
    )
    made = _assigned(method, request, options)
    test_owners = assign_test_examples(
        made.train_groups, made.owners, made.test_groups, seed, unseen=made.unseen
    )
    return from_owners(made.owners, test_owners, made.clients, *numbers, made.names)


def method_named(name: str) -> str:
    """Return the name of a method, given this name or that of the original FedNLP files.

    Raises:
        PartitionError: There is no such method; the message suggests the nearest.
    """
    name, known = ALIASES.get(name, name), METHODS.names()
    if name not in known and not is_own(name):
        letters = re.sub("[^a-z]", "", name.lower())
        near = did_you_mean(COMMON_NAMES.get(letters, name), known)
        if colon := with_colon(name):
            near = f"did you mean {colon!r}? "
        raise PartitionError(
            f"there is no partition method {name!r}: {near}choose from {', '.join(known)}, or name your own as "
            '"module:function"'
        )
    return name


def check_options(spec: PartitionSpec) -> tuple[Method, dict[str, Any]]:
    """Return the configured method and its options after checking them.

    Raises:
        PartitionError: The method is unknown, or its options do not fit it.
        ConfigError: A user's own method cannot be imported.
    """
    name = method_named(spec.method)
    method = METHODS.find(name)
    try:
        parameters, checker = method.parameters, method.options()
    except Exception as error:  # of the user's own function
        raise PartitionError(f"{name} is no partitioner: its parameters cannot be read ({error})") from None
    given = {
        key: value.item() if isinstance(value, np.generic) else value for key, value in spec.options.items()
    }
    for option in method.needs:
        if option not in given:
            example = _example(checker, name, option) or f"say {_key(name, option)} = ..."
            raise PartitionError(f"method {name!r} needs {option}: {example}")
    for option in given:
        if option not in parameters:
            users = METHODS.takers(option)
            instead = f", or use the method {' or '.join(users)}" if users else ""
            if is_own(name):
                instead = ", or make it a parameter of the function"
            near = "" if users else did_you_mean(option, parameters)
            raise PartitionError(
                f"{_key(name, option)} has no effect with method {name!r}: {near}leave it out{instead}"
            )
    try:
        checked = checker(**given)
    except ValidationError as error:
        wrong = error.errors()[0]
        option, said = str(wrong["loc"][0]), wrong["msg"][0].lower() + wrong["msg"][1:]
        parts = f"{_key(name, option)} = {given[option]}: {said}", _example(checker, name, option)
        raise PartitionError("; ".join(filter(None, parts))) from None
    return method, {option: getattr(checked, option) for option in given}


def _example(checker: type[BaseModel], name: str, option: str) -> str:
    """Return what to type for an option, if its type has an example."""
    examples = checker.model_fields[option].examples
    return f"say, for example, {_key(name, option)} = {json.dumps(examples[0])}" if examples else ""


def _key(name: str, option: str) -> str:
    """Return the key of an option in an experiment; a user's own method may have options that no other has."""
    known = not is_own(name) or METHODS.takers(option)
    return f"partition.{option}" if known else f"partition.options.{option}"


def _assigned(method: Method, request: Request, options: Mapping[str, Any]) -> Assignment:
    """Return what a partitioner makes of a request, checked where it is the user's own."""
    name = method.name
    made: Assignment = method.build(request, **options)
    if not is_own(name):
        return made
    if not isinstance(made, Assignment):
        raise PartitionError(f"{name} returned {type(made).__name__}: return a fednlp.partition.Assignment")
    owners = np.asarray(made.owners)
    if owners.shape != request.train_labels.shape or owners.dtype.kind not in "iu":
        raise PartitionError(
            f"{name}: owners must be {len(request.train_labels)} whole numbers, one a training example"
        )
    missing = np.setdiff1d(np.arange(made.clients), owners)
    if len(missing) or owners.max() >= made.clients:
        what = f"client {missing[0]} has no example" if len(missing) else f"there is an owner {owners.max()}"
        raise PartitionError(f"{name}: {what}: owners are 0 to {made.clients - 1}, each at least once")
    return dataclasses.replace(made, owners=owners)


def _check_labels(labels: NDArray[Any], num_labels: int, numbers: IntArray) -> None:
    if labels.size and labels.dtype.kind not in "iu":
        raise PartitionError("labels must be whole numbers: scores (floats) go with num_labels = None")
    wrong = (labels < 0) | (labels >= num_labels)
    if wrong.any():
        number = numbers[int(np.argmax(wrong))]
        raise PartitionError(
            f"training example {number} has no label from 0 to {num_labels - 1}: label it, or drop it"
        )


def _numbers(numbers: ArrayLike | None, count: int, split: str) -> IntArray:
    if count == 0 and split == "train":
        raise PartitionError("there is no training example to share out")
    if numbers is None:
        return np.arange(count, dtype=np.int64)
    found = np.asarray(numbers, dtype=np.int64)
    if found.shape != (count,):
        raise PartitionError(
            f"there are {count} {split} labels, but {split}_numbers has the shape {found.shape}"
        )
    return found
