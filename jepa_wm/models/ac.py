"""The action-conditioned predictor of V-JEPA 2-AC: the next frame's latents from frames so far.

Every frame contributes its conditioning rows (action, state) and its patches; a row sees the frames
up to its own, whole. Attribute names are GGUF tensor names without ``pred.``.

Paper: V-JEPA 2, arXiv 2506.09985. Source: facebookresearch/vjepa2 ``src/models/ac_predictor.py``
    and ``src/models/utils/modules.py`` (``ACRoPEAttention``). Quirks kept: conditioning rows turn
    with time only; on a grid that is not square, columns are scaled to the span of the rows
    (``grid_size``, the reference's factor for both axes, is the rows of the grid it is built for).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from jepa_wm.bundle.reader import Bundle
from jepa_wm.models.attention import FrameCausal
from jepa_wm.models.layers import Linear
from jepa_wm.models.plain_predictor import PlainPredictorConfig
from jepa_wm.models.rope import Rope, grid_positions, rope_table

N_COND = 2  # conditioning rows of a frame: action, state


@dataclass(frozen=True, kw_only=True)
class ACConfig(PlainPredictorConfig):
    """Sizes, as the keys ``jepa.pred.*`` give them; ``out_dim`` is the encoder's latent width D.

    Attributes:
        action_dim: Width of an action.
        state_dim: Width of a state (the arm's pose).
        n_frames: Most frames in a sequence.
        frame_causal: A frame sees itself and earlier ones only, else every frame.
        normalize_reps: Latents pass a non-affine LayerNorm on the way in and out of a rollout.
        norm_reps_eps: Epsilon of that norm.
    """

    action_dim: int
    state_dim: int
    n_frames: int
    frame_causal: bool = True
    normalize_reps: bool = False
    norm_reps_eps: float = 1e-5

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> "ACConfig":
        """Read the sizes from a bundle's keys."""
        return cls.read(bundle, {})


class ACPredictor(nn.Module):
    """Predicts the latents of every next frame from frames, actions and states so far."""

    def __init__(self, config: ACConfig) -> None:
        super().__init__()
        self.config = c = config
        self.embed = Linear(c.out_dim, c.embed_dim)
        self.action_embed = Linear(c.action_dim, c.embed_dim)
        self.state_embed = Linear(c.state_dim, c.embed_dim)
        self.blk = c.blocks()
        self.norm = nn.LayerNorm(c.embed_dim, c.ln_eps)
        self.proj = Linear(c.embed_dim, c.out_dim)

    def forward(
        self, z: Tensor, actions: Tensor, states: Tensor, grid: tuple[int, int] | None = None
    ) -> Tensor:
        """Predict the next frame of every frame.

        Args:
            z: Latents float [B,T,N,D] of T frames of N patches, t-major then rows then columns.
            actions: float [B,T,action_dim], the action leaving each frame.
            states: float [B,T,state_dim], the state in each frame.
            grid: (rows, columns) of patches; the trained square by default.

        Returns:
            float32 [B,T,N,D]; frame t predicts frame t+1 from frames 0..t only.

        Raises:
            ValueError: shapes do not fit each other or the model.
        """
        grid = grid or (self.config.grid_size, self.config.grid_size)
        T, N = self._checked(z, actions, states, grid)
        x = torch.cat([self.condition(actions, states), self.embed(z)], 2)  # [B,T,cond+N,D]
        rope = self.rope(T, grid, z.device)
        frames = self.frame_mask(T, N)
        x = x.flatten(1, 2)
        for block in self.blk:
            x = block(x, rope, frames)
        return self.finish(x.unflatten(1, (T, N_COND + N))[:, :, N_COND:])

    def condition(self, actions: Tensor, states: Tensor) -> Tensor:
        """Return the conditioning rows of frames: actions and states [..,width] -> [..,2,D]."""
        return torch.stack([self.action_embed(actions), self.state_embed(states)], -2)

    def frame_mask(self, T: int, N: int) -> FrameCausal | None:
        """Say which rows see which among T frames of N patches; None is all."""
        return FrameCausal((N_COND + N,) * T) if self.config.frame_causal and T > 1 else None

    def finish(self, x: Tensor) -> Tensor:
        """Turn the patches' rows [..,D] behind the last block into latents float32."""
        return self.proj(self.norm(x)).float()

    def rope(self, T: int, grid: tuple[int, int], device: torch.device) -> Rope:
        """Build the factors of T frames of conditioning rows (h = w = 0) and patches."""
        c = self.config
        ids = torch.arange(grid[0] * grid[1], device=device)
        patches = grid_positions(ids, grid)
        patches[:, 2] *= grid[0] / grid[1]
        frame = torch.cat([patches.new_zeros(N_COND, 3), patches])
        positions = frame.repeat(T, 1, 1)  # [T,cond+N,3]
        positions[..., 0] += torch.arange(T, device=device)[:, None]
        head_dim = c.embed_dim // c.n_head
        return rope_table(positions.flatten(0, 1), head_dim, c.rope_theta, c.rope_freq_layout)

    def _checked(
        self, z: Tensor, actions: Tensor, states: Tensor, grid: tuple[int, int]
    ) -> tuple[int, int]:
        c = self.config
        N = grid[0] * grid[1]
        if z.ndim != 4 or z.shape[2:] != (N, c.out_dim) or not 1 <= z.shape[1] <= c.n_frames:
            raise ValueError(
                f"latents must be [B,T,{N},{c.out_dim}] with 1 to {c.n_frames} frames, "
                f"got {list(z.shape)}"
            )
        B, T = z.shape[:2]
        for name, x, width in (("actions", actions, c.action_dim), ("states", states, c.state_dim)):
            if list(x.shape) != [B, T, width]:
                raise ValueError(f"{name} must be {[B, T, width]}, got {list(x.shape)}")
        return T, N
