"""A TLS handshake between two threads by Python's ssl module, over loopback."""

import socket
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

from fednlp.deployment.identity.certificates import SERVER_NAME, Material


def context(side: int, material: Material) -> ssl.SSLContext:
    """Python's ssl reads keys from files only."""
    made = ssl.SSLContext(side)
    with TemporaryDirectory() as folder:
        key, chain = Path(folder) / "key", Path(folder) / "chain"
        key.write_bytes(material.key)
        chain.write_bytes(material.chain)
        made.load_cert_chain(chain, key)
    made.load_verify_locations(cadata=material.roots.decode())
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    return made


def handshake(server: Material, client: Material) -> str:
    """Connect over loopback; both sides check the other."""

    def accept(listener: socket.socket) -> str:
        plain, _ = listener.accept()
        plain.settimeout(30)
        with context(ssl.PROTOCOL_TLS_SERVER, server).wrap_socket(plain, server_side=True) as secured:
            secured.sendall(b".")
            subject = secured.getpeercert()["subject"]  # type: ignore[index]
            return str(dict(pair for (pair,) in subject)["commonName"])  # type: ignore[misc]

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        seen = pool.submit(accept, listener)
        try:
            with (
                socket.create_connection(listener.getsockname(), 30) as plain,
                context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_socket(
                    plain, server_hostname=SERVER_NAME
                ) as secured,
            ):
                assert secured.recv(1) == b"."
        except OSError:
            seen.result()  # the server's own reason, if it has one
            raise
        return seen.result()
