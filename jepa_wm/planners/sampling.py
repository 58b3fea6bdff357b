"""SamplingPlanner: the loop every sampling planner shares.

Draw candidates around the plan, clip them, score them, refit, repeat. A planner sees one function,
``cost(actions [B,S,H,A]) -> [B,S]``, and writes one method, ``update(plan, samples, costs) ->
Plan``. All B problems are solved at once; row b draws from ``generators[b]`` on the CPU, so its
plan depends neither on the rows beside it nor on the device. Nothing in the loop waits for the
device.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Bounds, CostFn, Plan, PlanTrace, Scored
from jepa_wm.planners.constraints import Constraint, Named, allowed, misfits, named, starting
from jepa_wm.planners.rounds import better, blend, clamp, join, score
from jepa_wm.planners.settings import (
    choice_faults,
    count_faults,
    elite_faults,
    flag_faults,
    range_faults,
)

PerDim = float | Sequence[float]
"""A setting for all solver dimensions, or one number per dimension [A]."""


@dataclass(frozen=True, kw_only=True)
class SamplingPlanner(ABC):
    """Diagonal-Gaussian search over [H,A]; subclasses say how the candidates refit the proposal.

    Attributes:
        horizon: Blocks in a cold start, H.
        num_samples: Candidates per iteration, S.
        iterations: Rounds of draw, score, refit.
        init_std: Standard deviation of a cold start, solver units; a number or [A]. 0 pins a
            dimension.
        min_std: Floor of the standard deviation after a refit, likewise; pinned dimensions stay
            pinned.
        momentum: new = momentum * old + (1 - momentum) * fit, in [0, 1); a number or [A].
        momentum_std: The same for std; None takes ``momentum``.
        constraints: What candidates may be beside the bounds, by name, applied in order before
            them; see ``jepa_wm.planners.constraints``.
        clip: Clip candidates (and a warm start's mean) to the bounds; False ignores them.
        include_mean: Let candidate 0 be the current mean.
        returns: ``mean`` gives the last mean, scored once more on its own; ``best`` the best
            candidate seen.
        std_estimator: ``unbiased`` divides by n - 1 (torch's default), ``population`` by n.

    Raises:
        ValueError: a setting is impossible; all faults at once, by name.
    """

    horizon: int
    num_samples: int
    iterations: int
    init_std: PerDim
    min_std: PerDim
    momentum: PerDim
    momentum_std: PerDim | None
    constraints: Mapping[str, Constraint] | Named
    clip: bool
    include_mean: bool
    returns: str
    std_estimator: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "constraints", named(self.constraints))
        for name in ("init_std", "min_std", "momentum", "momentum_std"):
            value = getattr(self, name)
            if isinstance(value, Sequence) and not isinstance(value, str):  # hashable, and plain
                object.__setattr__(self, name, tuple(value))
        faults = self.faults()
        if faults:
            raise ValueError(f"{type(self).__name__}: " + "; ".join(faults))

    def faults(self) -> list[str]:
        """Name every impossible setting; a subclass may add its own."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        counts = ("horizon", "num_samples", "iterations", "num_elites")
        words = {"returns": ("mean", "best"), "std_estimator": ("unbiased", "population")}
        tops = {"init_std": torch.inf, "min_std": torch.inf, "momentum": 1.0}
        if self.momentum_std is not None:
            tops["momentum_std"] = 1.0
        return [
            *count_faults(values, counts),
            *elite_faults(values),
            *range_faults(values, tops),
            *flag_faults(values, ("clip", "include_mean", "normalise", "adapt_std")),
            *choice_faults(values, words),
        ]

    @abstractmethod
    def update(self, plan: Plan, samples: Tensor, costs: Tensor) -> Plan:
        """Fit the proposal to scored candidates; momentum, floor and pins are the loop's business.

        End it with ``return self.fit(chosen samples, their weights, their costs)``.

        Args:
            plan: The proposal the candidates came from, [B,H,A].
            samples: Candidates, [B,S,H,A].
            costs: Their costs, float32 [B,S]; infinite where they were not finite.
        """

    def start(
        self, batch: int, action_dim: int, device: torch.device, actions: object = None
    ) -> Plan:
        """Make a start for ``batch`` problems: zero or given actions, and the initial spread.

        Args:
            batch: Number of problems, B.
            action_dim: Solver action size, A.
            device: Where to plan.
            actions: A warm start, [B,h,A] with h <= horizon: a tensor of any dtype and device,
                numpy or lists.

        Raises:
            ValueError: ``actions`` or a per-dimension setting has another shape, or a constraint is
                on a dimension that is not there.
        """
        faults = misfits(named(self.constraints), action_dim)
        if faults:
            raise ValueError("; ".join(faults))
        mean = torch.zeros(batch, self.horizon, action_dim, device=device)
        if actions is not None:
            given = torch.as_tensor(actions).to(device, torch.float32)
            if (
                given.ndim != 3
                or given.shape[::2] != (batch, action_dim)
                or given.shape[1] > self.horizon
            ):
                raise ValueError(
                    f"warm start must be [{batch}, <={self.horizon}, {action_dim}], "
                    f"got {list(given.shape)}"
                )
            mean[:, : given.shape[1]] = given
        std = self._per_dim("init_std", action_dim, device).expand_as(mean).clone()
        return Plan(mean, std, torch.full((batch,), torch.inf, device=device))

    def shift(self, plan: Plan, n: int) -> Plan:
        """Make the next start: drop ``n`` executed blocks, pad with zeros, spread anew.

        A row whose cost is infinite (its solve met costs that were not finite) starts cold.
        """
        B, _, A = plan.actions.shape
        kept = plan.actions[:, n : n + self.horizon]
        kept = torch.where(plan.cost.isfinite()[:, None, None], kept, torch.zeros_like(kept))
        return self.start(B, A, plan.actions.device, kept)

    @torch.inference_mode()
    def plan(
        self, cost: CostFn, start: Plan, bounds: Bounds, generators: Sequence[torch.Generator]
    ) -> Plan:
        """Improve ``start`` for ``iterations`` rounds; the horizon is the start's own.

        A round in which a row has no finite cost leaves that row as it was and marks its cost
        infinite.

        Args:
            cost: Scores candidates, float32 [B,S,H,A] -> [B,S]; called once more with S = 1 for
                the last mean.
            start: Where to search, actions and std [B,H,A]; its candidates [B,K,H,A] take the
                place of draws in the first round.
            bounds: Solver-space box (low [A], high [A]); used only with ``clip``.
            generators: One CPU generator a row.

        Returns:
            The plan, its std and cost, with a trace of [I,B] tensors.

        Raises:
            ValueError: a shape is not as above.
            TypeError: ``cost`` returned something else than a tensor.
        """
        box = self._box(start, bounds, generators)
        A, device = start.actions.shape[-1], start.actions.device
        momentum, floor = (self._per_dim(name, A, device) for name in ("momentum", "min_std"))
        follows = self.momentum_std is None
        momenta = (momentum, momentum if follows else self._per_dim("momentum_std", A, device))
        first = clamp(starting(start.actions.float(), named(self.constraints)), box)
        plan = Plan(first, start.std.float(), start.cost)
        best = Plan(plan.actions, plan.std, torch.full_like(plan.cost, torch.inf))
        traces, tried = [], start.candidates
        for _ in range(self.iterations):
            samples = self._sample(plan, box, generators, tried)  # [B,S,H,A]
            tried = None
            costs = score(cost, samples)  # [B,S]
            best = better(best, samples, costs)
            fit = self.update(plan, samples, costs)
            plan = blend(plan, fit, momenta, floor)
            traces.append(plan.trace)
        trace = join(traces)
        actions = clamp(plan.actions, box)  # an average may round past a side
        mean = Scored(actions, score(cost, actions[:, None])[:, 0])
        best_seen = Scored(best.actions, best.cost)
        chosen = best_seen if self.returns == "best" else mean
        failed = ~trace.best.isfinite().all(0)  # [B]
        final = chosen.cost.masked_fill(failed, torch.inf)
        return Plan(chosen.actions, plan.std, final, trace, mean=mean, best=best_seen)

    def fit(self, samples: Tensor, weights: Tensor, costs: Tensor) -> Plan:
        """Return the weighted moments of candidates as a proposal.

        Args:
            samples: Chosen candidates, [B,K,H,A].
            weights: Their weights [B,K], rows summing to 1; ignored where the cost is infinite.
            costs: Their costs, float32 [B,K].

        Returns:
            Mean and std [B,H,A]; ``cost`` is the weighted mean cost, the trace this round's [1,B].
        """
        weights = torch.where(costs.isfinite(), weights, 0)
        w = weights[:, :, None, None]
        mean = (w * samples).sum(1)  # [B,H,A]
        variance = (w * (samples - mean[:, None]).square()).sum(1)
        mass = weights.square().sum(1)  # [B], one over the effective number of samples
        if self.std_estimator == "unbiased":  # n / (n - 1) for n equal weights; one has no spread
            variance = variance / (1 - mass).clamp_min(1e-6)[:, None, None]
        average = torch.where(costs.isfinite(), weights * costs, 0).sum(1)  # [B]
        effective = torch.where(mass > 0, 1 / mass, 0)
        spread = variance.sqrt()
        trace = PlanTrace(
            costs.amin(1)[None], average[None], spread.mean((1, 2))[None], effective[None]
        )
        return Plan(mean, spread, average, trace)

    def _per_dim(self, name: str, action_dim: int, device: torch.device) -> Tensor:
        pin = device.type == "cuda"  # a pinned copy does not make the host wait
        values = torch.tensor(getattr(self, name), dtype=torch.float32, pin_memory=pin)
        if values.ndim and len(values) != action_dim:
            raise ValueError(f"{name} has {len(values)} numbers, the solver action {action_dim}")
        return values.to(device, non_blocking=True)

    def _box(
        self, start: Plan, bounds: Bounds, generators: Sequence[torch.Generator]
    ) -> Bounds | None:
        B, _, A = start.actions.shape
        if start.std.shape != start.actions.shape or start.cost.shape != (B,):
            raise ValueError(
                f"start needs actions and std [B,H,A] and cost [B], got {start.std.shape}"
            )
        if len(generators) != B:
            raise ValueError(f"{B} problems need {B} generators, got {len(generators)}")
        if any(len(end) != A for end in bounds):
            raise ValueError(
                f"bounds must be two [{A}] tensors, got {[len(end) for end in bounds]}"
            )
        low, high = (end.to(start.actions.device, torch.float32) for end in bounds)
        return (low, high) if self.clip else None

    def _sample(
        self,
        plan: Plan,
        box: Bounds | None,
        generators: Sequence[torch.Generator],
        tried: Tensor | None = None,
    ) -> Tensor:
        """Draw candidates [B,S,H,A]; plans to be tried [B,K,H,A] stand in for the first of them."""
        noise = self._noise(plan.actions, generators).to(plan.actions.device, non_blocking=True)
        samples = noise * plan.std[:, None] + plan.actions[:, None]
        if tried is not None:
            at = int(self.include_mean)
            samples[:, at : at + tried.shape[1]] = tried[:, : self.num_samples - at]
        if self.include_mean:
            samples[:, 0] = plan.actions
        return clamp(allowed(samples, named(self.constraints)), box)

    def _noise(self, mean: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
        """Draw standard normal noise [B,S,H,A] on the CPU for a mean [B,H,A], row by row."""
        B, H, A = mean.shape
        noise = torch.empty(B, self.num_samples, H, A, pin_memory=mean.device.type == "cuda")
        for row, generator in zip(noise, generators, strict=True):
            torch.randn(row.shape, generator=generator, out=row)
        return noise
