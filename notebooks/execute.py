"""Run every notebook and keep its pictures, without what differs from run to run.

Run: ``python notebooks/execute.py [NAME...]`` (needs nbclient and ipykernel).
"""

import base64
import io
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

HERE = Path(__file__).parent
SETTINGS = "%matplotlib inline"
WIDTH, COLOURS = 720, 128  # of a picture: small enough for git


def execute(path: Path) -> None:
    """Run a notebook in place; keep pictures and results, drop progress bars and metadata."""
    book = nbformat.read(path, as_version=4)
    book.cells.insert(0, nbformat.v4.new_code_cell(SETTINGS))
    NotebookClient(book, timeout=600, resources={"metadata": {"path": str(HERE)}}).execute()
    book.cells.pop(0)
    for cell in book.cells:
        cell.metadata = {}
        if cell.cell_type == "code":
            cell.execution_count = None
            cell.outputs = [_plain(output) for output in cell.outputs if _is_kept(output)]
    nbformat.write(book, path)


def _is_kept(output: nbformat.NotebookNode) -> bool:
    return output.output_type in ("display_data", "execute_result")


def _plain(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    output.metadata = {}
    if "execution_count" in output:
        output.execution_count = None
    if "image/png" in output.data:  # the picture tells it all
        output.data = {"image/png": _small(output.data["image/png"])}
    return output


def _small(png: str) -> str:
    """Shrink a picture to ``WIDTH`` and a palette."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    if picture.width > WIDTH:
        height = round(picture.height * WIDTH / picture.width)
        picture = picture.resize((WIDTH, height), Image.Resampling.LANCZOS)
    sink = io.BytesIO()
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(sink, "PNG", optimize=True)
    return base64.b64encode(sink.getvalue()).decode("ascii")


if __name__ == "__main__":
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.ipynb"))
    for name in names:
        execute(HERE / f"{name}.ipynb")
        print(name)
