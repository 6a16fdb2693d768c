"""Part ``planted``: whether a server ever holds an update of a site without its mask.

Each site plants numbers of its own into its update. In each round the server is stopped (SIGSTOP) when an update has
arrived, and again when the round is done. Its memory (``/proc/PID/mem``), its disk and the frames of its connections
are searched for the planted numbers in every form that they could have there. Nothing of fednlp takes part in the
search.

The search finds what is there: without a protocol the server has the numbers, and under a protocol the sites have them.
"""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from survival.trial import SERVER, Trial

_COUNT = 256
"""Numbers that a site plants."""
_HEAD = 8
"""Bytes of a form that are looked for first; a form has many more."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: the upper bits of a product with it are a hash (Knuth, volume 3, section 6.4)."""
_HASHED = 16
_kept: list[Any] = []
"""What a site's memory is to hold when it is searched."""

Words = NDArray[np.uint64]


def numbers_of(site: str) -> NDArray[np.float32]:
    """Return what a site plants: float32, absolute values from 1/4 to 1, which no protocol cuts by default."""
    rng = np.random.default_rng([ord(letter) for letter in site])
    drawn: NDArray[np.float32] = (rng.choice([-1, 1], _COUNT) * rng.uniform(0.25, 1, _COUNT)).astype("f4")
    return drawn


def site(home: Path) -> None:
    """Have this process plant its numbers into its updates, and write down what they are before masks are added."""
    import torch

    from fednlp.secure.encoding import Encoding
    from fednlp.training import sending, worker

    encode = Encoding.encode
    planted = numbers_of(home.parent.name)

    def planting(algorithm: Any, request: Any, local: Any, result: Any, record: Any) -> Any:
        flat = result.update["model"].flat().clone()
        flat[:_COUNT] = torch.from_numpy(planted)
        _kept.append(flat)
        (home / "planted").touch()
        changed = replace(result, update={**result.update, "model": flat.clone()})
        return sending.encode(algorithm, request, local, changed, record)

    def noting(self: Encoding, *given: Any, **options: Any) -> NDArray[np.uint32]:
        residues = encode(self, *given, **options)
        _kept.append(residues.copy())
        part = home / "residues.part"
        with part.open("wb") as file:
            np.savez(file, residues=residues[:_COUNT], modulus=self.modulus, bits=self.bits, step=self.step)
        part.replace(home / f"residues-{len(_kept)}.npz")
        return residues

    worker.encode = planting
    Encoding.encode = noting  # type: ignore[method-assign]


def server(home: Path) -> None:
    """Have this process write down all frames that it receives and sends."""
    from fednlp.deployment.session.hub import ServerSession

    receive, next_frame = ServerSession.receive, ServerSession.next_frame

    def note(frame: bytes | None) -> None:
        with (home / "traffic").open("ab") as file:
            file.write(frame or b"")

    def received(self: ServerSession, data: bytes) -> None:
        note(data)
        receive(self, data)

    def sent(self: ServerSession) -> bytes | None:
        frame = next_frame(self)
        note(frame)
        return frame

    ServerSession.receive = received  # type: ignore[method-assign]
    ServerSession.next_frame = sent  # type: ignore[method-assign]


def forms_of_numbers(numbers: NDArray[np.float32]) -> dict[str, bytes]:
    """Return float32 numbers as other floats, in fixed point and as 8-bit integers."""
    bits = numbers.view("<u4").astype("<u8")
    nearest = bits + 0x7FFF + (bits >> 16 & 1)  # to even
    found = {kind: numbers.astype(kind) for kind in ("<f2", "<f4", ">f4", "<f8")}
    found |= {"bfloat16": (nearest >> 16).astype("<u2"), "bfloat16, cut": (bits >> 16).astype("<u2")}
    found |= {f"fixed point, 2^-{point}": _whole(numbers * 2.0**point, "<i8") for point in (31, 32, 40)}
    found |= {f"fixed point, 2^-{point}, 4 bytes": _whole(numbers * 2.0**point, "<i4") for point in (16, 24)}
    found["8 bits"] = _whole(numbers / np.abs(numbers).max() * 127, "i1")
    return {name: values.tobytes() for name, values in found.items()}


def _whole(values: NDArray[Any], kind: str) -> NDArray[Any]:
    rounded: NDArray[Any] = np.rint(values.astype("f8")).astype(kind)
    return rounded


def forms_of_residues(residues: NDArray[np.uint32], modulus: int, bits: int, step: float) -> dict[str, bytes]:
    """Return residues as integers, packed from each bit of a byte on, and as the floats that they stand for."""
    whole = residues.astype("<i8")
    signed = np.where(whole > modulus // 2, whole - modulus, whole)
    found = {f"residues {kind}": whole.astype(kind) for kind in ("<u4", ">u4", "<i8")}
    found |= {f"steps {kind}": signed.astype(kind) for kind in ("<i4", ">i4", "<i8")}
    found |= {f"decoded {kind}": (signed * step).astype(kind) for kind in ("<f4", "<f8")}
    plain = {name: values.tobytes() for name, values in found.items()}
    width = (modulus - 1).bit_length()
    return plain | dict(_packed(whole, width)) | dict(_packed(signed, bits + 1))


def _packed(values: NDArray[np.int64], width: int) -> Iterator[tuple[str, bytes]]:
    bits = ((values[:, None] >> np.arange(width)) & 1).astype(np.uint8)
    for order, ordered in (("little", bits), ("big", bits[:, ::-1])):
        for ahead in range(8):
            stream = np.concatenate([np.zeros(ahead, np.uint8), ordered.ravel()])
            whole = np.packbits(stream, bitorder=order).tobytes()[1:-1]  # type: ignore[call-overload]
            yield f"{width} bits, {order} end first, {ahead} ahead", whole


def needles(trial: Trial) -> dict[str, bytes]:
    """Return what the sites that have trained so far have planted, by site and form."""
    found = {}
    for name in trial.shards.names:
        home = trial.home_of(name)
        if (home / "planted").exists():
            forms = forms_of_numbers(numbers_of(name))
            found |= {f"{name}: {form}": needle for form, needle in forms.items()}
        for path in sorted(home.glob("residues-*.npz")):
            with np.load(path) as noted:
                told = int(noted["modulus"]), int(noted["bits"]), float(noted["step"])
                forms = forms_of_residues(noted["residues"], *told)
            found |= {f"{name}: {path.stem}: {form}": needle for form, needle in forms.items()}
    return found


class Search:
    """A search of places for needles, which are longer than eight bytes.

    The first eight bytes of all needles are looked for at once, from each byte of a place on. Where some are met, the
    whole needle is looked for.

    Args:
        needles: By name.

    Attributes:
        bytes: How many were searched.
        found: Names of the needles that were found.
    """

    def __init__(self, needles: Mapping[str, bytes]) -> None:
        self.bytes, self.found = 0, set[str]()
        self._needles: dict[int, list[tuple[str, bytes]]] = {}
        for name, needle in needles.items():
            head = int.from_bytes(needle[:_HEAD], "little")
            self._needles.setdefault(head, []).append((name, needle))
        self._heads: Words = np.array([*self._needles], dtype="<u8")
        self._table = np.zeros(1 << _HASHED, dtype=bool)
        self._table[_hash(self._heads)] = True

    def through(self, places: Iterable[bytes]) -> set[str]:
        """Search some places; return all that was found so far."""
        for place in places:
            self.bytes += len(place)
            for ahead in range(_HEAD if len(place) >= 2 * _HEAD else 0):
                for head in self._met(place, ahead):
                    self.found |= {name for name, needle in self._needles[head] if needle in place}
        return self.found

    def _met(self, place: bytes, ahead: int) -> list[int]:
        words = np.frombuffer(place, "<u8", (len(place) - ahead) // _HEAD, ahead)
        some = words[self._table[_hash(words)]]
        met: list[int] = np.unique(some[np.isin(some, self._heads)]).tolist()
        return met


def _hash(words: Words) -> Words:
    hashed: Words = (words * _SPREAD) >> np.uint64(64 - _HASHED)
    return hashed


def memory_of(process: int) -> Iterator[bytes]:
    """Yield each mapping of a process that is no file's unchanged contents, whole.

    Raises:
        PermissionError: This process may not read it.
    """
    with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "rb", buffering=0) as memory:
        for line in maps:
            place, rights, _, _, _, *path = line.split(maxsplit=5)
            of_file = path and path[0].startswith("/") and "(deleted)" not in path[0]
            if rights[0] != "r" or (of_file and rights[1] != "w") or (path and path[0].startswith("[v")):
                continue
            first, last = (int(number, 16) for number in place.split("-"))
            memory.seek(first)
            yield _read(memory, last - first)


def _read(memory: Any, size: int) -> bytes:
    parts, left = list[bytes](), size
    while left:
        try:
            part = memory.read(left)
        except OSError:  # behind the end of a file that is mapped
            break
        if not part:
            break
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def files_in(folder: Path) -> Iterator[bytes]:
    """Yield the contents of all files in a folder."""
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield path.read_bytes()


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Let a process stand still for the time of a block."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def planted(experiment: Any, folder: Path, limit: float = 300.0) -> dict[str, Any]:
    """Run a federation whose sites plant numbers, and search the server for them.

    Args:
        experiment: Of a simulation whose clients all have the same weight.
        folder: New or empty.
        limit: Seconds that the federation may take.

    Raises:
        PermissionError: This process may not read the memory of others.
    """
    from fednlp.deployment.operate.shards import split_out

    shards = split_out(experiment.resolved(), folder / "shards", lambda text: None)
    trial = Trial(folder, shards, hooks={SERVER: server} | dict.fromkeys(shards.names, site))
    inbox, end = trial.server / "federation" / "inbox", time.monotonic() + limit
    found = {place: set[str]() for place in ("memory", "disk", "traffic", "sites")}
    searched = []

    def look() -> None:
        process = trial.processes[SERVER].pid
        with stopped(process):
            wanted = needles(trial)
            for reply in [] if found["sites"] else sorted(inbox.glob("*.train.json")):
                with stopped(own := trial.processes[shards.names[int(reply.name.split(".")[1])]].pid):
                    found["sites"] |= Search(wanted).through(memory_of(own))
            search = Search(wanted)
            found["memory"] |= search.through(memory_of(process))
            found["disk"] |= Search(wanted).through(files_in(trial.server))
        searched.append(search.bytes)

    with trial.running():
        for number in range(1, experiment.num_rounds + 1):
            if trial.wait(lambda number=number: any(inbox.glob(f"{number}.*.train.json")), end):
                look()
            last = number == experiment.num_rounds
            if not last and trial.wait(lambda number=number: trial.done() >= number, end):
                look()
        trial.finish(end)
    wanted = needles(trial)
    found["disk"] |= Search(wanted).through(files_in(trial.server))
    found["traffic"] = Search(wanted).through(files_in(trial.home_of(SERVER)))
    return {
        **{place: sorted(names) for place, names in found.items()},
        "forms": len(wanted),
        "searches_of_memory": len(searched),
        "bytes_of_memory": max(searched, default=0),
        "bytes_of_traffic": (trial.home_of(SERVER) / "traffic").stat().st_size,
    }


def kept_to_themselves(found: Mapping[str, Any], protocol: str | None) -> bool:
    """Return whether the server had no planted number under a protocol, or all of them without one.

    Args:
        found: From :func:`planted`.
        protocol: Of secure aggregation; None without one.
    """
    met = [bool(found[place]) for place in ("memory", "disk", "traffic")]
    shown = any(name.endswith(": <f4") for name in found["sites"])
    if protocol is None:
        return shown and all(met)
    shown = shown and any(name.endswith(": residues <u4") for name in found["sites"])
    return shown and found["searches_of_memory"] > 0 and not any(met)
