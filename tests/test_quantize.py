"""The command: bundled model in, each type out, loaded and used; the report; the refusals."""

import json
import os
import sys

import pytest
import torch

from jepa_wm import quantize
from jepa_wm.bundle.quant import FILE_TYPES
from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.models import load, load_world_model
from jepa_wm.runtime import command

from bundle.tiny import write_tiny  # isort: skip

CPU = torch.device("cpu")
# pooled cosine and size of the bundled model, whose rows of 128 take the siblings of the K types
EXPECTED = {
    "f32": (1.0, 1.0), "f16": (0.999999, 1.6), "bf16": (0.99999, 1.6), "q8_0": (0.999, 2.2),
    "q6_k": (0.999, 2.3), "q5_k": (0.99, 2.6), "q5_1": (0.99, 2.5), "q5_0": (0.99, 2.6),
    "q4_k": (0.97, 2.8), "q4_1": (0.97, 2.7), "q4_0": (0.97, 2.8),
}  # fmt: skip


@pytest.fixture(scope="module")
def frames():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (4, 64, 64, 3), dtype=torch.uint8, generator=generator)


def refusal(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["quantize", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        command(quantize.main)
    shown = capsys.readouterr()
    assert caught.value.code == 1 and shown.out == ""
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1, shown.err
    return shown.err


def test_every_type_is_expected():
    assert set(EXPECTED) == set(FILE_TYPES)


@pytest.mark.parametrize("file_type", EXPECTED)
def test_the_bundled_model_works_in_each_type(tmp_path, capsys, frames, file_type):
    out = tmp_path / "out.gguf"
    quantize.main(["lewm.gguf", str(out), file_type.upper(), "--json"])
    report = json.loads(capsys.readouterr().out)
    least, ratio = EXPECTED[file_type]
    assert report["ratio"] >= ratio and report["bytes_after"] == out.stat().st_size
    assert report["type"] == file_type and not report["dry_run"]
    changed = [row for row in report["tensors"] if row["before"] != row["after"]]
    assert len(changed) == (0 if file_type == "f32" else 36)
    assert all(0 < row["rms_error"] < 0.15 for row in changed)
    before = load(find_bundle("lewm.gguf"), CPU).embed(frames).double().flatten(1)
    after = load(out, CPU).embed(frames).double().flatten(1)
    cosine = torch.nn.functional.cosine_similarity(before, after).min().item()
    assert cosine >= least - 1e-12, cosine
    load_world_model(out, CPU)


def test_the_report_has_a_row_a_changed_tensor_and_the_totals(tmp_path, capsys):
    quantize.main(["lewm.gguf", str(tmp_path / "out.gguf"), "q4_k"])
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    row = next(line.split() for line in lines if line.startswith("enc.blk.0.ffn_down.weight"))
    assert row[1:9] == ["128", "x", "512", "F32", "->", "Q4_K", "36,864", row[8]]
    assert 5 < float(row[8].rstrip("%")) < 9 and float(row[9].rstrip("%")) < 12
    fallen = next(line for line in lines if line.startswith("enc.blk.0.attn_out.weight"))
    assert "F32 -> Q4_0" in fallen
    before, after = (find_bundle("lewm.gguf"), tmp_path / "out.gguf")
    sizes = f"{before.stat().st_size:,} -> {after.stat().st_size:,} bytes"
    assert "36 of 121 tensors changed, 85 stay as they are, " in lines[-2] and sizes in lines[-2]
    assert shown.err == ""  # no bar where stderr is no terminal
    assert len(lines) == 1 + 36 + 3 and "enc.norm.weight" not in shown.out
    quantize.main(["lewm.gguf", str(tmp_path / "out.gguf"), "q4_k", "--all"])
    lines = capsys.readouterr().out.splitlines()
    kept = next(line.split() for line in lines if line.startswith("enc.norm.weight"))
    assert kept[1:] == ["128", "F32", "512", "-", "-"] and len(lines) == 1 + 121 + 3


def test_a_bar_is_drawn_on_a_terminal(tmp_path, monkeypatch, capsys):
    write_tiny(tmp_path / "in.gguf")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    quantize.main([str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), "f16"])
    assert "tensor/s" in capsys.readouterr().err.replace("s/tensor", "tensor/s")


def test_a_dry_run_writes_nothing(tmp_path, capsys):
    path = write_tiny(tmp_path / "in.gguf")
    quantize.main([str(path), str(tmp_path / "out.gguf"), "f16", "--dry-run"])
    assert "not written (dry run)" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_kept_parts_of_names_add_up(tmp_path):
    path = write_tiny(tmp_path / "in.gguf")
    out = str(tmp_path / "out.gguf")
    quantize.main([str(path), out, "f16", "--keep", "attn", "--keep", "ffn"])
    found = Bundle.open(out)
    halves = {name for name in found.names() if found.type_name(name) == "F16"}
    assert halves == {f"{part}.proj.{at}.weight" for part in ("enc", "pred") for at in (0, 2)}


def test_refusals_are_one_line(tmp_path, capsys, monkeypatch):
    path = write_tiny(tmp_path / "in.gguf", "f16")
    out = tmp_path / "out.gguf"
    for arguments, words in (
        ((tmp_path / "absent.gguf", out, "q8_0"), "no such file"),
        ((path, path, "q8_0"), "is the input itself"),
        ((path, out, "q7_0"), "'q7_0' is unknown; writable are f32, f16"),
        ((path, out, "q2_k"), "can be read but not written"),
        ((path, tmp_path / "no" / "x.gguf", "f32"), "No such file or directory"),
        ((path, tmp_path, "f32"), "is a directory"),
        ((path, out, "bf16", "--keep", "atn"), "no tensor's name holds 'atn'"),
    ):
        assert words in refusal(capsys, monkeypatch, *arguments)
    assert os.listdir(tmp_path) == ["in.gguf"]


def test_quantising_twice_needs_leave(tmp_path, capsys, monkeypatch):
    once = tmp_path / "once.gguf"
    quantize.main(["lewm.gguf", str(once), "q8_0"])
    capsys.readouterr()
    text = refusal(capsys, monkeypatch, once, tmp_path / "twice.gguf", "q4_0")
    assert "and 35 more are quantised" in text and "--allow-requant" in text
    quantize.main([str(once), str(tmp_path / "twice.gguf"), "q4_0", "--allow-requant"])
    assert Bundle.open(tmp_path / "twice.gguf").get("general.file_type") == 2
