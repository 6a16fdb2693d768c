"""Identities as gRPC takes them: credentials of both ends, and the certificate that a peer has shown."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fednlp.deployment.ca import SERVER_NAME
from fednlp.deployment.certificates import Material
from fednlp.errors import IdentityError, MissingDependency

if TYPE_CHECKING:
    import grpc

FIXED_NAME = ("grpc.ssl_target_name_override", SERVER_NAME)
"""Channel option for servers whose certificate is of the federation's authority: it bears this name at any address."""


def server_credentials(material: Callable[[], Material]) -> "grpc.ServerCredentials":
    """Return credentials that ask at every handshake what the server shows and trusts, and require a certificate.

    Args:
        material: Returns it; from any thread, and quickly.

    Raises:
        MissingDependency: gRPC is not installed.
    """
    library = _grpc()
    shown = material()

    def configuration(now: Material) -> "grpc.ServerCertificateConfiguration":
        return library.ssl_server_certificate_configuration([(now.key, now.chain)], now.roots)

    def fetch() -> "grpc.ServerCertificateConfiguration | None":
        nonlocal shown
        now = material()
        if now == shown:
            return None
        shown = now
        return configuration(now)

    return library.dynamic_ssl_server_credentials(
        configuration(shown), fetch, require_client_authentication=True
    )


def channel_credentials(material: Material) -> "grpc.ChannelCredentials":
    """Return credentials of a client.

    Args:
        material: What it shows and trusts.

    Raises:
        MissingDependency: gRPC is not installed.
    """
    return _grpc().ssl_channel_credentials(material.roots, material.key, material.chain)


def peer_certificate(context: Mapping[str, Iterable[bytes]]) -> bytes:
    """Return the certificate that a peer has shown, PEM, from a call's ``auth_context()``.

    Raises:
        IdentityError: The connection is not mutual TLS.
    """
    found = list(context.get("x509_pem_cert", ()))
    if list(context.get("transport_security_type", ())) != [b"ssl"] or len(found) != 1:
        raise IdentityError("the connection is not mutual TLS: no certificate was shown")
    return found[0]


def _grpc() -> Any:
    try:
        import grpc
    except ImportError:
        raise MissingDependency(
            "a federation between machines needs gRPC: run pip install 'fednlp[deployment]'"
        ) from None
    return grpc
