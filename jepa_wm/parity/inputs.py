"""What a bundle is checked on: random pixels, patch subsets and actions, drawn from a seed."""

from dataclasses import dataclass

import numpy as np

from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import ConfigError
from jepa_wm.spec import Inputs

MAX_PIXELS = 16 << 20  # of a frame: the specification would take days for it
SMALL_GRID = (4, 6)  # unequal, so that swapped axes show; small, so that numpy takes seconds
SMALL_SIDE = 6  # a model trained on no more patches a side than this is checked on its own grid


@dataclass(frozen=True)
class Pass:
    """One run through a bundle.

    Attributes:
        name: ``whole`` (all patches, next frame, head), ``other`` (the same on another grid than
            the trained one) or ``masked`` (context to targets).
        inputs: What goes in.
    """

    name: str
    inputs: Inputs


@dataclass(frozen=True)
class Clip:
    """The size of what is drawn.

    Attributes:
        frames: Frames T.
        height: Pixel rows.
        width: Pixel columns.
    """

    frames: int
    height: int
    width: int


def takes_clips(bundle: Bundle) -> bool:
    """Say whether the encoder's input has a time axis."""
    return bundle.get("jepa.enc.pos_type") in ("sincos3d", "rope3d")


def choose_clip(
    bundle: Bundle, frames: int | None, size: tuple[int, int] | None, native: bool = False
) -> Clip:
    """Return the size to check on; small where nothing is asked for.

    Args:
        bundle: The bundle.
        frames: Frames; by default two tokens of time, or what a predictor of frames can see.
        size: (height, width) in pixels; by default 4 x 6 patches, or the training size where that
            is small.
        native: Take the training size: references differ from each other on others.

    Raises:
        ConfigError: the size holds no whole patch or is over ``MAX_PIXELS``, or the frames do not
            fit the model.
    """
    patch, side = bundle.get("jepa.enc.patch_size"), bundle.get("jepa.enc.img_size")
    if size is None and (native or side // patch <= SMALL_SIDE):
        size = (side, side)
    elif size is None:
        size = (SMALL_GRID[0] * patch, SMALL_GRID[1] * patch)
    if min(size) < patch:
        raise ConfigError(f"--size {size[0]}x{size[1]} holds no patch of {patch}x{patch} pixels")
    if size[0] * size[1] > MAX_PIXELS:
        raise ConfigError(f"--size {size[0]}x{size[1]} is over {MAX_PIXELS >> 20} Mpx")
    return Clip(_frames(bundle, frames), *size)


def _frames(bundle: Bundle, frames: int | None) -> int:
    tubelet, window = bundle.get("jepa.enc.tubelet_size"), bundle.get("jepa.pred.n_frames")
    is_window = bundle.get("jepa.pred.kind") in ("ac", "lewm")
    if is_window:
        most, default = window, min(window, 3)
    elif takes_clips(bundle):
        most, default = None, 2 * tubelet
    else:
        most, default = 1, 1
    frames = default if frames is None else frames
    if frames < 1 or (most is not None and frames > most):
        raise ConfigError(f"--frames {frames}: this bundle takes 1 to {most or 'any number'}")
    return frames


def draw_passes(bundle: Bundle, clip: Clip, seed: int = 0, whole_clip: bool = False) -> list[Pass]:
    """Draw the inputs of every part a bundle has.

    Args:
        bundle: The bundle.
        clip: Their size.
        seed: Seed.
        whole_clip: Let the encoder see everything before the context is picked, as transformers
            does; else only the context, as in training.

    Raises:
        ConfigError: the seed is negative.
    """
    if seed < 0:
        raise ConfigError(f"--seed {seed}: wanted at least 0")
    rng = np.random.default_rng(seed)
    passes = [Pass("whole", _whole(bundle, clip, rng))]
    side = bundle.get("jepa.enc.img_size")
    if (clip.height, clip.width) == (side, side):  # no table is resampled on its own grid
        patch = bundle.get("jepa.enc.patch_size")
        other = Clip(clip.frames, SMALL_GRID[0] * patch, SMALL_GRID[1] * patch)
        passes.append(Pass("other", _whole(bundle, other, rng)))
    if bundle.get("jepa.pred.kind") == "masked":
        passes.append(Pass("masked", _masked(bundle, clip, passes[0], rng, whole_clip)))
    return passes


def _whole(bundle: Bundle, clip: Clip, rng: np.random.Generator) -> Inputs:
    kind, channels = bundle.get("jepa.pred.kind"), bundle.get("jepa.enc.in_chans")
    has_time = takes_clips(bundle) or kind in ("ac", "lewm")
    shape = (1, *((clip.frames,) if has_time else ()), channels, clip.height, clip.width)
    pixels = rng.normal(size=shape).astype(np.float32)
    actions, states = (
        _vectors(bundle.get(f"jepa.pred.{key}_dim"), clip, rng) if kind in ("ac", "lewm") else None
        for key in ("action", "state")
    )
    return Inputs(pixels, actions=actions, states=states)


def _masked(
    bundle: Bundle, clip: Clip, whole: Pass, rng: np.random.Generator, whole_clip: bool
) -> Inputs:
    ids = rng.permutation(_patches(bundle, clip))[None]
    half = ids.shape[1] - ids.shape[1] // 2
    context, targets = ids[:, :half], ids[:, half:] if ids.shape[1] > 1 else ids
    if whole_clip:
        return Inputs(whole.inputs.pixels, context=context, targets=targets)
    return Inputs(whole.inputs.pixels, ids=context, targets=targets)


def _vectors(width: int, clip: Clip, rng: np.random.Generator) -> np.ndarray | None:
    """Draw one vector a frame, float32 [1,T,width]; None where there are none."""
    return rng.normal(size=(1, clip.frames, width)).astype(np.float32) if width else None


def _patches(bundle: Bundle, clip: Clip) -> int:
    """Count the patches of a clip that its predictor has positions for."""
    patch, tubelet = bundle.get("jepa.enc.patch_size"), bundle.get("jepa.enc.tubelet_size")
    inside = (clip.height // patch) * (clip.width // patch)
    count = inside * max(clip.frames // tubelet, 1)
    table = bundle.shape("pred.pos_embed")[0] if bundle.has("pred.pos_embed") else count
    return min(count, table)
