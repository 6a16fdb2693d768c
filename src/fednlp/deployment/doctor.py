"""``fednlp doctor``: whether this machine can take part in a federation, check by check."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from fednlp.deployment.certificates import Material, certificate_pem, key_pem, load_certificate, new_key
from fednlp.deployment.dial import dial
from fednlp.deployment.findings import Finding, certificate_dates, device, disk, token_expiry, versions
from fednlp.deployment.homes import home, joined_folder
from fednlp.deployment.identity import SiteIdentity
from fednlp.deployment.invitations import invitation_certificate
from fednlp.deployment.names import server_address
from fednlp.deployment.tokens import JoinToken
from fednlp.hubs.cache import cache_dir

_PACKAGES = ("fednlp", "torch", "grpcio")


@dataclass(frozen=True)
class Target:
    """What is examined.

    Attributes:
        address: ``host:port`` of the server.
        material: What this site shows and trusts; None where only the address is known.
        expires: Until when the join token is good; None without one.
        member: Whether this site has joined.
    """

    address: str
    material: Material | None = None
    expires: float | None = None
    member: bool = False


def target_of(text: str) -> Target:
    """Read what a user wants examined.

    A join token is not used up: what it gives is shown to the server, and nobody enrols.

    Args:
        text: A join token, ``host:port``, or the name or folder of a federation that was joined.

    Raises:
        FednlpError: It is none of these.
    """
    if text.startswith("fednlp") and text[6:7].isdigit():
        token = JoinToken.parse(text)
        key = new_key()
        chain = certificate_pem(invitation_certificate(token.secret, key.public_key()))
        return Target(token.address, Material(key_pem(key), chain, token.authority_pem), token.expires)
    if ":" in text and not Path(text).is_dir():
        return Target(server_address(text))
    folder = Path(text) if (Path(text) / "identity").is_dir() else joined_folder(text)
    identity = SiteIdentity(folder / "identity")
    material, member = identity.material(), identity.membership
    assert member is not None
    return Target(member.address, material, member=True)


def examine(target: Target, now: float | None = None) -> Iterator[Finding]:
    """Yield what is found, one check after the other.

    Args:
        target: From :func:`target_of`.
        now: Seconds since 1970; the present if left out.
    """
    now = time.time() if now is None else now
    yield from dial(target.address, target.material, now)
    if target.expires is not None:
        yield token_expiry(target.expires, now)
    if target.member and target.material is not None:
        yield certificate_dates("this site's", load_certificate(target.material.chain), now)
    yield versions({"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}})
    yield device(len(os.sched_getaffinity(0)), *_memory(), _gpus())
    yield _disk("the cache", cache_dir(), "FEDNLP_CACHE")
    yield _disk("the folder of this site's federations", home(), "FEDNLP_HOME")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _memory() -> tuple[int | None, int | None]:
    """Return the bytes of memory of this machine, and how many are free."""
    try:
        rows = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
        known = {row[0]: int(row[1]) * 1024 for row in rows}
    except (OSError, ValueError, IndexError):
        return None, None
    return known.get("MemTotal:"), known.get("MemAvailable:")


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _disk(what: str, folder: Path, variable: str) -> Finding:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return disk(
        what, str(folder), shutil.disk_usage(there).free, os.access(there, os.W_OK | os.X_OK), variable
    )
