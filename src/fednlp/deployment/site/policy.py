"""The site's file: its data, the names of its labels, what it allows, its device and its limits.

What an experiment does beyond it is refused (:mod:`fednlp.deployment.site.refusals`). The descriptions of the keys are
the comments of the file that :mod:`fednlp.deployment.site.template` writes.
"""

import re
import tomllib
from collections.abc import Collection, Mapping
from datetime import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, PlainValidator, ValidationError, field_validator

from fednlp.checked_json import LONGEST_TOML
from fednlp.config.error_messages import explain, report
from fednlp.config.sections import DataFiles
from fednlp.costs.devices import load_profile, profile_names, saved_profiles
from fednlp.disk import expanded, read_whole
from fednlp.errors import ConfigError
from fednlp.federated.adapters import RULES
from fednlp.federated.algorithms import ALGORITHMS
from fednlp.formatting.safe_text import clean
from fednlp.formatting.suggestions import did_you_mean
from fednlp.formulations import TASKS
from fednlp.models.selection_spec import SelectionTerm, parse_selection
from fednlp.option_types import PositiveFloat, PositiveInt
from fednlp.plugins import is_own
from fednlp.section import Section

_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d{1,2})?")
_DAY = 24 * 60 * 60


class Device(Section):
    """What this site trains with, and when."""

    device: str = Field(
        default="auto", description='"cpu", "cuda", "cuda:1", or "auto": a GPU if there is one'
    )
    threads: PositiveInt | None = Field(
        default=None,
        description="threads of the processor; left out: as many as the experiment says",
        examples=[4],
    )
    memory_mb: PositiveInt | None = Field(
        default=None,
        description="memory in MB (10^6 bytes); an experiment that is predicted to need more is refused",
        examples=[8000],
    )
    hours: str | None = Field(
        default=None,
        description="when this site trains, by its own clock; left out: always",
        examples=["20:00-06:00"],
    )
    profile: str | None = Field(
        default=None,
        description="what fednlp device measure wrote here, by which --dry-run predicts the time of a round",
        examples=["device.toml"],
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if not _DEVICE.fullmatch(device):
            raise ValueError(f'there is no device "{device}": say "auto", "cpu", "cuda" or "cuda:1"')
        return device

    @field_validator("hours")
    @classmethod
    def _readable_hours(cls, hours: str | None) -> str | None:
        if hours is not None:
            found = _HOURS.fullmatch(hours)
            if found is None or found.groups()[:2] == found.groups()[2:]:
                raise ValueError(f'"{hours}" is no part of a day: write it as "20:00-06:00"')
        return hours

    def seconds_until_open(self, now: time) -> int:
        """Return how long the site waits before it may train; 0 within its hours.

        Args:
            now: By the site's clock.

        >>> night = Device(hours="20:00-06:00")
        >>> night.seconds_until_open(time(5, 59)), night.seconds_until_open(time(19, 30))
        (0, 1800)
        """
        if self.hours is None:
            return 0
        first, last = (time.fromisoformat(text) for text in self.hours.split("-"))
        within = first <= now < last if first < last else not last <= now < first
        return 0 if within else (_seconds(first) - _seconds(now)) % _DAY


def _seconds(at: time) -> int:
    return at.hour * 3600 + at.minute * 60 + at.second


S = TypeVar("S", bound=Section)


def _selection(value: Any) -> Any:
    """Check a selection of parameters: "all", a part of a model, or a list of parts."""
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        try:
            parse_selection(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None
        return value
    raise ValueError('say "all", a part of a model such as "head", or a list of parts')


def _require_known(what: str, patterns: list[str], known: Collection[str]) -> list[str]:
    """Check that each pattern fits a name that is known: a misspelt one would forbid what it means."""
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(
                f'there is no {what} "{pattern}": {did_you_mean(pattern, known)}known are {", ".join(known)}'
            )
    return patterns


class Allow(Section):
    """What an experiment may do here."""

    algorithms: list[str] = Field(
        default=["*"],
        description='algorithms by name or pattern, such as "fed*"; by default all that fednlp has',
    )
    tasks: list[str] = Field(
        default=["*"], description="tasks by name or pattern; by default all that fednlp has"
    )
    averaging: list[str] = Field(
        default=["*"],
        description='rules for low-rank adapters by name or pattern, such as "fedsa"; plain averaging of other models '
        "is none of them",
    )
    models: list[str] = Field(
        default=["*"],
        description="models by name or pattern, or by the digest of a file that --dry-run shows, such as "
        '"sha256:9f86d081884c7d65" (its first 16 digits or more)',
    )
    code: list[str] = Field(
        default=[],
        description='code beside fednlp, installed here, that an experiment may name: "module:function"',
    )
    tensors: Annotated[str | list[str], PlainValidator(_selection)] = Field(
        default="all",
        description='parameters that may leave, by parts of the model as in [model] train: ["layer.0-5", "head", '
        '"bias", "re:lora_"]; "all" is all that the experiment shares, which is never a personal parameter',
    )
    require_secure: bool = Field(
        default=False,
        description="true: only secure aggregation, which hides this site's update from the server",
    )
    smallest_cohort: int = Field(
        default=3, ge=3, description="the fewest sites that a secure sum may be over, however many drop out"
    )
    fewest_examples: PositiveInt = Field(
        default=1, description="the fewest different examples here that an update may be made of"
    )
    require_privacy: bool = Field(
        default=False, description="true: only differential privacy of sites, with any finite epsilon"
    )
    largest_epsilon: PositiveFloat | None = Field(
        default=None,
        description="the largest epsilon of a whole run; without [privacy] a run has none and is refused. It holds "
        "against whoever sees the models, and with require_secure = true against the server too",
        examples=[8.0],
    )
    tell_size: bool = Field(
        default=True,
        description="whether the server may know the number of examples; false keeps the scores of this site too, "
        "which are shares of its test examples",
    )
    tell_scores: bool = Field(
        default=True, description="whether the server may know losses and scores on the examples here"
    )
    sum_scores: bool = Field(
        default=True,
        description="whether losses and scores here may be part of a secure sum, of which the server learns the sum "
        "alone; tell_scores = true allows it too",
    )
    most_evaluations: PositiveInt | None = Field(
        default=None,
        description="the most rounds of a run after which scores here, or sums over the tests here, are told",
        examples=[10],
    )
    tell_labels: bool = Field(
        default=False, description="whether the server may know the names of the labels"
    )
    pseudo_labels: bool = Field(
        default=True, description="whether the model may label texts here, to be trained on here ([fewshot])"
    )
    final_model: bool = Field(
        default=True,
        description="whether the final model is fetched at the end and kept here, with this site's own model if it has "
        "one; false: this machine keeps neither",
    )
    most_rounds: PositiveInt | None = Field(
        default=None, description="the most rounds of a run", examples=[100]
    )

    @field_validator("algorithms")
    @classmethod
    def _known_algorithms(cls, patterns: list[str]) -> list[str]:
        return _require_known("algorithm", patterns, ALGORITHMS.names())

    @field_validator("tasks")
    @classmethod
    def _known_tasks(cls, patterns: list[str]) -> list[str]:
        return _require_known("task", patterns, tuple(TASKS))

    @field_validator("averaging")
    @classmethod
    def _known_rules(cls, patterns: list[str]) -> list[str]:
        return _require_known("averaging", patterns, tuple(RULES))

    @field_validator("code")
    @classmethod
    def _own_code(cls, names: list[str]) -> list[str]:
        for name in names:
            if not is_own(name):
                raise ValueError(f'"{name}" is no code: write it in full, such as "my_methods:cyclic"')
        return names

    @property
    def tensor_terms(self) -> tuple[SelectionTerm, ...]:
        """What :attr:`tensors` names; empty for all."""
        return parse_selection(self.tensors).shared


class Limits(Section):
    """The most that travels in a round, and before the first one."""

    download_mb: PositiveFloat | None = Field(
        default=None,
        description="from the server to this site; the files before the first round count together",
        examples=[500.0],
    )
    upload_mb: PositiveFloat | None = Field(
        default=None, description="from this site to the server", examples=[500.0]
    )


class SiteFiles(DataFiles):
    """The site's files. Where it has no test file, it holds some examples out for tests of its own."""

    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.2

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of :func:`fednlp.data.load_data` that say which files these are."""
        return super().arguments() | {"test_fraction": self.test_fraction or None}


class SitePolicy(Section):
    """A site's file: what it has, and what it allows.

    Attributes:
        data: Its files.
        labels: The experiment's names of labels, by the site's own.
        allow: What an experiment may do.
        device: What the site trains with.
    """

    data: SiteFiles = SiteFiles()
    labels: dict[str, str] = Field(default={})
    allow: Allow = Allow()
    device: Device = Device()
    limits: Limits = Limits()


def load_policy(path: Path) -> SitePolicy:
    """Read a site's file. Relative paths in it are taken from the folder that it lies in.

    Args:
        path: The file.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong; every mistake is listed.
    """
    try:
        document = tomllib.loads(read_whole(path, LONGEST_TOML).decode("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(
            f"there is no site file {path}: write one with fednlp join site --init --policy {path} --data FILE"
        ) from None
    except (ValueError, RecursionError, OSError) as error:  # a number of too many digits among them
        raise ConfigError(f"{path} is not readable as TOML: {error}") from None
    policy = parse_policy(document, str(path))
    folder, device = path.absolute().parent, policy.device
    data = _anchored(policy.data, folder, "path", "test_path")
    if device.profile is not None and device.profile not in (*profile_names(), *saved_profiles()):
        device = _anchored(device, folder, "profile")
    try:
        if device.profile is not None:
            load_profile(device.profile)
    except ConfigError as error:
        raise ConfigError(f"{path}: device.profile: {error}") from None
    return policy.model_copy(update={"data": data, "device": device})


def parse_policy(document: Mapping[str, Any], where: str = "the site's file") -> SitePolicy:
    """Check nested tables and return the policy that they say.

    Args:
        where: What they are called in messages.

    Raises:
        ConfigError: Every mistake, one a line.

    >>> parse_policy({"allow": {"most_rounds": 20}}).allow.most_rounds
    20
    >>> parse_policy({"allow": {"largest_epsilom": 4}})
    Traceback (most recent call last):
        ...
    fednlp.errors.ConfigError: the site's file: unknown key allow.largest_epsilom; did you mean allow.largest_epsilon?
    """
    try:
        return SitePolicy.model_validate(dict(document))
    except ValidationError as error:
        found = [clean(explain(dict(detail), SitePolicy)) for detail in error.errors()]
        raise ConfigError(report(where, found), found) from None


def _anchored(section: S, folder: Path, *keys: str) -> S:
    """Return a section whose paths are taken from a folder, where they are not absolute."""
    given = {key: getattr(section, key) for key in keys}
    made = {key: _from(folder, value) for key, value in given.items() if value is not None}
    return section.model_copy(update=made)


def _from(folder: Path, path: str | list[str]) -> str | list[str]:
    if isinstance(path, list):
        return [str(folder / expanded(one)) for one in path]
    return str(folder / expanded(path))
