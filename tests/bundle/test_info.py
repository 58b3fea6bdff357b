"""``python -m jepa_wm.info`` on a good file, on one with an unknown type, and on bad ones."""

import json
import re
import subprocess
import sys

import pytest
from bundle.forge import Forge, packed
from bundle.tiny import write_tiny

from jepa_wm import info
from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError

QKV = "enc.blk.0.attn_qkv.weight"


def run(capsys, *arguments):
    info.main([str(argument) for argument in arguments])
    return capsys.readouterr().out


def test_text(tmp_path, capsys):
    text = run(capsys, write_tiny(tmp_path / "x.gguf", "f16"), "--tensors")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "family lewm",
        "jepa.enc.embed_dim 8",
        "jepa.enc.in_chans 3 (default)",
        "jepa.pred.action_dim 10",
        "jepa_wm.action.block 5",
        "jepa_wm.action.mean [0.1, -0.2]",
        "jepa_wm.action.high [1, 1]",
        "head: none",
        f"{QKV} F16 [24, 8]",
    ):
        assert line in lines, (line, text)
    assert "tensors: 58 (" in text and "3,512 parameters" in text


def test_json_is_one_document(tmp_path, capsys):
    found = json.loads(run(capsys, write_tiny(tmp_path / "x.gguf"), "--json", "--tensors"))
    assert found["file"]["family"] == "lewm" and found["tensors"]["types"] == {"F32": 58}
    assert found["sections"]["actions"]["jepa_wm.action.std"] == {
        "value": [0.5, 0.25],
        "stored": True,
    }
    assert len(found["tensors"]["list"]) == 58


def test_an_unknown_tensor_type_is_marked(tmp_path, capsys):
    forged = Forge.tiny()
    forged.entry(QKV).kind = 77
    path = forged.write(tmp_path / "x.gguf")
    text = run(capsys, path, "--tensors")
    assert f"unsupported: {QKV} has the type type 77" in text and "family       lewm" in text
    assert json.loads(run(capsys, path, "--json"))["tensors"]["unsupported"] == {QKV: "type 77"}


def test_control_characters_never_reach_the_terminal(tmp_path, capsys):
    forged = Forge.tiny(general__name="\x1b[2Jred\x9b\u202e")
    forged.pairs["acme.\x07bell"] = packed("\x1b]0;title\x07")
    forged.pairs["acme.list"] = packed(["\r\nx"])
    path = forged.write(tmp_path / "x.gguf")
    for options in ((), ("--tensors",), ("--json",)):
        text = run(capsys, path, *options)
        assert text.replace("\n", "").isprintable() and "title" in text


@pytest.mark.parametrize(
    ("raw", "words"), [(b"", "is empty"), (b"version https://git-lfs x", "LFS"), (None, "no such")]
)
def test_a_bad_file_is_one_line_and_a_failing_exit(tmp_path, raw, words):
    path = tmp_path / "x.gguf"
    if raw is not None:
        path.write_bytes(raw)
    command = [sys.executable, "-m", "jepa_wm.info", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert words in done.stderr and str(path) in done.stderr


@pytest.mark.parametrize(
    ("family", "changes", "can"),
    [
        ("hfvit", {}, {"embed": "images 16x16, 32 numbers (cls)"}),
        ("ijepa", {}, {"embed": "images 16x16, 64", "predict": "hidden patches, 64 numbers"}),
        ("vjepa", {}, {"embed": "clips 4x16x16 (a still picture is repeated 4", "predict": "64"}),
        ("vjepa2", {}, {"embed": "clips 4x16x16", "predict": "64", "classify": "5 classes, with"}),
        ("vjepa2", {"jepa.head.labels": None}, {"embed": "clips", "predict": "hidden",
                                                "classify": "5 classes, without labels"}),
        ("vjepa2_1", {}, {"embed": "(a still picture is one frame)", "predict": "48 numbers"}),
        ("levjepa", {}, {"embed": "clips 3x16x16 (a still picture is repeated 3 times)"}),
        ("lewm", {}, {"embed": "(projected)", "plan": "actions of 10 numbers"}),
    ],
)  # fmt: skip
def test_it_says_what_the_model_can_do(family, changes, can, tiny, capsys):
    path = tiny(family, **changes)
    found = json.loads(run(capsys, path, "--json"))["can"]
    assert found.keys() == can.keys()
    assert all(words in found[name] for name, words in can.items()), found
    text = run(capsys, path)
    assert "what it can do" in text and all(what in text for what in found.values())


def test_what_cannot_be_loaded_can_do_nothing(tiny, tmp_path, capsys):
    forged = Forge.tiny()
    forged.entry(QKV).kind = 77
    unknown = run(capsys, forged.write(tmp_path / "x.gguf"))
    assert f"nothing    tensor {QKV} has the type type 77" in unknown
    other_graph = tiny("hfvit", **{"jepa.enc.tubelet_size": 2, "jepa.enc.n_frames": 2})
    assert (
        "jepa.enc.tubelet_size = 2"
        in json.loads(run(capsys, other_graph, "--json"))["can"]["nothing"]
    )


def broken_run(capsys, path, *options):
    with pytest.raises(BundleError) as error:
        info.main([str(path), *options])
    said = str(error.value)
    assert str(path) in said and "\n" not in said
    return capsys.readouterr().out, said


def test_a_cut_file_still_says_what_it_is(tiny, capsys):
    path = tiny("vjepa2")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    out, error = broken_run(capsys, path)
    assert "what is wrong: 1\n  cut short: " in out, out
    cut = re.search(r"cut short: ([\d,]+) of ([\d,]+) bytes, (\d+) tensors missing data", error)
    numbers = [int(number.replace(",", "")) for number in cut.groups()]
    assert numbers[:2] == [len(whole) // 2, pytest.approx(len(whole), abs=32)]
    assert 20 < numbers[2] < len(Bundle.open(tiny("vjepa2")).names())
    assert "outside the schema" not in out
    assert "family       vjepa2" in out and "jepa.enc.embed_dim               64" in out
    assert "can do" not in out


def test_a_file_cut_in_its_header_says_what_was_read(tiny, capsys):
    path = tiny("vjepa2")
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.index(b"jepa.pred.kind")] + bytes(4000))
    out, error = broken_run(capsys, path)
    assert "jepa.enc.n_layer" in out and "jepa.pred" not in out
    assert "what is wrong: 1" in out and error.removeprefix(f"{path}: ") in out


def test_every_fault_is_listed_with_the_value_that_was_found(tmp_path, capsys):
    forged = Forge.tiny(jepa__enc__n_head=3, jepa__enc__act="tanh", general__name="\x1b[2Jred")
    del forged.pairs["jepa.pred.n_layer"]
    path = forged.write(tmp_path / "x.gguf")
    for options in ((), ("--json",)):
        out, error = broken_run(capsys, path, *options)
        assert out.replace("\n", "").isprintable()
        for words in ("n_head 3", "tanh", "jepa.pred.n_layer is missing"):
            assert words in out
        assert "faults, the first: " in error
    found = json.loads(out)
    assert len(found["faults"]) >= 3
    assert found["sections"]["encoder"]["jepa.enc.act"] == {"value": "tanh", "stored": True}


def test_many_faults_are_counted_after_a_dozen(tmp_path, capsys):
    forged = Forge.tiny()
    for entry in forged.entries[:20]:
        entry.dims = [*entry.dims[:-1], 0]
    path = forged.write(tmp_path / "x.gguf")
    out, _ = broken_run(capsys, path)
    n_faults = len(json.loads(broken_run(capsys, path, "--json")[0])["faults"])
    assert n_faults >= 20 and f"what is wrong: {n_faults}" in out
    shown = out.split("what is wrong")[1].split("\n\n")[0].splitlines()[1:]
    assert len(shown) == 13 and shown[-1] == f"  and {n_faults - 12} more (--json lists all)"


def test_another_architecture_is_no_bundle_but_is_described(tmp_path, capsys):
    path = Forge.tiny(general__architecture="llama").write(tmp_path / "x.gguf")
    out, error = broken_run(capsys, path)
    assert "wanted 'jepa'" in error and "general.architecture" in out
