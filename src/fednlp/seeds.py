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
    """Let torch's own generators (dropout, initialisation) follow one stream, then put them back."""
    import torch

    value = derive(seed, purpose, *numbers)
    on_gpu = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    before = torch.get_rng_state()
    before_on_gpu = torch.cuda.get_rng_state_all() if on_gpu else []
    # Not torch.manual_seed: it also queues the seed, with a traceback, for every kind of device there might be.
    torch.default_generator.manual_seed(value)
    if on_gpu:
        torch.cuda.manual_seed_all(value)
    try:
        yield
    finally:
        torch.set_rng_state(before)
        if on_gpu:
            torch.cuda.set_rng_state_all(before_on_gpu)


def random_words(count: int) -> np.ndarray:
    """Return uniform 16-bit numbers, int16, that follow torch's own generator: one draw of it seeds them all.

    So they cost little, follow :func:`torch_stream`, and come again where the generator's state is put back.
    """
    import torch

    key = torch.empty((), dtype=torch.int64).random_().numpy()
    return np.random.PCG64(int(key)).random_raw(-(-count // 4)).view(np.int16)[:count]
