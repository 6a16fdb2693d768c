"""Whole numbers as digits, so that a sum modulo M holds them, however large they are.

A number is written in digits, all of its sign, to a base that the encoding's sums have room for: ``top``, 2^(bits-1).
The digits are what is masked and summed, so that the server learns the sum of each digit and no client's.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fednlp.errors import SecureAbort
from fednlp.secure.encoding import Encoding


def num_digits(encoding: Encoding, bits: int) -> int:
    """Return how many digits a number within +-2^(bits-1) has.

    >>> num_digits(Encoding(1.0, 24, 1.0, 5, 2**32), 192)
    9
    """
    return -(-(bits - 1) // (encoding.bits - 1))


def digits_of(numbers: Sequence[int], encoding: Encoding, bits: int) -> NDArray[np.uint32]:
    """Return numbers as residues, the digits of each from the last to the first.

    Args:
        numbers: Within +-2^(bits-1).
        encoding: That of the sum.
        bits: Of a number, its sign included.

    Raises:
        SecureAbort: A number is out of range. The message tells nothing of it.

    >>> digits_of([-(2**15) - 3], Encoding(1.0, 16, 1.0, 5, 2**32), 32).tolist()
    [4294967293, 4294967295, 0]
    """
    if any(abs(number) >= 1 << (bits - 1) for number in numbers):
        raise SecureAbort(f"a number that a client adds has more than {bits} bits")
    width, places = encoding.bits - 1, range(num_digits(encoding, bits))
    found = [
        (1 if number > 0 else -1) * (abs(number) >> width * place & encoding.top - 1)
        for number in numbers
        for place in places
    ]
    return (np.array(found, dtype=np.int64) % encoding.modulus).astype(np.uint32)


def numbers_of(total: NDArray[np.uint32], encoding: Encoding, bits: int, survivors: int) -> list[int]:
    """Return the sums of numbers from the sums of their digits, modulo the encoding's modulus.

    Raises:
        SecureAbort: They cannot be sums over so many clients.
    """
    digits = encoding.signed(total, survivors).reshape(-1, num_digits(encoding, bits)).tolist()
    width = encoding.bits - 1
    return [sum(digit << width * place for place, digit in enumerate(one)) for one in digits]
