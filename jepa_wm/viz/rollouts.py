"""A filmstrip of one episode: what it saw when it decided, and the distances behind that.

A JEPA world model has no decoder, so what a plan imagines cannot be drawn. What can: the real
frames, the latent distance each plan promised against the one that came true, and the real frame
whose latent is nearest to an imagined one.
"""

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from jepa_wm.control.episode import Episode
from jepa_wm.viz.frames import pictures
from jepa_wm.viz.style import (
    BLUE,
    GREEN,
    GREY,
    INK,
    MUTED,
    ORANGE,
    finish_axes,
    finish_legend,
    new_figure,
)

NO_DECODER_NOTE = "Imagined pixels are unavailable: the model predicts latents and has no decoder."


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentDistances:
    """How far from the goal, in the latent space the planner works in; D decisions.

    Attributes:
        steps: Environment steps at which a latent was measured, int [D], ascending.
        achieved: Distance of the real frame's latent to the goal's at those steps, float [D].
        predicted: Distance each plan foresaw after its blocks 1..H, float [D,H], NaN past a shorter
            horizon.
        block: Environment steps in a block, >= 1.
        unit: Unit of the distance for the axis.

    Raises:
        ValueError: the lengths do not fit together, or ``block`` is below 1.
    """

    steps: np.ndarray
    achieved: np.ndarray
    predicted: np.ndarray
    block: int
    unit: str = "objective's unit"

    def __post_init__(self) -> None:
        D = len(self.steps)
        if self.achieved.shape != (D,) or self.predicted.ndim != 2 or len(self.predicted) != D:
            raise ValueError(
                f"steps [{D}], achieved {list(self.achieved.shape)} and predicted "
                f"{list(self.predicted.shape)} must be [D], [D] and [D,H]"
            )
        if self.block < 1:
            raise ValueError(f"block={self.block} must be at least 1 environment step")


def filmstrip(
    episode: Episode,
    distances: LatentDistances | None = None,
    nearest: np.ndarray | None = None,
    most: int = 8,
) -> Figure:
    """Draw an episode's frames at its decisions, its end and its goal, above a distance curve.

    Args:
        episode: Filmed; without a goal picture the goal's place says so.
        distances: For the curve; without it the cost of each chosen plan is drawn, if the episode
            has plans.
        nearest: uint8 [D,h,w,3], for each decision the real frame whose latent is nearest to the
            one the plan imagined at its end; adds a second row.
        most: Most frames in a row beside the goal, >= 2; decisions in between are left out evenly.

    Raises:
        ConfigError: the episode was not filmed.
        ValueError: ``most`` is below 2, or ``nearest`` is not one frame a decision.
    """
    frames, goal = pictures(episode)
    decisions = np.asarray(episode.plans.get("step", np.arange(0, episode.steps, 5)), dtype=int)
    if most < 2:
        raise ValueError(f"most={most} must be at least 2")
    if nearest is not None and len(nearest) != len(decisions):
        raise ValueError(f"nearest has {len(nearest)} frames for {len(decisions)} decisions")
    shown = _thin(len(decisions), most - 1)
    columns, rows = len(shown) + 2, 1 if nearest is None else 2
    below = 2.5 if distances is not None or "cost" in episode.plans else 0.7  # inches of curve
    figure = new_figure(max(1.3 * columns, 5.2), 1.5 * rows + below)
    grid = figure.add_gridspec(2, 1, height_ratios=(1.5 * rows, below))
    strip, curve = figure.add_subfigure(grid[0]), figure.add_subfigure(grid[1])
    tiles: np.ndarray = strip.subplots(rows, columns, squeeze=False)
    for tile in tiles.flat:
        tile.set_axis_off()
    for column, index in enumerate(shown):
        step = decisions[index]
        _tile(tiles[0, column], frames[step], f"step {step}", GREY)
        if nearest is not None:
            _tile(tiles[1, column], nearest[index], "", BLUE)
    _tile(tiles[0, -2], frames[-1], f"end ({episode.steps})", GREEN if episode.success else ORANGE)
    if goal is None:
        _say(tiles[0, -1], "goal has\nno picture")
    else:
        _tile(tiles[0, -1], goal, "goal", INK)
    if nearest is not None:
        _say(tiles[1, -2], "blue: real frame\nnearest to what\nthe plan imagined")
    _curve(curve.subplots(), episode, distances)
    curve.supxlabel(NO_DECODER_NOTE, fontsize=8, color=MUTED, x=0.01, ha="left")
    return figure


def _thin(count: int, most: int) -> list[int]:
    """Pick at most ``most`` of 0..count-1, evenly, with the first and the last."""
    if count <= most:
        return list(range(count))
    return [int(index) for index in np.linspace(0, count - 1, most).round()]


def _tile(axes: Axes, frame: np.ndarray, title: str, colour: str) -> None:
    axes.set_axis_on()
    axes.imshow(frame, interpolation="antialiased")
    axes.set_title(title, fontsize=8, color=INK, pad=3)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set(color=colour, linewidth=1 if colour == GREY else 2)


def _say(axes: Axes, text: str) -> None:
    axes.text(
        0.0, 0.5, text, transform=axes.transAxes, fontsize=7.5, color=MUTED, ha="left", va="center"
    )


def _curve(axes: Axes, episode: Episode, distances: LatentDistances | None) -> None:
    if distances is not None:
        _fan(axes, distances)
        title, y = "Latent distance to the goal", f"distance ({distances.unit})"
    elif "cost" in episode.plans:
        axes.plot(episode.plans["step"], episode.plans["cost"], "o-", color=BLUE, ms=3)
        title, y = "Cost the chosen plan foresaw", "cost (objective's unit)"
    else:
        axes.set_axis_off()
        _say(axes, "No plans and no latent distances were recorded.")
        return
    finish_axes(axes, title=title, x="environment step", y=y)
    finish_legend(axes)
    axes.set_xlim(-0.5, max(episode.steps, 1) + 0.5)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _fan(axes: Axes, distances: LatentDistances) -> None:
    """Draw what came true as a line and each plan's promise as a thin branch off it."""
    for index, (step, start, ahead) in enumerate(
        zip(distances.steps, distances.achieved, distances.predicted, strict=True)
    ):
        steps = step + distances.block * np.arange(len(ahead) + 1)
        label = "foreseen by the plan" if index == 0 else None
        branch = np.concatenate([[start], ahead])
        axes.plot(steps, branch, ".--", color=ORANGE, alpha=0.7, linewidth=1, ms=3, label=label)
    axes.plot(distances.steps, distances.achieved, "o-", color=INK, ms=4, label="came true")
