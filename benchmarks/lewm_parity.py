"""Whether the contenders of ``lewm_solve.py`` agree: same candidates, same costs, same elites.

Candidates are drawn as CEM draws them after so many iterations: late in a solve they differ little,
so lower precision orders them worse than early on.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from lewm_contenders import Contender
from torch import Tensor

from jepa_wm.launch import preset

STAGES = (0, 2, 10, 30)  # iterations after which candidates are drawn


def candidate_sets(contender: Contender, stages: Sequence[int], seeds: int) -> dict[int, Tensor]:
    """Draw candidates as CEM would after so many iterations: stage -> [sets,B,S,H,A]."""
    sets = {}
    planner = preset("planner", "lewm")
    for stage in stages:
        drawn = []
        for seed in range(seeds):
            plan = contender.solve(max(stage, 1), 100 + seed)
            mean, std = plan.actions, plan.std
            if not stage:  # the start
                mean, std = torch.zeros_like(mean), torch.full_like(std, planner.init_std)
            generator = torch.Generator().manual_seed(1000 * stage + seed)
            B, H, A = mean.shape
            noise = torch.randn(B, planner.num_samples, H, A, generator=generator)
            drawn.append(mean[:, None] + std[:, None] * noise)
        sets[stage] = torch.stack(drawn)
    return sets


def agreement(reference: Tensor, costs: Tensor, elites: int) -> dict[str, float]:
    """Compare costs [sets,S]: largest relative difference, mean elite overlap and Spearman rank."""
    difference = ((costs - reference).abs() / reference.abs()).max()
    overlaps, ranks = [], []
    for a, b in zip(reference, costs, strict=True):
        best = (set(x.topk(elites, largest=False).indices.tolist()) for x in (a, b))
        overlaps.append(len(set.intersection(*best)) / elites)
        order = torch.stack([x.argsort().argsort().double() for x in (a, b)])
        ranks.append(float(torch.corrcoef(order)[0, 1]))
    return {
        "max_relative_difference": float(difference),
        "elite_overlap": float(np.mean(overlaps)),
        "spearman": float(np.mean(ranks)),
    }


def parity(
    entries: Sequence[Contender], stages: Sequence[int], seeds: int
) -> dict[str, dict[str, dict[str, float]]]:
    """Score the same candidates with every contender: name -> stage -> agreement with the first."""
    elites = preset("planner", "lewm").num_elites
    sets = candidate_sets(entries[-1], stages, seeds)
    table: dict[str, dict[str, dict[str, float]]] = {entry.name: {} for entry in entries[1:]}
    for stage, candidates in sets.items():
        costs = [torch.cat([entry.cost(one) for one in candidates]) for entry in entries]
        for entry, own in zip(entries[1:], costs[1:], strict=True):
            table[entry.name][str(stage)] = agreement(costs[0], own, elites)
    return table


def plan_costs(entries: Sequence[Contender], results: list[list[Any]]) -> dict[str, float]:
    """Return the mean cost of the plans every contender found, scored by the first contender."""
    score = entries[0].cost
    return {
        entry.name: float(torch.cat([score(plans[i].actions[:, None]) for plans in results]).mean())
        for i, entry in enumerate(entries)
    }


def report_parity(reference: str, table: dict[str, dict[str, dict[str, float]]]) -> None:
    """Print the parity table."""
    print(f"\nsame candidates, against {reference}; drawn as after so many iterations")
    print(f"{'':<16}{'iterations':>12}{'max rel diff':>14}{'elites kept':>13}{'Spearman':>10}")
    for name, stages in table.items():
        for stage, row in stages.items():
            print(
                f"{name:<16}{stage:>12}{row['max_relative_difference']:>14.1e}"
                f"{row['elite_overlap']:>13.3f}{row['spearman']:>10.5f}"
            )
