"""The partition methods by name.

A partitioner is a function from a `Request` to an `Assignment`: one line in `METHODS`, or the user's own, which an
experiment names ``"module:function"``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import PartitionError
from fednlp.partition.cluster import cluster_groups, default_clusters
from fednlp.partition.embed import Progress, embed
from fednlp.partition.index import IntArray
from fednlp.partition.natural import coded_groups, field_groups, natural_owners
from fednlp.partition.proportion_tables import columns_in_order, read_proportions
from fednlp.partition.proportions import bin_scores, proportions_owners, score_bins
from fednlp.partition.shift import check_concentration, label_owners, quantity_owners, uniform_owners


class Options(Protocol):
    """The options of a specification; None for one that is left out."""

    @property
    def method(self) -> str: ...
    @property
    def clients(self) -> int | None: ...
    @property
    def alpha(self) -> float | None: ...
    @property
    def beta(self) -> float | None: ...
    @property
    def field(self) -> str | None: ...
    @property
    def proportions(self) -> str | None: ...
    @property
    def clusters(self) -> int | None: ...
    @property
    def encoder(self) -> str | None: ...
    @property
    def file(self) -> str | None: ...
    @property
    def part(self) -> str | None: ...
    @property
    def seed(self) -> int | None: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


@dataclass(frozen=True)
class Request:
    """The input of a partitioner: the options, and what is known of the examples."""

    spec: Options
    seed: int
    train_labels: NDArray[Any]
    test_labels: NDArray[Any]
    label_names: tuple[str, ...] | None
    train_numbers: IntArray
    train_field: Sequence[object] | None
    test_field: Sequence[object] | None
    field_names: Sequence[str] | None
    train_texts: Sequence[str] | None
    test_texts: Sequence[str] | None
    max_length: int
    progress: Progress | None

    @property
    def clients(self) -> int:
        """The number of clients, which the method needs."""
        assert self.spec.clients is not None
        return self.spec.clients


@dataclass(frozen=True)
class Assignment:
    """The result of a partitioner.

    Attributes:
        owners: The client of each training example.
        clients: C.
        train_groups: Label, cluster or field value of each training example, whose distribution in a client's training
            set its test set follows.
        test_groups: Label, cluster or field value of each test example.
        names: The clients' names, if they have any.
        unseen: True to assign test examples of groups without training examples; False to leave them out.
    """

    owners: NDArray[np.integer[Any]]
    clients: int
    train_groups: IntArray
    test_groups: IntArray
    names: tuple[str, ...] | None = None
    unseen: bool = True


@dataclass(frozen=True)
class Method:
    """A partition method, the options that it needs, and further options that it supports.

    ``assign`` is None for a partition that is read from a file by the numbers of the examples.
    """

    assign: Callable[[Request], Assignment] | None
    needs: tuple[str, ...]
    supports: tuple[str, ...] = ()


def _labels(request: Request) -> tuple[IntArray, IntArray]:
    """Return the labels of both splits; one and the same for all where the data has scores."""
    if request.label_names is None:
        return np.zeros(len(request.train_labels), np.int64), np.zeros(len(request.test_labels), np.int64)
    return request.train_labels, request.test_labels


def _uniform(request: Request) -> Assignment:
    owners = uniform_owners(len(request.train_labels), request.clients, request.seed)
    return Assignment(owners, request.clients, *_labels(request))


def _quantity(request: Request) -> Assignment:
    beta = check_concentration("beta", request.spec.beta)
    owners = quantity_owners(len(request.train_labels), request.clients, beta, request.seed)
    return Assignment(owners, request.clients, *_labels(request))


def _label(request: Request) -> Assignment:
    if request.label_names is None:
        raise PartitionError(
            "label shift needs labels, and this data has none: use uniform, quantity, cluster or natural"
        )
    return _by_groups(request, *_labels(request))


def _cluster(request: Request) -> Assignment:
    if request.train_texts is None or (request.test_texts is None and len(request.test_labels)):
        raise PartitionError("method 'cluster' needs the texts of the training and test examples")
    encoder = request.spec.encoder or "minilm"
    count = None if request.label_names is None else len(request.label_names)
    clusters = request.spec.clusters or min(default_clusters(count), len(request.train_texts))
    train, test = (
        embed(texts, encoder, max_length=request.max_length, progress=request.progress)
        for texts in (request.train_texts, request.test_texts or ())
    )
    return _by_groups(request, *cluster_groups(train, test, clusters, request.seed))


def _by_groups(request: Request, train: IntArray, test: IntArray) -> Assignment:
    alpha = check_concentration("alpha", request.spec.alpha)
    owners = label_owners(train, request.clients, alpha, request.seed, request.spec.beta)
    return Assignment(owners, request.clients, train, test)


def _natural(request: Request) -> Assignment:
    assert request.spec.field is not None
    return _by_field(request, request.spec.field, request.spec.clients)


def _silos(request: Request) -> Assignment:
    made = _by_field(request, "silo")
    if request.spec.clients not in (None, made.clients):
        raise PartitionError(
            f"there are {made.clients} silos, and clients = {request.spec.clients}: leave clients out, or "
            'share out the examples of all silos together, such as with method = "uniform"'
        )
    return made


def _by_field(request: Request, field: str, clients: int | None = None) -> Assignment:
    if request.train_field is None or (request.test_field is None and len(request.test_labels)):
        raise PartitionError(
            f"method {request.spec.method!r} needs the field {field!r} of the training and test examples"
        )
    owners, names = natural_owners(
        request.train_field, field, clients, request.train_numbers, request.field_names
    )
    test_field = () if request.test_field is None else request.test_field
    if request.field_names is not None:
        test_groups = coded_groups(np.asarray(test_field, dtype=np.int64), request.field_names, names)
    else:
        test_groups = field_groups(test_field, names)
    return Assignment(owners, len(names), owners, test_groups, names, unseen=False)


def _proportions(request: Request) -> Assignment:
    assert request.spec.proportions is not None
    table = read_proportions(request.spec.proportions)
    count = len(table.shares)
    if request.spec.clients not in (None, count):
        raise PartitionError(
            f"{request.spec.proportions} has rows for {count} clients, not {request.spec.clients}: "
            f"leave clients out, or say clients = {count}"
        )
    if request.label_names is None:
        train, borders = score_bins(request.train_labels, table.shares, table.by, request.seed)
        shares, test = table.shares, bin_scores(request.test_labels, borders)
    else:
        shares = columns_in_order(request.label_names, table)
        train, test = _labels(request)
    owners = proportions_owners(train, shares, table.by, request.seed)
    return Assignment(owners, count, train, test, table.clients)


METHODS: dict[str, Method] = {
    "uniform": Method(_uniform, ("clients",)),
    "label": Method(_label, ("clients", "alpha")),
    "quantity": Method(_quantity, ("clients", "beta")),
    "label+quantity": Method(_label, ("clients", "alpha", "beta")),
    "cluster": Method(_cluster, ("clients", "alpha"), ("beta", "clusters", "encoder")),
    "natural": Method(_natural, ("field",), ("clients",)),
    "silos": Method(_silos, (), ("clients",)),
    "proportions": Method(_proportions, ("proportions",), ("clients",)),
    "file": Method(None, ("file",), ("part",)),
}
"""Every method, with its required and supported options."""

ALIASES = {"niid_label": "label", "niid_quantity": "quantity", "niid_cluster": "cluster"}
"""Names of the methods in the original FedNLP partition files (``niid_label_clients=100_alpha=1``)."""

COMMON_NAMES = {"iid": "uniform", "noniid": "label", "niid": "label", "dirichlet": "label"}
"""Names of some methods in other software, in lower case, for hints."""
