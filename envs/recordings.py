"""Recordings of an arm: frames and poses from an .npz file or a folder, checked before use.

A file has the layout of V-JEPA 2-AC's example trajectory: ``observations`` uint8 [E,T,H,W,3] and
``states`` [E,T,7], or without E. A folder has the frames of one episode as pictures, in the order
of their names, and one CSV file with a pose a line. A pose is x, y, z (m), extrinsic xyz Euler
angles (rad) and gripper closedness 0-1, in the frame of the arm's base.
"""

import re
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import pygame
from numpy.typing import NDArray

from jepa_wm.envs.reach_play import play as reach_play
from jepa_wm.envs.reach_rendering import ReachRenderer
from jepa_wm.envs.reach_worlds import POSE_SIZE, euler_angles, rotation_matrices

Floats = NDArray[np.float64]
Frames = NDArray[np.uint8]

LAYOUT = "observations uint8 [E,T,H,W,3] and states [E,T,7], E may be missing"
PICTURES = (".png", ".jpg", ".jpeg", ".bmp")
MOST_BYTES = 8 * 2**30
FARTHEST = 10.0  # metres from an arm's base, beyond any arm: millimetres


@dataclass(frozen=True)
class Recording:
    """E recorded episodes of T frames.

    Attributes:
        frames: uint8 [E,T,H,W,3] RGB.
        poses: Of the end effector at each frame, float64 [E,T,7].
    """

    frames: Frames
    poses: Floats

    def actions(self) -> Floats:
        """Return the differences of consecutive poses, float64 [E,T-1,7]."""
        return difference(self.poses[:, :-1], self.poses[:, 1:])


def difference(start: Floats, end: Floats) -> Floats:
    """Return the action [..,7] from one pose to the other; rotations compose from the left."""
    before, after = rotation_matrices(start[..., 3:6]), rotation_matrices(end[..., 3:6])
    turn = euler_angles(after @ before.swapaxes(-1, -2))
    moved, grip = (end[..., part] - start[..., part] for part in (slice(0, 3), slice(6, 7)))
    return np.concatenate([moved, turn, grip], -1)


def load_recording(file: str | None) -> Recording:
    """Load a recording, or without a file render a short one of Reach's scripted play.

    Raises:
        ValueError: there is no such file, or it holds something else; the text says what was found
            and what would be right.
    """
    if file is None:
        return _example()
    path = Path(file).expanduser()
    if not path.exists():
        raise ValueError(f"file={file}: no such file or folder; give an .npz with {LAYOUT}")
    parts = [path, *path.iterdir()] if path.is_dir() else [path]
    return _load(str(path), max(part.stat().st_mtime_ns for part in parts))


@lru_cache(maxsize=2)
def _load(name: str, _changed: int) -> Recording:
    path = Path(name)
    frames, poses = _read_folder(path) if path.is_dir() else _read_npz(path)
    faults = _faults(frames, poses)
    if faults:
        raise ValueError(f"file={path}: {'; '.join(faults)}; expected {LAYOUT}")
    if frames.ndim == 4:
        frames, poses = frames[None], poses[None]
    return _sealed(np.ascontiguousarray(frames), poses.astype(np.float64))


@lru_cache(maxsize=1)
def _example() -> Recording:
    """Render 3 episodes of 9 frames of Reach's play."""
    states = reach_play(7, 3, steps=8).states  # [3,9,10]
    renderer = ReachRenderer(256)
    frames = np.stack([[renderer.render(state) for state in episode] for episode in states])
    return _sealed(frames, states[..., :POSE_SIZE].copy())


def _sealed(frames: Frames, poses: Floats) -> Recording:
    for array in (frames, poses):
        array.flags.writeable = False
    return Recording(frames, poses)


def _faults(frames: NDArray, poses: NDArray) -> list[str]:
    faults = []
    if frames.dtype != np.uint8 or frames.ndim not in (4, 5) or frames.shape[-1] != 3:
        faults.append(f"frames are {frames.dtype} {list(frames.shape)}")
    if poses.dtype.kind not in "fiu" or poses.shape != (*frames.shape[:-3], POSE_SIZE):
        faults.append(f"poses are {poses.dtype} {list(poses.shape)}")
    elif not np.isfinite(poses).all():
        faults.append("a pose is not finite")
    else:
        faults += _units(poses)
    if not faults and (0 in frames.shape or frames.shape[-4] < 2):
        faults.append(f"{frames.shape[-4]} frames an episode are fewer than 2")
    return faults


def _units(poses: NDArray) -> list[str]:
    """Tell poses in other units, which would only make every model look bad."""
    reach, turn, grip = (
        float(np.abs(part).max(initial=0))
        for part in (poses[..., :3], poses[..., 3:6], poses[..., 6])
    )
    faults = []
    if reach > FARTHEST:
        faults.append(f"a position is {reach:.4g} m from the base: positions are metres")
    if turn > 2 * np.pi + 0.01:
        faults.append(f"an angle is {turn:.4g} rad: angles are radians, not degrees")
    if grip > 2:
        faults.append(f"a gripper is {grip:.4g}: 0 is open, 1 closed")
    return faults


def _read_npz(path: Path) -> tuple[NDArray, NDArray]:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            missing = {"observations", "states"} - set(names)
            if missing:
                raise ValueError(f"lacks {sorted(missing)}, has {sorted(names)}")
            frames, poses = (_read_member(archive, key) for key in ("observations", "states"))
            return frames, poses
    except (OSError, EOFError, zipfile.BadZipFile, zipfile.LargeZipFile, ValueError) as error:
        raise ValueError(f"file={path}: {error}; expected an .npz with {LAYOUT}") from error


def _read_member(archive: zipfile.ZipFile, key: str) -> NDArray:
    """Read an array whose header claims no more than the file holds."""
    info = archive.getinfo(f"{key}.npy")
    with archive.open(info) as stream:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(stream)
    size = int(np.prod(shape, dtype=object)) * dtype.itemsize
    if size > info.file_size or size > MOST_BYTES:
        raise ValueError(f"{key} claims {size} bytes, the file holds {info.file_size}")
    with archive.open(info) as stream:
        return np.lib.format.read_array(stream, allow_pickle=False)


def _read_folder(path: Path) -> tuple[NDArray, NDArray]:
    pictures = sorted((p for p in path.iterdir() if p.suffix.lower() in PICTURES), key=_natural)
    tables = sorted(path.glob("*.csv"))
    if not pictures or len(tables) != 1:
        raise ValueError(
            f"file={path}: a folder needs pictures ({', '.join(PICTURES)}) and one .csv of poses; "
            f"it has {len(pictures)} and {len(tables)}"
        )
    frames = [_read_picture(picture) for picture in pictures]
    odd = [p.name for p, f in zip(pictures, frames, strict=True) if f.shape != frames[0].shape]
    if odd:
        raise ValueError(f"file={path}: {odd[0]} differs in size from {pictures[0].name}")
    poses = _read_poses(tables[0])
    if len(poses) != len(frames):
        raise ValueError(f"file={tables[0]}: {len(poses)} poses for {len(frames)} pictures")
    return np.stack(frames), poses


def _natural(path: Path) -> list[tuple[int, str]]:
    """Sort 2.png before 10.png."""
    parts = re.findall(r"\d+|\D+", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _read_picture(path: Path) -> Frames:
    try:
        surface = pygame.image.load(path)
    except (pygame.error, OSError) as error:
        raise ValueError(f"file={path}: cannot be read as a picture: {error}") from error
    return np.ascontiguousarray(pygame.surfarray.array3d(surface).swapaxes(0, 1))


def _read_poses(path: Path) -> Floats:
    """Read x, y, z, three angles and the gripper a line; a first line of names is skipped."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        cells = [cell.strip() for cell in line.split(",")]
        if number == 1 and re.search("[a-zA-Z]", line.replace("nan", "")):
            _check_names(path, cells)
            continue
        if not any(cells):
            continue
        try:
            rows.append([float(cell) for cell in cells])
        except ValueError:
            rows.append([])
        if len(rows[-1]) != POSE_SIZE:
            raise ValueError(
                f"file={path}: line {number} must be 7 numbers (x, y, z in m, three angles in rad, "
                f"gripper 0-1), got {line[:60]!r}"
            )
    return np.array(rows).reshape(-1, POSE_SIZE)


def _check_names(path: Path, names: list[str]) -> None:
    """Refuse columns whose names say they come in another order."""
    for place, name in enumerate(names):
        want = {"x": 0, "y": 1, "z": 2, "gripper": 6}.get(name.lower(), place)
        if want != place:
            raise ValueError(
                f"file={path}: column {place + 1} is {name!r}, it must be column {want + 1}: "
                "x, y, z, three angles, gripper"
            )
