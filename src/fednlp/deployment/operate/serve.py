"""``fednlp serve``: the server of a federation, from its first start to its last round."""

import shutil
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fednlp.config import Experiment
from fednlp.deployment.identity.admission import Admission, Kind
from fednlp.deployment.identity.admission.federation import FederationAdmission
from fednlp.deployment.identity.admission.organisation import Files, OrganisationAdmission
from fednlp.deployment.identity.enrolment import FOLDER, require_same_kind, store_address, typed_by
from fednlp.deployment.identity.names import (
    broker_scheme,
    host_and_port,
    lookalike,
    server_address,
    site_name,
)
from fednlp.deployment.identity.site_registry import Register
from fednlp.deployment.links.grpc import server_credentials
from fednlp.deployment.links.grpc.server import serve as listen_with
from fednlp.deployment.server.ending import await_shutdown_acks
from fednlp.deployment.server.federation import Federation, components_before_sites
from fednlp.deployment.server.run_directory import open_directory, run_name
from fednlp.deployment.server.status_writer import StatusWriter
from fednlp.deployment.session.driver import PeerIdentity, Running, Session, Wake
from fednlp.deployment.session.hub import Hub
from fednlp.deployment.session.probe import Echoes
from fednlp.deployment.session.servable import servable
from fednlp.errors import ConfigError
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir

_ANYWHERE = ("0.0.0.0", "::", "")
"""What is listened at that is all addresses of this machine."""
DISK_THREADS = 2
"""Threads in which a server writes to its disk."""


@dataclass(frozen=True)
class Listening:
    """How a server is reached.

    Attributes:
        listen: ``host:port`` to listen at; port 0 for any that is free.
        address: ``host:port`` as the sites reach it; that of ``listen`` if left out.
        hosts: Further names and addresses of the server, for its certificate.
        files: Certificates of an organisation, in place of those that the federation makes itself.
        behind_proxy: Whether a load balancer ends TLS, so that the server listens without it.
        broker: ``mqtts://host:port`` of an MQTT broker, by which the sites reach the server, in place of ``listen``.
    """

    listen: str = "0.0.0.0:8443"
    address: str | None = None
    hosts: tuple[str, ...] = ()
    files: Files | None = None
    behind_proxy: bool = False
    broker: str | None = None

    @property
    def kind(self) -> Kind:
        """How sites show who they are."""
        if self.files is not None:
            return "organisation"
        return "balancer" if self.behind_proxy else "tokens"


def serve(
    experiment: Experiment,
    out: Path,
    sites: Sequence[str],
    where: Listening,
    callback: Callback,
    on_token: Callable[[str, str], None],
    on_listening: Callable[[], None] = lambda: None,
    on_look: Callable[[], None] = lambda: None,
    page: str | None = None,
    page_hosts: Sequence[str] = (),
    rehearsed: bool = False,
) -> RunDir:
    """Run a federation, or go on with one that was stopped.

    Args:
        experiment: Its data are at the sites.
        sites: Names of the sites to invite; none for those that were invited before.
        where: How the server is reached.
        on_token: Told the name of each site that is newly invited, and what it types after ``fednlp join``.
        on_listening: Called once the server listens, and new sites are invited.
        on_look: Called about once a second while sites are awaited; an error that it raises stops the server.
        page: ``host:port`` of a page that shows the run, for a browser; no page if left out.
        page_hosts: Names under which a proxy serves the page.
        rehearsed: Whether the sites are processes of this machine.

    Raises:
        FednlpError: The settings do not allow it, or too few sites came through; the rounds before are saved.
    """
    _require_distinct(sites)
    experiment = servable(experiment, callback.log)
    _require_fit(experiment, where)
    host_and_port(where.listen, "--listen")
    with ExitStack() as undo:
        if not out.exists():  # of a start that comes to nothing, nothing is left
            undo.callback(shutil.rmtree, out, ignore_errors=True)
        directory = open_directory(experiment.resolved(), out)
        folder = directory.folder / FOLDER
        require_same_kind(folder, where.kind)
        with directory.alone(), _shown(page, page_hosts, out, callback.log):
            components = components_before_sites(directory, callback.log)
            admission = _admission(folder, where, callback.log)
            disk = ThreadPoolExecutor(DISK_THREADS, "fednlp-disk")
            hub = Hub(folder, run_name(directory), background_of(disk))
            running, address = _listen(where, admission, hub, callback)
            try:
                store_address(folder, address, where.kind)
                _invite(admission, directory.folder, sites, on_token, callback.log)
                undo.pop_all()
                on_listening()
                members = admission.register.sites
                with StatusWriter(directory, hub, members, callback.log) as status:
                    seen = status.watched(callback)
                    opened = status.opened
                    federation = Federation(
                        directory, hub, members, seen, on_look, opened, components, rehearsed
                    )
                    return federation.run()
            finally:
                try:
                    if hub.ended is not None:  # else the sites wait for this server to come back
                        what = "the final model" if experiment.rounds.send_model else ""
                        await_shutdown_acks(hub, admission.register.sites, callback.log, what=what)
                finally:
                    running.stop()
                    disk.shutdown()
                    hub.close()


def background_of(disk: ThreadPoolExecutor) -> Callable[[Callable[[], None]], object]:
    """Return what has a job done by some threads; an error of a job, for which nobody waits, is written to the log."""
    return lambda job: disk.submit(job).add_done_callback(Future.result)


def _invite(
    admission: Admission,
    out: Path,
    sites: Sequence[str],
    on_token: Callable[[str, str], None],
    log: Callable[[str], None],
) -> None:
    """Invite the sites that were not before, and say how those get a token that have not joined since.

    Raises:
        ConfigError: There is no site.
    """
    known = {site.name: site for site in admission.register.sites()}
    for name in sites:
        if name not in known:
            on_token(name, typed_by(out / FOLDER, name))
        elif known[name].state == "invited":
            log(
                f"{name} was invited before and has not joined; a new token is printed by: fednlp sites invite {out} "
                f"{name}"
            )
    if not admission.register.sites():
        raise ConfigError(
            "no site is invited: name them, for example --sites nord,west, or say how many: --sites 3"
        )


def _shown(
    page: str | None, hosts: Sequence[str], out: Path, log: Callable[[str], None]
) -> AbstractContextManager[object]:
    """Serve the page of a run for the time of a block; without an address there is none.

    Raises:
        ConfigError: There are names for it, and no page.
    """
    if page is None:
        if hosts:
            raise ConfigError("--page-host names a page: say where it is served with --page")
        return nullcontext()
    from fednlp.deployment.operate.page.server import PageServer

    return PageServer(out, page, log, hosts)


def _require_distinct(sites: Sequence[str]) -> None:
    """Check that names can name sites, and that people can tell them apart.

    Raises:
        ConfigError: Two are the same, or can be taken for each other.
        IdentityError: One can name no site.
    """
    known: dict[str, str] = {}
    for name in map(site_name, sites):
        before = known.get(lookalike(name))
        known[lookalike(name)] = name
        if before == name:
            raise ConfigError(f"--sites names {name} twice: give each site a name of its own")
        if before is not None:
            raise ConfigError(
                f"--sites names {before} and {name}, which can be taken for each other: two names must differ in more "
                "than case and script"
            )


def _require_fit(experiment: Experiment, where: Listening) -> None:
    """Refuse what a load balancer that ends TLS breaks, and what goes by no broker.

    Raises:
        ConfigError: It breaks the experiment's secure aggregation, or an organisation's certificates; or the broker's
            address is none.
    """
    if where.address is not None:
        server_address(where.address)
    if where.broker is not None and not broker_scheme(where.broker):
        raise ConfigError(
            f"--broker {where.broker} does not say how: type mqtts://host:port, or mqtt://host:port for a broker "
            "without TLS of its own"
        )
    if where.broker is not None and where.address is not None:
        raise ConfigError("--broker is the address that the sites are told: leave --address out")
    if where.broker is not None and (where.files is not None or where.behind_proxy):
        raise ConfigError(
            "--broker goes with join tokens: leave --ca, --cert and --key, or --behind-proxy, out"
        )
    if where.behind_proxy and where.files is not None:
        raise ConfigError(
            "--behind-proxy does not go with --ca, --cert and --key: the balancer shows no certificate"
        )
    if where.behind_proxy and experiment.secure.protocol != "none":
        raise ConfigError(
            "--behind-proxy does not go with secure.protocol: who ends TLS could exchange the sites' keys and see what "
            "they send; have the load balancer pass TLS through, and leave --behind-proxy out"
        )


def _admission(folder: Path, where: Listening, log: Callable[[str], None]) -> Admission:
    """Return who lets sites in: the federation's own authority, or that of an organisation."""
    if where.files is None:
        return FederationAdmission(folder, where.hosts, behind_proxy=where.behind_proxy)
    return OrganisationAdmission(where.files, Register(folder), log)


def _listen(where: Listening, admission: Admission, hub: Hub, callback: Callback) -> tuple[Running, str]:
    """Begin to answer sites; return what does so, and the address that sites are told."""

    def session(peer: PeerIdentity, wake: Wake) -> Session:
        site = admission.authorise(peer.certificate)
        return hub.session(site.client, wake, time.time)

    def enrol(peer: PeerIdentity, message: bytes) -> bytes:
        return admission.enrol(peer.certificate, message)

    echoes = Echoes()

    def probe(peer: PeerIdentity, wake: Wake) -> Session:
        admission.require_known(peer.certificate)
        return echoes.begin()

    if where.broker is not None:
        from fednlp.deployment.links.mqtt import server

        address = server_address(where.broker)
        made = server.serve(address, admission.material, session, enrol, log=callback.log, probe=probe)
        return made, address
    credentials, challenges = None, admission.challenges
    if challenges is not None:
        callback.log(
            f"this server listens without TLS at {where.listen}: let nobody but the load balancer reach it"
        )
    else:
        credentials = server_credentials(admission.material)
    running = listen_with(
        where.listen, credentials, session, enrol, log=callback.log, challenges=challenges, probe=probe
    )
    address = where.address or _reached(where.listen, running.port)
    host = where.listen.rpartition(":")[0]
    everywhere = ", which is every network that this machine is in" if host.strip("[]") in _ANYWHERE else ""
    callback.log(f"listening at {host}:{running.port}{everywhere}; sites dial {address}")
    return running, address


def _reached(listen: str, port: int) -> str:
    """Return the address that sites are told: this machine's name, unless the server listens at one address alone."""
    host = listen.rpartition(":")[0].strip("[]")
    return f"{socket.getfqdn() if host in _ANYWHERE else host}:{port}"
