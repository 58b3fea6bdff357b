"""What a latent should tell of a simulator's state: the parts of it, as a task names them.

A task's YAML says which numbers of a state are positions and which an angle; a collection writes
that into its dataset, and the auxiliary state loss, the probes and the goal map read it there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from jepa_wm.errors import ConfigError

ANGLE_SCALE = 1.4  # gives cosine and sine of a uniform angle unit variance

Numbers = float | Sequence[float]


@dataclass(frozen=True, kw_only=True)
class StatePart:
    """Some numbers of a state that belong together.

    Attributes:
        name: What they are; a probe reports ``r2_<name>``.
        at: Which numbers: the coordinates of a position, or one angle in radians (``wraps``).
        tolerance: The distance that counts as success, in the state's units.
        centre: Of a position: what is told as 0; one number or one a coordinate.
        spread: Of a position: how far from the centre is told as 1; likewise.
        wraps: It is an angle; its cosine and sine are told.
        offset: Of a position in the plane: the point told lies here in the frame of a turning body.
        turned_by: The number of the state that is the body's angle, with ``offset``.

    Raises:
        ConfigError: the values contradict each other.
    """

    name: str
    at: Sequence[int]
    tolerance: float
    centre: Numbers = 0.0
    spread: Numbers = 1.0
    wraps: bool = False
    offset: Sequence[float] | None = None
    turned_by: int | None = None

    def __post_init__(self) -> None:
        faults = []
        if not self.at or (self.wraps and len(self.at) != 1):
            faults.append(f"at={list(self.at)} must name coordinates, or one angle with wraps")
        if not self.tolerance > 0:
            faults.append(f"tolerance={self.tolerance} must be above 0")
        if not bool((torch.as_tensor(self.spread) > 0).all()):
            faults.append(f"spread={self.spread} must be above 0")
        if (self.offset is None) != (self.turned_by is None):
            faults.append("offset and turned_by go together")
        if self.offset is not None and not len(self.offset) == len(self.at) == 2:
            faults.append(f"offset={list(self.offset)} and at={list(self.at)} must be two numbers")
        if faults:
            raise ConfigError(f"targets: {self.name}: " + "; ".join(faults))

    @property
    def size(self) -> int:
        """Numbers told: one a coordinate, two of an angle."""
        return 2 if self.wraps else len(self.at)

    def __call__(self, states: Tensor) -> Tensor:
        """Return what is told of states [..,P]: float [..,size], about unit scale."""
        found = states[..., list(self.at)]
        if self.wraps:
            return ANGLE_SCALE * torch.cat([found.cos(), found.sin()], -1)
        if self.offset is not None:
            angle = states[..., self.turned_by]
            c, s, (x, y) = angle.cos(), angle.sin(), self.offset
            found = found + torch.stack([c * x - s * y, s * x + c * y], -1)
        centre, spread = (states.new_tensor(value) for value in (self.centre, self.spread))
        return (found - centre) / spread

    def in_tolerances(self) -> list[float]:
        """Return how many tolerances one unit of each told number is, [size]."""
        if self.wraps:
            return [1 / (ANGLE_SCALE * self.tolerance)] * 2
        spread = torch.as_tensor(self.spread, dtype=torch.float64)
        return (spread / self.tolerance).expand(self.size).tolist()


class StateTargets:
    """All parts of a state that a latent should tell, side by side.

    Args:
        parts: The fields of a ``StatePart`` each; none at all is possible.
        state_dim: Size P of a state.

    Raises:
        ConfigError: a part has other fields, or names numbers a state does not have.
    """

    def __init__(self, parts: Sequence[Mapping[str, Any]] | None, state_dim: int) -> None:
        try:
            self.parts = [StatePart(**part) for part in parts or ()]
        except TypeError as error:
            raise ConfigError(f"targets: {error}") from error
        for part in self.parts:
            used = [*part.at, *([] if part.turned_by is None else [part.turned_by])]
            if not all(0 <= index < state_dim for index in used):
                raise ConfigError(
                    f"targets: {part.name} reads numbers {used} of a state that has {state_dim}"
                )
        self.size = sum(part.size for part in self.parts)

    def __call__(self, states: Tensor) -> Tensor:
        """Return what a latent should tell of states [..,P]: float32 [..,size]."""
        return torch.cat([part(states) for part in self.parts], -1)

    def in_tolerances(self) -> list[float]:
        """Return how many tolerances one unit of each told number is, [size]."""
        return [value for part in self.parts for value in part.in_tolerances()]

    def by_part(self, values: Tensor) -> dict[str, float]:
        """Average values [size], one a told number, over each part."""
        means = values.split([part.size for part in self.parts])
        return {part.name: float(v.mean()) for part, v in zip(self.parts, means, strict=True)}
