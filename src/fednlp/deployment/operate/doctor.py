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

from fednlp.deployment.identity.access import Access, access_of, has_joined
from fednlp.deployment.identity.certificates import SERVER_NAME, Material, certificate_pem, key_pem, new_key
from fednlp.deployment.identity.names import broker_scheme, server_address
from fednlp.deployment.identity.tokens import JoinToken, invitation_certificate, token_text
from fednlp.deployment.operate.dial import dial
from fednlp.deployment.operate.enrolling import carry_probe
from fednlp.deployment.operate.findings import (
    GOOD,
    WARNING,
    WRONG,
    Finding,
    certificate_dates,
    device,
    disk,
    token_expiry,
    versions,
)
from fednlp.deployment.operate.homes import joined_folder
from fednlp.deployment.session.driver import NotAnswered, NotThere
from fednlp.deployment.session.probe import PIECES, WHOLE, Probe
from fednlp.deployment.site.machine import machine_memory
from fednlp.disk import home
from fednlp.errors import FednlpError, RunError
from fednlp.formatting.units import human_bytes
from fednlp.hubs.cache import cache_dir
from fednlp.processor import cores

_PACKAGES = ("fednlp", "torch", "grpcio")
_PROXY = (
    "a proxy on the way limits requests or answers, or holds them back: have that lifted for this address (nginx: "
    "client_max_body_size 0, and grpc_read_timeout and grpc_send_timeout of hours)"
)
_BROKER = (
    "the broker's limit on messages has to be 300,000 bytes at least (mosquitto: max_packet_size 300000)"
)


@dataclass(frozen=True)
class Target:
    """What is examined.

    Attributes:
        address: ``host:port`` of the server.
        material: What this site shows and trusts; None where only the address is known.
        expires: Until when the join token is good; None without one.
        member: Whether this site has joined.
        server_name: Name in the server's certificate; None for that of the address.
        access: How this site reaches the server; None where only the address is known.
    """

    address: str
    material: Material | None = None
    expires: float | None = None
    member: bool = False
    server_name: str | None = SERVER_NAME
    access: Access | None = None


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
        material = Material(key_pem(key), chain, token.authority_pem)
        invited = Access(token.site, token.address, SERVER_NAME, lambda: material, None, None)
        return Target(token.address, material, token.expires, access=invited)
    if ":" in text and not Path(text).is_dir():
        return Target(server_address(text))
    access = access_of(Path(text) if has_joined(Path(text)) else joined_folder(text))
    if access is None:
        raise RunError(f"{text} was stopped before it had joined: fednlp join and the token again")
    if access.balancer is not None:
        return Target(access.address, server_name=None, access=access)
    material = access.material() if access.identity is None else access.identity.material()
    return Target(access.address, material, member=True, server_name=access.server_name, access=access)


def examine(target: Target, now: float | None = None) -> Iterator[Finding]:
    """Yield what is found, one check after the other.

    Args:
        target: From :func:`target_of`.
        now: Seconds since 1970; the present if left out.
    """
    now = time.time() if now is None else now
    led = True
    for found in dial(target.address, target.material, now, target.server_name):
        led = led and found.state != WRONG
        yield found
    if led and target.access is not None:
        yield transfer(target.access)
    if target.expires is not None:
        yield token_expiry(target.expires, now)
    if target.member and target.material is not None:
        yield certificate_dates("this site's", x509.load_pem_x509_certificates(target.material.chain)[0], now)
    yield versions({"Python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}})
    yield device(len(cores()), *machine_memory(), _gpus())
    yield _disk("the cache", cache_dir(), "FEDNLP_CACHE")
    yield _disk("the folder of this site's federations", home(), "FEDNLP_HOME")


def transfer(access: Access) -> Finding:
    """Return whether some megabytes go to the server and back, in pieces as a round has them.

    Args:
        access: How this site reaches the server.
    """
    probe = Probe()
    try:
        carry_probe(access, probe)
    except NotAnswered:
        text = "the server is of a version of fednlp that does not answer probes: nothing was sent"
        return Finding("transfer", WARNING, text, "install the same version of fednlp on both")
    except NotThere as error:
        return Finding("transfer", WRONG, str(error), "have fednlp serve started")
    except FednlpError as error:
        went = f"the connection ends after {human_bytes(probe.sent)} were sent and {human_bytes(probe.back)} came back"
        return Finding(
            "transfer", WRONG, f"{went} ({error})", _BROKER if broker_scheme(access.address) else _PROXY
        )
    return Finding("transfer", GOOD, f"{human_bytes(WHOLE)} went to the server and back, in {PIECES} pieces")


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
