"""iCEM: the improved cross-entropy method. Smooth noise, elites that stay, ever fewer draws."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Plan
from jepa_wm.control.streams import Streams
from jepa_wm.planners.cem import CEM
from jepa_wm.planners.noise import coloured
from jepa_wm.planners.rounds import Pool, Round
from jepa_wm.planners.settings import choice_faults, count_faults, number_faults


@dataclass(frozen=True, kw_only=True)
class ICEM(CEM):
    """CEM with coloured noise, shrinking populations and elites kept within and across solves.

    Round i draws N_i = max(2K, N_{i-1} / decay) candidates with the power spectrum f^-beta over
    time. The best ``keep`` x K elites join the next round at the cost they have, unevaluated. The
    next solve starts from the last mean and tries them again, both shifted by the executed blocks;
    the blocks they lack are drawn. With ``include_mean`` the mean is a candidate of the last round
    only.

    Attributes:
        noise_beta: Exponent of the spectrum, >= 0; 0 is white, 2 to 4 is smooth.
        noise_block: Steps of time in one planner step: the noise runs through H x ``noise_block``
            steps of A / ``noise_block`` numbers. 1 colours over planner steps, each solver
            dimension for itself; the action block colours over the environment's own steps. None
            lets the control loop fill in the action block, and is 1 where nobody does.
        decay: Population decay from round to round, >= 1.
        keep: Fraction of the elites that is kept, in [0, 1].
        pad: The last blocks of a shifted mean: ``zero``, or ``last`` to repeat its last block.

    Source: Pinneri et al. 2020, "Sample-efficient Cross-Entropy Method for Real-time Planning";
        martius-lab/iCEM ``icem/controllers/icem.py`` (``conf/planner/icem_paper.yaml``). There the
        shifted elites come on top of N_0; here they are among them.
    """

    noise_beta: float
    noise_block: int | None
    decay: float
    keep: float
    pad: str

    def faults(self) -> list[str]:
        """Name every impossible setting."""
        values = self._values()
        faults = [
            *super().faults(),
            *number_faults(values, ("noise_beta",), least=0.0),
            *number_faults(values, ("decay",), least=1.0),
            *number_faults(values, ("keep",), least=0.0),
            *count_faults(values, () if self.noise_block is None else ("noise_block",)),
            *choice_faults(values, {"pad": ("zero", "last")}),
        ]
        return faults if faults else self._misfits()

    def _misfits(self) -> list[str]:
        faults = [] if self.keep <= 1 else [f"keep={self.keep} must be <= 1"]
        if self.num_samples < 2 * self.num_elites:
            faults.append(
                f"num_samples={self.num_samples} must be >= 2 x num_elites={self.num_elites}"
            )
        return faults

    def start(
        self, batch: int, action_dim: int, device: torch.device, actions: object = None
    ) -> Plan:
        """Make a start; see ``ContinuousPlanner.start``.

        Raises:
            ValueError: also where the action is no whole number of ``noise_block`` steps.
        """
        if action_dim % (self.noise_block or 1):
            raise ValueError(
                f"noise_block={self.noise_block} does not divide the solver action, {action_dim}"
            )
        return super().start(batch, action_dim, device, actions)

    def shift(self, plan: Plan, n: int) -> Plan:
        """Make the next start: shift mean and kept elites by ``n`` blocks, spread anew.

        A row whose cost is infinite starts cold.
        """
        mean = plan.actions if plan.mean is None else plan.mean.actions
        if self.pad == "last":
            more = self.horizon - mean.shape[1] + n
            mean = torch.cat([mean, mean[:, -1:].expand(-1, more, -1)], 1)
        start = super().shift(replace(plan, actions=mean), n)
        if plan.candidates is None:
            return start
        rest = plan.candidates[:, :, n:]  # [B,K,h,A]
        (B, K, h, A), drawn = rest.shape, torch.nan
        tried = rest.new_full((B, K, self.horizon, A), drawn)
        tried[:, :, :h] = torch.where(plan.cost.isfinite()[:, None, None, None], rest, drawn)
        return replace(start, candidates=tried)

    def _round(self, index: int, start: Plan) -> Round:
        count = self.num_samples
        for _ in range(index):
            count = max(2 * self.num_elites, int(count / self.decay))
        last = index == self.iterations - 1
        return replace(
            super()._round(index, start), count=count, with_mean=self.include_mean and last
        )

    def _keep(self, pool: Pool) -> Pool | None:
        count = int(self.num_elites * self.keep)
        return pool.cheapest(count) if count else None

    def _noise(self, mean: Tensor, generators: Streams, count: int) -> Tensor:
        """Draw coloured noise [B,S,H,A]."""
        noise = super()._noise(mean, generators, count)
        B, S, H, A = noise.shape
        steps = self.noise_block or 1
        time_last = noise.view(B, S, H * steps, A // steps).transpose(2, 3)
        return coloured(time_last, self.noise_beta).transpose(2, 3).reshape(B, S, H, A)
