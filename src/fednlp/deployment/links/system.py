"""What a driver asks of the operating system."""

import resource
import socket
from contextlib import suppress


def why_not_listening(address: str) -> str | None:
    """Return the system's reason why an address cannot be listened at, where gRPC tells none; None if it has none."""
    host, _, port = address.rpartition(":")
    try:
        family, *_, place = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family) as listener:
            listener.bind(place)
    except (OSError, ValueError) as error:
        return getattr(error, "strerror", None) or str(error)
    return None


def allow_many_files() -> None:
    """Raise the limit of open files to what the system allows: each client needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
