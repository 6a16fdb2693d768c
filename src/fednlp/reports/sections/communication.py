"""The section "What was sent" of a report: which tensors dynamic pulling sent, and how far they had moved."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fednlp.formatting.safe_text import clean
from fednlp.formatting.units import DASH
from fednlp.reports.document import Block, Grid, Picture
from fednlp.reports.groups import Groups
from fednlp.reports.read import Run
from fednlp.reports.style import PAPER, SERIES, drawing, legend, quiet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BINS = 20
_LARGEST = 1e30
_MOST_ROUNDS = 12
_SIDES = ("encoder", "decoder")
_BLOCK = re.compile(r"(?:^|\.)decoder\.(?:[^.]+\.)*\d+\.")
_HEAD = re.compile(r"(?:^|\.)(?:lm_head|head|final_logits_bias|generator)(?:\.|$)")

SharedTensors = tuple[tuple[str, int], ...]
"""Of each shared tensor its name and its number of elements, in the order of ``moved`` and ``sent``."""


@dataclass(frozen=True)
class SentShare:
    """How much of the shared tensors, and of their parameters, a client sent in a round: a mean over clients."""

    round: int
    tensors: float
    parameters: float | None


def read_shared_tensors(run: Run) -> SharedTensors | None:
    """Return the shared tensors of a run by its checkpoint; None where there is none that can be read."""
    from safetensors import safe_open

    try:
        with safe_open(str(run.folder / "checkpoint" / "state.safetensors"), framework="np") as file:
            entries = json.loads(json.loads((file.metadata() or {})["fednlp"])["layout"])
        return tuple((str(name), math.prod(map(int, shape))) for name, shape, _ in entries)
    except Exception:  # of a damaged file, safetensors raises anything
        return None


def encoder_decoder_split(names: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of the tensors of encoder and decoder, or of all where a model is not made of the two.

    As for the choice of what is sent, the head belongs to the decoder, and what both use to the encoder.

    >>> names = ["shared.weight", "encoder.layers.0.fc.weight", "decoder.layers.0.fc.weight", "lm_head.weight"]
    >>> encoder_decoder_split(names)
    {'encoder': [0, 1], 'decoder': [2, 3]}
    >>> encoder_decoder_split(["bert.encoder.layer.0.bias", "cls.predictions.decoder.bias"])
    {'': [0, 1]}
    """
    side = [next((part for part in name.split(".") if part in _SIDES), "") for name in names]
    two = any(s == "decoder" and _BLOCK.search(n) for s, n in zip(side, names, strict=True))
    if not two or "encoder" not in side:
        return {"": list(range(len(names)))}
    of = [s or ("decoder" if _HEAD.search(n) else "encoder") for s, n in zip(side, names, strict=True)]
    return {s: [i for i, one in enumerate(of) if one == s] for s in _SIDES}


def last_update_norms(run: Run) -> tuple[int, dict[str, list[float]]] | None:
    """Return the last round in which tensors were chosen, and of each client how far each of them had moved."""
    for line in reversed(run.rounds):
        moved = line.get("update_norms")
        if isinstance(moved, Mapping) and moved:
            found = {str(client): _numbers(norms) for client, norms in moved.items()}
            return int(line["round"]), found
    return None


def sent_shares(run: Run, layout: SharedTensors | None) -> list[SentShare]:
    """Return how much was sent in each round in which tensors were chosen."""
    found = []
    for line in run.rounds:
        moved, sent = line.get("update_norms"), line.get("sent")
        if isinstance(moved, Mapping) and isinstance(sent, Mapping):
            slices = line.get("sent_slices")
            slices = slices if isinstance(slices, Mapping) else {}
            parts = [
                _share(len(_numbers(moved[c])), chosen, slices.get(c), layout)
                for c, chosen in sent.items()
                if c in moved
            ]
            if parts:
                weights = [part for _, part in parts if part is not None]
                share = fmean(weights) if weights else None
                found.append(SentShare(int(line["round"]), fmean(tensors for tensors, _ in parts), share))
    return found


def communication_blocks(groups: Groups) -> Iterator[Block]:
    """Yield what was sent of the tensors, and how far they moved; nothing where all were sent."""
    known = {
        label: [(run, read_shared_tensors(run)) for run in runs if last_update_norms(run)]
        for label, runs in groups.items()
    }
    known = {label: runs for label, runs in known.items() if runs}
    if not known:
        return
    found = {label: [sent_shares(run, layout) for run, layout in runs] for label, runs in known.items()}
    yield _shares_grid(found, compared=len(groups) > 1)
    for number, (label, runs) in enumerate(known.items()):
        figure, caption = drawn_norms(*runs[0])
        if figure is not None:
            of = f"{label}: " if len(groups) > 1 else ""
            yield Picture(f"moved-{number}" if len(known) > 1 else "moved", of + caption, figure)


def norm_histograms(norms: Mapping[str, Sequence[float]], names: Sequence[str] | None) -> "Figure | None":
    """Draw how many tensors moved how far, a colour a client, encoder and decoder apart.

    Args:
        norms: Of each client, by its name: one norm a tensor.
        names: Of the tensors; None where they are not known: then all are drawn as one.

    Source: Passban et al. 2022, Figure 1.
    """
    from matplotlib.figure import Figure

    parts = (
        encoder_decoder_split(names) if names else {"": list(range(max(map(len, norms.values()), default=0)))}
    )
    drawn = {
        side: [np.array([n[i] for i in at if i < len(n) and math.isfinite(n[i])]) for n in norms.values()]
        for side, at in parts.items()
    }
    if not any(len(values) for every in drawn.values() for values in every):
        return None
    with drawing():
        figure = Figure(figsize=(7.2, 0.8 + 2.6 * len(drawn)), layout="constrained")
        all_axes: list[Axes] = list(figure.subplots(len(drawn), squeeze=False)[:, 0])
        for axes, (side, values) in zip(all_axes, drawn.items(), strict=True):
            quiet(axes, f"Tensors of the {side}" if side else "Tensors", "Norm of the change")
            colours = [SERIES[number % len(SERIES)] for number in range(len(values))]
            labels = [clean(name) for name in norms]
            axes.hist(
                values, bins=_edges(values), color=colours, label=labels, edgecolor=PAPER, linewidth=0.3
            )
            axes.locator_params(axis="y", integer=True)
            axes.set_xlim(left=0)
        legend(figure, all_axes[0])
    return figure


def _edges(values: Sequence[NDArray[np.float64]]) -> list[float]:
    """Return the edges of the bins, from nothing to the largest norm; far beyond any model's they are cut."""
    top = max((float(part.max()) for part in values if len(part)), default=0.0)
    top = min(top, _LARGEST) if top > 1 / _LARGEST else 1.0
    return [top * number / _BINS for number in range(_BINS + 1)]


def _numbers(values: Any) -> list[float]:
    given = values if isinstance(values, list) else []
    return [float(v) if isinstance(v, int | float) else math.nan for v in given]


def _share(tensors: int, sent: Any, slices: Any, layout: SharedTensors | None) -> tuple[float, float | None]:
    """Return the share of tensors, and of parameters, that one client sent; everything where nothing is recorded.

    A tensor that was sent in part counts as one of the tensors, and with its part of the parameters.
    """
    chosen, known = set(range(tensors)), {number: size for number, (_, size) in enumerate(layout or ())}
    if isinstance(sent, list):
        chosen &= {number for number in sent if isinstance(number, int)}
    partly = {}
    for one in slices if isinstance(slices, list) else ():
        if isinstance(one, list) and len(one) == 3 and all(isinstance(number, int) for number in one):
            entry, first, last = one
            if 0 <= entry < tensors and entry not in chosen:
                partly[entry] = (last - first) % known[entry] if known.get(entry) else 0
    part = (len(chosen) + len(partly)) / tensors if tensors else 0.0
    if len(known) != tensors or not sum(known.values()):
        return part, None
    return part, (sum(known[number] for number in chosen) + sum(partly.values())) / sum(known.values())


def _shares_grid(found: Mapping[str, Sequence[Sequence[SentShare]]], compared: bool) -> Grid:
    """Return the mean over all rounds of each method, and of one alone also some of its rounds."""
    rows = []
    if not compared:
        one = next(iter(found.values()))[0]
        places = sorted({round(i) for i in np.linspace(0, len(one) - 1, min(_MOST_ROUNDS, len(one)))})
        rows = [_share_row(f"Round {one[i].round}", [one[i]]) for i in places]
    for label, seeds in found.items():
        heading = label if compared else "All rounds"
        rows.append(_share_row(heading, [share for every in seeds for share in every]))
    note = "What a client sent of the shared tensors and of their parameters, mean over clients."
    return Grid(
        ["Algorithm" if compared else "Dynamic pulling", "Tensors sent", "Parameters sent"], rows, [note]
    )


def _share_row(label: str, every: Sequence[SentShare]) -> list[str]:
    tensors = [share.tensors for share in every]
    parameters = [share.parameters for share in every if share.parameters is not None]
    return [label, *(f"{100 * fmean(v):.1f} %" if v else DASH for v in (tensors, parameters))]


def drawn_norms(run: Run, layout: SharedTensors | None) -> "tuple[Figure | None, str]":
    """Draw the norms of the last round in which tensors were chosen, of as many clients as there are colours.

    Returns:
        The histograms, None where a run has no norms, and what they show.
    """
    number, moved = last_update_norms(run) or (0, {})
    shown = dict(list(moved.items())[: len(SERIES)])
    names = None if layout is None else [name for name, _ in layout]
    if names is not None and any(len(norms) != len(names) for norms in shown.values()):
        names = None
    titled = {_named(run, client): norms for client, norms in shown.items()}
    of = f"the first {len(shown)} of {len(moved)} clients" if len(moved) > len(shown) else "each client"
    caption = f"How far each tensor of {of} moved since its last round; round {number}, seed {run.seed}."
    return norm_histograms(titled, names), caption


def _named(run: Run, client: str) -> str:
    """Return a client by number, and by name where it has one."""
    place = int(client) if client.isdecimal() else -1
    name = run.clients.names[place] if 0 <= place < len(run.clients) else ""
    return f"{name} ({client})" if name else f"client {client}"
