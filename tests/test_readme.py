"""The README's code runs, with the bundled model."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)


@pytest.mark.parametrize("code", BLOCKS)
def test_a_code_block_runs(code, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_there_is_an_example_of_an_image_and_a_goal():
    assert any("agent.act" in code and len(code.splitlines()) <= 18 for code in BLOCKS)
