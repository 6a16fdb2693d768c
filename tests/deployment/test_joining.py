"""fednlp join and what goes wrong with it: each mistake is one line that says what to do."""

import importlib
import socket
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from fednlp.cli import main
from fednlp.deployment.identity.access import IDENTITY, Access, access_of
from fednlp.deployment.identity.certificates import Material
from fednlp.deployment.identity.enrolment import invite, store_address
from fednlp.deployment.identity.tokens import JoinToken
from fednlp.deployment.links.grpc import server_credentials
from fednlp.deployment.operate import enrolling, join
from fednlp.deployment.operate.dial import Explainer, likely
from fednlp.deployment.operate.join import enrolled_folder, site_file
from fednlp.errors import ConfigError, FednlpError, IdentityError, RunError

from .federation import DAY, Federation
from .test_organisation import Organisation

pytest.importorskip("grpc", reason="gRPC is not installed")
link = importlib.import_module("fednlp.deployment.links.grpc.server")


def quiet(text: str) -> None:
    """Log nothing."""


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)


class Served:
    """A federation whose server listens for sites that enrol."""

    def __init__(self, folder: Path) -> None:
        self.federation = Federation(folder, time.time())
        self.root = folder / "home"
        self.listen("127.0.0.1:0")
        store_address(self.federation.folder, self.address)

    def listen(self, address: str) -> None:
        """Start to listen."""
        admission = self.federation.admission

        def nobody(*arguments: object) -> Any:
            raise IdentityError("nobody takes part here")

        self.server = link.serve(
            address,
            server_credentials(admission.material),
            nobody,
            lambda peer, message: admission.enrol(peer.certificate, message),
        )
        self.address = f"127.0.0.1:{self.server.port}"

    def token(self, name: str = "north") -> JoinToken:
        return self.federation.invite(name)

    def join(self, token: JoinToken | str, log: Callable[[str], None] = quiet, home: str = "home") -> Path:
        return enrolled_folder(str(token), log, self.root.with_name(home))

    def refused(self, token: JoinToken | str, home: str = "home") -> str:
        """The one line of an error."""
        with pytest.raises(FednlpError) as caught:
            self.join(token, home=home)
        assert "\n" not in str(caught.value)
        return str(caught.value)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    made = Served(tmp_path)
    yield made
    made.server.stop(0)


def certificate_of(folder: Path) -> bytes:
    access = access_of(folder)
    assert access is not None
    return access.material().chain


# ---- tokens ----------------------------------------------------------------------------------------------------------


def test_a_token_that_was_used_elsewhere_says_so(served: Served) -> None:
    token = served.token()
    folder = served.join(token)
    assert "was used by another machine" in served.refused(token, home="elsewhere")
    served.federation.admission.authorise(certificate_of(folder))
    line = served.refused(token, home="elsewhere")
    assert line.startswith(
        f"cannot enrol at {served.address}: the server does not accept this site: its invitation was"
    )
    assert "ask who runs the server for a new join token (fednlp sites invite)" in line


def test_a_token_that_was_replaced_or_withdrawn_says_so(served: Served) -> None:
    old = served.token()
    served.token()
    assert "its invitation was used, has expired or was replaced" in served.refused(old)
    token = served.token("south")
    served.federation.admission.register.remove("south")
    assert "ask who runs the server for a new join token" in served.refused(token)


def test_a_token_that_has_expired_at_the_server_says_so(served: Served) -> None:
    token = served.token()
    served.federation.time += 8 * DAY
    assert "its invitation was used, has expired or was replaced" in served.refused(token)


def test_a_token_of_another_federation_is_refused(served: Served, tmp_path: Path) -> None:
    other = Federation(tmp_path / "other", time.time())
    store_address(other.folder, served.address)
    assert "is not of this federation's authority" in served.refused(other.invite())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda text: text[:200], "the join token is cut short"),
        (lambda text: text[:80] + "_" + text[81:], "the join token has been altered on the way"),
        (lambda text: text.removeprefix("fednlp1:"), "this is not a join token: one begins with fednlp1:"),
        (lambda text: "fednlp2" + text[7:], "install the version of fednlp that the server runs"),
        (lambda text: " ", "no join token arrived: type the whole line that the server printed"),
        (lambda text: "127.0.0.1:8443", "a server's address takes --ca, --cert and --key too"),
        (lambda text: "08e39571-nord", "this machine has not joined a federation called 08e39571-nord"),
    ],
)
def test_what_is_no_token(change: Callable[[str], str], line: str, served: Served) -> None:
    text = str(served.token())
    assert line in served.refused(change(text))


def test_the_same_token_again_goes_on_without_a_server(served: Served) -> None:
    token = served.token()
    folder = served.join(token)
    before = certificate_of(folder)
    served.server.stop(0)
    assert served.join(token) == folder
    assert certificate_of(folder) == before


def test_a_new_token_of_the_same_site_is_used(served: Served) -> None:
    """The old certificate is void, for instance because somebody else used it."""
    folder = served.join(served.token())
    before = certificate_of(folder)
    served.federation.admission.authorise(before)
    served.federation.admission.register.remove("north")
    token, lines = served.token(), list[str]()
    with pytest.raises(IdentityError):
        served.federation.admission.authorise(before)
    assert served.join(token, lines.append) == folder
    assert lines == [f"joined as north; from now on: fednlp join {folder.name}"]
    assert folder.stat().st_mode & 0o777 == 0o700
    assert served.federation.admission.authorise(certificate_of(folder)).client == 0
    assert served.join(token, lines.append) == folder
    assert len(lines) == 1


def test_an_old_token_does_no_harm(served: Served) -> None:
    """Whoever pastes the first mail again goes on as before, and is told."""
    first = served.token()
    folder = served.join(first)
    served.federation.admission.authorise(certificate_of(folder))
    served.join(served.token())
    kept, lines = certificate_of(folder), list[str]()
    served.federation.admission.authorise(kept)
    assert served.join(first, lines.append) == folder
    assert certificate_of(folder) == kept
    assert lines[0].endswith("; this site goes on with the certificate that it has")


def test_two_sites_on_one_machine_have_folders_and_keys_of_their_own(served: Served) -> None:
    folders = [served.join(served.token(name)) for name in ("north", "south")]
    keys = {(folder / IDENTITY / "key.pem").read_bytes() for folder in folders}
    assert len(set(folders)) == len(keys) == 2
    numbers = [served.federation.admission.authorise(certificate_of(folder)).client for folder in folders]
    assert numbers == [0, 1]


# ---- the way to the server -------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The owner of the site presses Ctrl-C."""


def waited(served: Served, token: JoinToken, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the one line that a site says which waits for its server in enrolment."""
    lines, pauses = list[str](), list[float]()

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Stopped

    monkeypatch.setattr(join, "patiently", partial(enrolling.patiently, sleep=sleep))
    with pytest.raises(Stopped):
        served.join(token, lines.append)
    assert pauses == [0.5, 1.0, 2.0]
    (line,) = lines
    assert line.endswith("; this site tries again until it is there")
    return line


def test_a_server_that_is_not_there(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    token = served.token()
    served.server.stop(0)
    line = f"cannot enrol at {served.address}: nothing listens at {served.address}: start fednlp serve there"
    assert waited(served, token, monkeypatch).startswith(line)


def test_a_site_waits_in_enrolment_until_the_server_is_there(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, lines = served.token(), list[str]()
    served.server.stop(0)

    def restarted(seconds: float) -> None:
        if len(lines) == 1 and served.server.port:
            served.listen(served.address)

    monkeypatch.setattr(join, "patiently", partial(enrolling.patiently, sleep=restarted))
    folder = served.join(token, lines.append)
    assert lines[1:] == [f"joined as north; from now on: fednlp join {folder.name}"]
    assert served.federation.admission.authorise(certificate_of(folder)).client == 0


def test_a_name_that_does_not_resolve(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    store_address(served.federation.folder, "no-such-host.invalid:8443")
    line = waited(served, served.token(), monkeypatch)
    assert "no-such-host.invalid is no name that this machine can resolve" in line
    assert "check how it is spelt; where only a proxy knows it, set HTTPS_PROXY" in line


def test_a_proxy_that_swallows_everything(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        proxy.settimeout(30)
        import threading

        def refuse() -> None:
            while True:
                try:
                    near, _ = proxy.accept()
                except OSError:
                    return
                with near:
                    near.recv(1000)
                    near.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")

        threading.Thread(target=refuse, daemon=True).start()
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        store_address(served.federation.folder, "fl.example.org:8443")
        line = waited(served, served.token(), monkeypatch)
        proxy.shutdown(socket.SHUT_RDWR)
    assert "refuses to connect to fl.example.org:8443: 403 Forbidden" in line
    assert "have CONNECT to fl.example.org:8443 allowed there" in line


@pytest.mark.parametrize(("days", "line"), [(-3, "is valid from"), (91, "was valid until")])
def test_a_clock_that_is_wrong(served: Served, days: int, line: str) -> None:
    access = access_of(served.join(served.token()))
    assert access is not None
    found = likely(access.address, access.material(), now=time.time() + days * DAY)
    assert found is not None
    assert line in found.text
    assert "this machine's clock says" in found.text
    assert "set the clock" in found.remedy
    assert likely(access.address, access.material()) is None


def test_a_reason_is_said_once_until_there_is_a_connection_again(served: Served) -> None:
    access = access_of(served.join(served.token()))
    assert access is not None
    served.server.stop(0)
    lines: list[str] = []
    explainer = Explainer(access, lines.append)
    for failures in (1, 2, 3):
        explainer.failed(failures)
        with explainer._looking:  # it has looked
            assert len(lines) == 1
    explainer.failed(1)
    with explainer._looking:
        assert len(lines) == 2
    assert lines[0].startswith(f"nothing listens at {served.address}: start fednlp serve there")


# ---- an organisation's certificates ----------------------------------------------------------------------------------


def test_an_organisation_s_site_is_named_by_its_certificate(tmp_path: Path) -> None:
    made, lines = Organisation(tmp_path), list[str]()
    files = made.issue("nord", made.key)
    folder = enrolled_folder("fl.example.org:8443", lines.append, tmp_path / "home", files)
    assert folder.name == "fl.example.org-8443-nord"
    assert lines == [f"this site is nord, by its certificate; from now on: fednlp join {folder.name}"]
    assert enrolled_folder(folder.name, lines.append, tmp_path / "home") == folder
    access = access_of(folder, lines.append)
    assert access is not None
    assert (access.site, access.address, access.server_name) == ("nord", "fl.example.org:8443", None)
    before = access.material()
    assert isinstance(before, Material)
    made.issue("nord", made.key)
    after = access.material()
    assert after.chain != before.chain, "replaced files count at the next connection"
    files.key.write_text("half a f")
    assert access.material() == after
    assert access.material() == after
    assert lines[1:] == [
        f"{files.key} is no private key in PEM without a password; what it held before is used"
    ]


def test_an_organisation_s_mistakes(tmp_path: Path) -> None:
    made = Organisation(tmp_path)
    files = made.issue("nord", made.key)
    for target, reason in (
        ("fl.example.org", "is no address: type host:port"),
        ("fednlp1:abc", "is no address: type host:port"),
    ):
        with pytest.raises(IdentityError, match=reason):
            enrolled_folder(target, quiet, tmp_path / "home", files)
    with pytest.raises(IdentityError, match="names no site: its common name or a DNS name has to be"):
        enrolled_folder("a:1", quiet, tmp_path / "home", made.issue("not a name!", made.key))
    named = made.issue("not a name!", made.key, x509.DNSName("*.example.org"), x509.DNSName("nord"))
    assert named.site() == "nord"
    for days, reason in (
        (9, r"nord.crt expired on .* have a new one issued, or set the clock"),
        (-9, "is valid from"),
    ):
        with pytest.raises(IdentityError, match=reason):
            files.require_current(time.time() + days * DAY)


def test_the_explainer_leaves_what_ends_the_connection_to_it(tmp_path: Path) -> None:
    def expired() -> Material:
        raise IdentityError("it has expired")

    lines: list[str] = []
    explainer = Explainer(Access("nord", "127.0.0.1:1", None, expired), lines.append)
    explainer.failed(1)
    with explainer._looking:
        assert lines == []


def test_the_server_s_line_for_a_site_is_read_back(served: Served) -> None:
    token = invite(served.federation.folder, "west")
    assert JoinToken.parse(str(token)).address == served.address
    with pytest.raises(RunError, match="this machine has not joined"):
        served.join("west")


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "there is no site file"), ("[allow]\ntell_sise = false\n", "did you mean allow.tell_size")],
)
def test_a_mistake_in_the_site_s_file_is_said_before_it_enrols(
    text: str | None,
    said: str,
    served: Served,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A token is good once."""
    token, own = served.token("west"), tmp_path / "strict.toml"
    if text is not None:
        own.write_text(text)
    monkeypatch.setattr("sys.argv", ["fednlp", "join", str(token), "--policy", str(own)])
    with pytest.raises(SystemExit):
        main()
    assert said in capsys.readouterr().err
    (site,) = [site for site in served.federation.admission.register.sites() if site.name == "west"]
    assert site.state == "invited"


def test_data_named_later_do_not_replace_what_a_site_allows(tmp_path: Path) -> None:
    """A file that allows all would be in its place, without a word."""
    folder, own = tmp_path / "joined", tmp_path / "strict.toml"
    folder.mkdir()
    assert site_file(folder, None, {"path": "a.csv"}) == folder / "site.toml"
    site_file(folder, None, {"path": "b.csv", "text": "note"})
    own.write_text('[data]\npath = "a.csv"\n[allow]\nrequire_secure = true\n')
    assert site_file(folder, own, {}) == own
    with pytest.raises(RunError, match=r"strict.toml says what this site allows, .* leave --data out"):
        site_file(folder, None, {"path": "b.csv"})
    assert site_file(folder, None, {}) == own
    own.unlink()
    with pytest.raises(ConfigError, match="there is no site file"):
        site_file(folder, None, {"path": "b.csv"})
