"""``fednlp serve``: the server of a federation, from its first start to its last round."""

import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from fednlp.config import Experiment
from fednlp.deployment.credentials import server_credentials
from fednlp.deployment.enrolment import FOLDER, FederationAdmission, invite, store_address
from fednlp.deployment.federation import Federation, open_directory, run_name
from fednlp.deployment.goodbye import let_go
from fednlp.deployment.hub import Hub
from fednlp.deployment.links import Session, Wake
from fednlp.deployment.links.grpc import PeerIdentity, RunningServer
from fednlp.deployment.links.grpc import serve as listen_with
from fednlp.deployment.status_writer import StatusWriter
from fednlp.errors import ConfigError
from fednlp.simulation.callback import Callback
from fednlp.simulation.run_dir import RunDir


@dataclass(frozen=True)
class Listening:
    """How a server is reached.

    Attributes:
        listen: ``host:port`` to listen at; port 0 for any that is free.
        address: ``host:port`` as the sites reach it; that of ``listen`` if left out.
        hosts: Further names and addresses of the server, for its certificate.
    """

    listen: str = "0.0.0.0:8443"
    address: str | None = None
    hosts: tuple[str, ...] = ()


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
) -> RunDir:
    """Run a federation, or go on with one that was stopped.

    Args:
        experiment: Its data are at the sites.
        out: The run directory.
        sites: Names of the sites to invite; none for those that were invited before.
        where: How the server is reached.
        callback: Reports progress.
        on_token: Told the name and the join token of each site that is newly invited.
        on_listening: Called once the server listens, and new sites are invited.
        on_look: Called about once a second while sites are awaited; an error that it raises stops the server.
        page: ``host:port`` of a page that shows the run, for a browser; no page if left out.

    Raises:
        FednlpError: The settings do not allow it, or too few sites came through; the rounds before are saved.
    """
    directory = open_directory(experiment.resolved(), out)
    folder = directory.folder / FOLDER
    with directory.alone(), _shown(page, out, callback.log):
        admission = FederationAdmission(folder, where.hosts)
        hub = Hub(folder, run_name(directory))
        running = _listen(where, admission, hub, callback)
        try:
            store_address(folder, where.address or _reached(where.listen, running.port))
            known = {site.name for site in admission.register.sites()}
            for name in sites:
                if name not in known:
                    on_token(name, str(invite(folder, name)))
            if not admission.register.sites():
                raise ConfigError(
                    "no site is invited: name them, for example --sites nord,west, or say how many: --sites 3"
                )
            on_listening()
            members = admission.register.sites
            with StatusWriter(directory, hub, members, callback.log) as status:
                seen = status.watched(callback)
                return Federation(directory, hub, members, seen, on_look, status.opened).run()
        finally:
            try:
                if hub.ended is not None:  # else the sites wait for this server to come back
                    let_go(hub, admission.register.sites, callback.log)
            finally:
                running.stop()
                hub.close()


def _shown(page: str | None, out: Path, log: Callable[[str], None]) -> AbstractContextManager[object]:
    """Serve the page of a run for the time of a block; without an address there is none."""
    if page is None:
        return nullcontext()
    from fednlp.deployment.page.server import PageServer

    return PageServer(out, page, log)


def _listen(where: Listening, admission: FederationAdmission, hub: Hub, callback: Callback) -> RunningServer:
    def session(peer: PeerIdentity, wake: Wake) -> Session:
        site = admission.authorise(peer.certificate)
        return hub.session(site.client, wake, time.time)

    def enrol(peer: PeerIdentity, message: bytes) -> bytes:
        return admission.enrol(peer.certificate, message)

    return listen_with(where.listen, server_credentials(admission.material), session, enrol, log=callback.log)


def _reached(listen: str, port: int) -> str:
    """Return the address that sites are told: this machine's name, unless the server listens at one address alone."""
    host = listen.rpartition(":")[0].strip("[]")
    return f"{socket.getfqdn() if host in ('0.0.0.0', '::', '') else host}:{port}"
