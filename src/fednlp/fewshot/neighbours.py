"""The nearest texts of each text by cosine: all compared in blocks, or only those of nearby cells."""

import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError, ModelError
from fednlp.partition.index import IntArray, client_runs

Vectors = NDArray[np.float32]
Pair = tuple[IntArray, IntArray]

EXACT_UP_TO = 25_000
# Similarities held at once by a thread: 16 MB.
_AT_ONCE = 1 << 22
# A row is cut into at least so many parts to find a bound below its k-th best.
_PARTS = 512
# Beyond `exact_up_to`: texts a cell on average, how many the centres are found with, and how many texts each is
# compared with.
_A_CELL, _FITTED, _COMPARED = 256, 16_384, 10_000
_SWEEPS = 10


def nearest(
    embeddings: Vectors, k: int, *, exact_up_to: int = EXACT_UP_TO, threads: int = 1
) -> NDArray[np.int32]:
    """Return for each text the k nearest others by cosine; of equally near ones, those of lower index.

    Up to `exact_up_to` texts all are compared. Beyond, the texts are put into cells by scikit-learn's k-means,
    and a text is compared with those of its own cell and the 10,000 nearest to the cell's centre. A row of
    zeros, the embedding of an empty text, is as near to one text as to another.

    Args:
        embeddings: float32 (n, d), finite.
        k: 1 or more; where there are no more than k texts, all the others are returned.
        exact_up_to: The largest n for which all texts are compared.
        threads: Number of blocks that are computed at once, 16 MB each; the result does not depend on it.

    Returns:
        int32 (n, min(k, n - 1)), each row rising.

    Raises:
        ConfigError: `k` is below 1.
        ModelError: An embedding is not finite.

    >>> nearest(np.array([[1, 0], [3, 1], [0, 2]], dtype=np.float32), k=1).tolist()
    [[1], [0], [1]]
    """
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    if k < 1:
        raise ConfigError(f"k = {k}: the number of nearest texts must be 1 or more")
    finite = np.isfinite(embeddings).all(axis=1)
    if not finite.all():
        raise ModelError(f"the encoder gave text {int(np.argmin(finite))} a vector that is not finite")
    texts = len(embeddings)
    k = min(k, max(texts - 1, 0))
    found = np.empty((texts, k), dtype=np.int32)
    if k == 0:
        return found
    lengths = np.linalg.norm(embeddings, axis=1, keepdims=True)
    units = np.divide(embeddings, lengths, out=np.zeros_like(embeddings), where=lengths > 0)

    def fill(block: Pair) -> None:
        rows, among = block
        found[rows] = _nearest_among(units, rows, among, k)

    # One thread a product: several add up in an order of their own, and the result would change with it.
    with threadpool_limits(1), ThreadPoolExecutor(threads) as pool:
        everything = np.arange(texts)
        pairs = [(everything, everything)] if texts <= exact_up_to else _cells(units, k)
        for _ in pool.map(fill, _blocks(pairs)):
            pass
    return found


def _blocks(pairs: Iterable[Pair]) -> Iterator[Pair]:
    """Cut the rows into runs of which the similarities fit into the memory of one block."""
    for rows, among in pairs:
        step = max(1, _AT_ONCE // len(among))
        for start in range(0, len(rows), step):
            yield rows[start : start + step], among


def _nearest_among(units: Vectors, rows: IntArray, among: IntArray, k: int) -> NDArray[np.int32]:
    """Return the k nearest of some texts among others, these rising and holding all of `rows`."""
    others = units if len(among) == len(units) else units[among]
    alike = units[rows] @ others.T
    alike[np.arange(len(rows)), np.searchsorted(among, rows)] = -np.inf
    # Of the best of each part, the k-th best is no better than the k-th best of all: few remain to be sorted.
    parts = min(len(among), max(_PARTS, 4 * k))
    best = alike[:, :parts].copy()
    for start in range(parts, len(among) - parts + 1, parts):
        np.maximum(best, alike[:, start : start + parts], out=best)
    bound = np.partition(best, parts - k, axis=1)[:, parts - k]
    row, column = np.divmod(np.flatnonzero(alike >= bound[:, None]), len(among))
    counts = np.bincount(row)
    # Complex numbers are ordered by their real part, then by the imaginary: by cosine, then by index.
    keys = np.full((len(rows), counts.max()), np.inf, dtype=np.complex128)
    keys[np.arange(counts.max()) < counts[:, None]] = -alike[row, column] + 1j * column
    nearest_columns = np.partition(keys, k - 1, axis=1)[:, :k].imag.astype(np.int64)
    chosen: NDArray[np.int32] = among[nearest_columns].astype(np.int32)
    chosen.sort(axis=1)
    return chosen


def _cells(units: Vectors, k: int) -> Iterator[Pair]:
    """Part the texts into cells; return the texts of each with those to compare them with."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    texts = len(units)
    compared = min(max(_COMPARED, 4 * k), texts)
    sample = units[:: -(-texts // _FITTED)]
    count = min(-(-texts // _A_CELL), len(sample))
    means = KMeans(count, init="random", n_init=1, max_iter=_SWEEPS, random_state=0)
    with warnings.catch_warnings():
        # Fewer different texts than cells leave some cells empty, which does no harm.
        warnings.simplefilter("ignore", ConvergenceWarning)
        means.fit(sample)
    offsets, members = client_runs(means.predict(units), count)
    at_once = max(1, _AT_ONCE // texts)
    for start in range(0, count, at_once):
        alike = means.cluster_centers_[start : start + at_once] @ units.T
        for cell, to_centre in enumerate(alike, start):
            held = members[offsets[cell] : offsets[cell + 1]]
            if len(held):
                to_centre[held] = np.inf
                bound = np.partition(to_centre, texts - compared)[texts - compared]
                yield held, np.flatnonzero(to_centre >= bound)
