"""The LeWM world model: what a planner sees of a lewm bundle."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from jepa_wm.control.interfaces import Context
from jepa_wm.models.cores import map_on_cores
from jepa_wm.models.lewm_predictor import Predictor
from jepa_wm.models.lewm_rollout import THREAD_ROWS, FastRollout, rollout_reference
from jepa_wm.models.model import Model


class LeWMWorldModel:
    """Latent dynamics of a LeWM bundle: the ``WorldModel`` a planner's cost is made of.

    Latents are float32 [..,D] whatever the model's dtype.

    Attributes:
        action_dim: Solver action size A (action block x environment action).
        history: Most context frames a rollout uses, the predictor's window.
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model.pred, Predictor):
            raise ValueError("the model has no LeWM predictor")
        self.model = model
        self.predictor = model.pred
        self.action_dim = model.pred.config.action_dim
        self.history = model.pred.config.n_frames
        self._fast = FastRollout(model.pred)

    def preprocess(self, frames: Tensor) -> Tensor:
        """Turn raw frames uint8 [B,T,H,W,3] into pixels float32 [B,T,C,h,w] by the recipe."""
        return self.model.preprocess(frames.to(self.model.device))

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode preprocessed frames float [B,T,C,h,w] into latents float32 [B,T,D]."""
        return self.model.embed_pixels(frames)

    @torch.inference_mode()
    def predict(self, z: Tensor, actions: Tensor) -> Tensor:
        """Predict every next latent of a window: z [B,T,D], actions [B,T,A] -> float32 [B,T,D].

        Row t sees frames and the blocks leaving them up to t and predicts frame t+1; T is at most
        ``history``.

        Raises:
            ValueError: shapes do not fit each other or the model.
        """
        self._check(z, actions, z.shape[1])
        if z.shape[1] > self.history:
            raise ValueError(
                f"{z.shape[1]} frames given, the predictor's window holds {self.history}"
            )
        return self.predictor(z, actions).float()

    def rollout(self, context: Context, actions: Tensor) -> Tensor:
        """Predict the latent after each block: actions float [B,S,H,A] -> z float32 [B,S,H,D].

        Step t sees the last ``history`` frames before it, real ones first, then its own
        predictions, each with the block that leaves it. Where a gradient is wanted, the plain
        rollout gives it.

        Args:
            context: ``z`` [B,T,D] of the last frames (older than the window are ignored),
                ``actions`` [B,T-1,A] between.
            actions: The plans to follow, in solver space.

        Raises:
            ValueError: shapes do not fit each other or the model.
        """
        z, past = self._window(context, actions)
        if torch.is_grad_enabled() and actions.requires_grad:
            return rollout_reference(self.predictor, z, past, actions)
        with torch.inference_mode():
            return self._fast(z, past, actions)

    @torch.inference_mode()
    def rollout_reference(self, context: Context, actions: Tensor) -> Tensor:
        """Compute ``rollout`` the plain way, window by window: the yardstick of the fast path."""
        z, past = self._window(context, actions)
        return rollout_reference(self.predictor, z, past, actions)

    def side_by_side(
        self, work: Callable[..., Tensor], pieces: Sequence[tuple[Any, ...]]
    ) -> list[Tensor]:
        """Take gradients of pieces of candidates, on a CPU side by side with few threads each.

        They are hundreds of small operations. Two threads that share each one take up to three
        times the processor time of one, and wait for each other on a busy machine; on a quiet one
        they gain a fifth at 32 candidates (measured).

        Args:
            work: Rolls a piece out and takes its gradients; the last argument is its candidates,
                [b,s,H,A].
            pieces: Arguments.

        Returns:
            ``[work(*piece) for piece in pieces]``, the same bits.
        """
        if self.model.device.type != "cpu":
            return [work(*piece) for piece in pieces]
        most = pieces[0][-1].shape[:2].numel() // THREAD_ROWS
        return map_on_cores(work, pieces, most)

    def _window(self, context: Context, actions: Tensor) -> tuple[Tensor, Tensor]:
        z, past = context.z, context.actions
        if actions.ndim != 4 or 0 in actions.shape[:3]:
            raise ValueError(f"actions must be [B,S,H,A] and not empty, got {list(actions.shape)}")
        self._check(z, past, z.shape[1] - 1 if z.ndim == 3 else 0)
        if actions.shape[0] != len(z) or actions.shape[-1] != self.action_dim:
            raise ValueError(
                f"actions {list(actions.shape)} do not fit B={len(z)} and A={self.action_dim}"
            )
        T = min(z.shape[1], self.history)
        return z[:, -T:], past[:, past.shape[1] - (T - 1) :]

    def _check(self, z: Tensor, actions: Tensor, count: int) -> None:
        D = self.predictor.config.embed_dim
        if z.ndim != 3 or z.shape[1] < 1 or z.shape[-1] != D:
            raise ValueError(f"latents must be [B,T,{D}] with T >= 1, got {list(z.shape)}")
        wanted = [len(z), count, self.action_dim]
        if list(actions.shape) != wanted:
            raise ValueError(
                f"actions between the frames must be {wanted}, got {list(actions.shape)}"
            )
