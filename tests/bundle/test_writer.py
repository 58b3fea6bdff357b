"""What is written opens; what could not be opened is not written; and nothing is left behind."""

import os
import stat

import gguf
import numpy as np
import pytest
import torch
from bundle.tiny import TINY_LEWM, random_tensors, write_tiny

from jepa_wm.bundle import quant
from jepa_wm.bundle.quant import FILE_TYPES, is_quantisable, storage_type
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.errors import BundleError

BIG = {"jepa.enc.ffn_dim": 32, "jepa.enc.embed_dim": 32, "jepa.pred.embed_dim": 32}
BIG = TINY_LEWM | BIG | {"jepa.pred.ffn_dim": 64}


def refusal(tmp_path, meta=TINY_LEWM, tensors=None, **options):
    """The text of the refusal; checks that nothing at all was written."""
    tensors = random_tensors(TINY_LEWM) if tensors is None else tensors
    with pytest.raises(BundleError) as caught:
        write_bundle(tmp_path / "x.gguf", meta, tensors, **options)
    assert os.listdir(tmp_path) == []
    return str(caught.value)


def test_metadata_and_tensors_come_back(tmp_path):
    more = {"jepa.enc.act": "gelu", "jepa_wm.source.entry": "encoder", "jepa.pre.mean": [0.5] * 3}
    more |= {"general.source_url": "https://example.org/x", "jepa.enc.hier_layers": []}
    meta = TINY_LEWM | more
    tensors = random_tensors(TINY_LEWM)
    given = {name: torch.from_numpy(values).double() for name, values in tensors.items()}
    bundle = Bundle.open(write_bundle(tmp_path / "x.gguf", meta, given))
    for name, v in (meta | {"jepa.enc.act": "gelu_erf"}).items():
        assert bundle.get(name) == pytest.approx(tuple(v) if isinstance(v, list) else v), name
    assert all(np.array_equal(bundle.tensor(k).numpy(), v) for k, v in tensors.items())
    assert os.listdir(tmp_path) == ["x.gguf"]


def test_the_stock_reader_reads_it_too(tmp_path):
    meta = TINY_LEWM | {"general.source_url": "u", "jepa.head.labels": ["a", "ü"]}
    path = write_bundle(tmp_path / "x.gguf", meta, random_tensors(TINY_LEWM), "f16")
    reader = gguf.GGUFReader(path)
    field = reader.fields["general.source_url"]  # the literal key, not gguf's general.source.url
    assert field.contents() == "u" and "general.source.url" not in reader.fields
    assert reader.fields["jepa.head.labels"].contents() == ["a", "ü"]
    assert reader.fields["jepa.enc.embed_dim"].types == [gguf.GGUFValueType.UINT32]
    assert reader.fields["general.file_type"].contents() == 1
    tensors = random_tensors(TINY_LEWM)
    for stored in reader.tensors:
        wanted = tensors[stored.name]
        assert list(stored.shape[::-1]) == list(wanted.shape)
        is_small = is_quantisable(stored.name, wanted.shape)
        assert np.array_equal(stored.data, wanted.astype(np.float16 if is_small else np.float32))


QUANTISABLE = (
    "enc.blk.0.attn_qkv.weight enc.blk.11.attn_q.weight pred.blk.3.attn_out.weight "
    "enc.blk.0.ffn_up.weight head.xattn.ffn_down.weight pred.proj.weight pred.proj.2.weight "
    "pred.proj_context.weight pred.embed.weight pred.embed.0.weight enc.proj.0.weight "
    "head.blk.0.attn_qkv.weight head.xattn.q.weight head.cls.weight"
).split()
KEPT = (
    "enc.patch_embed.weight enc.pos_embed pred.pos_embed enc.reg_tokens pred.mask_tokens "
    "pred.blk.0.adaln.weight pred.action_embed.0.weight pred.action_embed.weight head.query "
    "pred.state_embed.weight enc.proj.0.bias"
).split()


def test_one_predicate_says_what_may_be_small():
    assert [name for name in QUANTISABLE if not is_quantisable(name, (64, 64))] == []
    assert [name for name in KEPT if is_quantisable(name, (64, 64))] == []
    assert not is_quantisable("enc.blk.0.attn_qkv.weight", (64,))


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_each_file_type(tmp_path, file_type):
    tensors = random_tensors(BIG)
    bundle = Bundle.open(write_bundle(tmp_path / "x.gguf", BIG, tensors, file_type))
    number, kind = FILE_TYPES[file_type]
    assert bundle.get("general.file_type") == number
    # rows of 32 are too short for the super-blocks of a K type
    assert bundle.type_name("enc.blk.0.attn_qkv.weight") == quant.FALLBACKS.get(kind, kind).name
    assert bundle.type_name("enc.blk.0.attn_qkv.bias") == "F32"
    # rows of 12 (2 heads x 6) do not fill a block of 32
    narrow = "pred.blk.0.attn_out.weight"
    is_block = gguf.GGML_QUANT_SIZES[kind][0] > 1
    assert bundle.type_name(narrow) == ("F16" if is_block else kind.name)
    bound = {"f32": 0, "f16": 1e-3, "bf16": 8e-3, "q8_0": 1e-2, "q5_0": 0.1, "q5_1": 0.1}
    for name in bundle.names():
        error = np.abs(bundle.tensor(name).numpy() - tensors[name]).max()
        assert error <= bound.get(file_type, 0.2) * np.abs(tensors[name]).max(), (name, error)


def test_types_that_can_only_be_read_say_so(tmp_path):
    text = refusal(tmp_path, file_type="q3_k")
    assert "q3_k can be read but not written here; writable are f32, f16" in text
    assert "'q3' is unknown" in refusal(tmp_path, file_type="q3")
    assert storage_type("enc.norm.weight", (8,), "q8_0").name == "F32"


def test_weights_beyond_half_precision_stay_whole(tmp_path):
    tensors = random_tensors(TINY_LEWM)
    name = "enc.blk.0.ffn_up.weight"
    tensors[name][0, 0] = -1e6
    bundle = Bundle.open(write_bundle(tmp_path / "x.gguf", TINY_LEWM, tensors, "f16"))
    assert bundle.type_name(name) == "F32" and bundle.tensor(name)[0, 0] == -1e6


def test_changing_one_string_leaves_every_byte_of_the_tensors(tmp_path):
    first = Bundle.open(write_bundle(tmp_path / "a.gguf", BIG, random_tensors(BIG), "q8_0"))
    stored = {name: first.encoded(name) for name in first.names()}
    meta = first.meta | {"general.name": "renamed"}
    second = Bundle.open(write_bundle(tmp_path / "b.gguf", meta, stored))
    assert second.get("general.name") == "renamed" and second.get("general.file_type") == 7
    for name in first.names():
        assert second.type_name(name) == first.type_name(name)
        assert np.array_equal(second.encoded(name).data, stored[name].data)


def test_foreign_keys_are_kept(tmp_path):
    other = {"acme.count": 7, "acme.rate": 0.1, "acme.tags": ["a", "b"], "acme.on": True}
    bundle = Bundle.open(
        write_bundle(tmp_path / "x.gguf", TINY_LEWM | other, random_tensors(TINY_LEWM))
    )
    assert {name: bundle.meta[name] for name in other} == other | {"acme.tags": ("a", "b")}


def test_faults_of_keys_and_tensors_are_told_together(tmp_path):
    tensors = random_tensors(TINY_LEWM)
    tensors["enc.norm.bias"] = np.zeros(9, np.float32)
    tensors["enc.norm.weight"] = np.ones(8, np.int32)
    tensors["enc.cls_token"][3] = np.nan
    tensors["enc.pos_embed"] = np.full((17, 8), 1e300)
    del tensors["pred.norm.bias"]
    meta = TINY_LEWM | {"jepa.enc.embd_dim": 8, "jepa.enc.act": "relu", "acme.x": object()}
    text = refusal(tmp_path, meta, tensors)
    for words in (
        "jepa.enc.embd_dim is not a key of the schema; did you mean jepa.enc.embed_dim?",
        "jepa.enc.act is 'relu'",
        "acme.x is object",
        "enc.norm.bias has shape [9], expected [8]",
        "enc.norm.weight is int32, wanted a floating type",
        "enc.cls_token holds values that are NaN",
        "enc.pos_embed holds values that are NaN, infinite or beyond float32",
        "pred.norm.bias [8] is missing",
    ):
        assert words in text, (words, text)


def test_a_contradiction_is_refused_and_not_overwritten(tmp_path):
    assert "is 'llama'" in refusal(tmp_path, TINY_LEWM | {"general.architecture": "llama"})
    assert "jepa.schema_version" in refusal(tmp_path, TINY_LEWM | {"jepa.schema_version": 2})


@pytest.mark.parametrize(("n", "is_right"), [(63, True), (64, False)])
def test_names_fit_the_64_bytes_of_c_readers(tmp_path, n, is_right):
    tensors = random_tensors(TINY_LEWM) | {"x." + "n" * (n - 2): np.ones(3, np.float32)}
    if is_right:
        write_bundle(tmp_path / "x.gguf", TINY_LEWM, tensors)
    else:
        assert "has 64 bytes, wanted <= 63" in refusal(tmp_path, tensors=tensors)


def test_places_that_cannot_be_written(tmp_path):
    tensors = random_tensors(TINY_LEWM)
    (tmp_path / "folder.gguf").mkdir()
    (tmp_path / "file").write_text("x")
    for place, words in (
        ("folder.gguf", "is a directory"),
        ("absent/x.gguf", "No such file or directory"),
        ("file/x.gguf", "Not a directory"),
        ("n" * 300, "File name too long"),
        ("x\0y.gguf", "is no name of a file"),
    ):
        with pytest.raises(BundleError, match=words):
            write_bundle(tmp_path / place, TINY_LEWM, tensors)
    with pytest.raises(BundleError, match="is no name of a file"):
        write_bundle("", TINY_LEWM, tensors)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder.gguf"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_write_leaves_the_old_file(tmp_path, monkeypatch, error):
    path = write_tiny(tmp_path / "x.gguf")
    before = path.read_bytes()

    def interrupted(self, file, n, align=None):
        raise error

    monkeypatch.setattr(gguf.GGUFWriter, "write_padding", interrupted)  # in the middle of the data
    with pytest.raises(error):
        write_tiny(path, seed=1)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["x.gguf"]


def test_the_file_has_the_usual_permissions(tmp_path):
    path = write_tiny(tmp_path / "x.gguf")
    (tmp_path / "plain").write_bytes(b"")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_encode_and_decode_are_gguf_s(tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 64)).astype(np.float32)
    for _, kind in FILE_TYPES.values():
        if kind in quant.K_TYPES:
            continue
        stored = quant.encode(values, kind)
        assert (
            stored.data.nbytes
            == 256 // gguf.GGML_QUANT_SIZES[kind][0] * (gguf.GGML_QUANT_SIZES[kind][1])
        )
        wanted = gguf.quants.dequantize(gguf.quants.quantize(values, kind), kind)
        assert np.array_equal(quant.decode(stored), wanted)
