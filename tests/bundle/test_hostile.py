"""Broken and hostile files: every one is one BundleError on one line that says what is wrong."""

import os
import resource
import struct
import tracemalloc
import warnings

import gguf
import numpy as np
import pytest
import torch
from bundle.forge import ARR, BOOL, F32, STR, U8, U32, U64, Entry, Forge, array, packed, string
from bundle.tiny import TINY_LEWM, random_tensors, write_tiny

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError

QKV = "enc.blk.0.attn_qkv.weight"
MIB = 1 << 20


def refusal(path):
    """The text of the refusal, after the path; checks that it is one clean line."""
    with pytest.raises(BundleError) as caught:
        Bundle.open(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and text.isprintable(), text
    return text.removeprefix(f"{path}: ")


def refused(tmp_path, forged):
    raw = forged if isinstance(forged, bytes) else forged.bytes()
    path = tmp_path / "forged.gguf"
    path.write_bytes(raw)
    return refusal(path)


def test_the_forged_tiny_file_itself_opens(tmp_path):
    bundle = Bundle.open(Forge.tiny().write(tmp_path / "x.gguf"))
    assert torch.equal(bundle.tensor(QKV), torch.from_numpy(random_tensors(TINY_LEWM)[QKV]))


# what is not even a GGUF file


def test_no_two_kinds_of_wrong_file_share_a_message(tmp_path):
    cases = {
        "empty": b"",
        "two": b"GG",
        "ggml": b"lmgg" + bytes(60),
        "other": b"\x1b[2J" + bytes(60),
        "one": b"GGUF" + struct.pack("<IQQ", 1, 0, 0),
        "new": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
        "swapped": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n",
    }
    texts = {name: refused(tmp_path, raw) for name, raw in cases.items()}
    texts["missing"] = refusal(tmp_path / "nowhere.gguf")
    texts["directory"] = refusal(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    texts["pipe"] = refusal(tmp_path / "pipe")  # opening it would wait for ever
    assert len(set(texts.values())) == len(texts), texts
    wanted = {"empty": "empty", "ggml": "GGML", "one": "version 1 ", "new": "version 99 "}
    wanted |= {"swapped": "big-endian", "pointer": "LFS", "missing": "no such file"}
    for name, words in (wanted | {"directory": "directory"}).items():
        assert words in texts[name], (name, texts[name])


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.99])
def test_a_truncated_file_is_refused(tmp_path, share):
    raw = Forge.tiny().bytes()
    text = refused(tmp_path, raw[: int(len(raw) * share)])
    assert any(words in text for words in ("truncated", "can hold", "cut short", "the file has"))


def test_a_path_with_a_nul_character_is_refused():
    with pytest.raises(BundleError, match="cannot be opened"):
        Bundle.open("x\0y.gguf")


# counts and lengths that the file cannot hold


@pytest.mark.parametrize("count", [1000, (1 << 31) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1])
@pytest.mark.parametrize("which", ["n_pairs", "n_tensors"])
def test_impossible_counts(tmp_path, which, count):
    forged = Forge.tiny()
    setattr(forged, which, count)
    text = refused(tmp_path, forged)
    assert f"claims {count} " in text or "key " in text or "name of tensor" in text


def test_a_string_longer_than_the_file(tmp_path):
    forged = Forge.tiny()
    forged.pairs["general.name"] = (STR, struct.pack("<Q", 1 << 62))
    assert "value of general.name" in refused(tmp_path, forged)


@pytest.mark.parametrize("kind", [U8, F32, STR, 12])
def test_an_array_longer_than_the_file(tmp_path, kind):
    forged = Forge.tiny()
    forged.pairs["jepa.pre.mean"] = (ARR, array(kind, 1 << 60, b""))
    text = refused(tmp_path, forged)
    assert "jepa.pre.mean" in text and f"claims {1 << 60}" in text


@pytest.mark.parametrize("n_dims", [0, 5, 1_000_000, 0xFFFFFFFF])
def test_the_number_of_dimensions_is_bounded(tmp_path, n_dims):
    forged = Forge.tiny()
    forged.entry(QKV).raw_dims = struct.pack("<IQ", n_dims, 8)
    text = refused(tmp_path, forged)
    assert QKV in text and f"has {n_dims} dimensions" in text


def test_dimensions_whose_product_overflows_64_bits(tmp_path):
    forged = Forge.tiny()
    forged.entry(QKV).dims = [1 << 62, 1 << 62]
    assert f"tensor {QKV}: shape" in refused(tmp_path, forged)


def test_a_dimension_of_zero_names_the_tensor(tmp_path):
    forged = Forge.tiny()
    forged.entry(QKV).dims = [0, 4]
    assert f"tensor {QKV}: shape [4, 0] has a dimension of 0" in refused(tmp_path, forged)


# names


def test_an_empty_key_an_empty_name(tmp_path):
    forged = Forge.tiny()
    forged.pairs[""] = packed(1)
    assert f"key {len(TINY_LEWM)} is empty" in refused(tmp_path, forged)
    forged = Forge.tiny()
    forged.entry(QKV).name = ""
    assert "the name of tensor" in refused(tmp_path, forged)


def test_a_key_stored_twice(tmp_path):
    forged = Forge.tiny()
    forged.extra_pairs = string("jepa.enc.n_head") + struct.pack("<II", U32, 4)
    forged.n_pairs = len(forged.pairs) + 1
    assert "key jepa.enc.n_head is stored twice" in refused(tmp_path, forged)


def test_a_tensor_stored_twice(tmp_path):
    forged = Forge.tiny()
    first = forged.entry(QKV)
    again = Entry(
        QKV, first.dims, 0, max(entry.offset for entry in forged.entries) + 4096, first.data
    )
    forged.entries.append(again)
    assert f"tensor {QKV} is stored twice" in refused(tmp_path, forged)


def test_a_key_that_is_not_utf8(tmp_path):
    forged = Forge.tiny()
    forged.pairs[b"\xff\xfe"] = packed(1)
    assert "is not UTF-8: bytes ff fe" in refused(tmp_path, forged)


def test_control_characters_are_escaped_in_the_refusal(tmp_path):
    forged = Forge.tiny(jepa__family="\x1b[2J\x07lewm")
    assert r"\x1b[2J\x07lewm" in refused(tmp_path, forged)


# values


def test_nested_arrays(tmp_path):
    forged = Forge.tiny()
    deep = b"".join(struct.pack("<IQ", ARR, 1) for _ in range(5000)) + array(U32, 0, b"")
    forged.pairs["general.tags"] = (ARR, deep)
    assert "value of general.tags is a nested array" in refused(tmp_path, forged)


@pytest.mark.parametrize("kind", [13, 99, 0xFFFFFFFF])
def test_an_unknown_value_type(tmp_path, kind):
    forged = Forge.tiny()
    forged.pairs["general.name"] = (kind, b"x")
    assert f"value of general.name has the unknown type {kind}" in refused(tmp_path, forged)
    forged.pairs["general.name"] = (ARR, array(kind, 1, b"x"))
    assert f"value of general.name is an array of the unknown type {kind}" in refused(
        tmp_path, forged
    )


def test_a_bool_of_two(tmp_path):
    forged = Forge.tiny()
    forged.pairs["jepa.enc.cls_token"] = (BOOL, b"\2")
    assert "jepa.enc.cls_token is the byte 2" in refused(tmp_path, forged)


@pytest.mark.parametrize("alignment", [0, 1, 24, 1 << 31])
def test_an_impossible_alignment(tmp_path, alignment):
    forged = Forge.tiny(general__alignment=alignment)
    assert f"general.alignment is {alignment}" in refused(tmp_path, forged)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("jepa.enc.n_head", 0, "allowed is 1 to 1024"),
        ("jepa.enc.n_head", 3, "no multiple of jepa.enc.n_head 3"),
        ("jepa.enc.embed_dim", (1 << 31) - 1, "allowed is 1 to 65536"),
        ("jepa.enc.embed_dim", 8.0, "wanted u32"),
        ("jepa.enc.embed_dim", True, "wanted u32"),
        ("jepa.enc.embed_dim", None, "is missing"),
        ("jepa.enc.patch_size", 16, "jepa.enc.img_size is smaller"),
        ("jepa.pre.crop", 4096, "make 4194304 tokens of one input, at most 131072 are allowed"),
        ("jepa.enc.n_frames", 65_536, "make 1048576 tokens of one input"),
        ("jepa.enc.ln_eps", float("nan"), "is float nan, allowed is 0 to 1"),
        ("jepa.enc.ln_eps", -1e-6, "allowed is 0 to 1"),
        ("jepa.enc.cls_token", 1, "wanted bool"),
        ("jepa.enc.act", "relu", "allowed is gelu_erf, gelu_tanh, silu"),
        ("jepa.enc.pos_type", "alibi", "allowed is sincos2d"),
        ("jepa.enc.attn_mode", "block_causal", "does not exist for family lewm"),
        ("jepa.enc.rope_interpolate", True, "needs jepa.enc.rope_ref_grid"),
        ("jepa.enc.hier_layers", [1, 1], "must ascend"),
        ("jepa.family", "dinov9", "allowed is ijepa"),
        ("jepa.family", 7, "wanted str"),
        ("jepa.schema_version", 2, "allowed is 1 to 1"),
        ("jepa.schema_version", None, "jepa.schema_version is missing"),
        ("general.architecture", "llama", "general.architecture is 'llama', wanted 'jepa'"),
        ("general.architecture", None, "general.architecture is absent"),
        ("jepa.pred.kind", "ac", "jepa.pred.kind ac does not exist for family lewm"),
        ("jepa.pred.kind", None, "jepa.pred.kind is missing"),
        ("jepa.pred.action_dim", None, "is missing (needed by lewm)"),
        ("jepa.pred.n_frames", 0, "allowed is 1 to 65536"),
        ("jepa.pred.n_head", 1024, "tensor pred.blk.0.attn_qkv.weight has shape [36, 8]"),
        ("jepa.pred.embed_dim", 16, "lewm needs equal jepa.enc.embed_dim (8)"),
        ("jepa.pred.frame_causal", False, "the lewm predictor is causal"),
        ("jepa.head.kind", "linear_cls", "n_classes is missing (needed by head)"),
        ("jepa.pre.mean", [0.5, 0.5], "jepa.pre.mean has 2 entries, jepa.enc.in_chans is 3"),
        ("jepa.pre.std", [0.5, 0.0, 0.5], "allowed is 1e-09 to 1000000"),
        ("jepa.pre.resample", "lanczos", "allowed is bilinear, bicubic"),
        ("jepa_wm.action.block", 3, "no multiple of jepa_wm.action.block 3"),
        ("jepa_wm.action.mean", [0.0] * 3, "jepa_wm.action.mean has 3 entries, wanted 2 or 10"),
        ("jepa_wm.action.std", None, "jepa_wm.action.std is missing"),
        ("jepa_wm.action.low", [2.0, -1.0], "low must lie below"),
        ("jepa_wm.enc.pos_interp", "nearest", "allowed is size, offset0.1"),
    ],
)
def test_a_wrong_value_names_its_key(tmp_path, key, value, words):
    meta = TINY_LEWM | {key: value}
    text = refused(tmp_path, Forge.tiny(meta))
    assert (words in text and key.rsplit(".", 1)[0] in text) or "tensor" in words, text


def test_all_faults_are_told_at_once(tmp_path):
    forged = Forge.tiny(jepa__enc__ln_eps=2.0, jepa__pre__resample="x", jepa__pred__n_frames=None)
    forged.entry("enc.cls_token").dims = [4]
    forged.entry("enc.norm.bias").name = "enc.norm.beta"
    text = refused(tmp_path, forged)
    for words in (
        "6 faults",
        "jepa.enc.ln_eps",
        "jepa.pre.resample",
        "jepa.pred.n_frames is missing",
        "tensor enc.cls_token has shape [4], expected [8]",
        "tensor enc.norm.bias [8] is missing",
        "tensor enc.norm.beta is not expected",
    ):
        assert words in text, (words, text)


def test_a_long_list_of_faults_is_cut_and_counted(tmp_path):
    text = refused(tmp_path, Forge.tiny(jepa__enc__n_layer=1024))
    assert "; and 12244 more" in text and len(text) < 4000, text[-200:]


# tensors


def test_an_unaligned_offset(tmp_path):
    forged = Forge.tiny()
    forged.entries[-1].offset += 4
    assert f"tensor {forged.entries[-1].name}: offset" in refused(tmp_path, forged)


def test_two_tensors_on_the_same_bytes(tmp_path):
    forged = Forge.tiny()
    forged.entry("enc.norm.bias").offset = forged.entry("enc.norm.weight").offset
    text = refused(tmp_path, forged)
    assert "tensors enc.norm.weight and enc.norm.bias overlap" in text


@pytest.mark.parametrize("offset", [1 << 25, 1 << 63, (1 << 64) - 32])
def test_data_beyond_the_end_of_the_file(tmp_path, offset):
    forged = Forge.tiny()
    forged.entry(QKV).offset = offset
    assert f"tensor {QKV}: shape [24, 8] ends at byte" in refused(tmp_path, forged)


def test_a_row_that_does_not_fill_its_blocks(tmp_path):
    forged = Forge.tiny()
    forged.entry(QKV).kind = int(gguf.GGMLQuantizationType.Q8_0)
    assert f"tensor {QKV}: row of 8 is no multiple of the 32 of Q8_0" in refused(tmp_path, forged)


def test_only_weight_matrices_may_be_smaller_than_f32(tmp_path):
    for name in ("enc.norm.weight", "enc.pos_embed", "pred.blk.0.adaln.bias", "enc.cls_token"):
        forged = Forge.tiny()
        entry = forged.entry(name)
        entry.kind, entry.data = 1, np.zeros(entry.dims, np.float16).tobytes()
        assert f"tensor {name} is stored as F16, wanted F32" in refused(tmp_path, forged)
    forged = Forge.tiny()
    for name in ("enc.patch_embed.weight", "pred.action_embed.0.weight", "pred.blk.0.adaln.weight"):
        entry = forged.entry(name)
        entry.kind, entry.data = 1, np.ones(entry.dims, np.float16).tobytes()
    bundle = Bundle.open(forged.write(tmp_path / "x.gguf"))
    assert bundle.tensor("enc.patch_embed.weight").eq(1).all()


def test_a_wrong_length_of_one_is_not_broadcast(tmp_path):
    forged = Forge.tiny()
    forged.entry("enc.blk.0.ffn_up.bias").dims = [1]
    assert "tensor enc.blk.0.ffn_up.bias has shape [1], expected [16]" in refused(tmp_path, forged)


def test_hidden_sizes_that_no_key_states_must_agree(tmp_path):
    forged = Forge.tiny()
    forged.entry("enc.proj.2.weight").dims = [8, 8]
    text = refused(tmp_path, forged)
    assert "tensor enc.proj.2.weight has shape [8, 8], expected [8, 16]" in text


def test_a_layer_the_metadata_does_not_count_is_refused(tmp_path):
    text = refused(tmp_path, Forge.tiny(jepa__enc__n_layer=1))
    assert "tensor enc.blk.1.ln1.weight is not expected by the metadata" in text


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_not_finite_are_refused_on_load(tmp_path, value):
    forged = Forge.tiny()
    forged.entry(QKV).data = forged.entry(QKV).data[:-4] + struct.pack("<f", value)
    bundle = Bundle.open(forged.write(tmp_path / "x.gguf"))
    with pytest.raises(BundleError, match=f"{QKV} holds NaN or infinite"):
        bundle.tensor(QKV)


@pytest.mark.parametrize("kind", [5, 77, 0xFFFFFFFF, int(gguf.GGMLQuantizationType.I32)])
def test_a_type_nobody_knows_leaves_the_rest_readable(tmp_path, kind):
    forged = Forge.tiny()
    forged.entry(QKV).kind = kind
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is said about an end nobody knows
        bundle = Bundle.open(forged.write(tmp_path / "x.gguf"))
    assert bundle.get("jepa.enc.embed_dim") == 8
    assert list(bundle.unsupported) == [QKV] and bundle.shape(QKV) == (24, 8)
    assert bundle.tensor("enc.norm.weight").shape == (8,)
    with pytest.raises(BundleError, match=rf"{QKV}.*id {kind}"):
        bundle.tensor(QKV)


def test_what_follows_the_last_tensor(tmp_path):
    forged = Forge.tiny()
    assert len(forged.entries[-1].data) % 32 == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (0, 1, 31, 32):
            forged.tail = bytes(n)
            assert Bundle.open(forged.write(tmp_path / "x.gguf")).notes == ()
    for tail in (b"\0\1", bytes(33), b"GGUF" * 100):
        forged.tail = tail
        with pytest.warns(UserWarning, match=f"{len(tail)} bytes after the last tensor"):
            assert len(Bundle.open(forged.write(tmp_path / "x.gguf")).notes) == 1


# cost of the worst files that are let through or nearly so


def peak_of_opening(path):
    """Peak of Python allocations in bytes while opening; also bounds the processor seconds."""
    tracemalloc.start()
    try:
        Bundle.open(path)
    except BundleError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return peak


def big_files():
    labels = [f"class number {i} of many" for i in range(200_000)]
    yield "labels", {"jepa.head.kind": "linear_cls", "jepa.head.n_classes": 200_000}, labels
    # one wide character makes Python hold four bytes for each of the others
    yield "wide strings", {}, ["x" * ((1 << 20) - 4) + "\U0001f600"] * 31
    yield "layers", {"jepa.enc.n_layer": 1024, "jepa.pred.n_layer": 1024}, None


@pytest.mark.parametrize(
    ("name", "changes", "strings"), list(big_files()), ids=lambda v: v if isinstance(v, str) else ""
)
def test_opening_stays_within_200_mb(tmp_path, name, changes, strings):
    forged = Forge.tiny(TINY_LEWM | changes)
    if strings:
        forged.pairs["jepa.head.labels"] = packed(strings)
    if name == "labels":
        weight = np.zeros((200_000, 8), np.float32)
        end = max(entry.offset for entry in forged.entries) + 4096
        forged.entries.append(Entry("head.cls.weight", [8, 200_000], 0, end, weight.tobytes()))
        bias = Entry("head.cls.bias", [200_000], 0, end + weight.nbytes, bytes(800_000))
        forged.entries.append(bias)
    path = forged.write(tmp_path / "big.gguf")
    peak = peak_of_opening(path)
    assert peak < 200 * MIB, f"{name}: {peak / MIB:.0f} MiB"
    if name == "labels":
        assert len(Bundle.open(path).get("jepa.head.labels")) == 200_000


def test_a_64_byte_file_with_a_huge_count_costs_nothing(tmp_path):
    raw = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("a") + struct.pack("<I", ARR)
    path = tmp_path / "small.gguf"
    path.write_bytes((raw + array(U8, (1 << 40) - 1, b"")).ljust(64, b"\0"))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    assert "claims 1099511627775" in refusal(path)
    assert peak_of_opening(path) < 3 * MIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - before < 1


def test_a_file_that_claims_its_sparse_body_is_metadata(tmp_path):
    path = tmp_path / "sparse.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + string("a") + struct.pack("<I", ARR)
    for kind, n in ((U64, 1 << 30), (STR, 1 << 30), (U8, 1 << 33)):
        with open(path, "wb") as file:
            file.write(head + array(kind, n, b""))
            file.truncate(16 << 30)
        assert peak_of_opening(path) < 3 * MIB
        refusal(path)


def test_a_file_swapped_after_opening_is_noticed(tmp_path):
    path = write_tiny(tmp_path / "a.gguf")
    bundle = Bundle.open(path)
    write_tiny(path, seed=1)
    for read in (lambda: bundle.tensor(QKV), lambda: bundle.sha256):
        with pytest.raises(BundleError, match="has changed since it was opened"):
            read()
