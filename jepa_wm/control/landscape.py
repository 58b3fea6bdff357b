"""The energy landscape: a cost over a grid of environment actions, and what may be read off it.

A planner sees one function of actions; this lays a grid over it around doing nothing, so that a
person sees whether its minimum lies at the action that is known to be right.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.interfaces import CostFn

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Landscape:
    """Costs over a grid of some dimensions of an action.

    Attributes:
        dims: The action's dimensions, one an axis of the grid.
        points: Their values, env units, ascending, [n] for each.
        costs: float64, one axis a dimension.
    """

    dims: tuple[int, ...]
    points: Floats
    costs: Floats

    @property
    def minimum(self) -> Floats:
        """Where the lowest cost lies, env units, one number a dimension; of equals the smallest."""
        return self.points[list(self._lowest)]

    @property
    def on_border(self) -> tuple[int, ...]:
        """Dimensions in which the minimum is the first or last point: it may lie beyond."""
        ends = (0, len(self.points) - 1)
        return tuple(dim for dim, at in zip(self.dims, self._lowest, strict=True) if at in ends)

    @property
    def _lowest(self) -> tuple[int, ...]:
        places = np.argwhere(self.costs == self.costs.min())  # beyond a limit all cost the same
        sizes = np.abs(self.points[places]).sum(1)
        return tuple(int(i) for i in places[sizes.argmin()])

    def rank(self, cost: float) -> int:
        """Return the place of a cost among those of the grid, 1 the best."""
        return 1 + int((self.costs < cost).sum())


@dataclass(frozen=True, eq=False)
class ActionCost:
    """The cost of doing one environment action some times, for one problem.

    Attributes:
        cost: What the planner sees, for B = 1.
        codec: Between solver and environment actions.
        repeat: Blocks the action is held for, >= 1.
    """

    cost: CostFn
    codec: ActionCodec
    repeat: int

    def __call__(self, actions: Floats) -> Floats:
        """Return the costs [n] of environment actions [n,a]."""
        held = np.repeat(actions[:, None], self.repeat * self.codec.block, 1)
        blocks = self.codec.encode(held.astype(np.float32))[None]  # [1,n,H,A]
        with torch.inference_mode():
            return self.cost(blocks)[0].double().cpu().numpy()


def survey(
    cost: Callable[[Floats], Floats], base: Floats, dims: Sequence[int], span: float, count: int
) -> Landscape:
    """Lay a grid over a cost.

    Args:
        cost: Of environment actions, [n,a] -> [n], e.g. an ``ActionCost``.
        base: The action [a] whose other dimensions hold everywhere.
        dims: Dimensions of the grid.
        span: Half its side, env units: from -span to span.
        count: Points a side, >= 2; an odd number has doing nothing in it.

    Raises:
        ValueError: a dimension is not the action's, or the grid has no extent.
    """
    good = isinstance(span, int | float) and span > 0
    faults = [] if good else [f"span={span} must be above 0"]
    faults += [] if count >= 2 else [f"count={count} must be at least 2"]
    odd = [dim for dim in dims if not 0 <= dim < len(base)]
    faults += [f"dimensions {odd} are not 0 to {len(base) - 1}, the action's"] if odd else []
    if faults:
        raise ValueError("; ".join(faults))
    points = np.linspace(-span, span, count)
    places = np.stack(np.meshgrid(*[points] * len(dims), indexing="ij"), -1)  # [n,..,k]
    actions = np.tile(base.astype(np.float64), (places[..., 0].size, 1))
    actions[:, list(dims)] = places.reshape(-1, len(dims))
    return Landscape(tuple(dims), points, cost(actions).reshape(places.shape[:-1]))
