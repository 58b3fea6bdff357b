"""Film frames: the execution beside its goal, the numbers that decide, green at success.

An episode becomes a card: three pictures (execution, goal, the goal ghosted over the execution)
between a title and a strip with the step and the distances. Several cards can share a film. Text
and lines are drawn with Pillow; pictures are never resampled, only magnified by whole factors.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from jepa_wm.control.episode import Episode
from jepa_wm.control.statistics import Measure, success_step
from jepa_wm.errors import ConfigError
from jepa_wm.viz.style import BLUE, FAINT, GREEN, GREY, INK, MUTED, ORANGE, PAPER, font

DECORATION_NOTE = (
    "Success is measured against the goal picture; the green shape is decoration, not the goal."
)
"""Caption for PushT with ``draw_goal=fixed``, where the green T is not what the metric uses."""

_SMALLEST = 192  # px; smaller pictures are magnified until text fits beside them
_ROOM = 3  # measures a strip has room for


@dataclass(frozen=True, kw_only=True)
class Film:
    """How episodes are shown.

    Attributes:
        measures: Numbers in the strip, at most three; green while within their threshold.
        ghost: Opacity of the goal over the execution in the third picture, 0..1; None leaves that
            picture out.
        note: A line at the foot of the film; "" for none.
        columns: Cards in a row, >= 1; None puts up to two cards below each other and more in two
            columns.
        hold: How many times the last frame is repeated, >= 0.

    Raises:
        ValueError: a field is outside its range.
    """

    measures: tuple[Measure, ...] = ()
    ghost: float | None = 0.35
    note: str = ""
    columns: int | None = None
    hold: int = 10

    def __post_init__(self) -> None:
        if self.ghost is not None and not 0 <= self.ghost <= 1:
            raise ValueError(f"ghost={self.ghost} must lie in 0..1, or be None for no overlay")
        if self.columns is not None and self.columns < 1:
            raise ValueError(f"columns={self.columns} must be at least 1")
        if self.hold < 0:
            raise ValueError(f"hold={self.hold} must not be negative")
        if len(self.measures) > _ROOM:
            raise ValueError(f"{len(self.measures)} measures; a strip has room for {_ROOM}")


def film_frames(episodes: Sequence[Episode], film: Film) -> Iterator[np.ndarray]:
    """Yield a film of the episodes side by side; those that end early wait on their last frame.

    Args:
        episodes: At least one; each has frames uint8 [K+1,h,w,3] and a goal picture uint8 [h,w,3],
            all of one size.
        film: How to show them.

    Returns:
        max(K) + 1 + ``film.hold`` frames, uint8 [H,W,3].

    Raises:
        ConfigError: an episode was not filmed, its goal is no picture of the frames' size, or it
            lacks a measure.
        ValueError: there are no episodes, or their frames differ in size.
    """
    sheet = _Sheet(
        episodes, film
    )  # here, not at the first frame: faults show before encoding starts
    last = max(episode.steps for episode in episodes)
    return (sheet.draw(min(step, last)) for step in range(last + 1 + film.hold))


def still(episodes: Sequence[Episode], film: Film, step: int) -> np.ndarray:
    """Return the frame of ``film_frames`` at one environment step (0: start), uint8 [H,W,3]."""
    return _Sheet(episodes, film).draw(step)


def overlay(frame: np.ndarray, ghost: np.ndarray, opacity: float) -> np.ndarray:
    """Return ``(1 - opacity) frame + opacity ghost``, uint8 [h,w,3]; equal pixels stay."""
    mixed = (1 - opacity) * frame.astype(np.float32) + opacity * ghost.astype(np.float32)
    return np.rint(mixed).astype(np.uint8)


def pictures(episode: Episode) -> tuple[np.ndarray, np.ndarray | None]:
    """Return an episode's frames uint8 [K+1,h,w,3] and goal picture uint8 [h,w,3], if it is one.

    Raises:
        ConfigError: the episode was not filmed, or its goal is a picture of another size.
    """
    if episode.frames is None:
        raise ConfigError(f"episode {episode.id} has no frames; name its id in the rules' film")
    goal = episode.goal
    if goal is None or goal.ndim != 3 or goal.dtype != np.uint8:
        return episode.frames, None
    if goal.shape != episode.frames.shape[1:]:
        raise ConfigError(
            f"episode {episode.id}: goal picture {list(goal.shape)} and frames "
            f"{list(episode.frames.shape[1:])} differ in size"
        )
    return episode.frames, goal


class _Sheet:
    """The cards of a film on their page."""

    def __init__(self, episodes: Sequence[Episode], film: Film) -> None:
        if not episodes:
            raise ValueError("no episodes to show")
        self.cards = [_Card(episode, film) for episode in episodes]
        sizes = {card.blank.size for card in self.cards}
        if len(sizes) > 1:
            raise ValueError("the episodes' frames differ in size; film them apart")
        self.width, self.height = sizes.pop()
        self.columns = film.columns or (1 if len(episodes) <= 2 else 2)
        rows = math.ceil(len(episodes) / self.columns)
        unit = self.cards[0].unit
        foot = round(26 * unit) if film.note else 0
        self.page = Image.new("RGB", (self.columns * self.width, rows * self.height + foot), PAPER)
        if film.note:
            size = round(11 * unit)
            spot = round(12 * unit), rows * self.height + round(2 * unit)
            ImageDraw.Draw(self.page).text(spot, film.note, fill=MUTED, font=font(size))

    def draw(self, step: int) -> np.ndarray:
        for index, card in enumerate(self.cards):
            row, column = divmod(index, self.columns)
            self.page.paste(card.draw(step), (column * self.width, row * self.height))
        return np.array(self.page)


class _Card:
    """One episode: what never changes is drawn once, the rest at every step."""

    def __init__(self, episode: Episode, film: Film) -> None:
        self.episode, self.film = episode, film
        self.frames, goal = pictures(episode)
        if goal is None:
            raise ConfigError(f"episode {episode.id} has no goal picture to show beside it")
        self.goal = goal
        self.reached = success_step(episode)
        self.budget = max(int(episode.config.get("budget", episode.steps)), 1)
        self.values = [measure.of(episode) for measure in film.measures]
        side = min(self.frames.shape[1:3])
        self.zoom = max(1, math.ceil(_SMALLEST / side))
        self.panel = self.frames.shape[2] * self.zoom, self.frames.shape[1] * self.zoom
        self.unit = max(1.0, min(self.panel) / 224)  # lengths below are for 224 px pictures
        self.blank = self._blank()

    def draw(self, step: int) -> Image.Image:
        """Draw the card at an environment step; past the end, at the end."""
        step = min(step, self.episode.steps)
        done = self.reached is not None and step >= self.reached
        image = self.blank.copy()
        frame = self.frames[step]
        self._panel(image, 0, frame, GREEN if done else GREY)
        if self.film.ghost is not None:
            self._panel(image, 2, overlay(frame, self.goal, self.film.ghost), GREY)
        pen = ImageDraw.Draw(image)
        self._title(pen, step, done)
        self._strip(pen, step, done)
        return image

    def _px(self, length: float) -> int:
        return round(length * self.unit)

    def _panel_left(self, index: int) -> int:
        return self._px(12) + index * (self.panel[0] + self._px(12))

    def _blank(self) -> Image.Image:
        """The card with title, captions and the goal, still without what moves."""
        names = ["execution", "goal", "goal over execution"][: 2 if self.film.ghost is None else 3]
        width = self._panel_left(len(names))
        image = Image.new("RGB", (width, self.panel[1] + self._px(122)), PAPER)
        self._panel(image, 1, self.goal, GREY)
        pen = ImageDraw.Draw(image)
        title = f"episode {self.episode.id}"
        pen.text((self._px(12), self._px(9)), title, fill=INK, font=font(self._px(14), True))
        below = self._px(36) + self.panel[1] + self._px(5)
        for index, name in enumerate(names):
            spot = self._panel_left(index) + self.panel[0] / 2, below
            pen.text(spot, name, fill=MUTED, font=font(self._px(11)), anchor="ma")
        return image

    def _panel(self, image: Image.Image, index: int, frame: np.ndarray, colour: str) -> None:
        """Place a picture in its border; the border lies outside and hides nothing."""
        left, top = self._panel_left(index), self._px(36)
        edge = self._px(4 if colour == GREEN else 1)
        corner = left + self.panel[0] + edge - 1, top + self.panel[1] + edge - 1
        ImageDraw.Draw(image).rectangle((left - edge, top - edge, *corner), fill=colour)
        large = frame.repeat(self.zoom, axis=0).repeat(self.zoom, axis=1)
        image.paste(Image.fromarray(large), (left, top))

    def _title(self, pen: ImageDraw.ImageDraw, step: int, done: bool) -> None:
        """Say on the right how it stands."""
        if done:
            text, colour = f"goal reached at step {self.reached}", GREEN
        elif step < self.episode.steps:
            return
        else:
            text, colour = f"not reached in {step} steps", ORANGE
        spot = self.blank.width - self._px(12), self._px(9)
        pen.text(spot, text, fill=colour, font=font(self._px(14), True), anchor="ra")

    def _strip(self, pen: ImageDraw.ImageDraw, step: int, done: bool) -> None:
        """Write step and measures below the pictures, under a bar of the budget used."""
        top = self._px(36) + self.panel[1] + self._px(28)
        left, right = self._px(12), self.blank.width - self._px(12)
        used = left + (right - left) * min(step / self.budget, 1)
        pen.rectangle((left, top, right, top + self._px(3)), fill=FAINT)
        pen.rectangle((left, top, used, top + self._px(3)), fill=GREEN if done else BLUE)
        cells = [("step", f"{step}", f"of {self.budget}", INK)]
        for measure, values in zip(self.film.measures, self.values, strict=True):
            limit = measure.threshold
            within = limit is not None and values[step] < limit
            beside = measure.unit if limit is None else f"{measure.unit}  (goal: < {limit:.3g})"
            cells.append((measure.label, _number(values[step]), beside, GREEN if within else INK))
        for index, (label, value, beside, colour) in enumerate(cells):
            x = left + index * (right - left) // len(cells)
            pen.text((x, top + self._px(9)), label, fill=MUTED, font=font(self._px(11)))
            base = top + self._px(41)
            bold = font(self._px(16), True)
            pen.text((x, base), value, fill=colour, font=bold, anchor="ls")
            x += round(bold.getlength(value)) + self._px(5)
            pen.text((x, base), beside, fill=MUTED, font=font(self._px(11)), anchor="ls")


def _number(value: float) -> str:
    return f"{value:.1f}" if math.isfinite(value) else "-"
