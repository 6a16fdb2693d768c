"""Randomness as a function of (seed, purpose, numbers): nothing else feeds a generator.

A stream is named by what it is for, so that adding a draw in one place never moves another.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


def derive(seed: int, purpose: str, *numbers: int) -> int:
    """Return a 63-bit seed for one purpose, the same on every machine.

    Args:
        seed: The experiment's seed, any integer.
        purpose: What the randomness is for, e.g. ``"cohort"``.
        numbers: What distinguishes streams of one purpose, e.g. round and client.

    >>> derive(0, "cohort", 3) == derive(0, "cohort", 3)
    True
    >>> derive(0, "cohort", 3) == derive(0, "batches", 3)
    False
    """
    text = "/".join([str(seed), purpose, *(str(int(n)) for n in numbers)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator(seed: int, purpose: str, *numbers: int) -> np.random.Generator:
    """Return a NumPy generator for one purpose (see :func:`derive`)."""
    return np.random.Generator(np.random.PCG64(derive(seed, purpose, *numbers)))


@contextmanager
def torch_stream(seed: int, purpose: str, *numbers: int) -> Iterator[None]:
    """Let torch's own generator (dropout, initialisation) follow one stream, then put it back."""
    import torch

    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(derive(seed, purpose, *numbers))
        yield
