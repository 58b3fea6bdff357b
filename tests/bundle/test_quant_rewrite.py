"""A file in another type: what changes, what must not, and what is refused."""

import os
import tracemalloc

import numpy as np
import pytest
from bundle.forge import BOOL, F32, F64, I32, U8, U64, Entry, Forge, array, packed
from bundle.tiny import TINY_LEWM, random_tensors, write_tiny

from jepa_wm.bundle.header import parse_header
from jepa_wm.bundle.quant import FALLBACKS, FILE_TYPES, is_quantisable
from jepa_wm.bundle.reader import Bundle
from jepa_wm.bundle.rewrite import Recipe, rewrite
from jepa_wm.bundle.writer import write_bundle
from jepa_wm.errors import BundleError

# rows of 256, of 32 (pred.blk.0.ffn_down) and of 12 (pred.blk.0.attn_out) in one file
MIXED = TINY_LEWM | {
    "jepa.enc.embed_dim": 256,
    "jepa.enc.ffn_dim": 256,
    "jepa.enc.n_layer": 1,
    "jepa.pred.embed_dim": 256,
    "jepa.pred.ffn_dim": 32,
}
TYPES = {"f32": (0, 0), "f16": (1e-3, 1e-3), "bf16": (2e-3, 4e-3), "q8_0": (8e-3, 6e-3)}
LOOSE = (0.1, 0.15)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    path = tmp_path_factory.mktemp("mixed") / "in.gguf"
    return Bundle.open(write_bundle(path, MIXED, random_tensors(MIXED)))


def pairs_of(path):
    raw = path.read_bytes()
    with open(path, "rb") as file:
        header = parse_header(file, len(raw))
    return {name: raw[at:end] for name, (at, end) in header.spans.items()}


def refusal(bundle, path, recipe):
    before = sorted(os.listdir(path.parent)) if path.parent.is_dir() else []
    with pytest.raises(BundleError) as caught:
        rewrite(bundle, path, recipe)
    assert (sorted(os.listdir(path.parent)) if path.parent.is_dir() else []) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_each_type_gives_what_the_writer_gives(mixed, tmp_path, file_type):
    done = rewrite(mixed, tmp_path / "out.gguf", Recipe(file_type))
    found = Bundle.open(tmp_path / "out.gguf")
    wanted = Bundle.open(write_bundle(tmp_path / "w.gguf", MIXED, random_tensors(MIXED), file_type))
    assert found.names() == wanted.names()
    for name in found.names():
        assert found.type_name(name) == wanted.type_name(name), name
        assert np.array_equal(found.encoded(name).data, wanted.encoded(name).data), name
    assert found.get("general.file_type") == FILE_TYPES[file_type][0]
    version = 2 if file_type.startswith("q") else None
    assert found.get("general.quantization_version") == version
    kinds = {found.type_name(name) for name in found.names()}
    kind = FILE_TYPES[file_type][1]
    blocks = {kind.name, FALLBACKS.get(kind, kind).name, "F16"} if version else {kind.name}
    assert kinds == {"F32", *blocks}
    assert done.bytes_after == (tmp_path / "out.gguf").stat().st_size
    assert done.bytes_before == mixed.path.stat().st_size
    assert sorted(os.listdir(tmp_path)) == ["out.gguf", "w.gguf"]


@pytest.mark.parametrize("file_type", FILE_TYPES)
def test_the_report_is_what_the_file_holds(mixed, tmp_path, monkeypatch, file_type):
    monkeypatch.setattr("jepa_wm.bundle.rewrite._GROUP", 1 << 13)  # several groups a tensor
    told = []
    done = rewrite(mixed, tmp_path / "out.gguf", Recipe(file_type), told.append)
    assert tuple(told) == done.changes
    found = Bundle.open(tmp_path / "out.gguf")
    for change in done.changes:
        was, now = mixed.tensor(change.name).numpy(), found.tensor(change.name).numpy()
        error = now - was
        rms = np.sqrt((error**2).mean() / (was**2).mean())
        worst = np.abs(error).max() / np.abs(was).max()
        assert (change.rms_error, change.worst_error) == pytest.approx((rms, worst), rel=1e-4)
        most = TYPES.get(file_type, LOOSE)
        assert rms <= most[0] and worst <= most[1], change
        assert change.shape == was.shape and change.bytes_before == was.nbytes
        assert change.bytes_after == found.encoded(change.name).data.nbytes
        assert (change.before, change.after) == ("F32", found.type_name(change.name))
        assert is_quantisable(change.name, change.shape) or change.after == "F32"


def test_more_bits_less_error(mixed):
    errors = {}
    for file_type in ("f16", "q8_0", "q6_k", "q5_k", "q4_k"):
        changes = rewrite(mixed, None, Recipe(file_type)).changes
        errors[file_type] = next(c for c in changes if c.name == "enc.blk.0.ffn_up.weight")
    rms = [change.rms_error for change in errors.values()]
    sizes = [change.bytes_after for change in errors.values()]
    assert rms == sorted(rms) and sizes == sorted(sizes, reverse=True)
    assert rms[-1] > 100 * rms[0] > 0


def test_metadata_is_kept_bit_for_bit(tmp_path):
    forge = Forge.tiny(general__file_type=0)
    forge.pairs |= {
        "acme.byte": (U8, b"\x07"),
        "acme.big": (U64, (1 << 63).to_bytes(8, "little")),
        "acme.pi": (F64, np.float64(np.pi).tobytes()),
        "acme.nan": (F32, b"\x01\x00\xc0\x7f"),
        "acme.flags": (9, array(BOOL, 2, b"\x01\x00")),
        "acme.none": (9, array(I32, 0, b"")),
        "general.source.url": packed("https://example.org/ü"),
    }
    forge.pairs["jepa.enc.embed_dim"] = (U64, (8).to_bytes(8, "little"))  # wider than the schema's
    path = forge.write(tmp_path / "in.gguf")
    rewrite(Bundle.open(path), tmp_path / "out.gguf", Recipe("q8_0"))
    before, after = pairs_of(path), pairs_of(tmp_path / "out.gguf")
    assert list(after) == list(before)  # rows of 8 hold no blocks: no quantisation version
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"general.file_type"}
    assert Bundle.open(tmp_path / "out.gguf").get("general.file_type") == 7


def test_version_alignment_leading_ones_and_foreign_tensors_are_kept(tmp_path):
    forge = Forge.tiny(general__alignment=64)
    forge.version = 2
    forge.entry("enc.pos_embed").dims += [1]
    forge.entry("enc.blk.0.ffn_up.weight").dims += [1, 1]
    forge.entries.append(Entry("acme.extra", [9], 0, 0, np.ones(9, "f4").tobytes()))
    offset = 0
    for entry in forge.entries:
        entry.offset, offset = offset, offset + -(-len(entry.data) // 64) * 64
    # the forge pads the header by 32, and the key that is added ends it in another half of 64
    forge.pairs["acme.fill"] = packed("x")
    forge.pairs["acme.fill"] = packed("x" * (1 + (50 - len(forge.header())) % 64))
    path = forge.write(tmp_path / "in.gguf")
    bundle = Bundle.open(path)
    rewrite(bundle, tmp_path / "out.gguf", Recipe("f16"))
    raw = (tmp_path / "out.gguf").read_bytes()
    with open(tmp_path / "out.gguf", "rb") as file:
        header = parse_header(file, len(raw))
    assert (header.version, header.alignment) == (2, 64) and len(raw) % 64 == 0
    starts = [tensor.start for tensor in header.tensors.values()]
    assert starts[0] % 64 == 0
    ends = [tensor.start + tensor.n_bytes for tensor in header.tensors.values()]
    assert starts[1:] == [-(-end // 64) * 64 for end in ends[:-1]]
    assert header.tensors["enc.pos_embed"].shape == (1, 17, 8)
    assert header.tensors["enc.blk.0.ffn_up.weight"].shape == (1, 1, 16, 8)
    assert header.tensors["enc.blk.0.ffn_up.weight"].type_name == "F16"
    again = Bundle.open(tmp_path / "out.gguf")
    for name in ("acme.extra", "enc.pos_embed"):
        assert np.array_equal(again.encoded(name).data, bundle.encoded(name).data)


def test_somebody_else_s_tensors_are_left_even_when_all_become_f32(tmp_path):
    tensors = random_tensors(TINY_LEWM)
    write_bundle(tmp_path / "h.gguf", TINY_LEWM, tensors, "f16")
    half = Bundle.open(tmp_path / "h.gguf").encoded("enc.blk.0.ffn_up.weight")
    write_bundle(tmp_path / "in.gguf", TINY_LEWM, tensors | {"acme.extra.weight": half}, "f16")
    rewrite(Bundle.open(tmp_path / "in.gguf"), tmp_path / "out.gguf", Recipe("f32"))
    found = Bundle.open(tmp_path / "out.gguf")
    assert {name for name in found.names() if found.type_name(name) != "F32"} == {
        "acme.extra.weight"
    }


@pytest.mark.parametrize("file_type", ["q8_0", "q4_k", "f16"])
def test_the_same_type_again_gives_the_same_file(mixed, tmp_path, file_type):
    rewrite(mixed, tmp_path / "a.gguf", Recipe(file_type))
    done = rewrite(Bundle.open(tmp_path / "a.gguf"), tmp_path / "b.gguf", Recipe(file_type))
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()
    assert {change.rms_error for change in done.changes} == {0}


def test_back_to_f32_loses_nothing_and_needs_no_leave(mixed, tmp_path):
    rewrite(mixed, tmp_path / "q.gguf", Recipe("q4_k"))
    quantised = Bundle.open(tmp_path / "q.gguf")
    rewrite(quantised, tmp_path / "f.gguf", Recipe("f32"))
    plain = Bundle.open(tmp_path / "f.gguf")
    for name in plain.names():
        assert plain.type_name(name) == "F32"
        assert np.array_equal(plain.tensor(name), quantised.tensor(name))


@pytest.mark.parametrize("file_type", ["q4_0", "f16", "bf16", "q8_0"])
def test_quantising_again_needs_leave(mixed, tmp_path, file_type):
    rewrite(mixed, tmp_path / "q.gguf", Recipe("q6_k"))
    bundle = Bundle.open(tmp_path / "q.gguf")
    text = refusal(bundle, tmp_path / "out.gguf", Recipe(file_type))
    assert "is Q6_K already" in text and "--allow-requant" in text
    rewrite(bundle, tmp_path / "out.gguf", Recipe(file_type, allow_requant=True))
    kind = Bundle.open(tmp_path / "out.gguf").type_name("enc.blk.0.ffn_up.weight")
    assert kind == FILE_TYPES[file_type][1].name


def test_halves_may_be_quantised(mixed, tmp_path):
    for plain in ("f16", "bf16"):
        rewrite(mixed, tmp_path / "h.gguf", Recipe(plain))
        rewrite(Bundle.open(tmp_path / "h.gguf"), tmp_path / "q.gguf", Recipe("q8_0"))
        kind = Bundle.open(tmp_path / "q.gguf").type_name("enc.blk.0.ffn_up.weight")
        assert kind == "Q8_0"


def test_kept_tensors_are_left(mixed, tmp_path):
    recipe = Recipe("q4_0", keep=("ffn_up", "pred.proj"))
    rewrite(mixed, tmp_path / "out.gguf", recipe)
    found = Bundle.open(tmp_path / "out.gguf")
    for name in found.names():
        if "ffn_up" in name or "pred.proj" in name:
            assert np.array_equal(found.encoded(name).data, mixed.encoded(name).data)
    assert found.type_name("enc.blk.0.ffn_down.weight") == "Q4_0"
    text = refusal(mixed, tmp_path / "o.gguf", Recipe("q4_0", keep=("ffn_upp", "blk")))
    assert "no tensor's name holds 'ffn_upp'" in text and "'blk'" not in text


def test_a_tensor_the_type_cannot_hold_stays_as_it_is_stored(tmp_path):
    tensors = random_tensors(MIXED)
    tensors["enc.blk.0.ffn_up.weight"] *= 1e6
    write_bundle(tmp_path / "in.gguf", MIXED, tensors, "bf16")
    bundle = Bundle.open(tmp_path / "in.gguf")
    rewrite(bundle, tmp_path / "out.gguf", Recipe("q8_0"))
    found = Bundle.open(tmp_path / "out.gguf")
    assert found.type_name("enc.blk.0.ffn_up.weight") == "BF16"
    assert found.type_name("enc.blk.0.ffn_down.weight") == "Q8_0"


def test_infinite_weights_are_refused(tmp_path):
    forge = Forge.tiny()
    entry = forge.entry("enc.blk.0.ffn_up.weight")
    for bad in (np.nan, np.inf, -np.inf):
        values = np.frombuffer(entry.data, np.float32).copy()
        values[3] = bad
        entry.data = values.tobytes()
        bundle = Bundle.open(forge.write(tmp_path / "in.gguf"))
        text = refusal(bundle, tmp_path / "out.gguf", Recipe("q8_0"))
        assert "enc.blk.0.ffn_up.weight holds NaN or infinite values" in text


def test_types_nobody_decodes_are_refused(tmp_path):
    forge = Forge.tiny()
    forge.entry("enc.blk.0.ffn_up.weight").kind = 99
    bundle = Bundle.open(forge.write(tmp_path / "in.gguf"))
    text = refusal(bundle, tmp_path / "out.gguf", Recipe("q8_0"))
    assert "enc.blk.0.ffn_up.weight has the type type 99, which cannot be decoded" in text


def test_places_that_are_refused(mixed, tmp_path):
    (tmp_path / "folder.gguf").mkdir()
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "file").write_text("x")
    os.link(mixed.path, tmp_path / "linked.gguf")
    os.symlink(mixed.path, tmp_path / "pointed.gguf")
    for place, words in (
        ("linked.gguf", "is the input itself"),
        ("pointed.gguf", "is the input itself"),
        ("folder.gguf", "is a directory"),
        ("pipe.gguf", "is no regular file"),
        ("absent/x.gguf", "No such file or directory"),
        ("file/x.gguf", "Not a directory"),
        ("n" * 300, "File name too long"),
    ):
        assert words in refusal(mixed, tmp_path / place, Recipe("f16"))
    assert "is the input itself" in refusal(mixed, mixed.path, Recipe("f16"))
    assert "'q9' is unknown" in refusal(mixed, tmp_path / "x.gguf", Recipe("q9"))


def test_a_file_that_changes_meanwhile_is_refused(tmp_path):
    path = write_tiny(tmp_path / "in.gguf")
    bundle = Bundle.open(path)

    def overwrite(change):
        path.write_bytes(path.read_bytes())

    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match="changed since it was opened"):
        rewrite(bundle, tmp_path / "out" / "x.gguf", Recipe("f16"), overwrite)
    assert os.listdir(tmp_path / "out") == []


def test_an_interrupted_run_leaves_the_old_file(mixed, tmp_path):
    path = write_tiny(tmp_path / "out.gguf")
    before = path.read_bytes()

    def interrupt(change):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rewrite(mixed, path, Recipe("f16"), interrupt)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["out.gguf"]


def test_a_dry_run_reports_the_same_and_writes_nothing(mixed, tmp_path):
    dry = rewrite(mixed, None, Recipe("q5_k"))
    assert os.listdir(tmp_path) == [] and os.listdir(mixed.path.parent) == ["in.gguf"]
    assert dry == rewrite(mixed, tmp_path / "out.gguf", Recipe("q5_k"))


@pytest.mark.parametrize("file_type", ["q8_0", "f16"])
def test_memory_holds_about_one_tensor(tmp_path, monkeypatch, file_type):
    monkeypatch.setattr("jepa_wm.bundle.rewrite._GROUP", 1 << 14)  # as small as the tensors here
    wide = MIXED | {"jepa.enc.ffn_dim": 2048, "jepa.enc.n_layer": 4}
    path = write_bundle(tmp_path / "in.gguf", wide, random_tensors(wide))
    largest = 4 * 256 * 2048
    assert path.stat().st_size > 9 * largest
    bundle = Bundle.open(path)
    tracemalloc.start()
    try:
        rewrite(bundle, tmp_path / "out.gguf", Recipe(file_type))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # the stored tensor and a group of values: decoded, encoded and compared
    assert peak < 2 * largest, peak / largest
