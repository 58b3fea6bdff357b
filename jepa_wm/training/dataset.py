"""Play on disk, and the windows a training step takes from it.

A dataset is a folder: ``meta.json`` and three memory-mapped arrays, one row an episode:
``frames.npy`` uint8 [E,F,s,s,3], ``states.npy`` float32 [E,F,P], ``actions.npy`` float32
[E,F-1,block*a]. Frame f is what the camera sees before block f is executed.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.errors import ConfigError


@dataclass(frozen=True)
class DatasetInfo:
    """What ``meta.json`` says.

    Attributes:
        episodes: Number of episodes planned.
        done: Episodes written so far; a collection that was interrupted has fewer than planned.
        frames: Frames an episode.
        image_size: Side of the stored frames in pixels.
        block: Environment steps between two frames.
        action_dim: Size of one environment action.
        seed: Seed of the play policy.
        env: What was played.
        jitter: Share of random commands among the behaviours of the play policy.
        model: Bundle whose plans were executed instead of play, or None.
        state_dim: Size P of a simulator state.
        targets: What a state's numbers are, as its task says (``StateTargets``), or None.
        action_low: Lower end of the environment's actions [a], or None where not told.
        action_high: Upper end, likewise.
    """

    episodes: int
    done: int
    frames: int
    image_size: int
    block: int
    action_dim: int
    seed: int
    env: str
    jitter: float = 0.0
    model: str | None = None
    state_dim: int = 7
    targets: list[dict[str, Any]] | None = None
    action_low: list[float] | None = None
    action_high: list[float] | None = None

    def save(self, folder: Path) -> None:
        """Write ``meta.json`` atomically."""
        part = folder / "meta.json.part"
        part.write_text(json.dumps(asdict(self), indent=2))
        part.replace(folder / "meta.json")

    @classmethod
    def read(cls, folder: Path) -> "DatasetInfo":
        """Read ``meta.json``.

        Raises:
            ConfigError: the folder is not a dataset.
        """
        path = folder / "meta.json"
        if not path.is_file():
            raise ConfigError(
                f"{folder} is not a dataset: {path.name} is missing; make one with "
                f"python -m jepa_wm.collect out={folder}"
            )
        try:
            return cls(**json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path} is not the description of a dataset: {error}") from error


ARRAYS = ("frames", "states", "actions")


def array_shapes(info: DatasetInfo) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of the three arrays of a dataset."""
    E, F, s = info.episodes, info.frames, info.image_size
    return {
        "frames": ((E, F, s, s, 3), "uint8"),
        "states": ((E, F, info.state_dim), "float32"),
        "actions": ((E, F - 1, info.block * info.action_dim), "float32"),
    }


@dataclass(frozen=True)
class Windows:
    """A batch of training windows of T frames.

    Attributes:
        frames: uint8 [B,T,s,s,3].
        actions: Raw blocks leaving the first T-1 frames, float32 [B,T-1,A].
        states: Simulator states float32 [B,T,P], for probes and the optional state loss.
    """

    frames: NDArray[np.uint8]
    actions: NDArray[np.float32]
    states: NDArray[np.float32]


class PlayDataset:
    """A folder of play, memory-mapped; only the episodes that were fully written are used."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.info = DatasetInfo.read(self.folder)
        if self.info.done < 1:
            raise ConfigError(f"{self.folder} holds no finished episode; run collect again")
        self.frames, self.states, self.actions = (self._open(name) for name in ARRAYS)

    def _open(self, name: str) -> NDArray[Any]:
        path = self.folder / f"{name}.npy"
        shape, dtype = array_shapes(self.info)[name]
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError) as error:
            raise ConfigError(f"{path} cannot be read: {error}") from error
        if array.shape != shape or array.dtype != dtype:
            raise ConfigError(
                f"{path} holds {array.dtype} {list(array.shape)}, "
                f"meta.json says {dtype} {list(shape)}"
            )
        return array[: self.info.done]

    def action_statistics(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return mean and standard deviation [a] of single environment actions."""
        flat = np.asarray(self.actions, np.float64).reshape(-1, self.info.action_dim)
        return flat.mean(0), flat.std(0)

    def pixel_statistics(self, frames: int = 500) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of each channel in [0, 1] over a sample of frames.

        PushT frames are nearly white: under ImageNet's statistics the background is a large
        constant and the shapes a small change, which slows the first thousand steps several times.
        """
        episodes = np.linspace(0, self.info.done - 1, min(frames, self.info.done)).astype(int)
        sample = self.frames[episodes, self.info.frames // 2].reshape(-1, 3) / 255.0
        return tuple(map(float, sample.mean(0))), tuple(map(float, sample.std(0)))

    def sha256(self) -> str:
        """Return a content hash of states and actions, which determine the frames."""
        digest = hashlib.sha256()
        for array in (self.states, self.actions):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def windows(
        self, rng: np.random.Generator, batch: int, length: int, rows: slice = slice(None)
    ) -> Windows:
        """Draw ``batch`` windows of ``length`` frames, uniformly over episodes and starts.

        Args:
            rng: Source of the draw.
            batch: Windows in the whole batch.
            length: Frames a window.
            rows: The part of the batch to read; a rank takes its own and draws like the others.
        """
        if length > self.info.frames:
            raise ConfigError(
                f"{self.folder} has {self.info.frames} frames an episode, {length} are needed"
            )
        episode = rng.integers(self.info.done, size=batch)[rows, None]
        start = rng.integers(self.info.frames - length + 1, size=batch)[rows, None]
        times = start + np.arange(length)
        return Windows(
            self.frames[episode, times],
            self.actions[episode, times[:, :-1]],
            self.states[episode, times],
        )


class Mixture:
    """Several datasets in equal parts: row i of a batch comes from dataset i mod n.

    Sizes, statistics and description are those of the first; block and frame size must agree.
    """

    def __init__(self, parts: Sequence[PlayDataset]) -> None:
        self.parts = parts
        self.folder, self.info = parts[0].folder, parts[0].info
        for part in parts[1:]:
            for name in ("image_size", "block", "action_dim"):
                mine, theirs = getattr(part.info, name), getattr(self.info, name)
                if mine != theirs:
                    raise ConfigError(
                        f"{part.folder} has {name} {mine}, {self.folder} has {theirs}: "
                        "datasets of one run must agree"
                    )
        self.action_statistics = parts[0].action_statistics
        self.pixel_statistics = parts[0].pixel_statistics

    def sha256(self) -> str:
        """Return one content hash of all parts."""
        return hashlib.sha256("".join(part.sha256() for part in self.parts).encode()).hexdigest()

    def windows(
        self, rng: np.random.Generator, batch: int, length: int, rows: slice = slice(None)
    ) -> Windows:
        """Draw windows as ``PlayDataset.windows`` does, parts interleaved."""
        count = len(self.parts)
        drawn = [part.windows(rng, -(-batch // count), length) for part in self.parts]
        order = np.arange(batch)[rows]
        return Windows(
            *(
                np.stack([getattr(drawn[i % count], name)[i // count] for i in order])
                for name in ("frames", "actions", "states")
            )
        )


def open_datasets(folders: Sequence[str | Path]) -> PlayDataset | Mixture:
    """Open one dataset, or several as a mixture."""
    parts = [PlayDataset(folder) for folder in folders]
    return parts[0] if len(parts) == 1 else Mixture(parts)
