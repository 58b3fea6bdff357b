"""The V-JEPA 2-AC world model: what a planner sees of an action-conditioned bundle.

A rollout keeps keys and values of the frames it has passed: attention is causal by frame, so they
never change, and the new frame sees everything before it and all of itself, which needs no mask.
Observed frames before the last depend on no candidate and are computed once. The reference computes
every frame anew in every step; the numbers are the same.

Paper: V-JEPA 2, arXiv 2506.09985. Source: facebookresearch/vjepa2
    ``notebooks/utils/world_model_wrapper.py`` and ``mpc_utils.py``.
"""

from dataclasses import dataclass
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
    """What a rollout has computed of the frames so far.

    Attributes:
        shared: By block, of observed frames before the last: the same for all candidates.
        own: Of all frames after them but the last step's, [blocks,2,B*S,heads,rows,d]. One tensor,
            since pieces between short-lived ones would scatter over the heap and hold it open.
        filled: Rows of ``own`` in use.
    """

    shared: list[Memory]
    own: Tensor
    filled: int = 0

    def extend(self, index: int, new: Memory) -> Memory:
        """Return all that a new frame sees in a block, and keep the frame if there is room."""
        own, start, end = self.own[index], self.filled, self.filled + new[0].shape[2]
        if end <= own.shape[3]:
            own[0, :, :, start:end], own[1, :, :, start:end] = new
            if not self.shared:
                return own[0, :, :, :end], own[1, :, :, :end]
        seen = zip(own[:, :, :, :start], new, strict=True)
        pieces = [list(pair) if start else [pair[1]] for pair in seen]
        if self.shared:
            for piece, shared in zip(pieces, self.shared[index], strict=True):
                piece.insert(0, _spread(shared, len(new[0])))
        k, v = (torch.cat(piece, 2) if len(piece) > 1 else piece[0] for piece in pieces)
        return k, v


class ACWorldModel:
    """Latent dynamics of an arm: frames, poses and actions in metres and radians.

    Latents are float32 [B,T,N,D], N patches a frame. An action is a difference of poses (``pose``),
    and a rollout moves the pose with it.

    Attributes:
        action_dim: Width of an action, 7.
        history: Most context frames, the predictor's frame slots.
        longest: Most steps of a rollout, likewise.
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
        self.action_dim, self.history, self.longest = c.action_dim, c.n_frames, c.n_frames
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

    def rollout(self, context: Context, actions: Tensor) -> Tensor:
        """Predict the latents after each action: actions float [B,S,H,7] -> z [B,S,H,N,D].

        Args:
            context: ``z`` [B,T,N,D], ``actions`` [B,T-1,7] between, ``proprio`` [B,T,7] the poses.
                Frames that would push the sequence past the predictor's slots are left out, oldest
                first.
            actions: Candidates, metres and radians; at most as many steps as there are slots. Where
                they want a gradient, the plain rollout gives it.

        Raises:
            ValueError: shapes do not fit each other or the model, or there are no poses.
        """
        if torch.is_grad_enabled() and actions.requires_grad:
            return self._plain(context, actions)
        with torch.inference_mode():
            return self._cached(context, actions)

    def _cached(self, context: Context, actions: Tensor) -> Tensor:
        """Roll out with the keys and values of earlier frames kept."""
        z, past, poses = self._window(context, actions)
        (B, T, N, D), (S, H) = z.shape, actions.shape[1:3]
        rope = self.predictor.rope(T + H - 1, self.grid, z.device)
        shared = self._observe(z[:, :-1], past, poses[:, :-1], rope)
        frames = _Frames(shared, self._room(B * S, H - 1, z.device))
        # one patch embedding of the last observed frame serves every candidate
        patches = self.predictor.embed(z[:, -1])[:, None].expand(B, S, N, -1).flatten(0, 1)
        pose = poses[:, -1:].expand(B, S, -1)
        found = z.new_empty(B, S, H, N, D)
        for step in range(H):
            action = actions[:, :, step].to(pose.dtype)
            rows = self.predictor.condition(action, pose).flatten(0, 1).to(patches.dtype)
            at = _frame(rope, T - 1 + step, N_COND + N)
            x = self._advance(torch.cat([rows, patches], 1), at, frames)
            nxt = self.normalise(self.predictor.finish(x))  # [B*S,N,D]
            found[:, :, step] = nxt.unflatten(0, (B, S))
            if step + 1 < H:
                pose, patches = compose(pose, action), self.predictor.embed(nxt)
        return found

    @torch.inference_mode()
    def rollout_reference(self, context: Context, actions: Tensor) -> Tensor:
        """Compute ``rollout`` the plain way, every frame anew in every step: the yardstick."""
        return self._plain(context, actions)

    def _plain(self, context: Context, actions: Tensor) -> Tensor:
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

    def predict_proprio(self, context: Context, actions: Tensor) -> Tensor:
        """Return the pose after each action, env units: actions [B,S,H,7] -> [B,S,H,7].

        Args:
            context: As of ``rollout``.
            actions: Candidates; a gradient flows through.

        Raises:
            ValueError: as ``rollout``.
        """
        pose = self._window(context, actions)[2][:, -1:]  # [B,1,7]
        found = []
        for action in actions.to(pose.dtype).unbind(2):
            pose = compose(pose, action)
            found.append(pose)
        return torch.stack(found, 2)

    def candidate_bytes(self, horizon: int, frames: int = 1) -> int:
        """Estimate the memory one candidate of a rollout takes, in bytes, for choosing a chunk.

        Keys and values of its own frames, the most that a block holds at a time (attention with
        its copy of what is seen, or the feed-forward layer) and the predicted latents.

        Args:
            horizon: Steps.
            frames: Context frames.
        """
        c = self.predictor.config
        width = self.predictor.embed.dtype.itemsize
        rows, whole = N_COND + self.grid[0] * self.grid[1], 4  # bytes of float32
        token, seen = c.embed_dim * width, frames + horizon - 1
        kept = 2 * c.n_layer * (horizon - 1) * token
        # tokens, q k v, q and k turned, what is seen, the result
        attending = c.embed_dim * whole * 5 + token * 3 + 2 * seen * token
        if width < whole:  # half precision may be widened
            attending += (1 + 2 * seen) * c.embed_dim * whole
        # tokens before, between and after, the result of attention, its norm, the hidden layer
        feeding = c.embed_dim * whole * 5 + c.ffn_dim * width
        found = horizon * c.out_dim * whole
        held = rows * (kept + max(attending, feeding) + 2 * token + found)
        return held + held // 3  # what the allocator holds of the freed: up to 0.3 measured

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

    def _observe(self, z: Tensor, actions: Tensor, poses: Tensor, rope: Rope) -> list[Memory]:
        """Compute keys and values of the observed frames before the last, for all candidates."""
        shared: list[Memory] = []
        if not z.shape[1]:
            return shared
        T, N = z.shape[1:3]
        rows = self.predictor.condition(actions, poses)
        x = torch.cat([rows, self.predictor.embed(z)], 2).flatten(1, 2)
        masked = self.predictor.frame_mask(T, N)
        at = Rope(rope.cos[: x.shape[1]], rope.sin[: x.shape[1]])
        for block in self._blocks:
            q, k, v = block.project(x, at)
            shared.append((k, v))
            x = block.finish(x, attention(q, k, v, frames=masked))
        return shared

    def _room(self, batch: int, frames: int, device: torch.device) -> Tensor:
        """Make room for keys and values of ``frames`` frames of ``batch`` candidates."""
        c, dtype = self.predictor.config, self.predictor.embed.dtype
        rows = frames * (N_COND + self.grid[0] * self.grid[1])
        shape = (c.n_layer, 2, batch, c.n_head, rows, c.embed_dim // c.n_head)
        return torch.empty(shape, dtype=dtype, device=device)

    def _advance(self, x: Tensor, rope: Rope, frames: _Frames) -> Tensor:
        """Run one new frame x [B*S,cond+N,D] through the blocks -> its patches [B*S,N,D].

        Args:
            x: Rows of the frame.
            rope: Its factors.
            frames: What came before; gains the frame while there is room.
        """
        rows = x.shape[1]
        for i, block in enumerate(self._blocks):
            attended = self._attend(i, x, rope, frames)
            if i + 1 == len(self._blocks):  # nobody reads the conditioning rows after this
                x, attended = x[:, N_COND:], attended[:, :, N_COND:]
            x = block.finish(x, attended)
        frames.filled += rows
        return x

    def _attend(self, index: int, x: Tensor, rope: Rope, frames: _Frames) -> Tensor:
        """Attend in one block from a new frame to all so far -> [B*S,heads,cond+N,d].

        A function of its own, so that what only attention needs is gone before the feed-forward
        layer begins.
        """
        q, k, v = self._blocks[index].project(x, rope)
        return attention(q, *frames.extend(index, (k, v)))


def _frame(rope: Rope, index: int, rows: int) -> Rope:
    """Cut out the factors of one frame."""
    part = slice(index * rows, (index + 1) * rows)
    return Rope(rope.cos[part], rope.sin[part])


def _spread(shared: Tensor, batch: int) -> Tensor:
    """Show rows all candidates share, [B,heads,n,d], to each of B*S: no copy where B is 1."""
    B, heads, n, d = shared.shape
    return shared[:, None].expand(B, batch // B, heads, n, d).reshape(batch, heads, n, d)
