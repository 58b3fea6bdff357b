"""Energy landscapes of an experiment: one start and goal in, costs, marks and warnings out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from jepa_wm.control.episode import Task
from jepa_wm.control.landscape import ActionCost, Landscape, survey
from jepa_wm.control.mpc import MPC
from jepa_wm.errors import ConfigError
from jepa_wm.experiments.codecs import numbers_codec
from jepa_wm.experiments.setup import Brain
from jepa_wm.viz.energy import Plane, energy_landscape

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Energy:
    """What the cost says about one start and goal.

    Attributes:
        planes: Over the first dimension with each other one.
        solid: Over all dimensions.
        actions: ``true action`` and ``planner``, env actions [a].
        costs: Their costs, and ``nothing``'s, that of standing still.
    """

    planes: Sequence[Landscape]
    solid: Landscape
    actions: dict[str, Floats]
    costs: dict[str, float]

    def warnings(self, names: Sequence[str], unit: str) -> list[str]:
        """Say where a minimum lies on the border: the range hides what is beyond."""
        dims, found = self.solid.dims, []
        for one in (*self.planes, self.solid):
            edges = [names[dims.index(dim)] for dim in one.on_border]
            if edges:
                grid = "/".join(names[dims.index(dim)] for dim in one.dims)
                found.append(
                    f"the minimum of {grid} lies on the border in {', '.join(edges)} "
                    f"(+-{one.points[-1]:.3g} {unit}): widen span"
                )
        return found

    def record(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        grids = {"planes": list(self.planes), "solid": [self.solid]}
        return {
            "actions": {name: action.tolist() for name, action in self.actions.items()},
            "costs": self.costs,
            "rank_of_true_action": self.solid.rank(self.costs["true action"]),
            "grid_actions": int(self.solid.costs.size),
            **{name: [_grid(one) for one in found] for name, found in grids.items()},
        }


def measure_energy(
    options: dict[str, Any], brain: Brain, agent: MPC, env: Any, task: Task, recorded: Floats
) -> Energy:
    """Put the environment at a task's start and survey the cost of actions there.

    Args:
        options: ``dims``, ``span``, ``plane_points``, ``solid_points``, ``through``.
        brain: Says what the model looks at.
        agent: Plans once.
        env: Unwrapped; reset to the task's start.
        task: Start and goal.
        recorded: Actions from start to goal [K,a]; their mean is the true action.
    """
    _, info = env.reset(seed=task.seed, options=dict(task.options or {}))
    frame = env.render() if brain.frames == "render" else info[brain.frames]
    key = options["task"].get("proprio")
    proprio = None if key is None else np.asarray(info[key])[None]
    if task.goal is None:
        raise ConfigError("an energy landscape needs a goal: goal=play or goal=env")
    felt = None if task.goal_proprio is None else task.goal_proprio[None]
    agent.reset(np.asarray(task.goal)[None], [task.seed], len(recorded), felt)
    chosen = agent.act(np.asarray(frame)[None], proprio)[0].astype(np.float64)
    true = np.asarray(recorded, dtype=np.float64).mean(0)
    codec = numbers_codec(brain.codec, "an energy landscape")
    cost = ActionCost(agent.cost(), codec, -(-len(recorded) // codec.block))
    base = true if options["through"] == "true_action" else np.zeros_like(true)
    dims, span = options["dims"], options["span"]
    planes = [survey(cost, base, [dims[0], d], span, options["plane_points"]) for d in dims[1:]]
    solid = survey(cost, base, dims, span, options["solid_points"])
    values = cost(np.stack([true, chosen, np.zeros_like(true)]))
    costs = dict(zip(("true action", "planner", "nothing"), values.tolist(), strict=True))
    return Energy(planes, solid, {"true action": true, "planner": chosen}, costs)


def draw_energy(energy: Energy, names: Sequence[str], unit: str, note: str) -> Figure:
    """Draw the planes with their marks, and slices of the solid grid along its last dimension."""
    dims, solid = energy.solid.dims, energy.solid
    label = {dim: f"{name} ({unit})" for dim, name in zip(dims, names, strict=True)}
    planes = [
        Plane(
            title=f"{names[dims.index(one.dims[0])]}/{names[dims.index(one.dims[1])]}",
            points=one.points,
            costs=one.costs,
            labels=(label[one.dims[0]], label[one.dims[1]]),
            marks=_marks(energy, one),
        )
        for one in energy.planes
    ]
    slices = [
        Plane(
            title=f"{names[-1]} {at:+.3g} {unit}",
            points=solid.points,
            costs=solid.costs[..., index],
            labels=(label[dims[0]], label[dims[1]] if index == 0 else ""),
            marks={},
        )
        for index, at in enumerate(solid.points)
        if len(dims) == 3
    ]
    return energy_landscape(planes, slices, note)


def lines(energy: Energy, names: Sequence[str], unit: str) -> list[str]:
    """Return what is worth saying of a landscape, a line each."""
    dims, solid = list(energy.solid.dims), energy.solid
    span = solid.points[-1]
    said = [f"range     {' '.join(names)} from {-span:.3g} to {span:.3g} {unit}"]
    lowest = {"minimum": (solid.minimum, float(solid.costs.min()))}
    shown = {k: (v[dims], energy.costs[k]) for k, v in energy.actions.items()} | lowest
    for name, (place, cost) in shown.items():
        numbers = " ".join(f"{value:+.3f}" for value in place)
        said.append(f"{name:<12} {numbers} {unit}, cost {cost:.5g}")
    rank = solid.rank(energy.costs["true action"])
    said.append(f"rank      the true action is number {rank} of {solid.costs.size + 1}")
    return said


def check_energy(options: dict[str, Any]) -> None:
    """Refuse options that name no grid, all at once.

    Raises:
        ConfigError: they do not.
    """
    dims, names, faults = options["dims"], options["names"], []
    if not (isinstance(dims, list) and len(dims) in (2, 3) and len(set(dims)) == len(dims)):
        faults.append(f"dims={dims} must be two or three different dimensions of the action")
    elif not isinstance(names, list) or len(names) != len(dims):
        faults.append(f"names={names} must be one name for each of dims={dims}")
    if options["through"] not in ("true_action", "zero"):
        faults.append(f"through={options['through']!r} must be true_action or zero")
    if options["goal"] not in ("play",):
        faults.append(f"goal={options['goal']!r} must be play: only there the true action is known")
    if faults:
        raise ConfigError("; ".join(faults))


def _marks(energy: Energy, plane: Landscape) -> dict[str, tuple[float, float]]:
    first, second = plane.dims
    found = {k: (float(v[first]), float(v[second])) for k, v in energy.actions.items()}
    x, y = plane.minimum
    return {**found, "minimum": (float(x), float(y))}


def _grid(one: Landscape) -> dict[str, Any]:
    return {
        "dims": list(one.dims),
        "points": one.points.tolist(),
        "costs": one.costs.tolist(),
        "minimum": one.minimum.tolist(),
        "on_border": list(one.on_border),
    }
