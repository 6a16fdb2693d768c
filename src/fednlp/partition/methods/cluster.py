"""Clients that differ in what their texts are about: FedNLP (Lin et al. 2022), section 3.2."""

import warnings

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.option_types import PositiveInt
from fednlp.partition.embed import embed
from fednlp.partition.index import IntArray
from fednlp.partition.methods import Alpha, Beta, Clients, partitioner
from fednlp.partition.methods.label import by_groups
from fednlp.partition.request import Assignment, Request
from fednlp.seeds import derive, generator

_DEFAULT_CLUSTERS = 10
_STARTS = 4
# The centres of a hundred thousand texts are those of a million.
_FITTED_AT_MOST = 100_000


def _default_clusters(num_labels: int | None) -> int:
    """Return the number of clusters where none is given: as many as labels, at least 2; 10 without labels.

    >>> _default_clusters(20), _default_clusters(1), _default_clusters(None)
    (20, 2, 10)
    """
    return _DEFAULT_CLUSTERS if num_labels is None else max(2, num_labels)


def cluster_groups(
    train: NDArray[np.floating], test: NDArray[np.floating], clusters: int, seed: int
) -> tuple[IntArray, IntArray]:
    """Return the cluster of each training and test example, by k-means over the training examples.

    FedNLP benchmark, section 3.2: sentence embeddings, k-means, and the clusters take the labels' place.

    Args:
        train: Embeddings (N, width).
        test: Embeddings (M, width); each goes to the nearest centre.
        clusters: From 1 to N.
        seed: Any integer.

    Raises:
        PartitionError: There are more clusters than examples.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if not 1 <= clusters <= len(train):
        raise PartitionError(
            f"{plural(len(train), 'training example')} cannot make {plural(clusters, 'cluster')}: say at most "
            f"partition.clusters = {len(train)}"
        )
    rng = generator(seed, "partition clusters")
    few = len(train) <= max(_FITTED_AT_MOST, clusters)
    fitted = train if few else train[np.sort(rng.permutation(len(train))[: max(_FITTED_AT_MOST, clusters)])]
    state = derive(seed, "partition clusters", clusters) % 2**32
    means = KMeans(clusters, n_init=_STARTS, random_state=state)
    # One thread: several add up in an order of their own, and the result would change with it.
    with threadpool_limits(1), warnings.catch_warnings():
        # Fewer different texts than clusters leave some clusters empty, which does no harm.
        warnings.simplefilter("ignore", ConvergenceWarning)
        means.fit(fitted)
        groups = [means.predict(part) if len(part) else np.empty(0) for part in (train, test)]
    return groups[0].astype(np.int64), groups[1].astype(np.int64)


@partitioner("feature shift (clusters of sentence embeddings)", reads_texts=True)
def cluster(
    request: Request,
    clients: Clients,
    alpha: Alpha,
    beta: Beta | None = None,
    clusters: PositiveInt | None = None,
    encoder: str = "minilm",
) -> Assignment:
    """Give each client clusters of sentence embeddings in the shares of a draw from Dir(alpha · prior).

    Args:
        request: The examples.
        alpha: Concentration of the shares.
        beta: Concentration of the sizes; None for sizes that differ by at most one.
        clusters: Number of clusters; as many as labels if left out, at least 2, or 10 without labels.
        encoder: Name or folder of the encoder of the texts.

    Raises:
        PartitionError: There are no texts.
    """
    if request.train_texts is None or (request.test_texts is None and len(request.test_labels)):
        raise PartitionError("method 'cluster' needs the texts of the training and test examples")
    labels = None if request.label_names is None else len(request.label_names)
    count = clusters or min(_default_clusters(labels), len(request.train_texts))
    train, test = (
        embed(texts, encoder, max_length=request.max_length, progress=request.progress)
        for texts in (request.train_texts, request.test_texts or ())
    )
    return by_groups(request, *cluster_groups(train, test, count, request.seed), clients, alpha, beta)
