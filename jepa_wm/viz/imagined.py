"""What a model imagines beside what is real: strips of frames, outlines over them, patch maps.

Everything drawn is a real frame or a number; where pixels come from a decoder trained afterwards,
the row says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from jepa_wm.viz.embeddings import COLOURS, finish_note
from jepa_wm.viz.style import BLUE, INK, MUTED, new_figure

MAP = "cividis"  # one hue from dark to bright, the same for every eye
_TILE = 1.25  # inches


@dataclass(frozen=True, eq=False, kw_only=True)
class Row:
    """One row of pictures.

    Attributes:
        label: What they are.
        pictures: uint8 [n,h,w,3].
        captions: A line under each, or none.
        colour: Of their frames.
    """

    label: str
    pictures: np.ndarray
    captions: Sequence[str] = ()
    colour: str = BLUE


@dataclass(frozen=True, eq=False, kw_only=True)
class Maps:
    """One row of numbers over the patches of pictures.

    Attributes:
        label: What they are.
        values: float [n,rows,columns].
    """

    label: str
    values: np.ndarray


def shown(count: int, most: int) -> list[int]:
    """Return at most ``most`` of 0..count-1, evenly, with the first and the last."""
    return sorted({int(i) for i in np.linspace(0, count - 1, min(count, most)).round()})


def strip(rows: Sequence[Row], heads: Sequence[str], note: str = "") -> Figure:
    """Draw rows of pictures over time.

    Args:
        rows: Each with one picture a column.
        heads: What stands over the columns, [n].
        note: Below the figure.

    Raises:
        ValueError: there are no rows, or one does not fit the heads.
    """
    n = len(heads)
    if not rows or any(len(row.pictures) != n or len(row.captions) not in (0, n) for row in rows):
        raise ValueError(f"strip needs rows of {n} pictures, with {n} captions or none")
    figure, grid = _grid(len(rows), n)
    for column, head in enumerate(heads):
        grid[0, column].set_title(head, fontsize=8, color=INK, pad=3)
    for row, tiles in zip(rows, grid, strict=True):
        tiles[0].set_ylabel(row.label, fontsize=8, color=INK)
        for column, tile in enumerate(tiles):
            _picture(tile, row.pictures[column], row.colour)
            if len(row.captions):
                tile.set_xlabel(row.captions[column], fontsize=7.5, color=MUTED, labelpad=2)
    finish_note(figure, note)
    return figure


def overlays(
    frames: np.ndarray,
    outlines: Mapping[str, Sequence[Mapping[str, np.ndarray]]],
    heads: Sequence[str],
    note: str = "",
) -> Figure:
    """Draw outlines over frames: one row a source, true outlines beneath in every row.

    Args:
        frames: uint8 [n,h,w,3].
        outlines: Source (of ``COLOURS``) -> for every frame, thing -> curve [m,2] in units of the
            frame's side.
        heads: What stands over the columns, [n].
        note: Below the figure.

    Raises:
        ValueError: a source has not one set of outlines a frame.
    """
    n = len(frames)
    if len(heads) != n or any(len(found) != n for found in outlines.values()):
        raise ValueError(f"overlays needs {n} heads and {n} sets of outlines a source")
    sources = [name for name in outlines if name != "true"]
    figure, grid = _grid(len(sources), n)
    for column, head in enumerate(heads):
        grid[0, column].set_title(head, fontsize=8, color=INK, pad=3)
    for source, tiles in zip(sources, grid, strict=True):
        tiles[0].set_ylabel(f"read from\n{source} latent", fontsize=8, color=INK)
        for column, tile in enumerate(tiles):
            _picture(tile, _pale(frames[column]), INK)
            for name in ("true", source):
                for curve in outlines.get(name, [{}] * n)[column].values():
                    _curve(tile, curve, frames.shape[1:3], name)
    lines = [
        Line2D([], [], color=COLOURS[name], ls="--" if name == "predicted" else "-", label=name)
        for name in ("true", *sources)
        if name in outlines
    ]
    figure.legend(
        handles=lines, loc="outside lower center", ncols=3, fontsize=8, frameon=False,
        labelcolor=INK,
    )  # fmt: skip
    finish_note(figure, note)
    return figure


def patch_maps(
    pictures: np.ndarray, rows: Sequence[Maps], heads: Sequence[str], measure: str, note: str = ""
) -> Figure:
    """Draw numbers a patch over pictures as the model sees them, all in one scale.

    Args:
        pictures: uint8 [n,h,w,3].
        rows: Each with one map a picture.
        heads: What stands over the columns, [n].
        measure: Name and unit of the numbers.
        note: Below the figure.

    Raises:
        ValueError: a row does not fit the pictures.
    """
    n = len(pictures)
    if not rows or len(heads) != n or any(len(row.values) != n for row in rows):
        raise ValueError(f"patch_maps needs rows of {n} maps and {n} heads")
    figure, grid = _grid(1 + len(rows), n, room=0.9)
    low = min(float(row.values.min()) for row in rows)
    high = max(float(row.values.max()) for row in rows)
    grid[0, 0].set_ylabel("true frame", fontsize=8, color=INK)
    for column, head in enumerate(heads):
        grid[0, column].set_title(head, fontsize=8, color=INK, pad=3)
        _picture(grid[0, column], pictures[column], INK)
    for row, tiles in zip(rows, grid[1:], strict=True):
        tiles[0].set_ylabel(row.label, fontsize=8, color=INK)
        for column, tile in enumerate(tiles):
            _picture(tile, _grey(pictures[column]), INK)
            height, width = pictures.shape[1:3]
            image = tile.imshow(
                row.values[column], extent=(-0.5, width - 0.5, height - 0.5, -0.5), cmap=MAP,
                vmin=low, vmax=high, alpha=0.75, interpolation="nearest",
            )  # fmt: skip
    bar = figure.colorbar(image, ax=list(grid[1:].flat), fraction=0.03, shrink=0.8)
    bar.set_label(measure, fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, color=MUTED)
    finish_note(figure, note)
    return figure


def _grid(rows: int, columns: int, room: float = 0.0) -> tuple[Figure, np.ndarray]:
    height = (_TILE + 0.12) * rows + 0.6
    figure = new_figure(max(_TILE * columns + 0.6 + room, 5.2), height)
    grid: np.ndarray = figure.subplots(rows, columns, squeeze=False)
    return figure, grid


def _picture(axes: Axes, picture: np.ndarray, colour: str) -> None:
    axes.imshow(picture, interpolation="antialiased")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=1.2)


def _curve(axes: Axes, curve: np.ndarray, shape: tuple[int, int], name: str) -> None:
    """Draw a curve in units of the frame's side; what leaves the frame is not drawn."""
    height, width = shape
    axes.plot(
        curve[:, 0] * width - 0.5, curve[:, 1] * height - 0.5, color=COLOURS[name],
        ls="--" if name == "predicted" else "-", linewidth=1.3,
    )  # fmt: skip
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(height - 0.5, -0.5)


def _pale(frame: np.ndarray) -> np.ndarray:
    """Fade a frame so that lines stand out."""
    return (255 - (255 - frame.astype(np.float32)) * 0.45).astype(np.uint8)


def _grey(frame: np.ndarray) -> np.ndarray:
    return frame.mean(-1, keepdims=True).repeat(3, -1).astype(np.uint8)
