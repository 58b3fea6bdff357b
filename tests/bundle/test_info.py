"""``python -m jepa_wm.info`` on a good file, on one with an unknown type, and on bad ones."""

import json
import subprocess
import sys

import pytest
from bundle.forge import Forge, packed
from bundle.tiny import write_tiny

from jepa_wm import info

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
