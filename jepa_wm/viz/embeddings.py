"""Latents as pictures: how far predictions are from the truth, and both paths in a plane."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from jepa_wm.viz.style import (
    BLUE,
    FAINT,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    finish_axes,
    finish_shared_legend,
    new_figure,
)

COLOURS = {"encoded": BLUE, "predicted": ORANGE, "nothing predicted": GREY, "true": GREEN}
"""What each path is drawn in, in every picture of a rollout."""
_DASHES = {"nothing predicted": ":", "predicted": "--"}  # told apart without colour as well
_LETTERS = 15  # of a note in an inch
_MARKS = {"encoded": "o", "predicted": "s", "nothing predicted": "^"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Fan:
    """Curves of B rollouts over time, shown by their median and quartiles.

    Attributes:
        title: What is measured.
        unit: Its unit.
        curves: Name (of ``COLOURS``) -> values [B,n].
        scale: A value worth a line of its own, and its name; None for none.

    Raises:
        ValueError: the curves differ in length.
    """

    title: str
    unit: str
    curves: Mapping[str, np.ndarray]
    scale: tuple[float, str] | None = None

    def __post_init__(self) -> None:
        if len({values.shape for values in self.curves.values()}) != 1:
            shapes = {name: list(values.shape) for name, values in self.curves.items()}
            raise ValueError(f"{self.title}: curves must be [B,n] alike, got {shapes}")


def fans(panels: Sequence[Fan], steps: np.ndarray, note: str = "") -> Figure:
    """Draw one panel a measure over env steps: median line, quartile band.

    Args:
        panels: At least one.
        steps: Env steps of the n moments.
        note: Below the figure.

    Raises:
        ValueError: there is no panel, or ``steps`` does not fit one.
    """
    if not panels:
        raise ValueError("fans needs at least one panel")
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = new_figure(max(4.6, 3.4 * columns), 2.9 * rows + 0.5)
    grid: np.ndarray = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    for axes, panel in zip(grid.flat, panels, strict=False):
        _fan(axes, panel, steps)
    finish_shared_legend(figure)
    finish_note(figure, note)
    return figure


def finish_note(figure: Figure, note: str) -> None:
    """Write below a figure, above its legend where it has one, in lines as wide as the figure."""
    note = fill(note, int(_LETTERS * figure.get_figwidth()))
    if note and figure.legends:
        figure.legends[0].set_title(note)
        figure.legends[0].get_title().set(color=MUTED, fontsize=7.5)
    elif note:
        figure.supxlabel(note, fontsize=7.5, color=MUTED, x=0.01, ha="left")


def _fan(axes: Axes, panel: Fan, steps: np.ndarray) -> None:
    for name, values in panel.curves.items():
        if values.shape[1] != len(steps):
            raise ValueError(f"{panel.title}: {name} has {values.shape[1]} moments of {len(steps)}")
        low, middle, high = np.quantile(values, (0.25, 0.5, 0.75), axis=0)
        colour, style = COLOURS[name], _DASHES.get(name, "-")
        axes.fill_between(steps, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(steps, middle, style, marker=_MARKS[name], ms=3.5, color=colour, label=name)
    if panel.scale is not None:
        axes.axhline(panel.scale[0], color=INK, linewidth=0.8, linestyle="-.", label=panel.scale[1])
    finish_axes(axes, title=panel.title, x="environment step", y=panel.unit)
    axes.set_xticks(steps[:: -(-len(steps) // 6)])
    axes.set_ylim(bottom=0)


def latent_plane(
    bank: np.ndarray,
    paths: Mapping[str, np.ndarray],
    steps: np.ndarray,
    shares: tuple[float, float],
    note: str = "",
) -> Figure:
    """Draw paths through the plane of the two widest directions of latents.

    Args:
        bank: Where real frames lie, float [M,2].
        paths: Name (of ``COLOURS``) -> its places [n,2].
        steps: Env steps of the n places.
        shares: Of the bank's variance along the two directions, 0..1.
        note: Below the figure.

    Raises:
        ValueError: a path does not fit ``steps``.
    """
    figure = new_figure(5.2, 4.6)
    axes = figure.subplots()
    axes.scatter(
        bank[:, 0], bank[:, 1], s=6, color=FAINT, label=f"{len(bank)} real frames", rasterized=True
    )
    for name, path in paths.items():
        if path.shape != (len(steps), 2):
            raise ValueError(f"path {name} must be [{len(steps)},2], got {list(path.shape)}")
        axes.plot(
            *path.T, _DASHES.get(name, "-"), marker=_MARKS[name], color=COLOURS[name], ms=4,
            linewidth=1.4, label=name,
        )  # fmt: skip
    path = next(iter(paths.values()))
    for place, step in ((path[0], steps[0]), (path[-1], steps[-1])):
        axes.annotate(
            f"step {step}", place, xytext=(5, 5), textcoords="offset points", fontsize=8, color=INK
        )
    x, y = (f"direction {i} ({100 * share:.0f} % of variance)" for i, share in enumerate(shares, 1))
    finish_axes(axes, title="Paths in latent space", x=x, y=y)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_aspect("equal", adjustable="datalim")
    finish_shared_legend(figure)
    finish_note(figure, note)
    return figure
