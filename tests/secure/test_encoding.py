"""Updates as residues: sums within their rounding, no wrap at the very edge, and refusals that tell nothing."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fednlp.errors import ConfigError, SecureAbort
from fednlp.secure.encoding import Encoding, most_bits

PRIME = 2**31 - 1
MODULI = (2**32, PRIME)
CHUNK = 1 << 16


def make(clients: int = 3, bits: int = 16, modulus: int = 2**32, **other: float) -> Encoding:
    return replace(Encoding(0.5, bits, 100, clients, modulus), **other)  # type: ignore[arg-type]


def add(vectors: list[NDArray[np.uint32]], modulus: int) -> NDArray[np.uint32]:
    """Return the sum of vectors modulo the modulus."""
    total = np.zeros(len(vectors[0]), dtype=np.uint64)
    for vector in vectors:
        total += vector
    return (total % np.uint64(modulus)).astype(np.uint32)


def signed(vector: NDArray[np.uint32], modulus: int) -> list[int]:
    return [value - modulus if value > modulus // 2 else value for value in vector.tolist()]


@st.composite
def rounds(draw: st.DrawFn) -> tuple[Encoding, list[NDArray[np.float32]], list[float]]:
    """An encoding as wide as its range allows or narrower, updates beyond the clip too, and weights."""
    modulus = draw(st.sampled_from(MODULI))
    clients = draw(st.integers(1, 40))
    largest = draw(st.floats(1e-3, 1e6))
    encoding = Encoding(
        clip=draw(st.sampled_from([1e-3, 0.1, 0.5, 1.0, 3.7])),
        bits=draw(st.integers(3, most_bits(clients, modulus))),  # with fewer a weight can round to zero
        largest_weight=largest,
        clients=clients,
        modulus=modulus,
        stochastic=draw(st.booleans()),
    )
    survivors = draw(st.integers(1, clients))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([0.01, 0.3, 1.0, 5.0]))
    updates = [
        (generator.standard_normal(7) * encoding.clip * spread).astype(np.float32) for _ in range(survivors)
    ]
    weights = (largest * generator.uniform(0.5, 1.0, survivors)).tolist()
    return encoding, updates, weights


@settings(max_examples=150)
@given(rounds(), st.integers(0, 2**32))
def test_a_decoded_sum_is_the_weighted_sum_of_the_clipped_updates(
    drawn: tuple[Encoding, list[NDArray[np.float32]], list[float]], seed: int
) -> None:
    encoding, updates, weights = drawn
    generator = np.random.default_rng(seed)
    vectors = [encoding.encode(u, w, generator) for u, w in zip(updates, weights, strict=True)]
    assert all(vector.dtype == np.uint32 and vector.max() < encoding.modulus for vector in vectors)
    survivors = len(updates)
    sums, share = encoding.decode(add(vectors, encoding.modulus), survivors)
    step, clip = Fraction(encoding.clip) / encoding.top, Fraction(encoding.clip)
    slack = survivors * (Fraction(1, 1) if encoding.stochastic else Fraction(1, 2)) + Fraction(1, 10**4)
    factors = [Fraction(weight) / Fraction(encoding.unit) for weight in weights]
    for j, got in enumerate(sums.tolist()):
        clipped = [min(clip, max(-clip, Fraction(float(update[j])))) for update in updates]
        exact = sum(factor * value for factor, value in zip(factors, clipped, strict=True))
        assert abs(Fraction(got) - exact) <= slack * step
    assert abs(Fraction(share) - sum(factors)) <= (Fraction(survivors, 2) + Fraction(1, 10**4)) / encoding.top


@given(
    clients=st.integers(1, 2**29),
    modulus=st.sampled_from([*MODULI, 32749, 2**16]),
    noise_bound=st.sampled_from([0, 1, 5000]),
)
def test_one_bit_more_than_fits_is_refused(clients: int, modulus: int, noise_bound: int) -> None:
    most = most_bits(clients, modulus, noise_bound)
    half = (modulus - 1) // 2
    if most:
        encoding = Encoding(1.0, most, 1.0, clients, modulus, noise_bound=noise_bound)
        assert clients * (encoding.top + noise_bound) <= half
        assert clients * (2 * encoding.top + noise_bound) > half
        with pytest.raises(ConfigError, match=f"bits = {most} or fewer"):
            replace(encoding, bits=most + 1)
    else:
        assert clients * (1 + noise_bound) > half
        with pytest.raises(ConfigError, match="fewer clients"):
            Encoding(1.0, 1, 1.0, clients, modulus, noise_bound=noise_bound)


@pytest.mark.parametrize("modulus", MODULI)
@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("clients", [1, 2, 3, 7, 8, 1000])
def test_all_at_plus_or_minus_one_do_not_wrap(clients: int, stochastic: bool, modulus: int) -> None:
    """A known fault of public code: with every client at the end of the range the sum changes its sign."""
    bits = most_bits(clients, modulus)
    encoding = Encoding(0.3, bits, 64, clients, modulus, stochastic)
    generator = np.random.default_rng(0)
    vector = encoding.encode(np.array([0.3, -0.3, 9, -9], dtype=np.float32), 64, generator)
    assert signed(vector, modulus) == [encoding.top, -encoding.top, encoding.top, -encoding.top, encoding.top]
    sums, share = encoding.decode(add([vector] * clients, modulus), clients)
    assert sums == pytest.approx(0.3 * clients * np.array([1, -1, 1, -1]), rel=1e-15)
    assert share == clients
    beyond = add([vector] * (clients + 1), modulus)  # one client counted twice
    with pytest.raises(SecureAbort, match="outside"):
        encoding.decode(beyond, clients)


def test_the_largest_sums_that_fit_are_decoded_and_the_next_ones_refused() -> None:
    encoding = Encoding(1.0, 2, 1.0, 3, 13)  # 3 clients of +-2 in the numbers modulo 13: exactly -6 .. 6
    everything = np.array([*range(13), 6], dtype=np.uint32)
    sums, share = encoding.decode(everything, 3)
    assert (sums * 2).tolist() == [0, 1, 2, 3, 4, 5, 6, -6, -5, -4, -3, -2, -1]
    assert share == 3
    for residue in (5, 6, 7, 8):
        with pytest.raises(SecureAbort, match="what 2 clients can send"):
            encoding.decode(np.array([residue, 4], dtype=np.uint32), 2)
    assert encoding.decode(np.array([4, 4], dtype=np.uint32), 2)[0].tolist() == [2.0]
    assert encoding.decode(np.array([9, 4], dtype=np.uint32), 2)[0].tolist() == [-2.0]


@pytest.mark.parametrize("residue", [PRIME, PRIME + 1, 2**32 - 1])
def test_a_number_beyond_the_modulus_is_refused(residue: int) -> None:
    encoding = make(modulus=PRIME)
    for total in ([residue, 5], [5, residue]):
        with pytest.raises(SecureAbort, match="outside"):
            encoding.decode(np.array(total, dtype=np.uint32), 3)


@given(st.lists(st.integers(1, 1024), min_size=1, max_size=20), st.sampled_from(MODULI))
def test_whole_weights_are_summed_exactly_and_make_the_mean(weights: list[int], modulus: int) -> None:
    encoding = Encoding(1.0, 11, 1000 + 24, 20, modulus)  # unit 1024 = top
    update = np.array([0.25, -1.0], dtype=np.float32)
    total = add([encoding.encode(update, weight) for weight in weights], modulus)
    sums, share = encoding.decode(total, len(weights))
    assert share * encoding.unit == sum(weights)
    assert sums[1] / share == -1.0
    assert sums[0] / share == pytest.approx(0.25, abs=0.5 * len(weights) / sum(weights) + 1e-9)


def test_the_weight_is_inside_the_vector_and_nowhere_else() -> None:
    """The same masks over two weights: what travels has one form, and differs as the masks allow."""
    encoding = make()
    update = np.linspace(-1, 1, 9, dtype=np.float32)
    small, large = encoding.encode(update, 1), encoding.encode(update, 100)
    assert small.shape == large.shape == (10,)
    assert small.dtype == large.dtype == np.uint32
    assert (int(small[-1]), int(large[-1])) == (encoding.top // 128, 100 * encoding.top // 128)
    mask = np.random.default_rng(1).integers(0, 2**32, 10, dtype=np.uint32)
    assert encoding.decode(small + mask - mask, 1)[1] == 1 / 128
    with pytest.raises(SecureAbort):
        encoding.decode(small + mask, 1)


@given(st.floats(1e-20, 1e20))
def test_the_unit_is_the_smallest_power_of_two_from_the_largest_weight(largest: float) -> None:
    unit = replace(make(), largest_weight=largest).unit
    numerator, denominator = unit.as_integer_ratio()
    assert (numerator * denominator).bit_count() == 1
    assert unit / 2 < largest <= unit


def test_a_weight_that_is_a_power_of_two_is_its_own_unit() -> None:
    assert [replace(make(), largest_weight=w).unit for w in (0.5, 1, 2, 64, 65)] == [0.5, 1, 2, 64, 128]


def test_stochastic_rounding_is_right_on_average() -> None:
    encoding = Encoding(1.0, 4, 1.0, 1, 2**32, stochastic=True)
    values = np.array([-1, -0.97, -0.3, -0.001, 0, 0.0625, 0.2, 0.56, 0.999, 1], dtype=np.float32)
    draws = 20000
    vector = encoding.encode(np.repeat(values, draws), 1.0, np.random.default_rng(5))
    whole = np.array(signed(vector[:-1], 2**32)).reshape(len(values), draws)
    exact = values.astype(np.float64) * encoding.top
    parts = exact - np.floor(exact)
    assert ((whole == np.floor(exact)[:, None]) | (whole == np.ceil(exact)[:, None])).all()
    spread = np.sqrt(parts * (1 - parts) / draws)
    assert (np.abs(whole.mean(axis=1) - exact) <= 4 * spread + 1e-12).all()
    assert (whole.std(axis=1)[parts > 0.01] > 0.05).all()
    nearest = replace(encoding, stochastic=False).encode(values, 1.0)
    assert signed(nearest[:-1], 2**32) == np.rint(exact).tolist()


def test_stochastic_rounding_needs_a_generator_and_follows_it() -> None:
    encoding = make(stochastic=True)
    update = np.random.default_rng(2).uniform(-1, 1, 50).astype(np.float32)
    with pytest.raises(ConfigError, match="random generator"):
        encoding.encode(update, 3)
    first, again, other = (encoding.encode(update, 3, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert first.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize("modulus", MODULI)
def test_chunks_do_not_show(modulus: int) -> None:
    encoding = make(modulus=modulus, noise_bound=9)
    generator = np.random.default_rng(0)
    size = 2 * CHUNK + 5
    update = generator.uniform(-1, 1, size).astype(np.float32)
    noise = generator.integers(-9, 10, size + 1)
    vector = encoding.encode(update, 77.5, noise=noise)
    scaled = np.clip(update.astype(np.float64), -0.5, 0.5) / 0.5 * (77.5 / 128) * encoding.top
    whole = np.append(np.rint(scaled), round(77.5 / 128 * encoding.top)).astype(np.int64) + noise
    assert np.array_equal(vector, np.mod(whole, modulus).astype(np.uint32))
    sums, share = encoding.decode(vector, 1)
    assert np.array_equal(sums, whole[:-1] / encoding.top * 0.5)
    assert share == whole[-1] / encoding.top


def test_an_update_without_elements_still_has_its_weight() -> None:
    vector = make().encode(np.empty(0, dtype=np.float32), 64)
    sums, share = make().decode(vector, 1)
    assert (len(sums), share) == (0, 0.5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, CHUNK + 3])
def test_nan_and_infinity_are_refused(bad: float, place: int) -> None:
    update = np.zeros(CHUNK + 10, dtype=np.float32)
    update[place] = bad
    with pytest.raises(SecureAbort, match="NaN or infinity"):
        make().encode(update, 1)


@pytest.mark.parametrize("weight", [0, -3, 100.5, np.nan, np.inf])
def test_weights_out_of_range_are_refused_and_not_told(weight: float) -> None:
    with pytest.raises(SecureAbort, match="weight") as caught:
        make().encode(np.zeros(2, dtype=np.float32), weight)
    assert "100.5" not in str(caught.value)
    assert "-3" not in str(caught.value)


def test_noise_is_added_within_its_bound_and_no_further() -> None:
    encoding = make(clients=2, noise_bound=5)
    update = np.array([9.0, -9.0], dtype=np.float32)
    plain = encoding.encode(update, 64)
    noisy = encoding.encode(update, 64, noise=np.array([5, -5, 0]))
    assert signed(noisy - plain, 2**32) == [5, -5, 0]
    largest = encoding.encode(update, 100, noise=np.array([5, -5, 5]))
    encoding.decode(add([largest, largest], 2**32), 2)
    for noise in ([6, 0, 0], [0, 0, -6], [0, 0], [0, 0, 0, 0]):
        with pytest.raises(SecureAbort, match="noise"):
            encoding.encode(update, 64, noise=np.array(noise))
    with pytest.raises(SecureAbort, match="noise"):
        make().encode(update, 64, noise=np.array([1, 0, 0]))


def test_the_bounds_of_a_sum_allow_for_the_noise() -> None:
    encoding = make(clients=2, bits=4, noise_bound=5)
    for number, fits in ((13, True), (14, False), (-13, True), (-14, False)):
        total = np.array([number % 2**32, 1], dtype=np.uint32)
        if fits:
            assert encoding.decode(total, 1)[0].tolist() == [number * 0.5 / 8]
        else:
            with pytest.raises(SecureAbort, match="outside"):
                encoding.decode(total, 1)


def test_weights_that_round_to_nothing_are_an_error_not_a_division_by_zero() -> None:
    encoding = make(bits=4)
    vector = encoding.encode(np.ones(2, dtype=np.float32), 1)
    with pytest.raises(SecureAbort, match="more bits"):
        encoding.decode(vector, 1)
    with pytest.raises(SecureAbort, match="sum to nothing"):
        encoding.decode(np.array([0, 2**32 - 1], dtype=np.uint32), 1)


@pytest.mark.parametrize("survivors", [0, -1, 4])
def test_more_survivors_than_clients_or_none_are_refused(survivors: int) -> None:
    with pytest.raises(SecureAbort, match="1 to 3"):
        make().decode(np.array([1, 1], dtype=np.uint32), survivors)
    with pytest.raises(SecureAbort, match="1 to 3"):
        make().decode(np.empty(0, dtype=np.uint32), 1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"clip": 0.0}, "clip = 0.0"),
        ({"clip": np.nan}, "clip = nan"),
        ({"clip": np.inf}, "clip = inf"),
        ({"largest_weight": -1.0}, "largest_weight = -1.0"),
        ({"bits": 0}, "bits = 0"),
        ({"bits": 40}, "bits = 40"),
        ({"clients": 0}, "at least one client"),
        ({"modulus": 2**33}, "2\\^32"),
        ({"modulus": 2}, "a modulus from 3 to 2\\^32"),
        ({"noise_bound": -1}, "noise"),
    ],
)
def test_an_encoding_that_makes_no_sense_is_refused(change: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**change)
