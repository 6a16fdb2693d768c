"""The driver over gRPC: one bidirectional stream a client, and one call for enrolment; bytes in, bytes out.

No code is generated: handlers take and give the bytes of frames.
"""

import os
from collections.abc import Callable
from typing import Any

from fednlp.deployment.identity.certificates import Material
from fednlp.deployment.session.messages import MOST_FRAME
from fednlp.errors import MissingDependency, install_command

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what it logs is raised too
try:
    import grpc
    import grpc.aio
except ImportError:
    raise MissingDependency(f"a deployment needs gRPC: run {install_command('deployment')}") from None

SERVICE, SESSION, ENROL, PROBE, CHALLENGE = "fednlp.v1", "Session", "Enrol", "Probe", "Challenge"
LOOKAHEAD = 16 << 20
"""Bytes that a peer whose certificate TLS has checked may send of a stream before they are read."""
LOOKAHEAD_OF_STRANGERS = 256 << 10
"""The same behind a load balancer, where a stream has to prove who it is: the balancer is near, and this is enough."""
READ = 1 << 20
"""Bytes that are read of a connection at a time: a chunk, in place of many pieces of 8 KiB."""
KEEPALIVE = 30.0
"""Seconds without a word after which an end asks whether the other is there; it has twice that to answer."""
MOST_STREAMS = 1 << 14
"""Streams of a server at one time at most, those of sites and of strangers."""
MOST_DETAILS = 500
"""Characters of a reason that one end tells the other."""


def options(keepalive: float, most_message: int, lookahead: int = LOOKAHEAD) -> list[tuple[str, Any]]:
    """Return gRPC's options, which are the same for both ends but for the length of what arrives.

    Args:
        keepalive: Seconds, see :data:`KEEPALIVE`.
        most_message: Bytes of a message that arrives at most.
        lookahead: Bytes of a stream that arrive before they are read at most.
    """
    return [
        ("grpc.http2.lookahead_bytes", lookahead),
        ("grpc.http2.bdp_probe", 0),  # it would let in more, and more again, whether it is read or not
        ("grpc.http2.max_frame_size", (16 << 20) - 1),  # a chunk in one frame, in place of 64
        ("grpc.experimental.tcp_read_chunk_size", READ),
        ("grpc.experimental.tcp_min_read_chunk_size", READ),
        ("grpc.max_receive_message_length", most_message),
        ("grpc.max_send_message_length", MOST_FRAME),
        ("grpc.keepalive_time_ms", round(keepalive * 1000)),
        ("grpc.keepalive_timeout_ms", round(keepalive * 2000)),
        ("grpc.http2.ping_timeout_ms", round(keepalive * 2000)),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.max_ping_strikes", 0),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", round(keepalive * 500)),
        ("grpc.max_concurrent_streams", 4),
        ("grpc.so_reuseport", 0),  # a second server at the same port is an error
        ("grpc.use_local_subchannel_pool", 1),  # a connection of its own for each client
    ]


def server_credentials(material: Callable[[], Material]) -> grpc.ServerCredentials:
    """Return credentials that ask at every handshake what the server shows and trusts, and require a certificate.

    Args:
        material: Returns it; from any thread, and quickly.
    """
    shown = material()

    def configuration(now: Material) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(now.key, now.chain)], now.roots)

    def fetch() -> grpc.ServerCertificateConfiguration | None:
        nonlocal shown
        now = material()
        if now == shown:
            return None
        shown = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(
        configuration(shown), fetch, require_client_authentication=True
    )


def channel_credentials(material: Material) -> grpc.ChannelCredentials:
    """Return credentials of a client that shows a certificate.

    A server of the federation's own authority is to be checked for
    :data:`~fednlp.deployment.identity.certificates.SERVER_NAME`, whatever its address is.
    """
    return grpc.ssl_channel_credentials(material.roots, material.key, material.chain)
