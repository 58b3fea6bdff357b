"""The README's code runs, with the bundled model."""

import importlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from jepa_wm.viz.video import write_video

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.S)


@pytest.mark.parametrize("code", BLOCKS)
def test_a_code_block_runs(code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=900
    )
    assert done.returncode == 0, done.stderr


def test_there_is_an_example_of_an_image_and_a_goal():
    assert any("agent.act" in code and len(code.splitlines()) <= 18 for code in BLOCKS)


def commands(title):
    """The commands of a section's first shell block."""
    section = README.partition(f"## {title}\n")[2].partition("\n## ")[0]
    block = re.search(r"```bash\n(.*?)```", section, re.S)
    return [shlex.split(line, comments=True) for line in block[1].splitlines()]


@pytest.mark.slow
def test_a_model_can_be_looked_into_as_it_says(tiny, tmp_path, monkeypatch, capsys):
    """Every command line of the section, in its order, beside the files it names."""
    found = commands("Look into a model")
    assert {line[2] for line in found} == {
        f"jepa_wm.{name}" for name in ("info", "embed", "classify", "predict", "check", "quantize")
    }
    (tmp_path / "vjepa2.gguf").write_bytes(tiny("vjepa2").read_bytes())
    (tmp_path / "photos").mkdir()
    frames = np.random.default_rng(0).integers(0, 256, (4, 24, 32, 3), np.uint8)
    for i, frame in enumerate(frames):
        Image.fromarray(frame).save(tmp_path / "photos" / f"{i}.png")
    write_video(tmp_path / "clip.mp4", frames, 4)
    monkeypatch.chdir(tmp_path)
    for line in found:
        assert line[:2] == ["python", "-m"]
        monkeypatch.setattr(sys, "argv", line[2:])
        try:
            importlib.import_module(line[2]).main()
        except SystemExit as status:
            assert not status.code, (line, capsys.readouterr().err)
        assert capsys.readouterr().out
    for name in ("features.npy", "features.npy.json", "predicted.png", "latents.npy",
                 "lewm-q8.gguf"):  # fmt: skip
        assert (tmp_path / name).stat().st_size > 0
