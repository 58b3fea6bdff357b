"""The K types' encoders: layouts, error against ggml's own, grids found again, and odd values."""

import tracemalloc

import numpy as np
import pytest
from gguf import quants
from gguf.constants import GGML_QUANT_SIZES
from hypothesis import given, settings
from hypothesis import strategies as st

from jepa_wm.bundle.klayout import pack_q6, pack_shifted
from jepa_wm.bundle.kquants import K_TYPES, Q, encode_k

KINDS = pytest.mark.parametrize("kind", K_TYPES, ids=lambda kind: kind.name)
GRAIN = {
    Q.Q4_K: 0.08,
    Q.Q5_K: 0.04,
    Q.Q6_K: 0.025,
}  # rms error over the super-block's largest value

# relative rms error of ggml's quantize_row_*_ref (ggml d99724f, gcc -O2) on ``sample``
GGML = {
    ("normal", Q.Q4_K): 0.07137, ("normal", Q.Q5_K): 0.03616, ("normal", Q.Q6_K): 0.01774,
    ("heavy", Q.Q4_K): 0.09273, ("heavy", Q.Q5_K): 0.04682, ("heavy", Q.Q6_K): 0.02540,
    ("below", Q.Q4_K): 0.05141, ("below", Q.Q5_K): 0.02670, ("below", Q.Q6_K): 0.02155,
    ("above", Q.Q4_K): 0.02909, ("above", Q.Q5_K): 0.01444, ("above", Q.Q6_K): 0.01311,
    ("shifted", Q.Q4_K): 0.02085, ("shifted", Q.Q5_K): 0.01039, ("shifted", Q.Q6_K): 0.00912,
    ("unequal", Q.Q4_K): 0.06842, ("unequal", Q.Q5_K): 0.03584, ("unequal", Q.Q6_K): 0.01682,
    ("sparse", Q.Q4_K): 0.04119, ("sparse", Q.Q5_K): 0.03404, ("sparse", Q.Q6_K): 0.00596,
}  # fmt: skip


def sample(name):
    rng = np.random.default_rng(7)
    values = {
        "normal": lambda: rng.normal(size=(256, 256)),
        "heavy": lambda: rng.standard_t(3, size=(256, 256)),
        "below": lambda: -rng.exponential(size=(256, 256)),
        "above": lambda: rng.uniform(size=(256, 256)),
        "shifted": lambda: 1 + 0.1 * rng.normal(size=(256, 256)),
        "unequal": lambda: (
            np.repeat(np.exp(2 * rng.normal(size=(256, 8))), 32, 1) * rng.normal(size=(256, 256))
        ),
        "sparse": lambda: rng.normal(size=(256, 256)) * (rng.uniform(size=(256, 256)) < 0.05),
    }
    return values[name]().astype(np.float32)


def there_and_back(values, kind):
    return quants.dequantize(encode_k(values, kind), kind)


def rms(values):
    return np.sqrt(np.mean(np.square(values, dtype=np.float64)))


@pytest.mark.parametrize("top", [15, 31])
def test_the_layout_of_shifted_types_is_what_the_decoder_reads(top):
    rng = np.random.default_rng(0)
    d, dmin = rng.uniform(0.01, 1, (2, 50)).astype(np.float16).astype(np.float32)
    scales, mins = rng.integers(0, 64, (2, 50, 8))
    codes = rng.integers(0, top + 1, (50, 8, 32))
    found = quants.dequantize(
        pack_shifted(d, dmin, scales, mins, codes, has_fifth_bit=top == 31),
        Q.Q5_K if top == 31 else Q.Q4_K,
    )
    wanted = (d[:, None] * scales)[..., None] * codes - (dmin[:, None] * mins)[..., None]
    assert np.allclose(found, wanted.reshape(50, 256), rtol=1e-6, atol=1e-5)


def test_the_layout_of_q6_k_is_what_the_decoder_reads():
    rng = np.random.default_rng(0)
    d = rng.uniform(0.01, 1, 50).astype(np.float16).astype(np.float32)
    scales, codes = rng.integers(-128, 128, (50, 16)), rng.integers(-32, 32, (50, 16, 16))
    found = quants.dequantize(pack_q6(d, scales, codes), Q.Q6_K)
    assert np.array_equal(found, ((d[:, None] * scales)[..., None] * codes).reshape(50, 256))


@pytest.mark.parametrize(
    ("name", "kind"), GGML, ids=lambda part: part if isinstance(part, str) else part.name
)
def test_the_error_is_no_larger_than_ggml_s(name, kind):
    values = sample(name)
    error = rms(there_and_back(values, kind) - values) / rms(values)
    # few values make many grids fit: a coarse one for one group must not set the scale of all
    limit = (0.95 if name == "sparse" else 1) * GGML[name, kind]
    assert 0.2 * limit < error <= limit, error


@KINDS
def test_refitting_helps(monkeypatch, kind):
    values = sample("normal")
    after = rms(there_and_back(values, kind) - values)
    monkeypatch.setattr("jepa_wm.bundle.kquants._MAX_ROUNDS", 0)
    assert after < rms(there_and_back(values, kind) - values)


@KINDS
def test_values_on_a_grid_are_found_again(kind):
    once = there_and_back(sample("normal"), kind)
    assert np.array_equal(there_and_back(once, kind), once)


@KINDS
@pytest.mark.parametrize("name", ["heavy", "below"])
def test_values_on_an_odd_grid_are_found_again_but_for_rare_ties(name, kind):
    once = there_and_back(sample(name), kind)
    lost = np.abs(there_and_back(once, kind) - once).max(1) / np.abs(once).max(1)
    assert (lost > 0).mean() < 0.01 and lost.max() < 0.01


@KINDS
def test_rows_are_encoded_alone_and_keep_their_shape(kind):
    values = np.random.default_rng(1).normal(size=(2, 700, 512)).astype(np.float32)
    encoded = encode_k(values[:, :300], kind)
    assert encoded.shape == (2, 300, 2 * GGML_QUANT_SIZES[kind][1]) and encoded.dtype == np.uint8
    for at in ((0, 0), (1, 299), (1, 7)):
        assert np.array_equal(encoded[at], encode_k(values[at], kind))


@KINDS
def test_zeros_stay_zeros_beside_anything(kind):
    values = np.random.default_rng(2).normal(size=(3, 256)).astype(np.float32)
    values[1] = 0
    values[2, :64] = 0
    found = there_and_back(values, kind)
    assert not found[1].any() and not found[2, :64].any()


@KINDS
@pytest.mark.parametrize("sign", [1, -1])
def test_constants_and_single_values(kind, sign):
    for value in (0.37, 241.0, 1.0, 65_504.0, *np.linspace(1, 2, 50)):
        constant = np.full((1, 256), sign * value, np.float32)
        assert np.abs(there_and_back(constant, kind) / constant - 1).max() < 3e-3, value
    single = np.zeros((256, 256), np.float32)
    np.fill_diagonal(single, sign * 0.37)
    found = there_and_back(single, kind)
    assert np.abs(found - single).max() < 1e-3


@KINDS
def test_a_huge_range_within_a_row_stays_finite(kind):
    rng = np.random.default_rng(3)
    values = (rng.normal(size=(64, 256)) * 10.0 ** rng.integers(-38, 4, (64, 256))).astype("f4")
    values[0, 0], values[1, 0] = 65_504, -65_504
    found = there_and_back(values, kind)
    assert np.isfinite(found).all()
    assert (rms_rows(found - values) <= GRAIN[kind] * np.abs(values).max(1)).all()


def rms_rows(values):
    return np.sqrt(np.mean(np.square(values, dtype=np.float64), 1))


@KINDS
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_super_block_is_encoded_within_its_grain(kind, data):
    # a few different magnitudes, any of them repeated, on either or both sides of zero
    number = st.floats(-60_000, 60_000, width=32)
    pool = data.draw(st.lists(number, min_size=1, max_size=40))
    scale = data.draw(st.sampled_from([1.0, 1e-3, 1e-6]))
    seed = data.draw(st.integers(0, 2**32 - 1))
    values = np.random.default_rng(seed).choice(np.array(pool, "f4") * np.float32(scale), (2, 256))
    values = values.astype(np.float32)
    found = there_and_back(values, kind)
    peak = np.abs(values).max(1)
    # below 1e-4 the halfs run out of digits: files do not get there (quant.can_hold)
    allowed = GRAIN[kind] * peak + np.where(peak < 1e-4, peak, 0)
    assert np.isfinite(found).all() and (rms_rows(found - values) <= allowed).all()


@KINDS
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-6, 12))
def test_powers_of_two_scale_the_result(kind, seed, power):
    """Nothing in the search depends on the size of the numbers."""
    values = np.random.default_rng(seed).normal(size=(1, 256)).astype(np.float32)
    found = there_and_back(values * np.float32(64), kind)
    scaled = there_and_back(values * np.float32(2.0**power * 64), kind)
    assert np.array_equal(scaled, found * np.float32(2.0**power))


@KINDS
def test_memory_does_not_grow_with_the_tensor(kind):
    values = np.random.default_rng(0).normal(size=(2048, 256)).astype(np.float32)
    peaks = []
    for rows in (512, 2048):
        tracemalloc.start()
        try:
            size = encode_k(values[:rows], kind).nbytes
            peaks.append(tracemalloc.get_traced_memory()[1] - 2 * size)
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0], peaks
