"""``fednlp doctor``: whether this machine can take part in a federation, check by check."""

import os
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cryptography import x509

from fednlp.deployment.access import access_of, has_joined
from fednlp.deployment.ca import SERVER_NAME
from fednlp.deployment.certificates import Material, certificate_pem, key_pem, new_key
from fednlp.deployment.dial import dial
from fednlp.deployment.findings import Finding, certificate_dates, device, disk, token_expiry, versions
from fednlp.deployment.homes import joined_folder
from fednlp.deployment.invitations import invitation_certificate
from fednlp.deployment.machine import machine_memory
from fednlp.deployment.names import server_address
from fednlp.deployment.tokens import JoinToken, token_text
from fednlp.disk import home
from fednlp.errors import RunError
from fednlp.hubs.cache import cache_dir
from fednlp.processor import cores

_PACKAGES = ("fednlp", "torch", "grpcio")


@dataclass(frozen=True)
class Target:
    """What is examined.

    Attributes:
        address: ``host:port`` of the server.
        material: What this site shows and trusts; None where only the address is known.
        expires: Until when the join token is good; None without one.
        member: Whether this site has joined.
        server_name: Name in the server's certificate; None for that of the address.
    """

    address: str
    material: Material | None = None
    expires: float | None = None
    member: bool = False
    server_name: str | None = SERVER_NAME


def target_of(text: str) -> Target:
    """Read what a user wants examined.

    A join token is not used up: what it gives is shown to the server, and nobody enrols.

    Args:
        text: A join token, its file, ``-`` for standard input, ``host:port``, or the name or folder of a federation
            that was joined.

    Raises:
        FednlpError: It is none of these.
    """
    text = token_text(text)
    if text.startswith("fednlp") and text[6:7].isdigit():
        token = JoinToken.parse(text)
        key = new_key()
        chain = certificate_pem(invitation_certificate(token.secret, key.public_key()))
        return Target(token.address, Material(key_pem(key), chain, token.authority_pem), token.expires)
    if ":" in text and not Path(text).is_dir():
        return Target(server_address(text))
    access = access_of(Path(text) if has_joined(Path(text)) else joined_folder(text))
    if access is None:
        raise RunError(f"{text} was stopped before it had joined: fednlp join and the token again")
    if access.balancer is not None:
        return Target(access.address, server_name=None)
    material = access.material() if access.identity is None else access.identity.material()
    return Target(access.address, material, member=True, server_name=access.server_name)


def examine(target: Target, now: float | None = None) -> Iterator[Finding]:
    """Yield what is found, one check after the other.

    Args:
        target: From :func:`target_of`.
        now: Seconds since 1970; the present if left out.
    """
    now = time.time() if now is None else now
    yield from dial(target.address, target.material, now, target.server_name)
    if target.expires is not None:
        yield token_expiry(target.expires, now)
    if target.member and target.material is not None:
        yield certificate_dates("this site's", x509.load_pem_x509_certificates(target.material.chain)[0], now)
    yield versions({"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}})
    yield device(len(cores()), *machine_memory(), _gpus())
    yield _disk("the cache", cache_dir(), "FEDNLP_CACHE")
    yield _disk("the folder of this site's federations", home(), "FEDNLP_HOME")


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpus() -> list[str]:
    import torch

    return [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]


def _disk(what: str, folder: Path, variable: str) -> Finding:
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return disk(
        what, str(folder), shutil.disk_usage(there).free, os.access(there, os.W_OK | os.X_OK), variable
    )
