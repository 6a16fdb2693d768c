"""What ``fednlp doctor`` can say of this machine without asking anybody: versions, clock, device, disk."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal, NamedTuple

from cryptography import x509

from fednlp.deployment.identity.tokens import SKEW, date_text
from fednlp.errors import install_command
from fednlp.formatting.units import human_bytes, plural

GOOD: Final = "good"
WARNING: Final = "warning"
WRONG: Final = "wrong"
_LITTLE_MEMORY = 2e9
_LITTLE_SPACE, _NO_SPACE = 5e9, 0.5e9


class Finding(NamedTuple):
    """What was found in one check.

    Attributes:
        check: What was looked at, in a word.
        state: Whether it is as it should be.
        remedy: What to do; empty if nothing is to be done.
    """

    check: str
    state: Literal["good", "warning", "wrong"]
    text: str
    remedy: str = ""


def certificate_dates(whose: str, certificate: x509.Certificate, now: float) -> Finding:
    """Return whether a certificate is valid by this machine's clock.

    Args:
        whose: Whose it is, such as "the server's".
        now: Seconds since 1970.
    """
    begins, ends = certificate.not_valid_before_utc.timestamp(), certificate.not_valid_after_utc.timestamp()
    clock = f"this machine's clock says {date_text(now)}"
    if now < begins:
        text = f"{whose} certificate is valid from {date_text(begins)}, and {clock}"
        return Finding("clock", WRONG, text, "set the clock (timedatectl set-ntp true)")
    if now > ends:
        text = f"{whose} certificate was valid until {date_text(ends)}, and {clock}"
        remedy = "set the clock if it is wrong; else start the server again, or join with a new token"
        return Finding("clock", WRONG, text, remedy)
    return Finding("clock", GOOD, f"{whose} certificate is valid until {date_text(ends)}, and {clock}")


def token_expiry(expires: float, now: float) -> Finding:
    """Return whether a join token is still good by this machine's clock.

    Args:
        expires: Seconds since 1970, by the server's clock.
        now: Seconds since 1970.
    """
    if now <= expires:
        return Finding("token", GOOD, f"it is good until {date_text(expires)}, for one use")
    text, remedy = f"it expired on {date_text(expires)}", "ask for a new one (fednlp sites invite)"
    return Finding("token", WRONG if now > expires + SKEW else WARNING, text, remedy)


def versions(installed: Mapping[str, str | None]) -> Finding:
    """Return the versions of what a site needs.

    Args:
        installed: Versions by name; None for what is not installed.

    >>> versions({"fednlp": "1.0", "grpcio": None}).remedy == install_command("deployment")
    True
    """
    text = ", ".join(f"{name} {version or 'is missing'}" for name, version in installed.items())
    if None in installed.values():
        return Finding("versions", WRONG, text, install_command("deployment"))
    return Finding("versions", GOOD, f"{text}; the server's fednlp is to be the same")


def device(cores: int, memory: int | None, free: int | None, gpus: Iterable[str]) -> Finding:
    """Return what this machine trains with.

    Args:
        cores: Of the processor, that this process may use.
        memory: Bytes; None if unknown.
        free: Bytes that no process uses; None if unknown.
    """
    parts = [plural(cores, "core")]
    if memory is not None and free is not None:
        parts.append(f"{human_bytes(memory)} of memory, {human_bytes(free)} of it free")
    text = ", ".join([*parts, *gpus]) + ("" if gpus else ", no GPU that torch can use")
    if free is not None and free < _LITTLE_MEMORY:
        return Finding(
            "device", WARNING, text, "close other programs, or see what a run needs: fednlp join --dry-run"
        )
    return Finding("device", GOOD, text)


def disk(what: str, folder: str, free: int, writable: bool, variable: str) -> Finding:
    """Return whether there is room in a folder.

    Args:
        what: What is kept there, such as "the cache".
        folder: The folder.
        free: Bytes.
        writable: Whether files can be made there.
        variable: The environment variable that names another folder.
    """
    elsewhere = f"free some, or set {variable} to a folder elsewhere"
    if not writable:
        text = f"{what} in {folder} cannot be written"
        return Finding(
            "disk", WRONG, text, f"set {variable} to a folder that can, or have it opened for this user"
        )
    text = f"{what} in {folder} has {human_bytes(free)} free"
    if free < _LITTLE_SPACE:
        return Finding("disk", WRONG if free < _NO_SPACE else WARNING, text, elsewhere)
    return Finding("disk", GOOD, text)
