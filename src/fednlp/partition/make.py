"""Make a partition: check the options, assign the training examples, then the test examples."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fednlp.errors import PartitionError
from fednlp.partition.embed import Progress
from fednlp.partition.index import IntArray, Partition, from_owners
from fednlp.partition.methods import ALIASES, COMMON_NAMES, METHODS, Assignment, Method, Options, Request
from fednlp.partition.shift import check_concentration
from fednlp.partition.test_sets import assign_test_examples
from fednlp.plugins import is_own, load

_OPTIONS = ("clients", "alpha", "beta", "field", "proportions", "clusters", "encoder", "file", "part")
_EXAMPLES = {
    "clients": "100",
    "alpha": "1.0",
    "beta": "5.0",
    "field": '"author"',
    "proportions": '"shares.csv"',
    "file": '"part.npz"',
}


@dataclasses.dataclass(frozen=True)
class PartitionSpec:
    """The method of a partition and its options.

    Args:
        method: A key of ``METHODS``, a name of the original FedNLP partition files (``ALIASES``), or
            ``"module:function"`` for a user's own partitioner, which may use every option.
        clients: C; for natural and proportions the field or the table determines it.
        alpha: Concentration of label and cluster shift, above 0.
        beta: Concentration of quantity shift, above 0.
        field: The column whose values are the clients of a natural partition.
        proportions: The file of a table of label shares.
        clusters: Number of clusters; as many as labels if left out, at least 2, or 10 without labels.
        file: The file of a partition that is read, not made.
        part: Name of the partition in that file, where there are several.
        encoder: Name or folder of the encoder of the texts for clusters; ``"minilm"`` if left out.
        seed: Any integer; 0 if None.
        options: Further options of a user's own partitioner.
    """

    method: str
    clients: int | None = None
    alpha: float | None = None
    beta: float | None = None
    field: str | None = None
    proportions: str | None = None
    clusters: int | None = None
    encoder: str | None = None
    file: str | None = None
    part: str | None = None
    seed: int | None = 0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def make_partition(
    spec: Options,
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
    max_length: int = 64,
    progress: Progress | None = None,
) -> Partition:
    """Return a partition of examples over clients.

    A function of labels (or field values, or texts), options and seed only. Every training example goes to
    one client, and every client gets at least one. Every test example goes to one client, so that the client's test
    set follows its training set; only a natural partition leaves out test examples of values that no client has.

    Args:
        spec: A :class:`PartitionSpec`, or anything with its attributes.
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
        max_length: Tokens of a text that the encoder reads (cluster).
        progress: Called with texts embedded and texts in all (cluster).

    Raises:
        PartitionError: The options do not fit the method, or cannot be met by the examples.

    >>> spec = PartitionSpec("label", clients=2, alpha=0.1)
    >>> part = make_partition(spec, [0, 0, 1, 1], [0, 1], num_labels=2)
    >>> part.num_clients, sorted(part.train_indices.tolist())
    (2, [0, 1, 2, 3])
    """
    method = check_options(spec)
    seed = 0 if spec.seed is None else spec.seed
    train, test = np.asarray(train_labels), np.asarray(test_labels)
    numbers = _numbers(train_numbers, len(train), "train"), _numbers(test_numbers, len(test), "test")
    names = None
    if num_labels is not None:
        _check_labels(train, num_labels, numbers[0])
        names = tuple(map(str, range(num_labels))) if label_names is None else tuple(label_names)
    request = Request(
        spec=spec,
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
        max_length=max_length,
        progress=progress,
    )
    if method.assign is None:
        raise PartitionError(
            f"a partition of method {spec.method!r} is read, not made: Partition.load reads one"
        )
    made = method.assign(request)
    test_owners = assign_test_examples(
        made.train_groups, made.owners, made.test_groups, seed, unseen=made.unseen
    )
    return from_owners(made.owners, test_owners, made.clients, *numbers, made.names)


def method_named(name: str) -> str:
    """Return the name of a method, given this name or that of the original FedNLP files.

    Raises:
        PartitionError: There is no such method; the message suggests the nearest.
    """
    from fednlp.formatting.suggestions import did_you_mean

    name = ALIASES.get(name, name)
    if name not in METHODS and not is_own(name):
        letters = re.sub("[^a-z]", "", name.lower())
        near = did_you_mean(COMMON_NAMES.get(letters, name), METHODS)
        raise PartitionError(
            f"there is no partition method {name!r}: {near}choose from {', '.join(METHODS)}, or name your own as "
            '"module:function"'
        )
    return name


def check_options(spec: Options) -> Method:
    """Return the configured method after checking its options.

    Raises:
        PartitionError: The method is unknown, or its options do not fit it.
    """
    name = method_named(spec.method)
    method = METHODS[name] if name in METHODS else _own_method(name)
    given = [option for option in _OPTIONS if getattr(spec, option) is not None]
    for option in method.needs:
        if option not in given:
            raise PartitionError(
                f"method {name!r} needs {option}: say, for example, {option} = {_EXAMPLES[option]}"
            )
    for option in given:
        if option not in method.needs + method.supports:
            users = [other for other, how in METHODS.items() if option in how.needs + how.supports]
            raise PartitionError(
                f"{option} has no effect with method {name!r}: leave it out, or use {' or '.join(users)}"
            )
    if spec.options and name in METHODS:
        raise PartitionError(
            f"options are for a partitioner of your own, and {name!r} has none: leave them out"
        )
    for option in ("alpha", "beta"):
        if option in given:
            check_concentration(option, getattr(spec, option))
    for option in ("clients", "clusters"):
        if option in given and getattr(spec, option) < 1:
            raise PartitionError(f"{option} = {getattr(spec, option)}: there must be at least 1")
    return method


def _own_method(name: str) -> Method:
    """Return the user's own partitioner; it may use every option."""

    def assign(request: Request) -> Assignment:
        made = load(name, "partition.method")(request)
        if not isinstance(made, Assignment):
            raise PartitionError(
                f"{name} returned {type(made).__name__}: return a fednlp.partition.Assignment"
            )
        owners = np.asarray(made.owners)
        if owners.shape != request.train_labels.shape or owners.dtype.kind not in "iu":
            raise PartitionError(
                f"{name}: owners must be {len(request.train_labels)} whole numbers, one a training example"
            )
        missing = np.setdiff1d(np.arange(made.clients), owners)
        if len(missing) or owners.max() >= made.clients:
            what = (
                f"client {missing[0]} has no example" if len(missing) else f"there is an owner {owners.max()}"
            )
            raise PartitionError(f"{name}: {what}: owners are 0 to {made.clients - 1}, each at least once")
        return dataclasses.replace(made, owners=owners)

    return Method(assign, (), tuple(option for option in _OPTIONS if option not in ("file", "part")))


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
