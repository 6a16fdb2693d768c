"""Device profiles: seconds per example, power and memory.

A profile is a TOML file. ``name`` and ``source`` must be there; a figure that no source states is left out::

    name = "my-phone"
    source = "measured on ... with ..."
    latency = 0.05                     # seconds, once a client and round
    memory = 8_589_934_592             # bytes

    [training]                         # seconds an example
    models = { "bert-tiny" = 0.002 }
    per_million_parameters = 0.0005    # for a model that is not named
    backward = 2.0                     # time of a layer's backward pass over that of its forward pass
    bias = 0.65                        # a layer whose biases alone are trained, over one that is trained whole

    [training.depths.bert-tiny]        # seconds an example with so many of the top layers at work, and the head
    0 = 0.0001
    1 = 0.0009

    [inference]                        # the same, without a backward pass

    [watts]
    computing = 12.0
    sending = 4.0
"""

import difflib
import os
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fednlp.checked_json.small_toml import read_small_toml, shown
from fednlp.disk import expanded, home
from fednlp.errors import ConfigError

_FOLDER = Path(__file__).parent / "profiles"
_LONGEST = 1 << 16
_LARGEST = 1e18
_T = TypeVar("_T")
_DEEPEST = 10_000
_KEYS = {
    "": ("name", "source", "latency", "memory", "training", "inference", "watts"),
    "training": ("models", "per_million_parameters", "depths", "backward", "bias"),
    "inference": ("models", "per_million_parameters", "depths"),
    "watts": ("computing", "sending"),
}


@dataclass(frozen=True)
class Speed:
    """Seconds per example of a device; None for unknown figures.

    Attributes:
        models: Seconds per example by model, with all parameters trained.
        per_million_parameters: Seconds per example and million parameters, for other models.
        depths: Seconds per example by model and by the number of active top layers, with the head, while the outputs of
            the frozen layers below are cached.
        backward: Time of a layer's backward pass over that of its forward pass, in training.
        bias: Time of a layer of which only biases are trained, over one that is trained in full.
    """

    models: Mapping[str, float] = field(default_factory=dict)
    per_million_parameters: float | None = None
    depths: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    backward: float | None = None
    bias: float | None = None

    def seconds(self, model: str, parameters: int) -> float | None:
        """Return the seconds per example, None where the profile does not state them.

        Args:
            model: A name, hub name or folder; the last part of it is looked up.
            parameters: Parameters of the whole model, trained or not.

        >>> speed = Speed({"roberta-large": 2.0}, 0.0056)
        >>> speed.seconds("FacebookAI/roberta-large", 355_000_000), speed.seconds("mine", 10_000_000)
        (2.0, 0.056)
        >>> Speed().seconds("mine", 10_000_000) is None
        True
        """
        named = of_model(self.models, model)
        if named is not None:
            return named
        per_million = self.per_million_parameters
        return None if per_million is None else per_million * parameters / 1e6


def of_model(table: Mapping[str, _T], model: str) -> _T | None:
    """Return a model's entry of a table: by its name, else by the last part of the name.

    >>> of_model({"b": 1}, "hub/b")
    1
    """
    return next((table[name] for name in (model, Path(model).name) if name in table), None)


@dataclass(frozen=True)
class DeviceProfile:
    """The profile of one device; None for unknown figures.

    Attributes:
        training: Seconds per example of a local step, forward and backward.
        inference: Seconds per example, forward only.
        watts_computing: Power in watts while it trains or predicts.
        watts_sending: Power in watts while it sends or receives.
        memory: Bytes of memory.
        latency: Seconds of a client's part in a round in addition to computing and sending.
    """

    name: str
    source: str
    training: Speed = Speed()
    inference: Speed = Speed()
    watts_computing: float | None = None
    watts_sending: float | None = None
    memory: int | None = None
    latency: float | None = None


def profile_names() -> list[str]:
    """Return the names of the profiles that come with fednlp.

    >>> profile_names()
    ['amd-epyc-2-cores', 'jetson-tx2', 'pixel-4', 'raspberry-pi-4b']
    """
    return sorted(path.stem for path in _FOLDER.glob("*.toml"))


def saved_profiles() -> dict[str, Path]:
    """Return the files of the profiles that ``fednlp device measure --save`` wrote on this machine, by name."""
    return {path.stem: path for path in sorted(saved_folder().glob("*.toml"))}


def saved_folder() -> Path:
    """Return where this machine keeps profiles of its own."""
    return home() / "devices"


def load_profile(name_or_path: str | Path) -> DeviceProfile:
    """Read the profile of a device.

    Args:
        name_or_path: A name of :func:`profile_names` or :func:`saved_profiles`, or the path of a TOML file.

    Raises:
        ConfigError: There is no such profile, or it is not valid.

    >>> load_profile("jetson-tx2").training.seconds("roberta-large", 355_000_000)
    2.0
    """
    saved = saved_profiles()
    known = [*profile_names(), *saved]
    given = str(name_or_path)
    path = saved.get(given) or expanded(given)
    if given in profile_names():
        path = _FOLDER / f"{given}.toml"
    if not os.path.isfile(path):
        near = difflib.get_close_matches(given.lower(), known, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"there is no device profile {shown(given)}: {hint}"
            f"known are {', '.join(known)}; or give the path of a TOML file"
        )
    return _device(path, read_small_toml(path, _LONGEST, "device profile"))


def _device(path: Path, table: Mapping[str, Any]) -> DeviceProfile:
    _known_keys(path, "", table)
    for key in ("name", "source"):
        if not isinstance(table.get(key), str) or not table[key].strip():
            raise ConfigError(f'{path}: {key} is missing: add {key} = "..."')
    watts = _section(path, table, "watts")
    memory = _figure(path, "memory", table.get("memory"))
    return DeviceProfile(
        name=table["name"],
        source=" ".join(table["source"].split()),
        training=_speed(path, table, "training"),
        inference=_speed(path, table, "inference"),
        watts_computing=_figure(path, "watts.computing", watts.get("computing")),
        watts_sending=_figure(path, "watts.sending", watts.get("sending")),
        memory=None if memory is None else int(memory),
        latency=_figure(path, "latency", table.get("latency")),
    )


def _speed(path: Path, table: Mapping[str, Any], name: str) -> Speed:
    section = _section(path, table, name)
    models = section.get("models", {})
    if not isinstance(models, Mapping):
        raise ConfigError(f'{path}: {name}.models is no table: write models = {{ "bert-tiny" = 0.002 }}')
    seconds = {model: _figure(path, f"{name}.models.{model}", value) for model, value in models.items()}
    plain = ("per_million_parameters", "backward", "bias")
    return Speed(
        models={model: value for model, value in seconds.items() if value is not None},
        depths=_depths(path, f"{name}.depths", section.get("depths", {})),
        **{key: _figure(path, f"{name}.{key}", section.get(key)) for key in plain},
    )


def _depths(path: Path, name: str, models: Any) -> dict[str, dict[int, float]]:
    if not isinstance(models, Mapping) or not all(isinstance(depths, Mapping) for depths in models.values()):
        raise ConfigError(
            f"{path}: {name} is no table of models: write depths under [{name}.bert-tiny], as 1 = 0.002"
        )
    found: dict[str, dict[int, float]] = {}
    for model, depths in models.items():
        found[model] = {}
        for depth, value in depths.items():
            seconds = _figure(path, f"{name}.{model}.{depth}", value)
            if not (depth.isascii() and depth.isdecimal() and len(depth) < 6 and int(depth) <= _DEEPEST):
                raise ConfigError(
                    f"{path}: {shown(f'{name}.{model}.{depth}')}: a depth is a number of layers, 0 to {_DEEPEST:,}"
                )
            if seconds is not None:
                found[model][int(depth)] = seconds
    return found


def _section(path: Path, table: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    section = table.get(name, {})
    if not isinstance(section, Mapping):
        raise ConfigError(f"{path}: {name} is no section: write its figures under [{name}]")
    _known_keys(path, name, section)
    return section


def _known_keys(path: Path, section: str, given: Iterable[str]) -> None:
    known = _KEYS[section]
    for key in given:
        if key not in known:
            dot = f"{section}." if section else ""
            near = difflib.get_close_matches(key.lower(), known, n=1)
            hint = f"did you mean {dot}{near[0]}?" if near else f"known here: {', '.join(known)}"
            raise ConfigError(f"{path}: unknown key {dot}{shown(key)}; {hint}")


def _figure(path: Path, key: str, value: Any) -> float | None:
    """Return a number that is neither negative nor beyond reason, None where there is none."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
        raise ConfigError(
            f"{path}: {shown(key)} = {reprlib.repr(value)} is no number from 0 up; leave it out if it is not known"
        )
    return float(value)
