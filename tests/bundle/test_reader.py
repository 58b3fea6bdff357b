"""What an opened bundle gives back."""

import hashlib
import os
import shutil

import gguf
import numpy as np
import pytest
import torch
from bundle.forge import Forge
from bundle.tiny import TINY_LEWM, random_tensors, write_tiny
from gguf import quants

from jepa_wm.bundle import quant
from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.errors import BundleError

QKV = "enc.blk.0.attn_qkv.weight"
DECODABLE = [kind for kind in gguf.GGMLQuantizationType if quant.can_decode(kind)]


@pytest.fixture
def path(tmp_path):
    return write_tiny(tmp_path / "tiny.gguf")


def test_what_a_bundle_says(path):
    bundle = Bundle.open(str(path))
    assert (bundle.path, bundle.family, bundle.modality) == (path, "lewm", "image")
    assert bundle.get("jepa.enc.ln_eps") == pytest.approx(1e-12, rel=1e-6)
    assert bundle.get("jepa_wm.action.std") == (0.5, 0.25)
    assert bundle.get("jepa.enc.tubelet_size") == 1  # a default
    assert bundle.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert bundle.names()[0] == "enc.patch_embed.weight" and bundle.has("pred.proj.2.bias")
    assert bundle.shape("enc.pos_embed") == (17, 8) and not bundle.unsupported
    with pytest.raises(TypeError):
        bundle.meta["jepa.family"] = "ijepa"
    with pytest.raises(ValueError, match=r"no\.such\.key"):
        bundle.get("no.such.key")
    with pytest.raises(BundleError, match="has no tensor nope"):
        bundle.tensor("nope")


def test_tensors_are_float32_of_the_schemas_shape(path):
    bundle, tensors = Bundle.open(path), random_tensors(TINY_LEWM)
    for name in bundle.names():
        loaded = bundle.tensor(name)
        assert loaded.dtype == torch.float32 and loaded.shape == bundle.shape(name)
        assert np.array_equal(loaded.numpy(), tensors[name]), name


def test_a_table_stored_with_a_leading_one_loads_the_same(tmp_path):
    forged = Forge.tiny()
    forged.entry("enc.pos_embed").dims = [8, 17, 1]
    bundle = Bundle.open(forged.write(tmp_path / "x.gguf"))
    wanted = torch.from_numpy(random_tensors(TINY_LEWM)["enc.pos_embed"])
    assert torch.equal(bundle.tensor("enc.pos_embed"), wanted)


def test_tensors_outlive_the_file(path, tmp_path):
    bundle = Bundle.open(path)
    held = {name: bundle.tensor(name) for name in bundle.names()}
    other = write_tiny(tmp_path / "other.gguf", seed=1)
    with open(path, "r+b") as file:  # overwrite in place: the inode stays
        file.write(other.read_bytes())
    path.unlink()
    wanted = random_tensors(TINY_LEWM)
    assert all(np.array_equal(held[name].numpy(), wanted[name]) for name in held)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")
def test_no_descriptor_or_mapping_stays(path):
    bundle = Bundle.open(path)
    held = [bundle.tensor(name) for name in bundle.names()]
    links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    maps = open("/proc/self/maps").read()
    assert held and str(path) not in links and str(path) not in maps


@pytest.mark.parametrize("kind", DECODABLE, ids=lambda kind: kind.name)
def test_every_type_gguf_decodes_loads(tmp_path, kind):
    """One weight of the tiny model, wide enough for any block, in each stored type."""
    block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    forged = Forge.tiny(jepa__enc__ffn_dim=256)
    rng = np.random.default_rng(0)
    for layer in (0, 1):
        for part, shape in (
            ("up.weight", (256, 8)),
            ("up.bias", (256,)),
            ("down.weight", (8, 256)),
        ):
            entry = forged.entry(f"enc.blk.{layer}.ffn_{part}")
            values = rng.normal(size=shape).astype(np.float32)
            entry.dims, entry.data = list(shape[::-1]), values.tobytes()
    entry = forged.entry("enc.blk.1.ffn_down.weight")
    if kind.name in ("F32", "F16", "F64"):
        raw = values.astype({"F32": "<f4", "F16": "<f2", "F64": "<f8"}[kind.name])
        wanted = raw.astype(np.float32)
    else:
        raw = _finite_blocks(rng, kind, (8, 256 // block * n_bytes))
        wanted = quants.dequantize(raw, kind)
    entry.kind, entry.data = int(kind), raw.tobytes()
    offset = 0
    for entry in forged.entries:
        entry.offset, offset = offset, offset + -(-len(entry.data) // 32) * 32
    bundle = Bundle.open(forged.write(tmp_path / "x.gguf"))
    assert bundle.type_name("enc.blk.1.ffn_down.weight") == kind.name
    loaded = bundle.tensor("enc.blk.1.ffn_down.weight").numpy()
    assert loaded.shape == (8, 256) and np.ptp(loaded) > 0
    assert np.array_equal(loaded, wanted.reshape(8, 256))


def _finite_blocks(rng, kind, shape):
    """Random bytes that decode to finite numbers."""
    for _ in range(1000):
        # bytes below 60 keep every half-precision scale finite
        raw = rng.integers(0, 60, shape, dtype=np.uint8)
        values = quants.dequantize(raw, kind)
        if np.isfinite(values).all() and np.ptp(values) > 0:
            return raw
    raise AssertionError(kind)


def test_the_types_the_issue_names_are_decodable():
    names = {kind.name for kind in DECODABLE}
    assert {"F32", "F16", "BF16", "F64", "Q8_0", "Q4_0", "Q4_K", "Q6_K", "Q2_K"} <= names
    assert "I32" not in names


def test_find_bundle(path, tmp_path, monkeypatch):
    assert find_bundle(path) == path
    monkeypatch.setenv("HOME", str(tmp_path))
    assert find_bundle("~/tiny.gguf") == path
    monkeypatch.chdir(tmp_path)
    shutil.copy(path, "epoch=3-step=9.gguf")
    assert Bundle.open(find_bundle("epoch=3-step=9.gguf")).family == "lewm"
    for wrong in ("nowhere.gguf", "", "a\0b", "~nobody-of-this-name/x.gguf", "x" * 5000):
        with pytest.raises(BundleError, match=r"no such file, nor a bundled model \(bundled: "):
            find_bundle(wrong)
