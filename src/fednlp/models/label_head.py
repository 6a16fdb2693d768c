"""The outputs of a checkpoint's head: they follow the names of the labels, not their places."""

import copy
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from fednlp.models.loading import empty_model, without_memory

ONE_LABEL = (None, "single_label_classification")
"""Values of ``problem_type`` with which a text has one label."""
_UNNAMED = re.compile(r"LABEL_\d+")
"""How transformers calls the outputs of a checkpoint that does not name them."""
_MOST_NAMES = 4


def fit_outputs(
    model: nn.Module,
    auto: Any,
    settings: Mapping[str, Any],
    missing: Collection[str],
    own_config: Callable[[], Any],
    load: Callable[[Any], nn.Module],
) -> tuple[list[str], list[str]]:
    """Give a loaded model's head the checkpoint's outputs by the names of their labels; the others are drawn anew.

    Names such as ``LABEL_0`` say nothing: where the checkpoint has as many outputs as there are labels, they stay in
    their order.

    Args:
        model: Loaded from the checkpoint for a task; its head is changed in place.
        auto: The auto class of the head.
        settings: Of the task: ``num_labels``, and ``id2label`` where the labels have names.
        missing: Names of the parameters that the checkpoint does not have.
        own_config: Returns the checkpoint's own configuration.
        load: Loads the checkpoint with a configuration.

    Returns:
        Names of the parameters in which outputs were drawn anew, and what to tell of the outputs, a line each.
    """
    number = int(settings.get("num_labels", 0))
    parts = dict(model.named_parameters())
    if not any(one.dim() and len(one) == number for name, one in parts.items() if name not in missing):
        return [], []  # the checkpoint has no head, as a body alone
    own = own_config()
    there, wanted = _names(own), tuple(settings.get("id2label", {}).values())
    as_it_is = wanted == there if wanted else number == len(there)
    sized = [] if as_it_is else [name for name in _sized_by_labels(model, auto) if name not in missing]
    told = _told_of_problem(own, wanted) if as_it_is or sized else []
    if not sized:
        return [], told
    if _are_unnamed(there) and wanted and len(there) == number:
        return [], [*told, _told_of_order(there, wanted)]
    places = matching_outputs([] if _are_unnamed(there) else there, wanted)
    kept = [row for row, place in enumerate(places) if place is not None]
    old, new = parts, parts
    if len(there) != number and kept:
        old = dict(load(own).named_parameters())
    elif len(there) == number and len(kept) < len(places):
        new = dict(empty_model(auto, model.config, dtype=torch.float32).named_parameters())
    with torch.no_grad():
        for name in sized:
            rows = new[name].detach().clone()
            rows[kept] = old[name].detach()[[places[row] for row in kept]]
            parts[name].copy_(rows)
    anew = [] if len(kept) == len(wanted) > 0 else sized
    return anew, [*told, *_told_of_names(there, wanted, kept, number)]


def matching_outputs(there: Sequence[str], wanted: Sequence[str]) -> list[int | None]:
    """Return the place of each wanted label among the labels of a checkpoint; None for those that it does not know.

    Names that differ in nothing but case, or blanks at their ends, are the same unless this makes two labels of one
    side the same. A name that the checkpoint has twice counts as unknown.

    >>> matching_outputs(["pos", "neg"], ["NEG", "neutral", "pos"])
    [1, None, 0]
    >>> matching_outputs(["us", "US"], ["US", "Us"])
    [1, None]
    """
    exact, alike = _places(there), _places(map(_plain, there))
    own = Counter(map(_plain, wanted))
    found = []
    for name in wanted:
        plain = _plain(name)
        same = exact.get(name) or (alike.get(plain, []) if own[plain] == 1 else [])
        found.append(same[0] if len(same) == 1 else None)
    return found


def _places(names: Iterable[str]) -> dict[str, list[int]]:
    """Return where each name stands."""
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    return places


def _plain(name: str) -> str:
    return name.strip().casefold()


def _names(own: Any) -> tuple[str, ...]:
    """Return the names of a checkpoint's outputs in their order, from whichever table of its configuration has any."""
    names = {int(place): str(name) for place, name in (own.id2label or {}).items()}
    others = {int(place): str(name) for name, place in (own.label2id or {}).items()}
    if _are_unnamed(names.values()) and others.keys() == names.keys():
        names = others
    return tuple(names[place] for place in sorted(names))


def _are_unnamed(names: Collection[str]) -> bool:
    return all(map(_UNNAMED.fullmatch, names))


def _sized_by_labels(model: nn.Module, auto: Any) -> list[str]:
    """Return the names of the parameters whose shapes would be others if there were one label more."""
    larger: Any = copy.deepcopy(model.config)
    larger.num_labels += 1
    with without_memory():
        others = dict(empty_model(auto, larger).named_parameters())
    return [
        name for name, one in model.named_parameters() if name in others and others[name].shape != one.shape
    ]


def _told_of_problem(own: Any, wanted: Sequence[str]) -> list[str]:
    if not wanted or own.problem_type in ONE_LABEL:
        return []
    return [
        f"warning: the starting model was trained for another kind of labels (problem_type = {own.problem_type!r}): "
        "here each text has one label, and the model is trained and written for that"
    ]


def _told_of_order(there: Sequence[str], wanted: Sequence[str]) -> str:
    pairs = [f"{name} is {label!r}" for name, label in zip(there, wanted, strict=True)]
    more = ", ..." if len(pairs) > _MOST_NAMES else ""
    return (
        f"warning: the starting model does not name the outputs of its head, so they are taken in the order of the "
        f"labels ({', '.join(pairs[:_MOST_NAMES])}{more}): if that is wrong, write the names into id2label of its "
        "config.json"
    )


def _told_of_names(
    there: Sequence[str], wanted: Sequence[str], kept: Sequence[int], number: int
) -> list[str]:
    """Return a line on the outputs that are drawn anew, and on those that are left out; none where all are kept."""
    rows = {*kept}
    anew = [label for row, label in enumerate(wanted) if row not in rows]
    if wanted and not anew and len(there) == number:
        return []
    if not kept:
        has = (
            f"is for {_shown(there)}" if wanted and not _are_unnamed(there) else f"has {_outputs(len(there))}"
        )
        needs = f"the labels are {_shown(wanted)}" if wanted else f"the task needs {_outputs(number)}"
        return [f"warning: the head of the starting model {has}, and {needs}: its outputs are made anew"]
    known = {place for place in matching_outputs(there, wanted) if place is not None}
    lost = [name for place, name in enumerate(there) if place not in known]
    what = [
        *([f"those of {_shown(anew)} are made anew"] if anew else []),
        *([f"those of {_shown(lost)} are left out"] if lost else []),
    ]
    same = _shown([wanted[row] for row in kept])
    return [f"warning: the head of the starting model keeps its outputs of {same}; {', and '.join(what)}"]


def _outputs(number: int) -> str:
    return "one output" if number == 1 else f"{number:,} outputs"


def _shown(names: Sequence[str]) -> str:
    """Return a few names, each of bounded length, and how many more there are."""
    cut = ", ".join(repr(name if len(name) <= 40 else f"{name[:40]}...") for name in names[:_MOST_NAMES])
    return cut + (f" and {len(names) - _MOST_NAMES:,} more" if len(names) > _MOST_NAMES else "")
