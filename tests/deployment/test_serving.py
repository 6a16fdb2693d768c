"""fednlp serve and fednlp join over real gRPC on loopback: with tokens, and with an organisation's certificates."""

import re
import shlex
import socket
import threading
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

import fednlp
from fednlp.config import Experiment
from fednlp.deployment.identity import site_identity as renewal
from fednlp.deployment.identity.admission.organisation import Files
from fednlp.deployment.identity.certificates import new_key
from fednlp.deployment.identity.enrolment import FOLDER, federation_folder
from fednlp.deployment.identity.site_identity import SiteIdentity
from fednlp.deployment.identity.site_registry import Register
from fednlp.deployment.operate.shards import Shards
from fednlp.errors import ConfigError, FednlpError, IdentityError, RunError
from fednlp.simulation.callback import NullCallback
from fednlp.simulation.run_dir import RunDir

from .at_once import SitesAtOnce
from .test_federation import OneAtATime, allows, quiet, rounds
from .test_organisation import Organisation

pytest.importorskip("grpc", reason="gRPC is not installed")

from fednlp.deployment.operate import join as joining
from fednlp.deployment.operate.serve import Listening, serve

pytestmark = pytest.mark.whole

Make = Callable[..., Experiment]


class Lines(NullCallback):
    """What the server says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def organisation(tmp_path: Path) -> Organisation:
    folder = tmp_path / "organisation"
    folder.mkdir()
    made = Organisation(folder)
    made.issue("server", new_key(), x509.IPAddress(ip_address("127.0.0.1")))
    return made


def listening(organisation: Organisation) -> Listening:
    files = Files(*(organisation.folder / name for name in ("ca.pem", "server.crt", "server.key")))
    return Listening("127.0.0.1:0", files=files)


def test_a_federation_of_an_organisation_s_certificates(
    organisation: Organisation,
    made: Experiment,
    shards: Shards,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "Site", OneAtATime)
    simulated = fednlp.run(made, tmp_path / "simulated")

    def site(name: str, typed: str) -> None:
        words = shlex.split(typed)
        assert words[1:] == ["--ca", "CA.pem", "--cert", f"{name}.pem", "--key", f"{name}.key"]
        folder = joining.enrolled_folder(
            words[0], quiet, tmp_path / name, organisation.issue(name, new_key())
        )
        joining.join(folder, allows(*shards.files(name)), quiet)

    out = tmp_path / "server"
    where = listening(organisation)
    callback, sites = Lines(), SitesAtOnce(shards.names, site)
    deployed = serve(
        shards.experiment, out, shards.names, where, callback, sites.typed.__setitem__, sites.begin
    )
    sites.end()
    assert rounds(deployed) == rounds(simulated)
    assert not (out / FOLDER / "authority.pem").exists()
    assert [one.state for one in Register(federation_folder(out)).sites()] == ["enrolled", "enrolled"]
    with pytest.raises(ConfigError, match="began with --ca, --cert and --key, and not without"):
        serve(shards.experiment, out, [], Listening("127.0.0.1:0"), callback, print)


def test_sites_with_tokens_renew_while_they_take_part(
    made: Experiment, shards: Shards, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each looks often, and finds its certificate due until it has renewed it twice: the rounds go on meanwhile."""
    renewals: dict[str, int] = {}

    def due(identity: SiteIdentity) -> bool:
        member = identity.membership
        assert member is not None
        renewals[member.site] = renewals.get(member.site, 0) + 1
        return renewals[member.site] <= 2

    monkeypatch.setattr(renewal, "EVERY", 0.05)
    monkeypatch.setattr(SiteIdentity, "renewal_due", due)
    monkeypatch.setattr(joining, "Site", OneAtATime)
    simulated = fednlp.run(made, tmp_path / "simulated")
    lines: list[str] = []

    def site(name: str, token: str) -> None:
        folder = joining.enrolled_folder(token, lines.append, tmp_path / name)
        joining.join(folder, allows(*shards.files(name)), lines.append)

    out, where, sites = tmp_path / "server", Listening("127.0.0.1:0"), SitesAtOnce(shards.names, site)
    deployed = serve(
        shards.experiment,
        out,
        shards.names,
        where,
        Lines(),
        sites.typed.__setitem__,
        sites.begin,
        sites.look,
    )
    sites.end()
    assert rounds(deployed) == rounds(simulated)
    assert lines.count("the certificate is renewed") == 4
    assert len([line for line in lines if line.startswith("connected")]) == 2, (
        "a connection for each, and no more"
    )


class Asleep(Exception):
    """Ends a server that waits."""


def refused(
    organisation: Organisation, shards: Shards, tmp_path: Path, files: Files, name: str, wanted: int = 1
) -> tuple[list[str], FednlpError | None]:
    """Start a server that waits for sites, and return what a site says until it is refused or has said enough."""
    lines: list[str] = []
    errors: list[FednlpError] = []
    threads: list[threading.Thread] = []
    typed: dict[str, str] = {}
    enough = threading.Event()

    def log(line: str) -> None:
        lines.append(line)
        if len([one for one in lines if not one.startswith("no connection")]) > wanted:
            enough.set()

    def site() -> None:
        try:
            folder = joining.enrolled_folder(typed["north"].split()[0], log, tmp_path / "home", files)
            joining.join(folder, allows(*shards.files(name)), log)
        except FednlpError as error:
            errors.append(error)
        enough.set()

    def begin() -> None:
        threads.append(threading.Thread(target=site, daemon=True))
        threads[0].start()

    def look() -> None:
        if enough.is_set():
            raise Asleep

    with pytest.raises(Asleep):
        serve(
            shards.experiment,
            tmp_path / "server",
            ["north"],
            listening(organisation),
            NullCallback(),
            typed.__setitem__,
            begin,
            look,
        )
    return lines, errors[0] if errors else None


def test_a_name_that_nobody_expects_is_refused_with_what_to_do(
    organisation: Organisation, shards: Shards, tmp_path: Path
) -> None:
    files = organisation.issue("stranger", new_key())
    _, error = refused(organisation, shards, tmp_path, files, shards.names[0])
    assert re.search(
        r"127.0.0.1:\d+ refuses this site: the certificate names 'stranger', and no site of the federation is called "
        r"so: at the server, add it with fednlp sites invite",
        str(error),
    )


@pytest.mark.parametrize("whose", ["the site's", "the server's"])
def test_another_authority_is_explained(
    whose: str, organisation: Organisation, shards: Shards, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other = Organisation(tmp_path / "other")
    mine, theirs = organisation.issue("north", new_key()), other.issue("north", new_key())
    if whose == "the site's":
        files = Files(mine.ca, theirs.cert, theirs.key)
        line = "have the authority that issued it added to the file of fednlp serve --ca"
    else:
        files = Files(theirs.ca, mine.cert, mine.key)
        line = "is not for this address, or not of an authority in --ca"
    lines, error = refused(organisation, shards, tmp_path, files, shards.names[0])
    assert error is None
    assert any(line in one for one in lines), lines


def test_files_that_do_not_fit_stop_a_server_before_it_listens(
    organisation: Organisation, shards: Shards, tmp_path: Path
) -> None:
    files = organisation.issue("north", new_key())
    other = organisation.issue("south", new_key())
    where = Listening("127.0.0.1:0", files=Files(files.ca, files.cert, other.key))
    with pytest.raises(IdentityError, match=r"south.key is not the private key of the first certificate in"):
        serve(shards.experiment, tmp_path / "server", ["north"], where, NullCallback(), print)
    assert not (tmp_path / "server").exists()


def test_a_name_twice_and_a_port_that_is_taken(
    organisation: Organisation, shards: Shards, tmp_path: Path
) -> None:
    def start(sites: list[str], where: Listening) -> Any:
        return serve(shards.experiment, tmp_path / "server", sites, where, NullCallback(), print)

    with pytest.raises(ConfigError, match="--sites names north twice"):
        start(["north", "north"], Listening("127.0.0.1:0"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            RunError, match=r"cannot listen at .* \(Address already in use\): stop what uses the port"
        ):
            start(["north"], Listening(f"127.0.0.1:{port}"))
    with pytest.raises(RunError, match=r"cannot listen at nohost.invalid:1 \(.*not known.*\)"):
        start(["north"], Listening("nohost.invalid:1"))
    for wrong in ("127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1", "127.0.0.1:" + "9" * 5000):
        with pytest.raises(ConfigError, match=r"--listen .*: write host:port with a port of at most 65535"):
            start(["north"], Listening(wrong))
    with pytest.raises(ConfigError, match="no site is invited"):
        start([], Listening("127.0.0.1:0"))
    assert not (tmp_path / "server").exists(), "a start that comes to nothing leaves nothing behind"
    (tmp_path / "server").mkdir()
    with pytest.raises(ConfigError, match="no site is invited"):
        start([], Listening("127.0.0.1:0"))
    assert (tmp_path / "server").is_dir(), "a folder that was there stays"


@pytest.mark.parametrize(
    ("sites", "where", "change", "said"),
    [
        (["nord", "Nord"], {}, {}, "--sites names nord and Nord, which can be taken for each other"),
        (["nord", "a b"], {}, {}, "'a b' cannot name a site"),
        (["nord"], {"address": "localhost"}, {}, "'localhost' is no address"),
        (["nord"], {}, {"test_path": "nofile.csv"}, "nofile.csv"),
    ],
)
def test_mistakes_are_found_before_a_site_is_invited(
    sites: list[str], where: dict[str, str], change: dict[str, str], said: str, shards: Shards, tmp_path: Path
) -> None:
    typed: dict[str, str] = {}
    data = shards.experiment.data.model_copy(update=change)
    experiment, callback = shards.experiment.model_copy(update={"data": data}), Lines()
    listening_at = Listening("127.0.0.1:0", where.get("address"))
    with pytest.raises(FednlpError, match=said):
        serve(experiment, tmp_path / "server", sites, listening_at, callback, typed.__setitem__)
    assert not typed
    assert not any("listening" in line for line in callback.lines)
    assert not (tmp_path / "server").exists()


def test_settings_may_change_until_a_site_has_joined(shards: Shards, tmp_path: Path) -> None:
    """Tokens that were sent stay good: nothing was done under the settings before."""
    typed: dict[str, str] = {}

    def look() -> None:
        raise Asleep

    def start(experiment: Experiment, sites: list[str]) -> None:
        out, where = tmp_path / "server", Listening("127.0.0.1:0", "localhost:9")
        with pytest.raises(Asleep):
            serve(experiment, out, sites, where, Lines(), typed.__setitem__, lambda: None, look)

    start(shards.experiment, ["nord"])
    token = Path(typed["nord"]).read_text()
    start(shards.experiment.model_copy(update={"num_rounds": 9}), [])
    assert RunDir(tmp_path / "server").experiment().num_rounds == 9
    assert Path(typed["nord"]).read_text() == token
    (federation_folder(tmp_path / "server") / "inbox" / "0.0.setup.json").touch()
    with pytest.raises(RunError, match="is a federation of other settings"):
        serve(
            shards.experiment, tmp_path / "server", [], Listening("127.0.0.1:0"), Lines(), typed.__setitem__
        )
