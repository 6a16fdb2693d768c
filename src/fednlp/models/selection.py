"""Which parameters are trained and sent: ``[model] train`` gives every parameter of a model one of three states.

* *shared*: trained by the clients, sent both ways, and moved by the server;
* *personal*: trained by each client and kept there;
* *frozen*: neither trained nor sent; everyone has it from the checkpoint.

Freezing, BitFit (Ben Zaken et al. 2022), FedSplitBERT (Li et al. 2022) and Controllers (layers chosen by
hand) are selections. :func:`parse_selection` reads one, and :func:`apply_selection` carries it out in a model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from fednlp.errors import ConfigError
from fednlp.formatting.units import plural
from fednlp.models.selection_spec import (
    PARAMETER_STATES,
    ParameterState,
    SelectionSpec,
    SelectionTerm,
    names_with,
    parse_selection,
)

if TYPE_CHECKING:
    from torch import nn

__all__ = [
    "PARAMETER_STATES",
    "ParameterState",
    "Selection",
    "SelectionSpec",
    "apply_selection",
    "parse_selection",
]

_WHERE = "model.train:"


@dataclass(frozen=True)
class Selection:
    """The state of each parameter and each saved floating-point buffer of a model, by name."""

    states: Mapping[str, ParameterState]

    @cached_property
    def shared(self) -> frozenset[str]:
        """Names of what is sent both ways."""
        return self._named("shared")

    @cached_property
    def personal(self) -> frozenset[str]:
        """Names of what each client trains and keeps."""
        return self._named("personal")

    @cached_property
    def frozen(self) -> frozenset[str]:
        """Names of what is neither trained nor sent."""
        return self._named("frozen")

    def _named(self, state: ParameterState) -> frozenset[str]:
        return frozenset(name for name, its in self.states.items() if its == state)


def apply_selection(model: "nn.Module", train: SelectionSpec) -> Selection:
    """Freeze what is to be frozen in a model, and return the state of every tensor.

    What the model (or PEFT) has frozen already stays frozen, whatever the selection states. A buffer goes with the
    parameters of the innermost module around it: frozen if one of these is, personal if all are, else shared.

    Args:
        model: Its parameters that are frozen get ``requires_grad`` False.
        train: From :func:`parse_selection`.

    Raises:
        ConfigError: A part is not in the model, it is for a model of other layers, two states claim one parameter,
            or nothing is left to train.
    """
    from fednlp.models.groups import float_buffers, groups_of

    parameters = dict(model.named_parameters())
    groups = {name: group for name, group in groups_of(model).items() if name in parameters}
    trainable = {name for name, parameter in parameters.items() if parameter.requires_grad}
    _require_layers(train.layers, set(groups.values()))
    assigned = _claimed(train, groups, trainable) if train.critical_layer is None else _layered(train, groups)
    states: dict[str, ParameterState] = {
        name: assigned.get(name, train.rest) if name in trainable else "frozen" for name in parameters
    }
    if all(state == "frozen" for state in states.values()):
        raise ConfigError(f"{_WHERE} nothing is left to train: share a part, of {_summary(groups)}")
    for name, parameter in parameters.items():
        if states[name] == "frozen":
            parameter.requires_grad_(False)
    by_id = {id(parameter): states[name] for name, parameter in parameters.items()}
    return Selection(states | {name: _buffer_state(model, name, by_id) for name in float_buffers(model)})


def _require_layers(layers: int | None, there: set[str]) -> None:
    count = sum(group.startswith("layer.") for group in there)
    if layers is not None and layers != count:
        raise ConfigError(
            f"{_WHERE} it is for a model of {plural(layers, 'layer')}, and this one has {count}: make a plan for this "
            "one, or leave layers out"
        )


def _claimed(
    train: SelectionSpec, groups: Mapping[str, str], trainable: set[str]
) -> dict[str, ParameterState]:
    """Return the states of the parameters that terms name."""
    claims: dict[str, tuple[ParameterState, SelectionTerm]] = {}
    for state in PARAMETER_STATES:
        for term in getattr(train, state):
            names = _matched(term, groups)
            if state != "frozen" and trainable.isdisjoint(names):
                raise ConfigError(
                    f'{_WHERE} "{term.text}" names nothing that is trained: the model (or [model.peft]) has frozen '
                    "it; leave it out"
                )
            for name in names:
                other, earlier = claims.setdefault(name, (state, term))
                if other != state:
                    raise ConfigError(
                        f'{_WHERE} {name} is {other} by "{earlier.text}" and {state} by "{term.text}": '
                        "take it out of one of them"
                    )
    return {name: state for name, (state, _) in claims.items()}


def _matched(term: SelectionTerm, groups: Mapping[str, str]) -> list[str]:
    """Return the names of the parameters that a term means, at least one for each of its parts."""
    for part in term.groups:
        if not any(_is_of(group, part) for group in groups.values()):
            raise ConfigError(
                f'{_WHERE} "{term.text}": the model has no {part}; there are {_summary(groups)}'
            )
    names = matching(term, groups)
    if not names:
        example = next(iter(groups), "none")
        raise ConfigError(
            f'{_WHERE} "{term.text}" fits no parameter; there are {_summary(groups)}, with names such as {example}'
        )
    return names


def matching(term: SelectionTerm, groups: Mapping[str, str], where: str = _WHERE) -> list[str]:
    """Return the names of the parameters that a term means.

    Args:
        term: One of a selection's terms.
        groups: The part of the model that each parameter belongs to, by its name
            (:func:`fednlp.models.groups.groups_of`).
        where: The key that holds the term, with a colon, for messages.

    Raises:
        ConfigError: Its pattern is none that takes bounded time.

    >>> (term,) = parse_selection("layer.0-3:bias").shared
    >>> matching(term, {"layers.2.bias": "layer.2", "layers.2.weight": "layer.2"})
    ['layers.2.bias']
    """
    names = [
        name
        for name, group in groups.items()
        if not term.groups or any(_is_of(group, part) for part in term.groups)
    ]
    return names if term.pattern is None else names_with(term.pattern, names, f'{where} "{term.text}"')


def _is_of(group: str, part: str) -> bool:
    """Return whether a name stands for a group: itself, one of a stack, or the embeddings of any.

    >>> _is_of("encoder.layer.1", "encoder"), _is_of("layer.10", "layer.1")
    (True, False)
    """
    return (
        group == part or group.startswith(f"{part}.") or (part == "embeddings" and group.endswith(f".{part}"))
    )


def _layered(train: SelectionSpec, groups: Mapping[str, str]) -> dict[str, ParameterState]:
    """Return the states by FedSplitBERT: the layers below the critical one are shared."""
    there = set(groups.values())
    layers = {group: int(group.rpartition(".")[2]) for group in there if group.startswith("layer.")}
    count, critical = len(layers), train.critical_layer or 0
    if not layers:
        raise ConfigError(
            f"{_WHERE} critical_layer needs a model with one stack of layers; this one has {_summary(groups)}: "
            'say shared = [...], rest = "personal"'
        )
    if critical > count:
        raise ConfigError(
            f"{_WHERE} critical_layer = {critical}: the model has {plural(count, 'layer')}, so 0 to {count}"
        )
    states: dict[str, ParameterState] = {
        group: "shared" if n < critical else "personal" for group, n in layers.items()
    }
    states |= {"embeddings": train.embeddings, "head": "shared" if critical == count else "personal"}
    return {name: states[group] for name, group in groups.items()}


def _summary(groups: Mapping[str, str]) -> str:
    """Return a model's parts in short.

    >>> _summary({"a": "embeddings", "b": "layer.0", "c": "layer.1", "d": "head"})
    'embeddings, layer.0-1, head'
    """
    stacks: dict[str, list[int]] = {}
    for group in dict.fromkeys(groups.values()):
        stack, _, number = group.rpartition(".")
        stacks.setdefault(stack if number.isdecimal() else group, []).extend(
            [int(number)] if number.isdecimal() else []
        )
    return ", ".join(
        f"{stack}.{min(numbers)}{f'-{max(numbers)}' if len(numbers) > 1 else ''}" if numbers else stack
        for stack, numbers in stacks.items()
    )


def _buffer_state(model: "nn.Module", name: str, states: Mapping[int, ParameterState]) -> ParameterState:
    path = name
    while path:
        path = path.rpartition(".")[0]
        found = {states[id(parameter)] for parameter in model.get_submodule(path).parameters()}
        if found:
            return "frozen" if "frozen" in found else found.pop() if len(found) == 1 else "shared"
    return "shared"
