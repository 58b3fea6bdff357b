"""The episodes of a test in one file, so that anyone may run the same ones: JSON, no pickle.

``episodes_list.json`` holds the environment and its settings, where the episodes came from, one
line an episode (id, reset seed, start, goal, recorded actions) and the hash of all lines.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jepa_wm.control.protocol import Protocol, Segments, content_hash, episode_rows
from jepa_wm.errors import ConfigError

FORMAT = "jepa_wm.episodes"
LARGEST = 256 << 20  # bytes of a file that is read
LOOKS = ("observation", "render_size", "draw_goal", "draw_contacts", "success")
"""Settings of an environment in which a list's user may differ from its maker: what is seen and
what counts, not what moves how."""
_TOLD = {"goal": str, "goal_offset": int, "seed": int}


@dataclass(frozen=True, eq=False)
class EpisodeList:
    """What the file holds.

    Attributes:
        path: The file.
        environment: Id and settings of the environment.
        options: ``goal``, ``goal_offset``, ``episodes`` and ``seed`` of ``conf/plan.yaml``.
        segments: The episodes.
    """

    path: Path
    environment: Mapping[str, Any]
    options: Mapping[str, Any]
    segments: Segments

    def check(self, environment: Mapping[str, Any], state_size: int) -> None:
        """Refuse the list in another environment.

        Args:
            environment: Id and settings of the environment, as in ``Protocol``.
            state_size: Numbers in a state of it.

        Raises:
            ConfigError: a setting differs that the episodes depend on.
        """
        keys = ["id", *sorted({*self.environment, *environment} - {"id", *LOOKS})]
        pairs = [(key, self.environment.get(key), environment.get(key)) for key in keys]
        for key, ours, theirs in pairs:
            if ours != theirs:
                raise ConfigError(
                    f"episode_list={self.path}: its episodes are of {self.environment['id']} with "
                    f"{key}={ours}; this run has {key}={theirs}"
                )
        size = self.segments.starts.shape[1]
        if size != state_size:
            raise ConfigError(
                f"episode_list={self.path}: its states have {size} numbers, this environment's "
                f"{state_size}"
            )


def write_episode_list(path: Path, protocol: Protocol, segments: Segments) -> Path:
    """Write the episodes of a run; return the path."""
    told = {name: getattr(protocol, name) for name in _TOLD}
    head = {
        "format": FORMAT,
        "version": 1,
        "environment": protocol.environment,
        **told,
        "replaced": segments.replaced,
        "action_size": segments.actions.shape[2],  # where no action is recorded, it tells
        "hash": protocol.episodes_hash,
    }
    lines = ",\n  ".join(json.dumps(row) for row in episode_rows(segments, protocol.seed))
    text = json.dumps(head)[:-1] + f', "episodes": [\n  {lines}\n]}}\n'
    path.write_text(text, encoding="utf-8")
    return path


def read_episode_list(path: Path) -> EpisodeList:
    """Read what ``write_episode_list`` wrote.

    Raises:
        ConfigError: the file is missing, is no such list, or its hash is not that of its episodes.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise ConfigError(f"episode_list={path}: more than {LARGEST >> 20} MiB")
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["format"] != FORMAT or document["version"] != 1:
            raise ValueError(f"format {document['format']} {document['version']}")
        rows = document["episodes"]
        if content_hash(rows) != document["hash"]:
            raise ConfigError(
                f"episode_list={path}: its hash is {content_hash(rows)[:12]}, it says "
                f"{str(document['hash'])[:12]}: the episodes were changed"
            )
        options: dict[str, Any] = {
            name: _plain(document, name, kind) for name, kind in _TOLD.items()
        }
        size, replaced = (_plain(document, name, int) for name in ("action_size", "replaced"))
        _plain(_plain(document, "environment", dict), "id", str)
        segments = _segments(rows, size, replaced)
        options["episodes"] = len(rows)
        return EpisodeList(path, document["environment"], options, segments)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise ConfigError(
            f"episode_list={path}: not a list of episodes, as written into a run's folder ({error})"
        ) from error


def _plain(values: Mapping[str, Any], name: str, kind: type) -> Any:
    """Return an entry of the right kind; a whole number is none below 0."""
    value: Any = values[name]
    is_kind = type(value) is kind
    if not is_kind or (kind is int and value < 0):
        raise ValueError(f"{name} is {repr(value)[:40]}")
    return value


def _segments(rows: list[Mapping[str, Any]], action_size: int, replaced: int) -> Segments:
    """Turn plain rows into arrays; ids must be unique, numbers finite, shapes equal."""
    if not rows:
        raise ValueError("no episodes")
    ids = [_plain(row, "id", int) for row in rows]
    if len(set(ids)) < len(ids):
        raise ValueError("ids are not unique")
    starts, goals = (_finite(rows, key) for key in ("start", "goal"))
    actions = _finite(rows, "actions")
    if actions.ndim == 2 and not actions.size:
        actions = actions.reshape(len(rows), 0, action_size)
    shapes = starts.shape, goals.shape, actions.shape
    is_right = starts.ndim == 2 and starts.shape == goals.shape and actions.ndim == 3
    if not is_right or actions.shape[2] != action_size:
        raise ValueError("starts {}, goals {}, actions {}".format(*map(list, shapes)))
    return Segments(
        starts, goals, actions.astype(np.float32), np.array(ids, dtype=np.int64), replaced
    )


def _finite(rows: list[Mapping[str, Any]], key: str) -> NDArray[np.float64]:
    values = np.array([row[key] for row in rows], dtype=np.float64)
    if not math.isfinite(float(np.abs(values).sum())):
        raise ValueError(f"{key} is not finite")
    return values
