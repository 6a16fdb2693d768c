"""The driver over MQTT: both ends are clients of a broker, which need not be trusted.

A site sends to ``fednlp/<channel>/up/<connection>``, and the server to ``fednlp/<channel>/down/<connection>``. What
they send is TLS between the two (:mod:`fednlp.deployment.links.mqtt.sealed`) in packets
(:mod:`fednlp.deployment.links.mqtt.packets`), so that the broker can drop and delay, and nothing else. Each end leaves
a will with the broker, so that the other one hears when it is gone. A connection ends with that to the broker, and the
session goes on in the next one.
"""

from cryptography import x509

from fednlp.deployment.identity.certificates import Material, fingerprint

HANDSHAKE = 30.0
"""Seconds that the other end has for the handshake."""
SESSION, ENROL, PROBE = b"S", b"E", b"P"
"""What a connection is for, which the client says first."""
ACCEPTED, REFUSED = b"+", b"-"
"""How the server's first message begins."""
MOST_STATUS = 1000
"""Bytes of this message at most."""
PRESENCE = "server"
"""The topic where the server says that it is there."""


def channel_of(material: Material) -> str:
    """Return what a federation's topics are called: by its authority, which is the first that both ends trust."""
    authority = x509.load_pem_x509_certificates(material.roots)[0]
    return fingerprint(authority)[:16]
