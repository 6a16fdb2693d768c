"""Feature shift: clusters of sentence embeddings, to be used as if they were labels."""

import warnings

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import PartitionError
from fednlp.formatting.units import plural
from fednlp.partition.index import IntArray
from fednlp.seeds import derive, generator

DEFAULT_CLUSTERS = 10
_STARTS = 4
# The centres of a hundred thousand texts are those of a million.
_FITTED_AT_MOST = 100_000


def default_clusters(num_labels: int | None) -> int:
    """Return the number of clusters where none is given: as many as labels, at least 2; 10 without labels.

    >>> default_clusters(20), default_clusters(1), default_clusters(None)
    (20, 2, 10)
    """
    return DEFAULT_CLUSTERS if num_labels is None else max(2, num_labels)


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
