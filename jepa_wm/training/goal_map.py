"""A linear map of latents in which a goal's distance weighs what the task's success is made of."""

import torch
from torch import Tensor

_RIDGE = 1e-3  # of the mean variance of a latent's columns
_ROWS = 1 << 18  # tokens to fit


def fit_goal_map(z: Tensor, states: Tensor, tolerance: float) -> list[float]:
    """Fit the state to every token's latent; one unit is one tolerance of success.

    A planner's cost sums squares over tokens, so each of them votes on how far the goal is. Fitted
    on recorded states, this is privileged knowledge at training time and none at planning time.

    Args:
        z: Latents float [M,N,D].
        states: What counts, float [M,k].
        tolerance: In the units of ``states``.

    Returns:
        Row-major [k,D], as ``jepa_wm.goal.map`` holds it.
    """
    M, N, D = z.shape
    rows = slice(None, None, max(1, M * N // _ROWS))
    x, y = z[rows].double(), states[rows].double()
    x, y = (x - x.mean((0, 1))).flatten(0, 1), (y - y.mean(0)).repeat_interleave(N, 0)
    gram = x.T @ x
    ridge = _RIDGE * gram.diagonal().mean() * torch.eye(D, dtype=gram.dtype)
    weights = torch.linalg.solve(gram + ridge, x.T @ y)  # [D,k]
    found: list[float] = (weights.T / tolerance).float().flatten().tolist()
    return found
