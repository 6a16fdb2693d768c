"""Dynamic pulling: selects the tensors that a client sends, by how far each moved since the client's last round.

Passban et al. 2022, "Training Mixed-Domain Translation Models via Federated Learning", equations 2 and 3.
For client c, tensor t and round r: d_t = ||w_r^t - w_(r-1)^t||, where w_r is the client's own model at the
end of its local steps. With the threshold theta,

    DP_g = {t : d_t >= theta}      DP_l = {t : d_t < theta}

so that the two together are all tensors. theta is the median of d, or the quantile for a given share, and
is computed for each group of tensors (encoder, decoder) separately, since their scales differ.

Where the share is of the parameters, every rule sends the same number of them, as in the paper's tables: the tensor
that holds theta is sent in part. Which part is drawn, so that no row of a large embedding is always or never sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fednlp.federated.sent import Sent
from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.params import Layout
    from fednlp.federated.transforms import RngKey

RULES = ("all", "low", "high", "random")
EMBEDDINGS = "embeddings"
"""The group of the tensors that are sent whatever the rule."""
_FINEST = 10**6
"""The largest denominator of a share."""


@dataclass(frozen=True)
class Pull:
    """The selection of the shared tensors to send.

    Attributes:
        rule: ``"low"`` (DP_l), ``"high"`` (DP_g), ``"random"`` (as many, drawn), or ``"all"``.
        share: Share of each group that is sent, 0 to 1.
        of: Unit of the share: ``"tensors"`` (theta is then a quantile of d: the median for one half), or
            ``"parameters"``: each rule sends the same number of elements, and a part of the tensor at the border.
        push: ``"all"``: clients receive the server's whole model; ``"selected"``: a client receives only the tensors
            that it sent last, and keeps its own values of the others.
        norm: Of the change: ``"l2"``, or ``"l1"`` for the sum of absolute values.
        embeddings: ``"chosen"`` by the rule, like other tensors; or ``"apart"``: always sent, and not counted.
        groups: The group of each entry of the layout; one group of all entries if empty. Those of ``EMBEDDINGS`` are
            always sent.
    """

    rule: str = "all"
    share: float = 0.5
    of: str = "tensors"
    push: str = "all"
    norm: str = "l2"
    embeddings: str = "chosen"
    groups: tuple[str, ...] = ()


def distances(layout: Layout, new: Tensor, old: Tensor, norm: str = "l2") -> np.ndarray:
    """Return d_t of each of the layout's entries: the norm of its change.

    Args:
        layout: The layout of the vectors.
        new: float32 (``layout.numel``,), the parameters after local training.
        old: float32 (``layout.numel``,), the parameters of the comparison.
        norm: ``"l2"`` or ``"l1"``.

    Returns:
        float64 (entries,).
    """
    gap, order = new - old, 1 if norm == "l1" else 2
    return np.array([float(gap[e.start : e.stop].double().norm(order)) for e in layout.entries])


def choose(pull: Pull, layout: Layout, moved: np.ndarray, key: RngKey) -> Sent:
    """Return what is sent.

    Args:
        layout: The layout of the tensors.
        moved: float64 (entries,), from :func:`distances`.
        key: Seed, round and client, from which ``"random"`` draws its tensors, and all rules the part of one.

    Returns:
        Whole tensors, and parts of others where the share is of parameters. ``"low"`` with a share and ``"high"`` with
        the rest are complementary.

    Raises:
        ValueError: The rule is unknown.

    >>> from fednlp.federated.params import Layout
    >>> from fednlp.federated.transforms import RngKey
    >>> layout = Layout.of({name: ((4,), "parameter") for name in "abcde"})
    >>> moved = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    >>> choose(Pull("low"), layout, moved, RngKey(0, 1, 0)).entries
    (1, 2)
    >>> choose(Pull("high"), layout, moved, RngKey(0, 1, 0)).entries
    (0, 3, 4)
    >>> choose(Pull("low", of="parameters"), layout, moved, RngKey(0, 1, 0)).numel(layout)
    10
    """
    if pull.rule not in RULES:
        raise ValueError(f"unknown rule {pull.rule}: choose from {', '.join(RULES)}")
    if pull.rule == "all":
        return Sent.marked(np.ones(len(moved), dtype=bool))
    groups: Sequence[str] = pull.groups or [""] * len(moved)
    share = Fraction(pull.share).limit_denominator(_FINEST)  # 0.9 is 9/10: floats lose or gain a tensor
    rng = generator(key.seed, "pull", key.round, key.client)
    bounds = np.zeros((len(moved), 2), dtype=np.int64)
    for group in dict.fromkeys(groups):
        members = np.flatnonzero(np.array([one == group for one in groups]))
        sizes = np.array([layout.entries[number].numel for number in members])
        if group == EMBEDDINGS:
            bounds[members, 1] = sizes
        elif pull.of == "tensors":
            chosen = _tensors(pull.rule, share, moved[members], rng)
            bounds[members[chosen], 1] = sizes[chosen]
        else:
            bounds[members] = _elements(pull.rule, share, moved[members], sizes, rng)
    return Sent.bounded(bounds, layout)


def _tensors(rule: str, share: Fraction, moved: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the places of the tensors of a group that are sent: a share of them, rounded down but for ``"high"``."""
    if rule == "random":
        return rng.permutation(len(moved))[: math.floor(share * len(moved))]
    order = np.argsort(moved, kind="stable")
    cut = math.floor((share if rule == "low" else 1 - share) * len(moved))
    return order[:cut] if rule == "low" else order[cut:]


def _elements(
    rule: str, share: Fraction, moved: np.ndarray, sizes: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """Return the bounds of what is sent of each tensor of a group, int64 (tensors, 2), as :class:`Sent` has them.

    The tensors lie in a ring, in the order of their distances, each turned by an offset of its own; a stretch of the
    ring is sent. For ``"random"`` the order is drawn, and so is the beginning of the stretch: every element is sent
    with the same probability, however large its tensor is.
    """
    total = int(sizes.sum())
    turns = (rng.random(len(sizes)) * sizes).astype(np.int64)
    if rule == "random":
        order, begin = rng.permutation(len(sizes)), int(rng.random() * total)
        count = math.floor(share * total)
    else:
        order = np.argsort(moved, kind="stable")
        cut = math.floor((share if rule == "low" else 1 - share) * total)
        begin, count = (0, cut) if rule == "low" else (cut, total - cut)
    bounds, start = np.zeros((len(sizes), 2), dtype=np.int64), 0
    for place in order if count else ():
        size, turn = int(sizes[place]), int(turns[place])
        first, last = _overlap(begin - start, count, size, total)
        if last - first == size:
            bounds[place] = 0, size
        elif last > first:
            bounds[place] = (first + turn) % size, (last + turn - 1) % size + 1
        start += size
    return bounds


def _overlap(begin: int, count: int, size: int, ring: int) -> tuple[int, int]:
    """Return where a stretch of a ring overlaps a tensor that begins at 0; ``last`` is beyond ``size`` where it wraps.

    >>> _overlap(2, 3, 4, 10), _overlap(-3, 5, 4, 10), _overlap(3, 9, 4, 10), _overlap(5, 2, 4, 10)
    ((2, 4), (0, 2), (3, 6), (0, 0))
    """
    begin %= ring
    first, last = min(begin, size), min(begin + count, size)
    again = max(0, min(begin + count - ring, size))  # the stretch has come round
    if again and last > first:
        return first, size + again
    return (first, last) if last > first else (0, again)
