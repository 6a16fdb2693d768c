"""A load balancer that ends TLS: sites prove who they are in a message, and what it sees is of no use again."""

import base64
import importlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.identity.admission.balancer import LIFE, Balancer, Challenges, Proof, prove, proven
from fednlp.deployment.identity.admission.organisation import Files
from fednlp.deployment.identity.certificates import Material, certificate_pem, key_pem, new_key
from fednlp.deployment.identity.enrolment import FOLDER
from fednlp.deployment.identity.site_registry import Register
from fednlp.deployment.identity.tokens import JoinToken, token_text
from fednlp.deployment.operate import join as joining
from fednlp.deployment.operate.serve import Listening, serve
from fednlp.deployment.operate.shards import Shards
from fednlp.errors import ConfigError, FednlpError, IdentityError, RunError
from fednlp.simulation.callback import NullCallback

from .at_once import SitesAtOnce
from .federation import Federation, enrol_message, request_pem, self_signed
from .test_federation import OneAtATime, allows, quiet, rounds
from .test_organisation import Organisation

pytestmark = pytest.mark.whole

grpc = pytest.importorskip("grpc", reason="gRPC is not installed")
listening = importlib.import_module("fednlp.deployment.links.grpc.server")
dialling = importlib.import_module("fednlp.deployment.links.grpc.client")
Make = Callable[..., Experiment]
KEY = new_key()
OWN = Material(key_pem(KEY), certificate_pem(self_signed("site", KEY)), b"")


# ---- proofs ----------------------------------------------------------------------------------------------------------


def test_a_proof_is_good_once_and_for_a_minute() -> None:
    now = [1000.0]
    challenges = Challenges(lambda: now[0])
    proof = prove(OWN, "Enrol", challenges.issue(), b"body")
    assert proven(proof, "Enrol", b"body", challenges) == OWN.chain
    with pytest.raises(RunError, match="was used, or is too old"):
        proven(proof, "Enrol", b"body", challenges)
    late = prove(OWN, "Enrol", challenges.issue(), b"body")
    now[0] += LIFE
    with pytest.raises(RunError, match="was used, or is too old"):
        proven(late, "Enrol", b"body", challenges)
    challenges.spend(challenges.issue())
    assert len(challenges._spent) == 1, "those that are over are forgotten"


def test_a_challenge_of_another_server_is_not_accepted() -> None:
    proof = prove(OWN, "Enrol", Challenges().issue(), b"body")
    with pytest.raises(RunError, match="not one of this server's"):
        proven(proof, "Enrol", b"body", Challenges())


def test_a_refused_proof_does_not_use_its_challenge_up() -> None:
    """Else whoever sees a challenge could keep its site out."""
    challenges = Challenges()
    good = prove(OWN, "Session", challenges.issue(), b"")
    for method, body in (("Enrol", b""), ("Session", b"x")):
        with pytest.raises(IdentityError, match="not signed by the key of its certificate"):
            proven(good, method, body, challenges)
    assert proven(good, "Session", b"", challenges) == OWN.chain


@given(part=st.integers(0, 2), place=st.integers(0, 10**6), bit=st.integers(0, 7), cut=st.booleans())
def test_no_changed_proof_is_accepted(part: int, place: int, bit: int, cut: bool) -> None:
    challenges = Challenges()
    proof = prove(OWN, "Session", challenges.issue(), b"")
    value = bytearray(proof[part])
    if cut:
        value = value[: place % len(value)]
    else:
        value[place % len(value)] ^= 1 << bit
    with pytest.raises(FednlpError):
        proven(
            Proof(*(bytes(value) if n == part else one for n, one in enumerate(proof))),
            "Session",
            b"",
            challenges,
        )


def test_the_certificate_of_another_is_not_proven() -> None:
    challenges, other = Challenges(), new_key()
    theirs = certificate_pem(self_signed("site", other))
    proof = prove(OWN, "Session", challenges.issue(), b"")._replace(certificate=theirs)
    with pytest.raises(IdentityError, match="not signed by the key of its certificate"):
        proven(proof, "Session", b"", challenges)


# ---- a balancer ------------------------------------------------------------------------------------------------------


class TlsEnds:
    """A load balancer: TLS to the outside, and plain bytes to the server, which it keeps."""

    def __init__(self, files: Files) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.load_cert_chain(files.cert, files.key)
        self.context.set_alpn_protocols(["h2"])
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.behind, self.seen = 0, bytearray()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with suppress(OSError):
            outside = self.context.wrap_socket(near, server_side=True)
            inside = socket.create_connection(("127.0.0.1", self.behind))
            outside.settimeout(0.02)
            inside.settimeout(0.02)
            with outside, inside:
                while self._moved(outside, inside) and self._moved(inside, outside):
                    pass

    def _moved(self, source: socket.socket, sink: socket.socket) -> bool:
        """Move what has arrived; return whether the connection goes on."""
        try:
            while data := source.recv(1 << 16):
                self.seen += data
                sink.settimeout(30)
                sink.sendall(data)
                sink.settimeout(0.02)
        except TimeoutError:
            return True
        return False


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[TlsEnds]:
    folder = tmp_path / "organisation"
    folder.mkdir()
    made = Organisation(folder)
    ends = TlsEnds(made.issue("balancer", new_key(), x509.IPAddress(ip_address("127.0.0.1"))))
    yield ends
    ends.listener.close()


def test_a_federation_behind_a_balancer(
    outside: TlsEnds, made: Experiment, shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "Site", OneAtATime)
    simulated = fednlp.run(made, tmp_path / "simulated")
    with socket.create_server(("127.0.0.1", 0)) as free:
        outside.behind = free.getsockname()[1]
    lines: list[str] = []
    balancer = Balancer(tmp_path / "organisation" / "ca.pem")

    def site(name: str, typed: str) -> None:
        token, option = typed.split()
        assert option == "--behind-proxy"
        folder = joining.enrolled_folder(token, lines.append, tmp_path / name, balancer=balancer)
        assert joining.enrolled_folder(folder.name, lines.append, tmp_path / name) == folder
        joining.join(folder, allows(*shards.files(name)), lines.append)

    sites = SitesAtOnce(shards.names, site)
    where = Listening(f"127.0.0.1:{outside.behind}", outside.address, behind_proxy=True)
    out = tmp_path / "server"
    deployed = serve(
        shards.experiment,
        out,
        shards.names,
        where,
        NullCallback(),
        sites.typed.__setitem__,
        sites.begin,
        sites.look,
    )
    sites.end()
    assert rounds(deployed) == rounds(simulated)
    assert [one.state for one in Register(out / FOLDER).sites()] == ["enrolled", "enrolled"]
    assert len(outside.seen) > 10_000
    for name in shards.names:
        secret = JoinToken.parse(token_text(sites.typed[name].split()[0])).secret
        for form in (secret, base64.b64encode(secret)[:40], secret.hex().encode()):
            assert form not in outside.seen, "the balancer never sees a secret"
    with pytest.raises(ConfigError, match="began with --behind-proxy, and not without --ca"):
        serve(shards.experiment, out, [], Listening("127.0.0.1:0"), NullCallback(), print)


class Plain:
    """A server behind a balancer, and what somebody on the way could try."""

    def __init__(self, folder: Path, outside: TlsEnds, ca: Path) -> None:
        import time

        self.federation = Federation(folder, time.time())
        self.outside, self.credentials = outside, grpc.ssl_channel_credentials(ca.read_bytes())
        admission = self.federation.admission
        self.server = listening.serve(
            "127.0.0.1:0",
            None,
            lambda peer, wake: admission.authorise(peer.certificate),
            lambda peer, message: admission.enrol(peer.certificate, message),
            challenges=Challenges(),
        )
        outside.behind = self.server.port

    def enrol(self, message: bytes, proves: Callable[[str, bytes, bytes], Proof] | None) -> bytes:
        answer: bytes = dialling.enrol(self.outside.address, self.credentials, message, prove=proves)
        return answer


@pytest.fixture
def plain(outside: TlsEnds, tmp_path: Path) -> Iterator[Plain]:
    made = Plain(tmp_path, outside, tmp_path / "organisation" / "ca.pem")
    yield made
    made.server.stop(0)


def test_what_was_seen_on_the_way_is_of_no_use(plain: Plain) -> None:
    """Who ends TLS has a whole request, and sends it again, or puts a signing request of its own into it."""
    site, token = plain.federation.site(), plain.federation.invite()
    material = site.enrolment_material(token)
    seen: list[tuple[Proof, bytes]] = []

    def proves(method: str, challenge: bytes, body: bytes) -> Proof:
        seen.append((prove(material, method, challenge, body), body))
        return seen[-1][0]

    site.enrol(token, lambda message: plain.enrol(message, proves))
    proof, body = seen[0]
    with pytest.raises(RunError, match="the challenge was used, or is too old"):
        plain.enrol(body, lambda *arguments: proof)
    own = enrol_message(request_pem(new_key()))
    later: list[Proof] = []

    def intercepted(method: str, challenge: bytes, body: bytes) -> Proof:
        later.append(prove(site.material(), method, challenge, seen[0][1]))
        return later[-1]

    with pytest.raises(RunError, match="not signed by the key of its certificate"):
        plain.enrol(own, intercepted)
    with pytest.raises(RunError, match="this server is behind a load balancer: join with --behind-proxy"):
        plain.enrol(own, None)


def test_a_certificate_that_the_register_does_not_know_is_refused(plain: Plain) -> None:
    """TLS did not check the chain: the register alone decides."""
    plain.federation.joined()
    answer = plain.enrol(
        enrol_message(request_pem(KEY)), lambda method, challenge, body: prove(OWN, method, challenge, body)
    )
    assert b"used up, replaced or withdrawn" in answer


def test_what_a_balancer_breaks_is_refused(experiment: Make, tmp_path: Path) -> None:
    data = {"name": "sites", "labels": ["a", "b"]}
    served = {"data": data, "task.name": "text-classification", "partition": None}
    secure = experiment(served | {"secure": {"protocol": "secagg"}, "algorithm.weighting": "uniform"})
    where = Listening("127.0.0.1:0", behind_proxy=True)
    with pytest.raises(
        ConfigError, match=r"--behind-proxy does not go with secure.protocol: who ends TLS could"
    ):
        serve(secure, tmp_path / "a", ["north"], where, NullCallback(), print)
    files = Files(tmp_path, tmp_path, tmp_path)
    where = Listening("127.0.0.1:0", files=files, behind_proxy=True)
    with pytest.raises(ConfigError, match="--behind-proxy does not go with --ca, --cert and --key"):
        serve(experiment(served), tmp_path / "b", ["north"], where, NullCallback(), print)
    with pytest.raises(ConfigError, match="--behind-proxy takes a token"):
        joining.enrolled_folder("a:1", quiet, tmp_path, files, Balancer())
