"""Dynamic pulling: selects the tensors that a client sends, by how far each moved since the client's last round.

Passban et al. 2022, "Training Mixed-Domain Translation Models via Federated Learning", equations 2 and 3.
For client c, tensor t and round r: d_t = ||w_r^t - w_(r-1)^t||, where w_r is the client's own model at the
end of its local steps. With the threshold theta,

    DP_g = {t : d_t >= theta}      DP_l = {t : d_t < theta}

so that the two together are all tensors. theta is the median of d, or the quantile for a given share, and
is computed for each group of tensors (encoder, decoder) separately, since their scales differ.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from fednlp.seeds import generator

if TYPE_CHECKING:
    from torch import Tensor

    from fednlp.federated.params import Layout
    from fednlp.federated.transforms import RngKey

RULES = ("all", "low", "high", "random")
_FINEST = 10**6
"""The largest denominator of a share."""


@dataclass(frozen=True)
class Pull:
    """The selection of the shared tensors to send.

    Attributes:
        rule: ``"low"`` (DP_l), ``"high"`` (DP_g), ``"random"`` (as many, drawn), or ``"all"``.
        share: Share of each group that is sent, 0 to 1.
        of: Unit of the share: ``"tensors"`` (theta is then a quantile of d: the median for one half), or
            ``"parameters"``, which counts the elements of each tensor.
        push: ``"all"``: clients receive the server's whole model; ``"selected"``: a client receives only the tensors
            that it sent last, and keeps its own values of the others.
        groups: The group of each entry of the layout; one group of all entries if empty.
    """

    rule: str = "all"
    share: float = 0.5
    of: str = "tensors"
    push: str = "all"
    groups: tuple[str, ...] = ()


def distances(layout: Layout, new: Tensor, old: Tensor) -> np.ndarray:
    """Return d_t of each of the layout's entries: the Euclidean norm of its change.

    Args:
        layout: The layout of the vectors.
        new: float32 (``layout.numel``,), the parameters after local training.
        old: float32 (``layout.numel``,), the parameters of the comparison.

    Returns:
        float64 (entries,).
    """
    gap = new - old
    return np.array([float(gap[e.start : e.stop].double().norm()) for e in layout.entries])


def choose(pull: Pull, layout: Layout, moved: np.ndarray, key: RngKey) -> np.ndarray:
    """Return which entries are sent.

    Args:
        pull: The rule.
        layout: The layout of the tensors.
        moved: float64 (entries,), from :func:`distances`.
        key: Seed, round and client, from which ``"random"`` draws.

    Returns:
        bool (entries,). ``"low"`` with a share and ``"high"`` with the rest are complementary.

    Raises:
        ValueError: The rule is unknown.

    >>> from fednlp.federated.params import Layout
    >>> from fednlp.federated.transforms import RngKey
    >>> layout = Layout.of({name: ((4,), "parameter") for name in "abcde"})
    >>> moved = np.array([3.0, 1.0, 2.0, 5.0, 4.0])
    >>> choose(Pull("low"), layout, moved, RngKey(0, 1, 0)).tolist()
    [False, True, True, False, False]
    >>> choose(Pull("high"), layout, moved, RngKey(0, 1, 0)).tolist()
    [True, False, False, True, True]
    """
    chosen = np.zeros(len(moved), dtype=bool)
    if pull.rule == "all":
        return ~chosen
    groups: Sequence[str] = pull.groups or [""] * len(moved)
    share = Fraction(pull.share).limit_denominator(_FINEST)  # 0.9 is 9/10: floats lose or gain a tensor
    rng = generator(key.seed, "pull", key.round, key.client)
    for group in dict.fromkeys(groups):
        members = np.flatnonzero(np.array([one == group for one in groups]))
        order = members[np.argsort(moved[members], kind="stable")]
        match pull.rule:
            case "low":
                chosen[order[: _first(pull, layout, order, share)]] = True
            case "high":
                chosen[order[_first(pull, layout, order, 1 - share) :]] = True
            case "random":
                drawn = rng.permutation(members)
                chosen[drawn[: _first(pull, layout, drawn, share)]] = True
            case _:
                raise ValueError(f"unknown rule {pull.rule}: choose from {', '.join(RULES)}")
    return chosen


def _first(pull: Pull, layout: Layout, order: np.ndarray, share: Fraction) -> int:
    """Return the number of leading tensors that make up a share, rounded down."""
    if pull.of == "tensors":
        return math.floor(share * len(order))
    sizes = np.cumsum([layout.entries[number].numel for number in order])
    return int(np.searchsorted(sizes, math.floor(share * int(sizes[-1])), side="right"))
