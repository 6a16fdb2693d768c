"""Registries: packages in which a file defines one thing that an experiment can name.

A file holds a function of the file's name, marked by a decorator such as
:func:`fednlp.federated.aggregators.aggregator`, and perhaps further ones that share what it does. The function's
parameters are the options, with their types and defaults: they are the keys of the section that names it. A name has
hyphens where the function's name has underscores, unless the decorator gives another. The user's own function is the
same, named ``"module:function"``.
"""

from __future__ import annotations

import difflib
import inspect
import pkgutil
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cache, cached_property
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, ClassVar, Generic, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, create_model

from fednlp.errors import ConfigError, FednlpError
from fednlp.plugins import described, is_own, kind_of, load, raised, with_colon

Refusal = Callable[[Mapping[str, Any], Any], list[str]]
"""(the options that are given, the experiment) -> mistakes, a sentence each."""
Build = TypeVar("Build", bound=Callable[..., Any])


def import_modules(package: str) -> None:
    """Import the modules of a package, each of which makes something known, by the order of their names."""
    for one in pkgutil.iter_modules(import_module(package).__path__):
        import_module(f"{package}.{one.name}")


@dataclass(frozen=True)
class Plugin:
    """A function that experiments can name.

    Attributes:
        name: As it is typed.
        build: Returns what the name stands for.
        title: As people write it.
        refuses: What it cannot go with.
    """

    name: str
    build: Callable[..., Any]
    title: str
    refuses: Refusal | None = None

    section: ClassVar[str]
    """The section of the experiment that names it."""
    key: ClassVar[str] = "name"
    """The section's key for the name."""
    noun: ClassVar[str]
    """What messages call it."""
    returns: ClassVar[str]
    """What the function must return, for messages."""
    given: ClassVar[Sequence[str]] = ()
    """Parameters that are no options: the run gives them."""

    @staticmethod
    def fits(value: Any) -> bool:
        """Whether a value is of the kind that the function must return."""
        raise NotImplementedError

    @property
    def parameters(self) -> Mapping[str, inspect.Parameter]:
        """The function's parameters; an annotation that cannot be evaluated is left as its text."""
        try:
            return inspect.signature(self.build, eval_str=True).parameters
        except NameError:  # imported for type checkers alone
            return inspect.signature(self.build).parameters

    @property
    def takes_any(self) -> bool:
        """Whether the function takes options by any name, which it hands on."""
        return any(one.kind is inspect.Parameter.VAR_KEYWORD for one in self.parameters.values())

    def options(self) -> type[BaseModel]:
        """Return the model that checks the options."""
        return _options(self) if is_own(self.name) else _kept_options(self)

    def call(self, *args: Any, **options: Any) -> Any:
        """Return what the name stands for.

        Raises:
            ConfigError: The function does not take the options, raises an error, or returns something else.
        """
        signature = inspect.signature(self.build)
        try:
            signature.bind_partial(*args)
        except TypeError:
            takes = ", ".join(signature.parameters) or "nothing"
            raise ConfigError(
                f"{self._said}: your function {described(self.build)} takes {takes}: let its first parameter be "
                "clients_per_round"
            ) from None
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            raise ConfigError(f"{self._said}: {error} (see [{self.section}.options])") from error
        with self._blamed():
            made = self.build(*args, **options)
        if not self.fits(made):
            raise ConfigError(f"{self._said} returned {kind_of(made)}: return {self.returns}")
        return made

    def refused(self, options: Mapping[str, Any], experiment: Any) -> list[str]:
        """Return what it cannot go with, a sentence each.

        Args:
            options: Those that are given.

        Raises:
            ConfigError: The user's own ``refuses`` raises an error, or returns no list of sentences.
        """
        if self.refuses is None:
            return []
        with self._blamed():
            found = self.refuses(options, experiment)
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            raise ConfigError(f"{self._said}: its refuses returned {found!r:.80}: return a list of sentences")
        return found

    @property
    def _said(self) -> str:
        return f'{self.section}.{self.key} = "{self.name}"'

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Say of an error in the user's own function that it is theirs; fednlp's own is passed on as it is."""
        try:
            yield
        except Exception as error:
            if isinstance(error, FednlpError) or not is_own(self.name):
                raise
            raise ConfigError(
                f"{self._said}: your function raised {raised(error)} (see [{self.section}.options])"
            ) from error


def _options(plugin: Plugin) -> type[BaseModel]:
    keys: dict[str, Any] = {}
    for name, one in plugin.parameters.items():
        if name not in plugin.given and one.kind is not inspect.Parameter.VAR_KEYWORD:
            unknown = one.annotation is inspect.Parameter.empty or isinstance(one.annotation, str)
            annotation = Any if unknown else one.annotation
            keys[name] = (annotation, ... if one.default is inspect.Parameter.empty else one.default)
    strict = ConfigDict(extra="forbid", strict=True, validate_default=True, arbitrary_types_allowed=True)
    with warnings.catch_warnings():  # an option may be called as a method of pydantic's models is
        warnings.filterwarnings("ignore", "Field name .* shadows an attribute", UserWarning)
        return create_model(plugin.name, __config__=strict, **keys)


_kept_options = cache(_options)
"""For those that come with fednlp: made once."""


@dataclass(frozen=True)
class MethodPart(Plugin):
    """An algorithm, an aggregator or an attack.

    Attributes:
        needs: What it needs of other settings, by the names in :data:`fednlp.config.compatibility.TRAITS`, each with
            why: words after its name.
        breaks: What it breaks for other settings, each with how.
    """

    needs: Mapping[str, str] = field(default_factory=dict, hash=False)
    breaks: Mapping[str, str] = field(default_factory=dict, hash=False)


def mark(title: str, *, refuses: Refusal | None = None, **about: Any) -> Callable[[Build], Build]:
    """Return a decorator that marks a function as the one of its file.

    Args:
        title: As people write it.
        refuses: Returns what it cannot go with, a sentence each.
        about: Further attributes of the :class:`Plugin`, such as ``needs``; the name where it is not that of the file.
    """

    def decorate(build: Build) -> Build:
        build.about = {"title": title, "refuses": refuses, **about}  # type: ignore[attr-defined]
        return build

    return decorate


P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True)
class Registry(Generic[P]):
    """The marked functions of a package's files."""

    package: str
    kind: type[P]

    @cached_property
    def _places(self) -> Mapping[str, str]:
        """Name -> ``"module:function"``: a file may hold several, such as those that share all but a default."""
        found = {}
        for one in pkgutil.iter_modules(import_module(self.package).__path__):
            module = import_module(f"{self.package}.{one.name}")
            for function in vars(module).values():
                if hasattr(function, "about") and function.__module__ == module.__name__:
                    name = function.about.get("name", function.__name__.replace("_", "-"))
                    found[name] = f"{module.__name__}:{function.__name__}"
        return dict(sorted(found.items()))

    def names(self) -> tuple[str, ...]:
        """Return the names that come with fednlp."""
        return tuple(self._places)

    def find(self, name: str, key: str = "") -> P:
        """Return what a name stands for, or one of the user's own by ``"module:function"``.

        Args:
            name: As typed.
            key: The setting that holds it, for messages; by default that of the section.

        Raises:
            ConfigError: There is none, or it is no function.
        """
        place = self._places.get(name, name if is_own(name) else f"{self.package}.{name}:{name}")
        key = key or f"{self.kind.section}.{self.kind.key}"
        build = load(place, key)
        wrong = _no_function(build, {one.name for one in fields(self.kind)}) if is_own(name) else None
        if wrong is not None:
            raise ConfigError(f'{key} = "{name}": {wrong}')
        return self.of(build, name)

    def of(self, build: Callable[..., Any], name: str) -> P:
        """Return a function as one of the registry's kind.

        Args:
            name: What it is called.
        """
        about = getattr(build, "about", {"title": name.rpartition(":")[2]})
        return self.kind(build=build, **{**about, "name": name})

    def check_name(self, name: str, also: Sequence[str] = ()) -> str:
        """Return a name that is known, or has the form of the user's own.

        Args:
            name: As typed.
            also: Further names that are known.

        Raises:
            ValueError: It is neither.
        """
        known = (*self.names(), *also)
        if name in known or is_own(name):
            return name
        near = [one for one in (with_colon(name),) if one] or difflib.get_close_matches(
            name.lower(), known, n=1
        )
        hint = f"did you mean {near[0]}? " if near else ""
        raise ValueError(
            f'there is no {self.kind.section} "{name}": {hint}known are {", ".join(known)}, or "module:function" of '
            "your own"
        )

    def takers(self, option: str) -> list[str]:
        """Return the names that take an option."""
        return [name for name in self.names() if option in self.find(name).options().model_fields]

    def all_options(self) -> list[str]:
        """Return the options of all names."""
        return [option for name in self.names() for option in self.find(name).options().model_fields]

    def option_types(self) -> dict[str, Any]:
        """Return the type of each option of all names, without None.

        Raises:
            TypeError: Two functions give an option different types.
        """
        found: dict[str, Any] = {}
        for name in self.names():
            plugin = self.find(name)
            for option in plugin.options().model_fields:
                kind = _without_none(plugin.parameters[option].annotation)
                if found.setdefault(option, kind) != kind:
                    raise TypeError(
                        f"{name}: the option {option} has another type elsewhere: {found[option]}"
                    )
        return found


def _no_function(build: Any, attributes: Collection[str]) -> str | None:
    """Return what makes a user's own object no function that an experiment can name, if anything does."""
    try:
        inspect.signature(build)
    except (TypeError, ValueError):
        return f"{build!r:.80} is no function with parameters that can be read"
    about = getattr(build, "about", {"title": ""})
    if not isinstance(about, Mapping) or "title" not in about or not {*about} <= {*attributes}:
        return "its attribute about is not what a decorator such as fednlp.federated.algorithms.method sets"
    return None


def _without_none(annotation: Any) -> Any:
    """Return an optional type's own type."""
    if get_origin(annotation) in (Union, UnionType):
        return Union[tuple(one for one in get_args(annotation) if one is not NoneType)]  # noqa: UP007
    return annotation
