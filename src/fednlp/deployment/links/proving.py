"""Proofs in gRPC's metadata: who a client is where TLS does not show it (:mod:`fednlp.deployment.identity.proofs`)."""

from collections.abc import Callable
from typing import Any

from fednlp.deployment.identity.proofs import Challenges, Proof, proven
from fednlp.errors import IdentityError, RunError

CHALLENGE = "Challenge"
Prove = Callable[[str, bytes, bytes], Proof]
"""Proves who a site is, for a method, a challenge and a request."""
_NAMES = ("fednlp-certificate-bin", "fednlp-challenge-bin", "fednlp-signature-bin")
_PATIENCE = 30.0


def metadata(proof: Proof) -> tuple[tuple[str, bytes], ...]:
    """Return a proof as metadata."""
    return tuple(zip(_NAMES, proof, strict=True))


async def stream_metadata(channel: Any, service: str, method: str, prove: Prove | None) -> Any:
    """Return the metadata of a stream: who this client is, if TLS does not show it.

    Args:
        channel: To the server.
        service: Of gRPC.
        method: Of the stream.
        prove: Makes the proof; None where TLS shows who this is.

    Raises:
        RunError: The server gives no challenge.
    """
    import grpc.aio

    if prove is None:
        return None
    try:
        challenge = await channel.unary_unary(f"/{service}/{CHALLENGE}")(b"", timeout=_PATIENCE)
    except grpc.aio.AioRpcError as error:
        raise RunError(str(error.details())) from None
    return metadata(prove(method, challenge, b""))


def proven_certificate(context: Any, method: str, body: bytes, challenges: Challenges) -> bytes:
    """Return the certificate, PEM, of which a client has proven that it is its own.

    Args:
        context: Of the call.
        method: What is asked for.
        body: The request.
        challenges: Of this server.

    Raises:
        IdentityError: There is no proof, or it is not valid.
        RunError: It is too old.
    """
    given = dict(context.invocation_metadata() or ())
    parts = [part for name in _NAMES if isinstance(part := given.get(name), bytes)]
    if len(parts) < len(_NAMES):
        raise IdentityError("this server is behind a load balancer: join with --behind-proxy")
    return proven(Proof(*parts), method, body, challenges)
