"""The device of a site, and the hours in which it may be used: a section of the site's file."""

import re
from datetime import time

from pydantic import Field, field_validator

from fednlp.config.sections import Section
from fednlp.option_types import PositiveInt

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
