"""Updates as whole numbers modulo M, so that masks cancel exactly and the sum is the sum of the numbers.

An update u of weight w, clipped to [-clip, clip] element by element, becomes the vector

    round(f u / clip * S), round(f S)        f = w / unit, S = 2^(bits-1), unit = 2^ceil(log2 largest_weight)

of d + 1 residues, a negative x as M + x. The last element is the weight: it is masked like the others, so the
server learns the sum of the weights and no single one. f is at most 1, so no element leaves [-S, S], and the
sum over n clients stays within n S <= (M-1)/2: every sum can be told from every other, +S of all and -S of
all included. Ranges that would not hold it are refused when they are made. Weights that are whole numbers and
units of at most S are summed without any rounding.

Whole numbers that are to be summed exactly, however large they are, become digits, all of a number's sign, to the base
S, which sums have room for. The server learns the sum of each digit and no client's.

Source: K. Bonawitz, F. Salehi, J. Konecny, B. McMahan, M. Gruteser, "Federated Learning with Autotuned
Communication-Efficient Secure Aggregation", 2019 (clip, quantise, sum in a group); stochastic rounding as in
A. T. Suresh et al., "Distributed Mean Estimation with Limited Communication", ICML 2017.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import ConfigError, SecureAbort

_CHUNK = 1 << 16


def most_bits(clients: int, modulus: int, noise_bound: int = 0) -> int:
    """Return the most bits with which the sum of all clients cannot wrap; 0 where even one bit is too many.

    The largest b with clients * (2^(b-1) + noise_bound) <= (modulus-1) // 2.

    >>> most_bits(10, 2**32), most_bits(10, 2**31 - 1)
    (28, 27)
    """
    return max(0, (modulus - 1) // 2 // clients - noise_bound).bit_length()


@dataclass(frozen=True)
class Encoding:
    """How updates become residues, known to all parties; never a warning or a wrap.

    Args:
        clip: The largest absolute value of an element of an update that is kept.
        bits: Of a client's element, its sign included.
        largest_weight: No client's weight may be larger, for example the most examples a client may have.
        clients: The most clients that are summed.
        modulus: 2^32 for SecAgg and SecAgg+, 2^31 - 1 for LightSecAgg.
        stochastic: Round up or down at random, right on average, instead of to the nearest.
        noise_bound: The largest absolute value of the whole-number noise that a client may add, in steps.

    Raises:
        ConfigError: A value makes no sense, or the sum could leave the range.

    >>> encoding = Encoding(clip=1.0, bits=16, largest_weight=100, clients=10, modulus=2**32)
    >>> vector = encoding.encode(np.array([0.5, -2.0], dtype=np.float32), weight=64)
    >>> vector
    array([      8192, 4294950912,      16384], dtype=uint32)
    >>> sums, weight = encoding.decode(vector, survivors=1)
    >>> sums / weight
    array([ 0.5, -1. ])
    """

    clip: float
    bits: int
    largest_weight: float
    clients: int
    modulus: int
    stochastic: bool = False
    noise_bound: int = 0

    def __post_init__(self) -> None:
        for name in ("clip", "largest_weight"):
            value = getattr(self, name)
            if not 1e-30 <= value <= 1e30:
                raise ConfigError(f"[secure] {name} = {value}: a number above 0, from 1e-30 to 1e30")
        if self.clients < 1 or self.noise_bound < 0 or not 3 <= self.modulus <= 2**32:
            raise ConfigError(
                f"[secure] {self.clients} clients, noise to {self.noise_bound}, modulo {self.modulus}: at "
                "least one client, no negative bound on the noise, and a modulus from 3 to 2^32"
            )
        most = most_bits(self.clients, self.modulus, self.noise_bound)
        if most < 1:
            raise ConfigError(
                f"[secure] the sum of {self.clients} clients with noise to {self.noise_bound} steps could "
                f"leave the numbers modulo {self.modulus} with any bits: take fewer clients a round or less noise"
            )
        if not 1 <= self.bits <= most:
            raise ConfigError(
                f"[secure] bits = {self.bits}: the sum of {self.clients} clients must stay within the "
                f"numbers modulo {self.modulus}, write bits = {most} or fewer, at least 1"
            )

    @property
    def top(self) -> int:
        """The largest absolute value of a client's element before noise: S = 2^(bits-1)."""
        return 1 << (self.bits - 1)

    @property
    def step(self) -> float:
        """What one step is worth in the weighted sum."""
        return self.clip / self.top

    @property
    def unit(self) -> float:
        """The power of two that weights are divided by: the smallest that is not below the largest weight."""
        fraction, exponent = math.frexp(self.largest_weight)  # fraction in [0.5, 1)
        return math.ldexp(1.0, exponent - (fraction == 0.5))

    def encode(
        self,
        update: NDArray[np.float32],
        weight: float,
        uniform: np.random.Generator | None = None,
        noise: NDArray[np.int64] | None = None,
    ) -> NDArray[np.uint32]:
        """Return an update and its weight as residues.

        Args:
            update: (d).
            weight: In the unit of ``largest_weight``, above 0.
            uniform: Where stochastic rounding draws from; not used without it.
            noise: (d + 1) whole numbers to add, in steps; the last one to the weight.

        Raises:
            SecureAbort: The weight is out of range, the update holds NaN or infinity, or the noise is out of
                bounds. The message tells nothing of the update or the weight.
            ConfigError: Stochastic rounding without a generator.
        """
        if not 0 < weight <= self.largest_weight:
            raise SecureAbort(f"a client's weight is not above 0 and at most {self.largest_weight}")
        if self.stochastic and uniform is None:
            raise ConfigError("stochastic rounding needs a random generator: encode(..., uniform=generator)")
        size = len(update)
        if noise is not None and (noise.shape != (size + 1,) or not _within(noise, self.noise_bound)):
            raise SecureAbort(f"a client's noise is not {size + 1} numbers to {self.noise_bound} steps")
        vector = np.empty(size + 1, dtype=np.uint32)
        scale = weight / self.unit * self.top
        for start in range(0, size, _CHUNK):
            stop = min(start + _CHUNK, size)
            whole = self._whole(update[start:stop], scale, uniform)
            vector[start:stop] = self._residues(whole, None if noise is None else noise[start:stop])
        share = np.array([round(scale)], dtype=np.int64)
        vector[size:] = self._residues(share, None if noise is None else noise[size:])
        return vector

    def decode(self, total: NDArray[np.uint32], survivors: int) -> tuple[NDArray[np.float64], float]:
        """Return the weighted sum of the updates, and the sum of the weights, both over ``unit``.

        Their quotient is the weighted mean. An element of the sum is within survivors / 2 steps of the exact
        one of the clipped updates, within survivors steps where rounding was stochastic.

        Args:
            total: (d + 1), the sum of the survivors' vectors modulo ``modulus``.
            survivors: How many vectors that were.

        Raises:
            SecureAbort: The numbers cannot be a sum of that many vectors, or their weights sum to nothing.
        """
        self._check_sum(total, survivors)
        size = len(total) - 1
        sums = np.empty(size, dtype=np.float64)
        for start in range(0, size, _CHUNK):
            stop = min(start + _CHUNK, size)
            np.multiply(self._signed(total[start:stop], survivors), self.step, out=sums[start:stop])
        share = int(self._signed(total[size:], survivors)[0])
        if share <= 0:
            raise SecureAbort(
                f"the weights of {survivors} clients sum to nothing: take more bits or a smaller largest weight"
            )
        return sums, share / self.top

    def num_digits(self, bits: int) -> int:
        """Return how many digits a number within +-2^(bits-1) has.

        >>> Encoding(1.0, 24, 1.0, 5, 2**32).num_digits(192)
        9
        """
        return -(-(bits - 1) // (self.bits - 1))

    def encode_numbers(self, numbers: Sequence[int], bits: int) -> NDArray[np.uint32]:
        """Return whole numbers as residues, the digits of each from the last to the first.

        Args:
            numbers: Within +-2^(bits-1).
            bits: Of a number, its sign included.

        Raises:
            SecureAbort: A number is out of range. The message tells nothing of it.

        >>> Encoding(1.0, 16, 1.0, 5, 2**32).encode_numbers([-(2**15) - 3], 32).tolist()
        [4294967293, 4294967295, 0]
        """
        if any(abs(number) >= 1 << (bits - 1) for number in numbers):
            raise SecureAbort(f"a number that a client adds has more than {bits} bits")
        width, places = self.bits - 1, range(self.num_digits(bits))
        digits = [
            (1 if number > 0 else -1) * (abs(number) >> width * place & self.top - 1)
            for number in numbers
            for place in places
        ]
        return (np.array(digits, dtype=np.int64) % self.modulus).astype(np.uint32)

    def decode_numbers(self, total: NDArray[np.uint32], bits: int, survivors: int) -> list[int]:
        """Return the sums of numbers from the sums of their digits, modulo ``modulus``.

        Args:
            bits: Of a number, its sign included.
            survivors: How many clients' numbers are in the sum.

        Raises:
            SecureAbort: They cannot be sums over so many clients.
        """
        self._check_sum(total, survivors)
        digits = self._signed(total, survivors).reshape(-1, self.num_digits(bits)).tolist()
        width = self.bits - 1
        return [sum(digit << width * place for place, digit in enumerate(number)) for number in digits]

    def _check_sum(self, total: NDArray[np.uint32], survivors: int) -> None:
        if not 1 <= survivors <= self.clients or len(total) < 1:
            raise SecureAbort(f"a sum of {survivors} clients, where 1 to {self.clients} can take part")

    def _whole(
        self, values: NDArray[np.float32], scale: float, uniform: np.random.Generator | None
    ) -> NDArray[np.int64]:
        """Return the values clipped, scaled and rounded, each within ``scale``."""
        scaled = values.astype(np.float64)
        if not np.isfinite(scaled).all():
            raise SecureAbort("a client's update holds NaN or infinity")
        np.clip(scaled, -self.clip, self.clip, out=scaled)
        scaled /= self.clip  # before the factor: exactly +-1 at the clip
        scaled *= scale
        if not self.stochastic or uniform is None:
            return np.rint(scaled, out=scaled).astype(np.int64)
        below = np.floor(scaled)
        scaled -= below  # nothing is left of a whole number: it is never rounded up
        whole = below.astype(np.int64)
        whole += uniform.random(len(scaled)) < scaled
        return whole

    def _residues(self, whole: NDArray[np.int64], noise: NDArray[np.int64] | None) -> NDArray[np.int64]:
        """Return whole numbers, and noise, modulo ``modulus``, in place."""
        if noise is not None:
            whole += noise
        whole += (whole >> 63) & self.modulus  # the sign spread over all bits: the modulus where negative
        return whole

    def _signed(self, residues: NDArray[np.uint32], survivors: int) -> NDArray[np.int64]:
        """Return a sum of vectors, each within ``top`` before noise, as numbers around zero."""
        bound = survivors * (self.top + self.noise_bound)
        whole = residues.astype(np.int64)
        proper = not len(whole) or int(whole.max()) < self.modulus
        whole[whole > (self.modulus - 1) // 2] -= self.modulus
        if not proper or not _within(whole, bound):
            raise SecureAbort(
                f"the sum lies outside what {survivors} clients can send: a vector is missing, counted twice "
                "or made up"
            )
        return whole


def _within(values: NDArray[np.int64], bound: int) -> bool:
    """Return whether no value is beyond +-bound."""
    return not len(values) or (int(values.min()) >= -bound and int(values.max()) <= bound)
