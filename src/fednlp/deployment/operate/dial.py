"""Connects to a server step by step, to say which step fails: name, port, proxy, TLS.

Where a connection comes to nothing, gRPC says little more than that.
"""

import socket
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import suppress
from urllib.parse import SplitResult, unquote, urlsplit

from cryptography import x509

from fednlp.deployment.identity.access import Access
from fednlp.deployment.identity.certificates import SERVER_NAME, Clock, Material, fingerprint, show
from fednlp.deployment.identity.names import broker_scheme
from fednlp.deployment.identity.tokens import is_invitation
from fednlp.deployment.links.proxy import proxy_for, why_no_proxy
from fednlp.deployment.operate.findings import GOOD, WARNING, WRONG, Finding, certificate_dates
from fednlp.errors import IdentityError
from fednlp.formatting.safe_text import clean

PATIENCE = 10.0
"""Seconds for each step."""
_NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL: dates are looked at separately."""
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)
"""What a client of HTTP/2 says first, and empty settings (RFC 9113, section 3.4)."""
_SETTINGS = 4
_MOST_ANSWER = 1 << 14
_VOID = (
    "the server does not accept this site: its invitation was used, has expired or was replaced, or its certificate is "
    "void",
    "ask who runs the server for a new join token (fednlp sites invite)",
)
_NOT_KNOWN = (
    "the server does not accept this site's certificate",
    "have the authority that issued it added to the file of fednlp serve --ca",
)


def dial(
    address: str, material: Material | None, now: float, server_name: str | None = SERVER_NAME
) -> Iterator[Finding]:
    """Yield a finding for each step on the way to a server, up to the first that fails.

    Args:
        address: ``host:port`` of the server, or ``mqtts://host:port`` of a broker.
        material: What this site shows and trusts; None to look at the server alone.
        now: Seconds since 1970.
        server_name: Name in the server's certificate; None for that of the address, as with an organisation's own.
    """
    scheme = broker_scheme(address)
    proxy = None if scheme else proxy_for(address)
    host, port = place_of(proxy) if proxy else split(address.removeprefix(scheme))
    found = resolve(host, port)
    yield found
    if found.state == WRONG:
        return
    connection, found = connect(
        host, port, "the broker" if scheme else "the proxy" if proxy else "fednlp serve"
    )
    yield found
    if connection is None:
        return
    with connection:
        if scheme:
            yield Finding("broker", GOOD, "something answers at the broker's address")
            return
        found = through_proxy(connection, proxy, address)
        yield found
        if found.state != WRONG:
            yield from handshake(connection, address, material, now, server_name)


def split(address: str) -> tuple[str, int]:
    """Return the host and the port of an address.

    >>> split("[::1]:8443")
    ('::1', 8443)
    """
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def place_of(proxy: str) -> tuple[str, int]:
    """Return the host and the port of a proxy.

    >>> place_of("http://user:secret@proxy.example.org:3128")
    ('proxy.example.org', 3128)
    """
    parts = urlsplit(proxy)
    return parts.hostname or "", parts.port or 80


def resolve(host: str, port: int) -> Finding:
    """Return whether a name leads to an address."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        text = (
            f"{host} is no name that this machine can resolve ({getattr(error, 'strerror', None) or error})"
        )
        return Finding(
            "name", WRONG, text, "check how it is spelt; where only a proxy knows it, set HTTPS_PROXY"
        )
    addresses = ", ".join(dict.fromkeys(str(one[4][0]) for one in found))
    return Finding("name", GOOD, addresses if addresses == host else f"{host} is {addresses}")


def connect(host: str, port: int, what: str = "fednlp serve") -> tuple[socket.socket | None, Finding]:
    """Open a connection to what is to listen there; return it, or None where there is none."""
    where = f"{host}:{port}"
    try:
        return socket.create_connection((host, port), PATIENCE), Finding("port", GOOD, f"{where} answers")
    except ConnectionRefusedError:
        remedy = f"start {what} there, and compare the port"
        return None, Finding("port", WRONG, f"nothing listens at {where}", remedy)
    except TimeoutError:
        remedy = f"have outgoing connections to port {port} allowed in the firewall, or set HTTPS_PROXY"
        return None, Finding("port", WRONG, f"{where} does not answer within {PATIENCE:.0f} s", remedy)
    except OSError as error:
        remedy = "check the network of this machine"
        return None, Finding("port", WRONG, f"{where} is not reached ({error.strerror or error})", remedy)


def through_proxy(connection: socket.socket, proxy: str | None, address: str) -> Finding:
    """Have a proxy connect to the server, if there is one.

    Args:
        connection: To the proxy, or to the server itself.
        proxy: Its address; None without one.
    """
    if proxy is None:
        return Finding("proxy", GOOD, f"none is used ({why_no_proxy(address)})")
    parts = urlsplit(proxy)
    request = f"CONNECT {address} HTTP/1.1\r\nHost: {address}\r\n{_login(parts)}\r\n"
    try:
        connection.sendall(request.encode("latin-1", "replace"))
        answer = b""
        while b"\r\n\r\n" not in answer and len(answer) < _MOST_ANSWER:
            new = connection.recv(1)  # not a byte of what follows
            if not new:
                break
            answer += new
    except OSError as error:
        return Finding("proxy", WRONG, f"{parts.hostname} does not answer ({error})", "compare HTTPS_PROXY")
    words = answer.partition(b"\r\n")[0].decode("latin-1").split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/"):
        return Finding("proxy", WRONG, f"{parts.hostname} is no HTTP proxy", "compare HTTPS_PROXY")
    if words[1] == "200":
        return Finding("proxy", GOOD, f"{parts.hostname} connects to {address}")
    text = clean(f"{parts.hostname} refuses to connect to {address}: {' '.join(words[1:])}")[:300]
    if words[1] == "407":
        return Finding("proxy", WRONG, text, "give the login in HTTPS_PROXY: http://user:password@host:port")
    return Finding(
        "proxy", WRONG, text, f"have CONNECT to {address} allowed there, or name the server in NO_PROXY"
    )


def _login(parts: SplitResult) -> str:
    if parts.username is None:
        return ""
    login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return f"Proxy-Authorization: Basic {b64encode(login.encode()).decode()}\r\n"


def handshake(
    connection: socket.socket,
    address: str,
    material: Material | None,
    now: float,
    server_name: str | None = SERVER_NAME,
) -> Iterator[Finding]:
    """Yield what a TLS handshake finds, and whether the server lets this site in.

    Args:
        material: What this site shows and trusts; None to look at the server alone.
        now: Seconds since 1970.
        server_name: Name in the server's certificate; None for that of the address.
    """
    try:
        host = server_name or split(address)[0]
        secured = context(material).wrap_socket(connection, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        yield _not_trusted(address, error.verify_message, server_name)
        return
    except OSError as error:
        text = f"{address} answers, and not by TLS ({_reason(error)})"
        yield Finding(
            "TLS", WRONG, text, "compare the port; a proxy or a firewall may cut the connection too"
        )
        return
    with secured:
        shown = x509.load_der_x509_certificate(secured.getpeercert(binary_form=True) or b"")
        yield _encrypted(secured, shown, material)
        yield certificate_dates("the server's", shown, now)
        if material is not None:
            yield _let_in(secured, material, server_name)


def _not_trusted(address: str, reason: str, server_name: str | None) -> Finding:
    """Return that the server's certificate is not trusted, or not for this name."""
    if server_name is None:
        text = (
            f"the certificate at {address} is not for this address, or not of an authority in --ca ({reason})"
        )
        remedy = "compare both with who runs the server; a proxy that opens TLS on the way looks the same"
        return Finding("TLS", WRONG, text, remedy)
    text = f"the certificate at {address} is not of this federation's authority ({reason})"
    remedy = "use this server's own token; if it is, a proxy on the way opens TLS: have the server exempted"
    return Finding("TLS", WRONG, text, remedy)


def context(material: Material | None) -> ssl.SSLContext:
    """Return what a TLS connection needs; the dates of certificates are not checked by it."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.set_alpn_protocols(["h2"])
    if material is None:
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        return made
    made.verify_flags |= _NO_CHECK_TIME
    show(made, material)
    return made


def _encrypted(secured: ssl.SSLSocket, shown: x509.Certificate, material: Material | None) -> Finding:
    version = f"{secured.version()}"
    if secured.selected_alpn_protocol() != "h2":
        remedy = "have the load balancer or proxy pass TLS through, or speak HTTP/2"
        return Finding("TLS", WRONG, f"{version}, and no HTTP/2, which gRPC needs", remedy)
    if material is None:
        text = f"{version}; the certificate with the SHA-256 {fingerprint(shown)[:16]}... is not checked"
        return Finding(
            "TLS", WARNING, text, "give the join token, or the name of the federation, to have it checked"
        )
    return Finding("TLS", GOOD, f"{version}; the certificate is of this federation's authority")


def _let_in(secured: ssl.SSLSocket, material: Material, server_name: str | None) -> Finding:
    """Return whether the server takes what this site shows: with TLS 1.3 it says so after the handshake."""
    what, remedy = _VOID if server_name else _NOT_KNOWN
    try:
        secured.sendall(_PREFACE)
        answer = secured.recv(9)
    except TimeoutError:
        remedy = "a proxy or firewall on the way holds the stream: have the server exempted from it"
        return Finding("site", WRONG, f"the server says nothing within {PATIENCE:.0f} s", remedy)
    except OSError as error:
        return Finding("site", WRONG, f"{what} ({_reason(error)})", remedy)
    finally:
        with suppress(OSError):
            secured.shutdown(socket.SHUT_RDWR)
    if len(answer) < 4 or answer[3] != _SETTINGS:
        return Finding("site", WRONG, f"{what} (it ended the connection)", remedy)
    enrols = is_invitation(x509.load_pem_x509_certificates(material.chain)[0])
    shown = (
        "the join token, with which this site has not enrolled yet" if enrols else "this site's certificate"
    )
    return Finding("site", GOOD, f"the server accepts {shown}")


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it was cut").lower().replace("_", " ")
    return error.strerror or str(error) or "it was cut"


def likely(
    address: str, material: Material | None, server_name: str | None = SERVER_NAME, now: float | None = None
) -> Finding | None:
    """Return what is wrong on the way to a server and what to do; None where nothing is found.

    Args:
        address: ``host:port``.
        material: What the site shows and trusts; None behind a load balancer, whose certificate is not checked here.
        server_name: Name in the server's certificate; None for that of the address.
        now: Seconds since 1970; the present if left out.
    """
    now = time.time() if now is None else now
    own = [] if material is None else x509.load_pem_x509_certificates(material.chain)[:1]
    dates = [certificate_dates("this site's", one, now) for one in own]
    for found in (*dates, *dial(address, material, now, server_name)):
        if found.state == WRONG:
            return found
    return None


class Explainer:
    """Looks for the reason when connections come to nothing, in a thread of its own, and logs each that it finds once.

    Args:
        access: How the server is reached.
        log: Called with what is found.
        now: The clock.
    """

    def __init__(self, access: Access, log: Callable[[str], None], now: Clock = time.time) -> None:
        self._access, self._log, self._now = access, log, now
        self._said: str | None = None
        self._looking = threading.Lock()

    def failed(self, failures: int) -> None:
        """Take note that a connection came to nothing.

        Args:
            failures: How many have in a row.
        """
        if failures == 1:
            self._said = None
        if self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        access = self._access
        try:
            found = likely(access.address, access.shown(), access.server_name, self._now())
            line = None if found is None else f"{found.text}: {found.remedy}"
            if line is not None and line != self._said:
                self._said = line
                self._log(line)
        except IdentityError:
            return  # it ends the connection, with this reason
        finally:
            self._looking.release()
