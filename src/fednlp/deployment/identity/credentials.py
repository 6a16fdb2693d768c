"""Identities as gRPC takes them: the credentials of both ends."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fednlp.deployment.identity.certificates import Material
from fednlp.errors import MissingDependency, install_command

if TYPE_CHECKING:
    import grpc


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

    A server of the federation's own authority is to be checked for
    :data:`~fednlp.deployment.identity.ca.SERVER_NAME`, whatever
    its address is.

    Args:
        material: What it shows and trusts.

    Raises:
        MissingDependency: gRPC is not installed.
    """
    return _grpc().ssl_channel_credentials(material.roots, material.key, material.chain)


def balancer_credentials(roots: bytes | None) -> "grpc.ChannelCredentials":
    """Return credentials of a client that shows no certificate: a load balancer ends TLS.

    Args:
        roots: The certificates of authorities to trust, PEM; None for those that gRPC trusts.

    Raises:
        MissingDependency: gRPC is not installed.
    """
    return _grpc().ssl_channel_credentials(roots)


def _grpc() -> Any:
    try:
        import grpc
    except ImportError:
        raise MissingDependency(f"a deployment needs gRPC: run {install_command('deployment')}") from None
    return grpc
