"""The look all pictures share: colours that colour-blind readers can tell apart, quiet axes."""

import functools
from pathlib import Path

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import ImageFont

INK, MUTED, FAINT, PAPER = "#1a1c1f", "#6b7178", "#d5d9de", "#ffffff"
BLUE, ORANGE, GREEN, GREY = "#0072b2", "#d55e00", "#009e73", "#9aa1a9"
"""Blue, orange and green are those of Okabe and Ito's palette."""


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of a size in inches; it belongs to no window and no global list."""
    return Figure(figsize=(width, height), dpi=150, layout="constrained", facecolor=PAPER)


def finish_axes(axes: Axes, *, title: str = "", x: str = "", y: str = "") -> None:
    """Label an axes and take away what carries no data; labels end in the unit in brackets."""
    axes.set_title(title, fontsize=10, color=INK, loc="left", fontweight="bold")
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    axes.tick_params(labelsize=8, color=MUTED, labelcolor=INK)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(GREY)


def finish_legend(axes: Axes) -> None:
    """Add a legend on the upper right if anything is labelled; lines shine through."""
    if axes.get_legend_handles_labels()[0]:
        legend = axes.legend(fontsize=8, loc="upper right", labelcolor=INK, framealpha=0.85)
        legend.get_frame().set(edgecolor="none")


def finish_shared_legend(figure: Figure) -> None:
    """Add one legend below all axes; a label that several have appears once."""
    named: dict[str, Artist] = {}
    for axes in figure.axes:
        for handle, name in zip(*axes.get_legend_handles_labels(), strict=True):
            named.setdefault(str(name), handle)
    names, handles = list(named), list(named.values())
    legend = figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
    for text in legend.get_texts():
        text.set(fontsize=8, color=INK)


@functools.cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, which comes with matplotlib, for drawing into frames; ``size`` in px."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(str(path), size)
