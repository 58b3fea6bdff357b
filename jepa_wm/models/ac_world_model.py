"""The V-JEPA 2-AC world model: what a planner sees of an action-conditioned bundle.

A rollout keeps keys and values of the frames it has passed: attention is causal by frame, so they
never change, and the new frame sees everything before it and all of itself, which needs no mask.
Observed frames before the last depend on no candidate and are computed once. The reference computes
every frame anew in every step; the numbers are the same.

Paper: V-JEPA 2, arXiv 2506.09985. Source: facebookresearch/vjepa2
    ``notebooks/utils/world_model_wrapper.py`` and ``mpc_utils.py``.
"""

from dataclasses import dataclass, field
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from jepa_wm.control.interfaces import Context
from jepa_wm.models.ac import N_COND, ACPredictor
from jepa_wm.models.attention import attention
from jepa_wm.models.layers import Block
from jepa_wm.models.model import Model
from jepa_wm.models.pose import POSE_DIM, compose
from jepa_wm.models.rope import Rope

Memory = tuple[Tensor, Tensor]
"""Keys and values of the frames so far, [B,heads,rows,d] each."""


@dataclass
class _Frames:
    """What a rollout has computed of the frames so far, by block.

    Attributes:
        shared: Of observed frames before the last, [B,heads,rows,d]: the same for all candidates.
        own: Of the frames after them, [B*S,heads,rows,d].
    """

    shared: dict[int, Memory] = field(default_factory=dict)
    own: dict[int, Memory] = field(default_factory=dict)


class ACWorldModel:
    """Latent dynamics of an arm: frames, poses and actions in metres and radians.

    Latents are float32 [B,T,N,D], N patches a frame. An action is a difference of poses (``pose``),
    and a rollout moves the pose with it.

    Attributes:
        action_dim: Width of an action, 7.
        history: Most context frames, the predictor's frame slots.
    """

    def __init__(self, model: Model) -> None:
        if not isinstance(model.pred, ACPredictor):
            raise ValueError("the model has no action-conditioned predictor")
        c = model.pred.config
        if (c.action_dim, c.state_dim) != (POSE_DIM, POSE_DIM):
            raise ValueError(
                f"actions of {c.action_dim} and states of {c.state_dim} numbers: planning moves "
                f"poses of {POSE_DIM}"
            )
        if not c.frame_causal:
            raise ValueError("frame_causal is false: a rollout would see its own future")
        self.model, self.predictor = model, model.pred
        self.action_dim, self.history = c.action_dim, c.n_frames
        self._blocks = cast("list[Block]", list(model.pred.blk))
        side = model.preprocess.size // model.enc.config.patch_size
        self.grid = (side, side)

    def preprocess(self, frames: Tensor) -> Tensor:
        """Turn raw frames uint8 [B,T,H,W,3] into pixels float32 [B,T,C,h,w] by the recipe."""
        return self.model.preprocess(frames.to(self.model.device))

    @torch.inference_mode()
    def encode(self, frames: Tensor) -> Tensor:
        """Encode preprocessed frames float [B,T,C,h,w], each by itself, into [B,T,N,D].

        A frame is shown as a clip of itself, one tubelet long.
        """
        B, T = frames.shape[:2]
        tubelet = self.model.enc.config.tubelet_size
        clips = frames.flatten(0, 1)[:, None].expand(-1, tubelet, -1, -1, -1)
        return self.normalise(self.model.encode(clips)).unflatten(0, (B, T))

    def normalise(self, z: Tensor) -> Tensor:
        """Apply the non-affine LayerNorm that latents pass before and after the predictor."""
        c = self.predictor.config
        return F.layer_norm(z, z.shape[-1:], eps=c.norm_reps_eps) if c.normalize_reps else z

    @torch.inference_mode()
    def rollout(self, context: Context, actions: Tensor) -> Tensor:
        """Predict the latents after each action: actions float [B,S,H,7] -> z [B,S,H,N,D].

        Args:
            context: ``z`` [B,T,N,D], ``actions`` [B,T-1,7] between, ``proprio`` [B,T,7] the poses.
                Frames that would push the sequence past the predictor's slots are left out, oldest
                first.
            actions: Candidates, metres and radians; at most as many steps as there are slots.

        Raises:
            ValueError: shapes do not fit each other or the model, or there are no poses.
        """
        z, past, poses = self._window(context, actions)
        (B, T, N, D), (S, H) = z.shape, actions.shape[1:3]
        rope = self.predictor.rope(T + H - 1, self.grid, z.device)
        frames = self._observe(z[:, :-1], past, poses[:, :-1], rope)
        # one patch embedding of the last observed frame serves every candidate
        patches = self.predictor.embed(z[:, -1])[:, None].expand(B, S, N, -1).flatten(0, 1)
        pose = poses[:, -1:].expand(B, S, -1)
        found = z.new_empty(B, S, H, N, D)
        for step in range(H):
            action = actions[:, :, step].to(pose.dtype)
            rows = self.predictor.condition(action, pose).flatten(0, 1).to(patches.dtype)
            at = _frame(rope, T - 1 + step, N_COND + N)
            x = self._advance(torch.cat([rows, patches], 1), at, frames, keep=step + 1 < H)
            nxt = self.normalise(self.predictor.finish(x))  # [B*S,N,D]
            found[:, :, step] = nxt.unflatten(0, (B, S))
            if step + 1 < H:
                pose, patches = compose(pose, action), self.predictor.embed(nxt)
        return found

    @torch.inference_mode()
    def rollout_reference(self, context: Context, actions: Tensor) -> Tensor:
        """Compute ``rollout`` the plain way, every frame anew in every step: the yardstick."""
        z, past, poses = self._window(context, actions)
        S, H = actions.shape[1:3]
        z, past, poses = (x.repeat_interleave(S, 0) for x in (z, past, poses))
        steps = actions.flatten(0, 1)
        for step in range(H):
            known = torch.cat([past, steps[:, : step + 1]], 1)
            nxt = self.predictor(z, known, poses, self.grid)[:, -1:]
            z = torch.cat([z, self.normalise(nxt)], 1)
            poses = torch.cat([poses, compose(poses[:, -1:], steps[:, step : step + 1])], 1)
        return z[:, -H:].unflatten(0, (-1, S))

    def candidate_bytes(self, horizon: int, frames: int = 1) -> int:
        """Estimate the memory one candidate of a rollout takes, in bytes, for choosing a chunk.

        Keys and values of its own frames and of its copy of the observed ones, the widest
        activations of one frame and the predicted latents.

        Args:
            horizon: Steps.
            frames: Context frames.
        """
        c = self.predictor.config
        rows = N_COND + self.grid[0] * self.grid[1]
        width = self.predictor.embed.weight.element_size()
        memory = 2 * c.n_layer * (horizon - 1) * rows * c.embed_dim * width
        seen = 2 * (frames + horizon - 1) * rows * c.embed_dim * width
        active = rows * (c.ffn_dim * width + 10 * c.embed_dim * 4)
        return memory + seen + active + 4 * horizon * rows * c.out_dim

    def _window(self, context: Context, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Check shapes and cut the context to the frames that fit beside the steps."""
        z, past, poses = context.z, context.actions, context.proprio
        N, D = self.grid[0] * self.grid[1], self.predictor.config.out_dim
        if z.ndim != 4 or not z.shape[1] or z.shape[2:] != (N, D):
            raise ValueError(f"latents must be [B,T,{N},{D}] with T >= 1, got {list(z.shape)}")
        B, T = z.shape[:2]
        if actions.ndim != 4 or 0 in actions.shape or actions.shape[::3] != (B, self.action_dim):
            raise ValueError(
                f"actions must be [{B},S,H,{self.action_dim}] and not empty, "
                f"got {list(actions.shape)}"
            )
        if poses is None:
            raise ValueError(
                "V-JEPA 2-AC needs the arm's pose: give proprio [B,7] (x, y, z in metres, "
                "extrinsic xyz angles in radians, gripper 0 to 1)"
            )
        for name, x, count in (("actions", past, T - 1), ("poses", poses, T)):
            if list(x.shape) != [B, count, POSE_DIM]:
                raise ValueError(
                    f"{name} of the context must be {[B, count, POSE_DIM]}, got {list(x.shape)}"
                )
        slots, H = self.predictor.config.n_frames, actions.shape[2]
        if slots < H:
            raise ValueError(f"{H} steps given, the predictor has {slots} frame slots")
        T = min(T, slots - H + 1)
        return z[:, -T:], past[:, past.shape[1] - (T - 1) :], poses[:, -T:]

    def _observe(self, z: Tensor, actions: Tensor, poses: Tensor, rope: Rope) -> _Frames:
        """Compute keys and values of the observed frames before the last, for all candidates."""
        frames = _Frames()
        if not z.shape[1]:
            return frames
        T, N = z.shape[1:3]
        rows = self.predictor.condition(actions, poses)
        x = torch.cat([rows, self.predictor.embed(z)], 2).flatten(1, 2)
        masked = self.predictor.frame_mask(T, N)
        at = Rope(rope.cos[: x.shape[1]], rope.sin[: x.shape[1]])
        for i, block in enumerate(self._blocks):
            q, k, v = block.project(x, at)
            frames.shared[i] = k, v = _join(None, (k, v))
            x = block.finish(x, attention(q, k, v, frames=masked))
        return frames

    def _advance(self, x: Tensor, rope: Rope, frames: _Frames, keep: bool) -> Tensor:
        """Run one new frame x [B*S,cond+N,D] through the blocks -> its patches [B*S,N,D].

        Args:
            x: Rows of the frame.
            rope: Its factors.
            frames: What came before; gains the frame if ``keep``.
            keep: Whether a later frame will look at this one.
        """
        for i, block in enumerate(self._blocks):
            attended = self._attend(i, x, rope, frames, keep)
            if i + 1 == len(self._blocks):  # nobody reads the conditioning rows after this
                x, attended = x[:, N_COND:], attended[:, :, N_COND:]
            x = block.finish(x, attended)
        return x

    def _attend(self, index: int, x: Tensor, rope: Rope, frames: _Frames, keep: bool) -> Tensor:
        """Attend from a new frame to the frames so far, in one block -> [B*S,heads,cond+N,d].

        What only attention needs is gone before the feed-forward layer begins.
        """
        q, k, v = self._blocks[index].project(x, rope)
        if keep or index in frames.own:
            k, v = _join(frames.own.get(index), (k, v))
        if keep:
            frames.own[index] = (k, v)
        if frames.shared:
            shared = frames.shared[index]
            k, v = _spread(shared[0], k), _spread(shared[1], v)
        return attention(q, k, v)


def _frame(rope: Rope, index: int, rows: int) -> Rope:
    """Cut out the factors of one frame."""
    part = slice(index * rows, (index + 1) * rows)
    return Rope(rope.cos[part], rope.sin[part])


def _join(past: Memory | None, new: Memory) -> Memory:
    """Put the rows of a frame behind the past, in storage of their own.

    A block's q, k and v are views of tensors that hold all three: kept as they are, they would
    take two and a half times the memory.
    """
    if past is None:
        k, v = (x.clone(memory_format=torch.contiguous_format) for x in new)
    else:
        k, v = (torch.cat(pair, 2) for pair in zip(past, new, strict=True))
    return k, v


def _spread(shared: Tensor, own: Tensor) -> Tensor:
    """Put rows all candidates share, [B,heads,n,d], in front of each one's own [B*S,heads,m,d]."""
    B, heads, n, d = shared.shape
    S = len(own) // B
    return torch.cat([shared[:, None].expand(B, S, heads, n, d).flatten(0, 1), own], 2)
