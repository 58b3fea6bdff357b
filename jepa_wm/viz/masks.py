"""A masked prediction over the frames it is about: what was seen, what was hidden, how far it fell.

One column a time slot. Above: the frame with its context and target patches; below: the error of
each target patch as a heat map.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from jepa_wm.viz.style import BLUE, INK, MUTED, ORANGE, new_figure

_COLUMN = 1.9  # inches


@dataclass(frozen=True, eq=False, kw_only=True)
class MaskedView:
    """A masked prediction on its grid of time slots, rows and columns of patches.

    Attributes:
        frames: The first frame of each slot, uint8 [t,h,w,3].
        context: Which patches were seen, bool [t,rows,columns].
        target: Which were predicted, bool [t,rows,columns].
        error: Error of each target patch, 0 or more, float [t,rows,columns], NaN elsewhere; None
            where there is nothing to compare with.
        measure: Name and unit of the error for the colour bar.

    Raises:
        ValueError: the shapes do not fit together.
    """

    frames: np.ndarray
    context: np.ndarray
    target: np.ndarray
    error: np.ndarray | None
    measure: str = "1 - cosine [1]"

    def __post_init__(self) -> None:
        grids = [grid for grid in (self.context, self.target, self.error) if grid is not None]
        if len({grid.shape for grid in grids}) > 1 or len(self.frames) != len(self.context):
            shapes = [list(grid.shape) for grid in (self.frames, *grids)]
            raise ValueError(f"frames, context, target and error do not fit together: {shapes}")


def masked_prediction(view: MaskedView, title: str = "", most: int = 8) -> Figure:
    """Draw the masks over the frames and, where it is known, the error over them.

    Args:
        view: What to draw.
        title: A line above, such as the input's name.
        most: Most time slots shown, at least 1; slots in between are left out evenly.

    Raises:
        ValueError: ``most`` is below 1.
    """
    if most < 1:
        raise ValueError(f"most={most} must be at least 1")
    slots = np.unique(np.rint(np.linspace(0, len(view.frames) - 1, most)).astype(int))
    rows = 1 if view.error is None else 2
    width = max(_COLUMN * len(slots) + 1, 4.5)
    figure = new_figure(width, _COLUMN * rows + 0.9)
    figure.suptitle(title, fontsize=10, color=INK)
    grid = figure.subplots(rows, len(slots), squeeze=False)
    for axes, slot in zip(grid[0], slots, strict=True):
        _frame(axes, view.frames[slot])
        axes.set_title(f"slot {slot}", fontsize=8, color=MUTED)
        _over(axes, view.frames[slot], _colours(view.context[slot], view.target[slot]))
    if view.error is not None:
        _heat(figure, grid, view, slots)
    marks = [Patch(color=BLUE, alpha=0.6, label="context"), Patch(color=ORANGE, label="target")]
    figure.legend(handles=marks, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    return figure


def _colours(context: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Colour patches [rows,columns] as RGBA: seen blue, predicted orange, the rest dark."""
    colours = np.full((*context.shape, 4), to_rgba(INK, 0.75))
    colours[context] = to_rgba(BLUE, 0.25)
    colours[target] = to_rgba(ORANGE, 0.6)
    return colours


def _heat(figure: Figure, grid: np.ndarray, view: MaskedView, slots: np.ndarray) -> None:
    """Draw the error of the shown slots on one scale, which all targets share."""
    error = np.ma.masked_invalid(np.asarray(view.error, np.float64))
    scale = Normalize(0, max(float(error.max()), 1e-9) if error.count() else 1.0)
    for axes, slot in zip(grid[1], slots, strict=True):
        grey = view.frames[slot].mean(-1, keepdims=True).repeat(3, -1).astype(np.uint8)
        _frame(axes, grey)
        image = _over(axes, grey, error[slot], norm=scale, cmap="magma", alpha=0.85)
    bar = figure.colorbar(image, ax=list(grid.flat), fraction=0.04, shrink=0.6)
    bar.set_label(view.measure, fontsize=8, color=INK)
    bar.ax.tick_params(labelsize=7, color=MUTED)


def _frame(axes: Axes, frame: np.ndarray) -> None:
    axes.imshow(frame, interpolation="nearest")
    axes.set_axis_off()


def _over(axes: Axes, frame: np.ndarray, patches: np.ndarray, **style: Any) -> AxesImage:
    height, width = frame.shape[:2]
    extent = (-0.5, width - 0.5, height - 0.5, -0.5)
    return axes.imshow(patches, extent=extent, interpolation="nearest", **style)
