"""What secure aggregation costs: its steps against their bounds, and its three protocols beside each other.

    python benchmarks/secure.py             # prints JSON: times over bounds, and bytes up for each parameter
    python benchmarks/secure.py --compare   # prints a table; --csv FILE keeps it

The comparison plays whole rounds of SecAgg, SecAgg+ and LightSecAgg as their papers do: clients drop out when
secrets are shared and before they upload, which is when SecAgg has the most to recover. All parties run one
after the other in one thread, with random vectors; only one masked vector is held at a time. The sum that
comes out is compared with that of the survivors' vectors, element by element. Each protocol is planned for the
largest of the drop-out rates, so that rates differ in what happens and not in what would be withstood.

A client's figures are the median over those that took the step, and the most bytes that one of them sent and
got; a server's are the whole of its work. Bytes are those of the protocol and the masked vector; the model
that clients are sent is not among them. Sealed pieces of LightSecAgg, N^2 of them, wait in a file.
"""

import argparse
import csv
import json
import os
import random
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any, TypeVar

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError
from fednlp.secure import lightsecagg, messages, secagg
from fednlp.secure.field import add, subtract
from fednlp.secure.graph import count, neighbours
from fednlp.secure.masks import add_masks
from fednlp.secure.plan import ProtocolPlan, make_plan

PROTOCOLS = ("secagg", "secagg+", "lightsecagg")
PHASES = ("keys", "shares", "upload", "answer")
COLLUDING = 0.1
BOUND_PARAMETERS, BOUND_CLIENTS, BOUND_DROPOUT = 22_000_000, (10, 100), 0.1
TRIED = 1000  # parameters of the rounds that prove the bytes
COLUMNS = (
    "protocol",
    "clients",
    "parameters",
    "dropout",
    "neighbours",
    "threshold",
    *(f"{side}_{phase}_ms" for side in ("client", "server") for phase in PHASES),
    "client_ms",
    "server_ms",
    "bytes_up",
    "bytes_down",
    "refused",
)
HEADER = (
    f"{'protocol':<12}{'clients':>8}{'parameters':>12}{'dropout':>8}"
    f"{' client: keys':>14}{'shares':>9}{'upload':>9}{'answer':>9}"
    f"{' server: keys':>14}{'shares':>9}{'upload':>9}{'answer':>9}{'bytes up':>13}{'down':>13}"
)
T = TypeVar("T")


class Account:
    """Seconds of every party in every phase, and bytes of every client."""

    def __init__(self) -> None:
        self.server: defaultdict[str, float] = defaultdict(float)
        self.clients: dict[str, dict[int, float]] = {phase: {} for phase in PHASES}
        self.up: Counter[int] = Counter()
        self.down: Counter[int] = Counter()

    def timed(self, phase: str, client: int | None, step: Callable[..., T], *arguments: Any) -> T:
        """Have a client, or the server, take a step."""
        start = time.perf_counter()
        made = step(*arguments)
        took = time.perf_counter() - start
        if client is None:
            self.server[phase] += took
        else:
            self.clients[phase][client] = self.clients[phase].get(client, 0.0) + took
        return made

    def sent(self, client: int, message: Any) -> Any:
        """Count what a client sends."""
        self.up[client] += messages.size(message)
        return message

    def got(self, replies: dict[int, Any]) -> dict[int, Any]:
        """Count what clients are sent."""
        for client, message in replies.items():
            self.down[client] += messages.size(message)
        return replies

    def figures(self) -> dict[str, Any]:
        """Return the row of figures."""
        row: dict[str, Any] = {}
        for phase in PHASES:
            row[f"client_{phase}_ms"] = round(1000 * statistics.median(self.clients[phase].values()), 3)
            row[f"server_{phase}_ms"] = round(1000 * self.server[phase], 3)
        for side in ("client", "server"):
            row[f"{side}_ms"] = round(sum(row[f"{side}_{phase}_ms"] for phase in PHASES), 3)
        return row | {"bytes_up": max(self.up.values()), "bytes_down": max(self.down.values())}


def parties(plan: ProtocolPlan, length: int) -> tuple[Any, dict[int, Any]]:
    """Return the server and the clients of a round."""
    ids = tuple(range(plan.clients))
    if plan.protocol == "lightsecagg":
        dropped = plan.clients - plan.threshold
        rules = lightsecagg.LightSecAggRoundSpec(ids, plan.threshold, plan.max_colluding, dropped, 0, length)
        return lightsecagg.LightSecAggServer(rules), {
            one: lightsecagg.LightSecAggClient(rules, one) for one in ids
        }
    order = random.SystemRandom().sample(ids, len(ids))
    graph = neighbours(ids, plan.neighbours, order)
    known = secagg.SecAggRoundSpec(plan.protocol, ids, graph, plan.threshold, 0)
    return secagg.SecAggServer(known), {one: secagg.SecAggClient(known.client_spec(one)) for one in ids}


def put_aside(message: Any, file: IO[bytes]) -> Any:
    """Move sealed pieces from memory to a file; any other message stays."""
    if not isinstance(message, messages.SealedPieces):
        return message
    begin = file.seek(0, os.SEEK_END)
    for row in message.sealed:
        file.write(row.data)
    file.flush()
    shape = (len(message.sealed), message.width)
    rows: NDArray[np.uint8] = np.memmap(file, np.uint8, "r", begin, shape)
    return messages.SealedPieces(message.ids, tuple(np.asarray(rows)))


def play(plan: ProtocolPlan, parameters: int, gone: Collection[int]) -> Account:
    """Play one round in which some clients drop out before the upload, and check its sum.

    Args:
        plan: Of the round.
        parameters: Of the model; a vector has one element more, for the weight.
        gone: Which clients drop out.
    """
    account, length = Account(), parameters + 1
    server, clients = parties(plan, length)
    timed = account.timed
    keys = {one: account.sent(one, timed("keys", one, client.advertise)) for one, client in clients.items()}
    rosters = account.got(timed("keys", None, server.roster, keys))
    with tempfile.TemporaryFile() as file:
        shared = {}
        for one, client in clients.items():
            message = account.sent(one, timed("shares", one, client.share, rosters[one]))
            shared[one] = put_aside(message, file)
        delivered = account.got(timed("shares", None, server.deliver, shared))
        for one, client in clients.items():
            timed("shares", one, client.receive, delivered[one])
        staying = {one: client for one, client in clients.items() if one not in gone}
        total, plain = upload(plan, staying, length, account)
        shown = account.got(timed("answer", None, server.survivors, list(staying)))
        answers = {}
        for one, client in staying.items():
            step = client.answer if plan.protocol == "lightsecagg" else client.reveal
            answers[one] = account.sent(one, timed("answer", one, step, shown[one]))
        timed("answer", None, unmask, server, answers, total)
    if not np.array_equal(total, plain % plan.modulus):
        raise SystemExit(f"the sum is wrong: {plan}, {parameters} parameters, {len(gone)} clients gone")
    return account


def upload(
    plan: ProtocolPlan, staying: dict[int, Any], length: int, account: Account
) -> tuple[NDArray[np.uint32], NDArray[np.uint64]]:
    """Add up what clients upload, one at a time; return that sum, and the sum of their vectors as whole numbers."""
    total, plain = np.zeros(length, dtype=np.uint32), np.zeros(length, dtype=np.uint64)
    for one, client in staying.items():
        rng = np.random.default_rng([length, one])
        vector = rng.integers(0, plan.modulus, length, dtype=np.uint32)
        plain += vector
        masked = account.timed("upload", one, client.masked, vector)
        account.up[one] += messages.HEADER_BYTES + masked.nbytes
        account.timed("upload", None, add_up, plan, total, masked)
    return total, plain


def add_up(plan: ProtocolPlan, total: NDArray[np.uint32], masked: NDArray[np.uint32]) -> None:
    """Add a masked vector to the others, in place."""
    if plan.protocol == "lightsecagg":
        add(total, masked)
    else:
        total += masked


def unmask(server: Any, answers: dict[int, Any], total: NDArray[np.uint32]) -> None:
    """Take all masks out of the sum, in place."""
    if isinstance(server, lightsecagg.LightSecAggServer):
        subtract(total, server.recover(answers))
    else:
        add_masks(total, server.unmask(answers))


def measure_bytes(parameters: int) -> dict[str, Any]:
    """Return bytes up for each parameter; ``exact`` where a round that was played sent as many as worked out."""
    from secure_bounds import bytes_up

    result = {}
    for clients in BOUND_CLIENTS:
        for protocol in PROTOCOLS:
            plan = make_plan(protocol, clients, BOUND_DROPOUT, COLLUDING)
            whole = bytes_up(plan, parameters)
            sent = set(play(plan, TRIED, ()).up.values())
            result[f"bytes up, {protocol}, {clients} clients, {parameters} parameters"] = {
                "per_parameter": round(whole / parameters, 6),
                "bytes_up": whole,
                "of_the_protocol": whole - 4 * parameters,
                "exact": sent == {bytes_up(plan, TRIED)},
            }
    return result


def compare(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Play all rounds, printing a line each as it ends."""
    for protocol in PROTOCOLS:  # what is called for the first time is slow
        play(make_plan(protocol, BOUND_CLIENTS[0], BOUND_DROPOUT, COLLUDING), TRIED, ())
    print(
        "Milliseconds of one client, and of the server's work for all clients. Bytes of one client.\n"
        + HEADER
    )
    rows = []
    for parameters in options.parameters or (100_000, 1_000_000):
        for clients in options.clients:
            for protocol in PROTOCOLS:
                for rate in options.dropout:
                    rows.append(compared(protocol, clients, parameters, rate, options))
                    print(line(rows[-1]), flush=True)
    return rows


def compared(
    protocol: str, clients: int, parameters: int, rate: float, options: argparse.Namespace
) -> dict[str, Any]:
    """Play one round of a protocol; return its row, or why no plan fits."""
    row: dict[str, Any] = dict.fromkeys(COLUMNS)
    row |= {"protocol": protocol, "clients": clients, "parameters": parameters, "dropout": rate}
    try:
        plan = make_plan(protocol, clients, max(options.dropout), options.max_colluding)
    except ConfigError as error:
        return row | {"refused": str(error)}
    gone = random.Random(clients).sample(range(clients), count(clients, rate, "dropout"))
    row |= {"neighbours": plan.neighbours, "threshold": plan.threshold}
    return row | play(plan, parameters, gone).figures()


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    text = f"{row['protocol']:<12}{row['clients']:>8}{row['parameters']:>12,}{row['dropout']:>8.0%}"
    if row["refused"]:
        return f"{text}  {row['refused']}"
    for side in ("client", "server"):
        for phase in PHASES:
            text += f"{row[f'{side}_{phase}_ms']:>{14 if phase == 'keys' else 9},.1f}"
    return f"{text}{row['bytes_up']:>13,}{row['bytes_down']:>13,}"


def main() -> None:
    """Measure against bounds, or compare the protocols."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--parameters", type=int, nargs="+", help="model sizes (22 million; --compare: 0.1 and 1)"
    )
    parser.add_argument("--repeats", type=int, default=9, help="repetitions a figure; not of --compare")
    parser.add_argument("--compare", action="store_true", help="the three protocols beside each other")
    parser.add_argument("--clients", type=int, nargs="+", default=(10, 30, 100), help="of a round compared")
    parser.add_argument("--dropout", type=float, nargs="+", default=(0.0, 0.1, 0.3), help="rates compared")
    parser.add_argument(
        "--max-colluding", type=float, default=COLLUDING, help="fraction of colluding clients withstood"
    )
    parser.add_argument("--csv", type=Path, help="where --compare writes its table, if anywhere")
    parser.add_argument("--json", type=Path, help="also write all figures here")
    options = parser.parse_args()
    result: dict[str, Any] = {"cores": os.cpu_count()}
    if options.compare:
        result["rounds"] = compare(options)
        if options.csv:
            with options.csv.open("w", encoding="utf-8", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                writer.writeheader()
                writer.writerows(result["rounds"])
    else:
        from secure_bounds import measure_bounds

        for parameters in options.parameters or (BOUND_PARAMETERS,):
            result |= measure_bounds(parameters, options.repeats) | measure_bytes(parameters)
        print(json.dumps(result, indent=1))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
