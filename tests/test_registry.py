"""Registries: a file is found by its name, and its function's parameters are the keys that an experiment has."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from fednlp.config import parse
from fednlp.config.sections import Partition
from fednlp.errors import ConfigError
from fednlp.federated.aggregators import AGGREGATORS
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.federated.attacks import ATTACKS
from fednlp.option_types import files_among
from fednlp.partition.methods import METHODS
from fednlp.registry import Plugin, Registry

REGISTRIES = {registry.package: registry for registry in (AGGREGATORS, ALGORITHMS, ATTACKS, METHODS)}
HEAD = "from typing import Annotated\nfrom pydantic import Field\nfrom fednlp.registry import mark\n"


@dataclass(frozen=True)
class Dish(Plugin):
    """What the files of the tests' own package define."""

    section = "dish"
    noun = "dish"


@pytest.fixture
def kitchen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Registry[Dish]]]:
    """A registry of a package with the given files."""

    def opened(**files: str) -> Registry[Dish]:
        folder = tmp_path / "kitchen"
        folder.mkdir()
        (folder / "__init__.py").write_text("")
        for name, code in files.items():
            (folder / f"{name}.py").write_text(HEAD + code)
        importlib.invalidate_caches()
        return Registry("kitchen", Dish)

    monkeypatch.syspath_prepend(tmp_path)
    yield opened
    for name in [name for name in sys.modules if name.partition(".")[0] == "kitchen"]:
        del sys.modules[name]


@pytest.mark.parametrize("package", REGISTRIES)
def test_each_name_leads_to_a_function_of_its_own(package: str) -> None:
    registry = REGISTRIES[package]
    found = {name: registry.find(name) for name in registry.names()}
    places = {(one.build.__module__, one.build.__name__) for one in found.values()}
    assert len(places) == len(found) > 0
    for name, one in found.items():
        assert one.name == name
        assert one.title
        assert one.build.__module__.startswith(f"{package}.")
        assert one.build.__doc__, f"{name} says nothing of itself"


def test_every_file_of_a_partition_method_is_found() -> None:
    files = Path(sys.modules[METHODS.package].__file__ or "").parent.glob("[!_]*.py")
    assert {METHODS.find(name).build.__name__ for name in METHODS.names()} == {path.stem for path in files}


def test_a_new_file_is_found_with_its_options(kitchen: Callable[..., Registry[Dish]]) -> None:
    registry = kitchen(
        hot_soup="@mark(title='Soup')\ndef hot_soup(salt: Annotated[float, Field(gt=0)] = 1.0): return salt\n",
        bread="@mark(title='Bread', name='bread+butter')\ndef bread(slices: int): return slices\n",
        shared="def shared(): return 'no mark'\n",
    )
    assert registry.names() == ("bread+butter", "hot-soup")
    assert registry.find("hot-soup").title == "Soup"
    assert registry.find("bread+butter").build(3) == 3
    assert registry.takers("salt") == ["hot-soup"]
    types = registry.option_types()
    assert list(types) == ["slices", "salt"]
    with pytest.raises(ValidationError, match="greater than 0"):
        TypeAdapter(types["salt"]).validate_python(0.0)


def test_an_option_has_one_type(kitchen: Callable[..., Registry[Dish]]) -> None:
    registry = kitchen(
        one="@mark(title='One')\ndef one(salt: float | None = None): return salt\n",
        two="@mark(title='Two')\ndef two(salt: float): return salt\n",
        three="@mark(title='Three')\ndef three(salt: int = 1): return salt\n",
    )
    with pytest.raises(TypeError, match="the option salt has another type elsewhere"):
        registry.option_types()


@pytest.mark.parametrize("name", METHODS.names())
def test_a_methods_options_are_keys_of_the_experiment(name: str) -> None:
    """Each is None where it is left out, so that the function's own default counts."""
    for option in METHODS.find(name).parameters:
        assert Partition.model_fields[option].default is None
        assert getattr(Partition(), option) is None


def test_paths_are_known_by_their_type() -> None:
    assert sorted(files_among(METHODS.option_types())) == ["file", "proportions"]


BAD: dict[str, Any] = {
    "alpha": 0,
    "beta": -1.0,
    "clients": 0,
    "clusters": 1.5,
    "encoder": 3,
    "proportions": True,
}
"""Near misses; any other option is given a list."""


@pytest.mark.parametrize("option", sorted(METHODS.option_types()))
def test_a_value_of_another_type_is_refused_by_its_key(option: str) -> None:
    """Whatever the method is, and before the data are opened."""
    value = BAD.get(option, [1])
    with pytest.raises(ConfigError, match=rf"partition\.{option} = {re.escape(str(value).lower())}"):
        parse({"data": {"name": "20news"}, "partition": {option: value}})
