"""Energy landscapes: costs over grids of actions with the actions that matter marked in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from jepa_wm.viz.style import BLUE, GREEN, INK, ORANGE, finish_axes, new_figure

MARKERS = {"true action": ("x", ORANGE), "planner": ("o", BLUE), "minimum": ("+", GREEN)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Plane:
    """Costs over two dimensions of an action.

    Attributes:
        title: What is drawn.
        points: Values along both axes, ascending, [n].
        costs: float [n,n], first axis drawn to the right.
        labels: Of the two axes, with units.
        marks: Name -> place (x, y) in the axes' units; names of ``MARKERS``.

    Raises:
        ValueError: the costs do not fit the points.
    """

    title: str
    points: np.ndarray
    costs: np.ndarray
    labels: tuple[str, str]
    marks: Mapping[str, tuple[float, float]]

    def __post_init__(self) -> None:
        n = len(self.points)
        if n < 2 or self.costs.shape != (n, n):
            raise ValueError(f"costs {list(self.costs.shape)} do not fit {n} points, at least 2")


def energy_landscape(planes: Sequence[Plane], slices: Sequence[Plane], note: str = "") -> Figure:
    """Draw planes in one row and slices of a solid grid, all in one scale, in another below.

    Args:
        planes: Each with its own scale and marks.
        slices: May be empty.
        note: Below the picture, e.g. a warning.

    Raises:
        ValueError: there is no plane.
    """
    if not planes:
        raise ValueError("energy_landscape needs at least one plane")
    figure = new_figure(4.6 * len(planes), 6.6 if slices else 4.2)
    parts = figure.add_gridspec(2 if slices else 1, 1, height_ratios=[1.7, 1] if slices else [1])
    row = parts[0].subgridspec(1, len(planes))
    for column, plane in enumerate(planes):
        axes = figure.add_subplot(row[column])
        figure.colorbar(_draw(axes, plane), ax=axes, label="cost", shrink=0.8)
        if column == len(planes) - 1:
            axes.legend(loc="upper right", fontsize=7, labelcolor=INK)
    every = [cost for one in slices for cost in (one.costs.min(), one.costs.max())]
    below = parts[-1].subgridspec(1, max(1, len(slices)))
    for column, plane in enumerate(slices):
        axes = figure.add_subplot(below[column])
        _draw(axes, plane, (float(min(every)), float(max(every))))
        if column:  # one scale for all
            axes.set_ylabel("")
            axes.tick_params(labelleft=False)
    if note:
        figure.supxlabel(note, fontsize=8, color=INK)
    return figure


def _draw(axes: Axes, plane: Plane, limits: tuple[float, float] | None = None) -> AxesImage:
    step = (plane.points[1] - plane.points[0]) / 2
    low, high = plane.points[0] - step, plane.points[-1] + step  # cells are centred on points
    vmin, vmax = limits or (None, None)
    image = axes.imshow(
        plane.costs.T, origin="lower", extent=(low, high, low, high), cmap="viridis",
        vmin=vmin, vmax=vmax,
    )  # fmt: skip
    for name, (x, y) in plane.marks.items():
        marker, colour = MARKERS[name]
        axes.plot([x], [y], marker, color=colour, mfc="none", ms=9, mew=2, label=name)
    finish_axes(axes, title=plane.title, x=plane.labels[0], y=plane.labels[1])
    axes.grid(False)
    return image
