"""Which type a tensor gets, and what a type cannot hold."""

import numpy as np
import pytest
from bundle.tiny import TINY_LEWM, random_tensors

from jepa_wm.bundle import quant
from jepa_wm.bundle.quant import FILE_TYPES, READ_ONLY_TYPES, Encoded, Q, storage_type
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle

MATRIX = "enc.blk.0.ffn_up.weight"


@pytest.mark.parametrize(
    ("file_type", "by_256", "by_32"),
    [("q4_k", "Q4_K", "Q4_0"), ("q5_k", "Q5_K", "Q5_0"), ("q6_k", "Q6_K", "Q8_0"),
     ("q8_0", "Q8_0", "Q8_0"), ("q5_1", "Q5_1", "Q5_1"), ("q4_0", "Q4_0", "Q4_0")],
)  # fmt: skip
def test_rows_that_do_not_fill_a_block_fall_back(file_type, by_256, by_32):
    assert storage_type(MATRIX, (3, 512), file_type).name == by_256
    assert storage_type(MATRIX, (3, 96), file_type).name == by_32
    assert storage_type(MATRIX, (3, 100), file_type).name == "F16"
    assert storage_type("enc.patch_embed.weight", (256, 256), file_type).name == "F32"


@pytest.mark.parametrize("file_type", ["f32", "f16", "bf16"])
def test_plain_types_take_any_row(file_type):
    assert storage_type(MATRIX, (3, 7), file_type) == FILE_TYPES[file_type][1]


def test_every_type_that_can_be_read_is_named_once():
    decodable = {kind.name.lower() for kind in Q if kind.name[0] == "Q" and quant.can_decode(kind)}
    assert decodable == {name for name in {*FILE_TYPES, *READ_ONLY_TYPES} if name[0] == "q"}


@pytest.mark.parametrize("file_type", FILE_TYPES)
@pytest.mark.filterwarnings("error")
def test_a_tensor_of_odd_blocks_comes_back_in_every_type(file_type):
    """Blocks of zeros, of values that vanish in a half, and one at the edge of its range."""
    values = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    values[0], values[2, 3] = 0, 65_504
    values[1] *= np.float32(1e-39)
    found = quant.decode(quant.encode(values, FILE_TYPES[file_type][1]))
    assert np.isfinite(found).all() and not found[0].any() and np.abs(found[1]).max() < 1e-7
    assert abs(found[2, 3] / 65_504 - 1) < 0.01
    assert np.abs(found[3] - values[3]).max() <= 0.12 * np.abs(values[3]).max()


@pytest.mark.parametrize("file_type", [name for name in FILE_TYPES if name[0] == "q"] + ["f16"])
@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_a_tensor_beyond_the_range_of_halfs_stays_whole(tmp_path, file_type, size):
    """Its scales would be 0 or infinite: a model of zeros, without a word."""
    meta = TINY_LEWM | {"jepa.enc.embed_dim": 256, "jepa.pred.embed_dim": 256}
    tensors = random_tensors(meta)
    tensors[MATRIX] *= np.float32(size)
    bundle = Bundle.open(write_bundle(tmp_path / "x.gguf", meta, tensors, file_type))
    assert bundle.type_name(MATRIX) == "F32"
    assert np.array_equal(bundle.tensor(MATRIX).numpy(), tensors[MATRIX])
    assert bundle.type_name("enc.blk.0.attn_qkv.weight") == FILE_TYPES[file_type][1].name


def test_sizes_are_those_of_the_encoders():
    values = np.random.default_rng(0).normal(size=(3, 512)).astype(np.float32)
    for _, kind in FILE_TYPES.values():
        assert quant.encode(values, kind).data.nbytes == quant.n_bytes((3, 512), kind)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_K"])
def test_the_peak_is_the_largest_magnitude_of_either_sign(kind):
    values = np.zeros((1, 256), np.float32)
    for at, value in ((3, -7.0), (5, 2.0), (9, 11.0)):
        values[0, at] = value
        stored = quant.encode(values, Q[kind])
        assert isinstance(stored, Encoded)
        assert quant.peak_of(quant.decode(stored)) == pytest.approx(max(7.0, value), rel=0.05)
    values[0, 0] = np.nan
    assert np.isnan(quant.peak_of(values))
