"""How a server admits sites: by certificates of the federation's own, by an organisation's, or behind a load balancer.

:class:`Admission` is all that a server needs of identities. The federation's own authority issues certificates
(:mod:`fednlp.deployment.identity.admission.federation`), or an organisation has
(:mod:`fednlp.deployment.identity.admission.organisation`). Where a load balancer ends TLS, sites prove that a
certificate is theirs (:mod:`fednlp.deployment.identity.admission.balancer`).
"""

from typing import Literal, Protocol

from fednlp.deployment.identity.admission.balancer import Challenges
from fednlp.deployment.identity.certificates import Material
from fednlp.deployment.identity.site_registry import Register, Site

Kind = Literal["tokens", "organisation", "balancer"]
"""How sites show who they are: by TLS with the federation's certificates or with an organisation's, or by a proof."""


class Admission(Protocol):
    """Whom a server lets in. All methods are thread-safe.

    Attributes:
        challenges: By which sites prove who they are where TLS does not show it; None where it does.
    """

    register: Register
    challenges: Challenges | None

    def material(self) -> Material:
        """Return what the server shows and trusts now; to be asked for at every handshake."""
        ...

    def authorise(self, certificate: bytes | None) -> Site:
        """Return the site that may take part.

        Args:
            certificate: What the peer has shown and TLS has checked, PEM; None if nothing.

        Raises:
            IdentityError: None may; the message is for the peer.
        """
        ...

    def require_known(self, certificate: bytes | None) -> None:
        """Check that a peer may take part, or is invited to; nothing changes by it.

        Args:
            certificate: What the peer has shown and TLS has checked, PEM; None if nothing.

        Raises:
            IdentityError: Neither; the message is for the peer.
        """
        ...

    def enrol(self, certificate: bytes | None, message: bytes) -> bytes:
        """Answer a message of enrolment.

        Args:
            certificate: What the peer has shown and TLS has checked, PEM; None if nothing.
        """
        ...
