"""Goals as people give them: pictures, frames of episodes, and lists of sub-goals with steps."""

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.control.agent import Agent
from jepa_wm.control.mpc import MPC
from jepa_wm.control.waypoints import Waypoints
from jepa_wm.errors import ConfigError
from jepa_wm.viz.pictures import read_picture

GOALS = ("play", "env")  # goals that have a state; any other is a picture
SOURCES = (
    "a goal is: play (a later state of held-out play), env (the environment's own goal), a picture "
    "(.png, .jpg, .npy), FILE.npz:STEP (a frame of a saved episode or of a recording), or "
    "goals=[PICTURE:STEPS,PICTURE:STEPS] for sub-goals"
)
Picture = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class SubGoal:
    """A picture to reach and the environment steps given to it.

    Attributes:
        source: Where it is from.
        steps: Environment steps, >= 1.
    """

    source: str
    steps: int


def read_goal(source: str, like: Picture | None = None) -> Picture:
    """Read a goal's picture, uint8 [H,W,3].

    Args:
        source: A picture, or ``FILE.npz:STEP``.
        like: A frame of the environment: the goal must have its shape, in any size.

    Raises:
        ConfigError: there is no such picture or it is of another shape; the text lists the sources.
    """
    name, _, step = source.rpartition(":")
    is_frame = name.endswith(".npz")
    path = Path(name if is_frame else source).expanduser()
    if not path.is_file():
        raise ConfigError(f"goal={source!r}: no such picture or file; {SOURCES}")
    picture = _episode_frame(path, step) if is_frame else read_picture(path)
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ConfigError(
            f"goal={source}: a picture is uint8 [H,W,3], got {picture.dtype} "
            f"{list(picture.shape)}; {SOURCES}"
        )
    if like is not None:
        _check_shape(source, picture, like)
    return picture


def read_schedule(goals: object) -> list[SubGoal]:
    """Read ``goals``, a list of ``PICTURE:STEPS``.

    Raises:
        ConfigError: it is something else; the text lists the sources.
    """
    found = []
    for item in goals if isinstance(goals, list) else [goals]:
        source, _, steps = str(item).rpartition(":")
        if not source or not steps.isdigit() or int(steps) < 1:
            raise ConfigError(f"goals: {item!r} must be PICTURE:STEPS, STEPS >= 1; {SOURCES}")
        found.append(SubGoal(source, int(steps)))
    if not found:
        raise ConfigError(f"goals=[] holds no goal; {SOURCES}")
    return found


def settle_goals(options: dict[str, Any]) -> dict[str, Any]:
    """Return options in which ``goals`` speak for ``goal`` and ``budget``; refuse what is missing.

    Raises:
        ConfigError: a goal is none of the sources.
    """
    goals = options["goals"]
    if goals is not None:
        plan = read_schedule(goals)
        options = {**options, "goal": plan[-1].source, "budget": sum(one.steps for one in plan)}
        options["goals"] = [f"{one.source}:{one.steps}" for one in plan]
        for one in plan[:-1]:
            read_goal(one.source)
    if not isinstance(options["goal"], str):
        raise ConfigError(f"goal={options['goal']!r} is no goal; {SOURCES}")
    if options["goal"] not in GOALS:
        read_goal(options["goal"])
    return options


def goal_pictures(plan: Sequence[SubGoal], like: Picture) -> Picture:
    """Read the pictures of a schedule, uint8 [K,H,W,3]; all must be of one size.

    Raises:
        ConfigError: one cannot be read or differs from the environment's frames or the others.
    """
    pictures = [read_goal(one.source, like) for one in plan]
    sizes = {picture.shape for picture in pictures}
    if len(sizes) > 1:
        raise ConfigError(f"goals: pictures differ in size, {sorted(sizes)}; give one size")
    return np.stack(pictures)


def with_waypoints(options: dict[str, Any], agent: MPC, frame: np.ndarray) -> Agent:
    """Give an agent the sub-goals of ``goals``, if there are any.

    Args:
        options: Of the run.
        agent: Plans.
        frame: One of the environment's frames, whose shape the pictures must have.
    """
    if options["goals"] is None:
        return agent
    plan = read_schedule(options["goals"])
    try:
        return Waypoints(agent, goal_pictures(plan, frame), [one.steps for one in plan])
    except ValueError as error:
        raise ConfigError(f"goals: {error}") from error


def _check_shape(source: str, picture: Picture, like: Picture) -> None:
    """Refuse a picture whose sides are not in proportion to the frame's, to a pixel."""
    (height, width), (h, w) = picture.shape[:2], like.shape[:2]
    if abs(height * w - width * h) > max(h, w):
        raise ConfigError(
            f"goal={source}: {width}x{height} px, the environment's frames are {w}x{h}: the sides "
            f"must be in proportion, as of the same camera; {SOURCES}"
        )


def _episode_frame(path: Path, step: str) -> Picture:
    """Take a frame of a saved episode or of a recording of one episode."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            key = next((key for key in ("frames", "observations") if key in stored.files), None)
            if key is None:
                raise ConfigError(
                    f"goal={path}:{step}: the file has no frames (it has {stored.files}); record "
                    "them with film, or give a recording with observations"
                )
            frames = stored[key]
    except (OSError, EOFError, MemoryError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ConfigError(f"goal={path}:{step}: not a saved episode ({error})") from error
    frames = frames[0] if frames.ndim == 5 and len(frames) == 1 else frames
    if frames.ndim != 4:
        raise ConfigError(f"goal={path}: frames are {list(frames.shape)}; one episode is needed")
    if not step.isdigit() or int(step) >= len(frames):
        raise ConfigError(f"goal={path}:{step}: STEP must be 0 to {len(frames) - 1}; {SOURCES}")
    return frames[int(step)]
