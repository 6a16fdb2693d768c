"""A cluster of Ray: reach it, or begin one on this machine, and find out whether all workers have a place in it."""

import os
import socket
from typing import Any

from fednlp.errors import MissingDependency, RunError, install_command
from fednlp.formatting.units import plural
from fednlp.runtime.placement import gpu_share, most_workers

try:
    import ray
except ImportError:
    raise MissingDependency(f"this engine needs Ray: run {install_command('ray')}") from None

_PATIENCE = 10.0
"""Seconds for a connection to a cluster's address."""


def gpus_each(workers: int, threads: int, asked: bool) -> float:
    """Return how much of a GPU each actor asks for.

    Args:
        asked: Whether they ask for GPUs at all.

    Raises:
        RunError: The cluster has too few cores, or they are not where the GPUs are: some actors would wait for ever.
    """
    found = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    machines = [(int(one.get("CPU", 0)), int(one.get("GPU", 0))) for one in found]
    cores, gpus = sum(one for one, _ in machines), sum(one for _, one in machines)
    if workers * threads > cores:
        raise RunError(
            f"the cluster of Ray has {plural(cores, 'core')}, and runtime.workers = {workers} with runtime.threads = "
            f"{threads} needs {workers * threads}: lower runtime.workers, or add machines to the cluster"
        )
    share = gpu_share(workers, gpus if asked else 0)
    most = most_workers(machines, threads, share)
    if workers > most:
        gpu = f" and {share:g} of a GPU" if share else ""
        raise RunError(
            f"the cluster of Ray has a place for {plural(most, 'worker')}, and runtime.workers = {workers}: each needs "
            f"runtime.threads = {threads} cores{gpu} on one machine; lower one of these, or add machines to the cluster"
        )
    return share


def begin(cores: int, address: str | None) -> None:
    """Connect to a cluster, or begin one on this machine, which is reached from this machine alone.

    Args:
        cores: Of the one that is begun here.
        address: Of a cluster; None for what ``RAY_ADDRESS`` names, or this machine.

    Raises:
        RunError: The cluster is not reached.
    """
    settings: dict[str, Any] = {"log_to_driver": False, "include_dashboard": False, "logging_level": "error"}
    address = address or os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        _look_at(address or "")
        if address is None:
            ray.init("local", num_cpus=cores, _node_ip_address="127.0.0.1", **settings)
        else:
            ray.init(address, log_to_driver=False, logging_level="error")
    except (ConnectionError, ValueError, RuntimeError, OSError) as error:
        last = (getattr(error, "strerror", None) or str(error)).strip().splitlines()[:1]
        raise RunError(
            f"Ray is not reached at {address or 'this machine'} ({''.join(last)}): compare runtime.address with what "
            "ray start printed, and set RAY_AUTH_MODE=token if it says that token authentication is enabled"
        ) from None


def _look_at(address: str) -> None:
    """Look whether somebody listens at an address, if it is ``host:port``: Ray itself tries for minutes.

    Raises:
        OSError: Nobody does.
    """
    host, _, port = address.rpartition(":")
    if host and port.isdigit() and "://" not in address:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
