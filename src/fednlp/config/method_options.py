"""Options of the functions that sections name, ``[algorithm]`` for example: which are known, and whose."""

import difflib
import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError
from pydantic.errors import PydanticUserError

from fednlp.config.error_messages import explain
from fednlp.config.fields import ExperimentFields
from fednlp.config.sections import BASELINES, GIVEN, Aggregator, Algorithm, Attack, Cohort, NamedFunction
from fednlp.errors import ConfigError
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.attacks import ATTACKS
from fednlp.federated.cohorts import COHORTS
from fednlp.plugins import is_own
from fednlp.registry import P, Plugin, Registry

_SECTIONS: Mapping[str, tuple[type[NamedFunction], Registry[Any]]] = {
    "algorithm": (Algorithm, ALGORITHMS),
    "aggregator": (Aggregator, AGGREGATORS),
    "attack": (Attack, ATTACKS),
    "cohort": (Cohort, COHORTS),
}


def own_keys(section: str) -> set[str]:
    """Return the keys of a section that are no options of a function; none of other sections.

    >>> sorted(own_keys("attack"))
    ['fraction', 'name', 'options']
    """
    return set(_SECTIONS[section][0].model_fields)


def unknown_options(sections: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with options, whatever name they stand beside: each must be an option of some function.

    Args:
        sections: Of the experiment, by name; those that are values already are not looked at.
    """
    return [
        problem
        for name in _SECTIONS
        if isinstance(sections.get(name), Mapping)
        for problem in _unknown_options(name, sections[name])
    ]


def _unknown_options(section: str, given: Mapping[str, Any]) -> list[str]:
    model, registry = _SECTIONS[section]
    own, found = list(model.model_fields), []
    here = given.get("name", model.model_fields["name"].default)
    for key, value in given.items():
        if key in own:
            continue
        takers = registry.takers(key)
        if not takers:
            found.append(f"unknown key {section}.{key}; {_hint(section, key, here)}")
            continue
        options = registry.find(here if here in takers else takers[0]).options()
        try:
            options.__pydantic_validator__.validate_assignment(options.model_construct(), key, value)
        except ValidationError as error:
            found += [explain(dict(one) | {"loc": (section, *one["loc"])}, options) for one in error.errors()]
    return found


def _hint(section: str, key: str, name: Any) -> str:
    """Return what to type for a key that is an option of no known function, beside the section's name."""
    model, registry = _SECTIONS[section]
    own = isinstance(name, str) and is_own(name)
    known = [*model.model_fields, *([] if own else registry.all_options())]
    for near in difflib.get_close_matches(key, known, n=1):
        return f"did you mean {section}.{near}?"
    if own:
        return f"the options of {name} go into [{section}.options]"
    options = list(registry.find(name).options().model_fields) if name in registry.names() else []
    if options:
        return f"{name} takes {', '.join(options)}"
    return f"it is no option of any {registry.kind.noun}"


def foreign_options(section: NamedFunction, registry: Registry[P], plugin: P) -> list[str]:
    """Return what is wrong with options that are not the named function's.

    Args:
        registry: What its name is looked up in.
        plugin: What its name stands for.
    """
    name, key = section.name, plugin.section
    if is_own(name):
        return [
            f"{key}.{option} is an option of {', '.join(registry.takers(option))}; those of your own {key} go into "
            f"[{key}.options]"
            for option in section.model_extra or {}
        ] + _own_option_problems(section.options, plugin)
    if section.options:
        return [
            f"{key}.options are for an {key} of your own: write the options of {name} into [{key}], or leave them out"
        ]
    known = plugin.options().model_fields
    return [
        f"{key}.{option} is not supported by {name}: say {key}.name = "
        + " or ".join(f'"{taker}"' for taker in registry.takers(option))
        for option in section.model_extra or {}
        if option not in known
    ]


def _own_option_problems(given: Mapping[str, Any], plugin: Plugin) -> list[str]:
    """Return what is wrong with the options of the user's own function, by the names and types of its parameters."""
    place, found = f"{plugin.section}.options", []
    try:
        options = plugin.options()
        options.__pydantic_validator__.validate_json(json.dumps(given))
    except ValidationError as error:
        for one in error.errors():
            key = one["loc"][0] if one["loc"] else ""
            if one["type"] == "extra_forbidden":
                found += (
                    [] if plugin.takes_any else [_unknown_own(place, str(key), list(options.model_fields))]
                )
            elif key in given or one["type"] == "missing":
                found.append(explain(dict(one) | {"loc": (place, *one["loc"])}, options))
    except (PydanticUserError, NameError):
        # These are parameters that no model can have: their function says what is wrong.
        pass
    return found


def _unknown_own(place: str, key: str, known: list[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1)
    there = f"your function takes {', '.join(known)}" if known else "your function takes no options"
    return f"unknown key {place}.{key}; " + (f"did you mean {near[0]}?" if near else there)


def found_or_none(registry: Registry[P], name: str) -> P | None:
    """Return what a name stands for; None for code of the user's own that cannot be imported.

    Args:
        registry: What the name is looked up in.
        name: As typed.
    """
    try:
        return registry.find(name)
    except ConfigError:
        return None


def named_functions(experiment: ExperimentFields) -> list[tuple[NamedFunction, Registry[Any]]]:
    """Return the sections that name a function, each with what its name is looked up in."""
    sections = ((getattr(experiment, name), registry) for name, (_, registry) in _SECTIONS.items())
    return [(section, registry) for section, registry in sections if section is not None]


def with_defaults(experiment: ExperimentFields) -> dict[str, NamedFunction]:
    """Return the sections that name a function, with the defaults of its options filled in."""
    return {
        registry.kind.section: _filled(section, registry) for section, registry in named_functions(experiment)
    }


def _filled(section: NamedFunction, registry: Registry[Plugin]) -> NamedFunction:
    if section.name in (*BASELINES, GIVEN) or is_own(section.name):
        return section
    options = registry.find(section.name).options()(**section.function_options)
    return type(section)(**{**section.model_dump(), **options.model_dump()})
