"""The register of sites against a model of it, and from several processes; the commands on it."""

import json
import os
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from fednlp.cli import main
from fednlp.deployment.identity.certificates import certificate_pem, load_certificate, load_request, new_key
from fednlp.deployment.identity.enrolment import federation_folder, stored_address
from fednlp.deployment.identity.names import site_name
from fednlp.deployment.identity.site_registry import Register, Site
from fednlp.deployment.identity.tokens import JoinToken, invitation_certificate, invitation_root, token_text
from fednlp.errors import IdentityError, RunError

from .federation import ADDRESS, DAY, NOW, Federation, request_pem, self_signed

KEYS = [new_key() for _ in range(3)]
NAMES = ["north", "south", "Östra"]


def shown(secret: bytes, key: EllipticCurvePrivateKey) -> bytes:
    return certificate_pem(invitation_certificate(secret, key.public_key()))


class Model(RuleBasedStateMachine):
    """What may happen to a register in any order, and what has to be true of it then."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.federation = Federation(Path(self.folder.name))
        self.numbers: dict[str, int] = {}
        self.removed: set[str] = set()
        self.open: dict[str, tuple[bytes, float, int | None]] = {}
        self.void: list[bytes] = []
        self.good: dict[bytes, tuple[str, int, float]] = {}
        self.bad: list[bytes] = []

    def teardown(self) -> None:
        self.folder.cleanup()

    @property
    def register(self) -> Register:
        return self.federation.admission.register

    @rule(name=st.sampled_from(NAMES), days=st.integers(1, 30))
    def invite(self, name: str, days: int) -> None:
        secret, expires = self.register.invite(name, days)
        self.numbers.setdefault(name, len(self.numbers))
        self.removed.discard(name)
        if name in self.open:
            self.void.append(self.open[name][0])
        self.open[name] = (secret, expires, None)

    @rule(name=st.sampled_from(NAMES), key=st.integers(0, 2))
    def enrol(self, name: str, key: int) -> None:
        if name not in self.open:
            return
        secret, expires, used_by = self.open[name]
        certificate = shown(secret, KEYS[key])
        if self.federation.time >= expires or used_by not in (None, key):
            with pytest.raises(IdentityError, match=r"expired on|used by another machine"):
                self.register.redeem(certificate)
            return
        site = self.register.redeem(certificate)
        assert (site.name, site.client) == (name, self.numbers[name])
        self.open[name] = (secret, expires, key)
        signed = self.federation.admission.authority.sign(load_request(request_pem(KEYS[key])), site.client)
        self.register.record(site.client, signed)
        pems = [pem for pem, (owner, of, _) in self.good.items() if owner == name]
        for pem in [
            pem for pem in pems if self.good[pem][1] != key or self.good[pem][2] <= self.federation.time
        ]:
            self.bad.append(pem)
            del self.good[pem]
        for pem in [pem for pem in pems if pem in self.good][:-3]:
            self.bad.append(pem)
            del self.good[pem]
        self.good[certificate_pem(signed)] = (name, key, signed.not_valid_after_utc.timestamp())

    @precondition(lambda self: self.good)
    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        certificate = data.draw(st.sampled_from(list(self.good)))
        name, key, ends = self.good[certificate]
        if ends <= self.federation.time:
            with pytest.raises(IdentityError, match=f"the certificate of {name} expired on"):
                self.register.authorise(certificate)
            return
        site = self.register.authorise(certificate)
        assert (site.name, site.client, site.state) == (name, self.numbers[name], "enrolled")
        if name in self.open and self.open[name][2] == key:
            self.void.append(self.open.pop(name)[0])

    @rule(name=st.sampled_from(NAMES))
    def remove(self, name: str) -> None:
        if name not in self.numbers:
            with pytest.raises(IdentityError, match="no site is called"):
                self.register.remove(name)
            return
        assert self.register.remove(name).state == "removed"
        self.removed.add(name)
        if name in self.open:
            self.void.append(self.open.pop(name)[0])
        for pem in [pem for pem, (owner, _, _) in self.good.items() if owner == name]:
            self.bad.append(pem)
            del self.good[pem]

    @rule(days=st.integers(1, 60))
    def wait(self, days: int) -> None:
        self.federation.time += days * DAY

    @rule()
    def restart(self) -> None:
        self.federation.admission = self.federation.reopened()

    @invariant()
    def what_is_void_stays_void(self) -> None:
        for secret in self.void[-3:]:
            with pytest.raises(IdentityError, match="used up, replaced or withdrawn"):
                self.register.redeem(shown(secret, KEYS[0]))
        for certificate in self.bad[-3:]:
            with pytest.raises(IdentityError, match=r"was removed|was replaced"):
                self.register.authorise(certificate)

    @invariant()
    def sites_are_the_model_s(self) -> None:
        sites = {site.name: site for site in self.register.sites()}
        assert {name: site.client for name, site in sites.items()} == self.numbers
        enrolled = {owner for owner, _, _ in self.good.values()}
        for name, site in sites.items():
            state = "removed" if name in self.removed else "enrolled" if name in enrolled else "invited"
            assert site.state == state
            assert (site.invitation_expires is None) == (name not in self.open)

    @invariant()
    def roots_are_the_open_invitations(self) -> None:
        """What TLS trusts beside the authority: no more than that."""
        current = [secret for secret, expires, _ in self.open.values() if expires > self.federation.time]
        names = {invitation_root(secret).subject for secret in current}
        assert {load_certificate(pem).subject for pem in self.register.roots()} == names


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=15, stateful_step_count=25, deadline=None)


def test_numbers_are_given_once_under_concurrency(tmp_path: Path) -> None:
    """Each thread has a register of its own, as processes do."""
    names = [f"site{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: Register(tmp_path, lambda: NOW).invite(name), names))
    sites = Register(tmp_path, lambda: NOW).sites()
    assert [site.client for site in sites] == list(range(24))
    assert {site.name for site in sites} == set(names)


def test_a_running_server_sees_what_another_process_changes(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site = federation.joined()
    certificate = site.material().chain
    assert federation.admission.authorise(certificate).name == "north"
    Register(federation.folder, federation.now).remove("north")
    with pytest.raises(IdentityError, match="the site north was removed from the federation on 2026-03-01"):
        federation.admission.authorise(certificate)


def test_removing_one_site_touches_no_other(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    north, south = federation.joined("north"), federation.joined("south")
    before = [one for one in federation.admission.register.sites() if one.name == "south"]
    federation.admission.register.remove("north")
    assert [one for one in federation.admission.register.sites() if one.name == "south"] == before
    assert federation.admission.authorise(south.material().chain).client == 1
    with pytest.raises(IdentityError, match="removed"):
        federation.admission.authorise(north.material().chain)


def test_the_secret_is_kept_nowhere_on_the_server(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    token = federation.invite()
    held = b"".join(path.read_bytes() for path in federation.folder.rglob("*") if path.is_file())
    assert len(held) > 500
    for form in (token.secret, token.secret.hex().encode(), str(token).encode()[8:60]):
        assert form not in held


def test_files_are_the_owner_s_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        federation = Federation(tmp_path)
        federation.joined()
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.suffix in (".pem", ".json")]
    assert {path.name for path in files} == {
        "authority.pem",
        "sites.json",
        "server.json",
        "key.pem",
        "identity.json",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.parent.stat().st_mode) for path in files} == {0o700}


@pytest.mark.parametrize(
    ("known", "new"),
    [("Charité", "charité"), ("oca", "\u043e\u0441\u0430"), ("\u0430\u043f", "\u0410\u041f")],
)
def test_a_name_that_can_be_taken_for_another_is_refused(known: str, new: str, tmp_path: Path) -> None:
    register = Register(tmp_path, lambda: NOW)
    register.invite(known)
    with pytest.raises(IdentityError, match=f"there is a site {known} already"):
        register.invite(new)


def test_a_name_has_one_form(tmp_path: Path) -> None:
    register = Register(tmp_path, lambda: NOW)
    register.invite("Charité")
    register.invite("Charite\u0301")
    assert [site.name for site in register.sites()] == ["Charité"]


@pytest.mark.parametrize(
    "name",
    [
        "n\u043erd",
        "\uff4e\uff4f\uff52\uff44",
        "CON",
        "com1",
        "nul.a",
        "nord.",
        "nord\ufe0f",
        "no\u115frd",
        "n\u03bfrd",
    ],
)
def test_names_that_mislead_are_refused(name: str) -> None:
    with pytest.raises(IdentityError, match="cannot name a site"):
        site_name(name)


@pytest.mark.parametrize(
    "name", ["Süd-2", "東京病院", "さくらサクラ桜", "서울2", "больница", "Αθήνα", "site-1"]
)
def test_names_of_one_script_are_names(name: str) -> None:
    assert site_name(name) == name


def test_names_in_a_register_of_somebody_else_move_no_cursor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Federation(tmp_path).invite("north")
    path = tmp_path / "federation" / "sites.json"
    path.write_text(path.read_text().replace('"north"', json.dumps("\x1b]0;pwn\x07[red]")))
    code, out, err = type_it(monkeypatch, capsys, "list", str(tmp_path))
    assert code
    assert "\x1b" not in out + err


@pytest.mark.parametrize("days", [0, -1, 366, float("nan"), float("inf")])
def test_days_out_of_range_are_refused(tmp_path: Path, days: float) -> None:
    with pytest.raises(IdentityError, match="up to 365 days"):
        Register(tmp_path).invite("north", days)
    assert Register(tmp_path).sites() == []


def test_renewals_that_got_lost_leave_four_certificates_at_most(tmp_path: Path) -> None:
    federation = Federation(tmp_path)
    site = federation.joined()
    shown_first = site.material().chain
    for _ in range(6):
        federation.renew(site)
    with pytest.raises(IdentityError, match="was replaced"):
        federation.admission.authorise(shown_first)
    (entry,) = json.loads((federation.folder / "sites.json").read_bytes())["sites"]
    assert len(entry["certificates"]) == 4


def test_a_key_that_has_not_redeemed_gets_nothing_recorded(tmp_path: Path) -> None:
    """An invitation that is replaced between the two writes of an enrolment."""
    federation = Federation(tmp_path)
    token = federation.invite()
    register = federation.admission.register
    register.redeem(shown(token.secret, KEYS[0]))
    federation.invite()
    signed = federation.admission.authority.sign(load_request(request_pem(KEYS[0])), 0)
    with pytest.raises(IdentityError, match="replaced in the meantime"):
        register.record(0, signed)
    register.remove("north")
    with pytest.raises(IdentityError, match="was removed"):
        register.record(0, signed)


def test_a_forged_serial_or_name_is_no_certificate(tmp_path: Path) -> None:
    """Whoever holds an invitation can sign anything with it, but not make it one of the authority's."""
    federation = Federation(tmp_path)
    federation.joined("north")
    root = invitation_root(federation.invite("south").secret)
    with pytest.raises(IdentityError, match="not one of the federation's"):
        federation.admission.authorise(certificate_pem(self_signed("site-0")))
    with pytest.raises(IdentityError, match="used up, replaced or withdrawn"):
        federation.admission.register.redeem(certificate_pem(self_signed(root.subject.rfc4514_string()[3:])))


def test_a_damaged_register_is_one_line(tmp_path: Path, mutants: ModuleType) -> None:
    register = Register(tmp_path, lambda: NOW)
    register.invite("north")
    path = tmp_path / "sites.json"
    whole, stranger = json.loads(path.read_text()), certificate_pem(self_signed())
    uses: list[Callable[[], object]] = [
        register.sites,
        register.roots,
        lambda: register.redeem(stranger),
        lambda: register.authorise(stranger),
    ]

    @given(st.data())
    def check(data: st.DataObject) -> None:
        path.write_text(json.dumps(mutants.changed(data.draw, whole)))
        for use in uses:
            reason = ""
            try:
                use()
            except (RunError, IdentityError) as error:
                reason = str(error)
            assert "\n" not in reason

    check()


def type_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[int, str, str]:
    handler = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(sys, "argv", ["fednlp", "sites", *words])
    try:
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    finally:
        signal.signal(signal.SIGTERM, handler)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Invite, list, remove, and every mistake as one line."""
    federation, run = Federation(tmp_path), str(tmp_path)
    assert stored_address(federation_folder(tmp_path)) == ADDRESS
    assert type_it(monkeypatch, capsys, "list", run)[2].startswith("no site yet: fednlp sites invite")
    code, out, err = type_it(monkeypatch, capsys, "invite", run, "north", "--days", "2")
    path = Path(out.removeprefix("fednlp join ").strip())
    assert path.stat().st_mode & 0o777 == 0o600
    token = JoinToken.parse(token_text(str(path)))
    assert (code, token.site, token.address, out.count("\n")) == (0, "north", ADDRESS, 1)
    assert str(token) not in out + err  # else it would be typed, and stand in the list of processes
    code, out, err = type_it(monkeypatch, capsys, "list", run)
    assert out.splitlines()[1].split()[:3] == ["north", "0", "invited"]
    assert type_it(monkeypatch, capsys, "remove", run, "north")[:2] == (
        0,
        "north (client 0) is removed; fednlp sites invite lets it come back\n",
    )
    for words, expected in (
        (("remove", run, "south"), "no site is called 'south'; the sites are north"),
        (("invite", run, "two words"), "'two words' cannot name a site"),
        (("invite", run, "south", "--days", "0"), "an invitation is good for up to 365 days, not for 0"),
        (("list", str(tmp_path / "x")), "holds no federation: name the folder given to fednlp serve --out"),
    ):
        code, out, err = type_it(monkeypatch, capsys, *words)
        assert (code, out) == (1, "")
        assert expected in err
        assert err.count("\n") == 1
    (federation.folder / "server.json").write_text("{}")
    assert "start fednlp serve again" in type_it(monkeypatch, capsys, "invite", run, "south")[2]
    (federation.folder / "server.json").unlink()
    assert "start fednlp serve once" in type_it(monkeypatch, capsys, "invite", run, "south")[2]


def test_a_site_is_data(tmp_path: Path) -> None:
    register = Register(tmp_path, lambda: NOW)
    register.invite("north", 2)
    register.expect("south")
    assert register.sites() == [
        Site("north", 0, "invited", NOW, NOW + 2 * DAY, None),
        Site("south", 1, "enrolled", NOW, None, None),
    ]
