"""LeWM rollouts: the plain one, which is the definition, and the fast one with the same numbers.

What the fast one shares (all exact up to rounding): action embeddings and every layer's modulation
once per rollout; frames and actions that all samples have in common once per problem; keys and
values while the window still grows (positions restart when it slides); queries, output and MLP of
the last layer, final norm and projector for the newest frame only; the inner affine LayerNorms live
in the next matrix. Attention counts from the window's first frame: with c = W_o v_0 + b_o, which is
one matrix,
    out(sum_j w_j v_j) = c + W_o sum_{j>0} w_j (v_j - v_0),   w = softmax_j(q (k_j - k_0)),
so that frame needs neither key nor value, and biases drop out of the differences. Attention over at
most ``n_frames`` keys is written out, because kernels for long sequences are slower here.
"""

import math
from dataclasses import dataclass, field
from itertools import islice
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jepa_wm.models.cores import map_on_cores
from jepa_wm.models.lewm_predictor import Predictor, PredictorBlock
from jepa_wm.models.packed import PackedLinear

# Most sample rows of one piece on a CPU; larger ones leave the caches. Chosen on Zen 5; on Zen 1
# 80 rows take 5 to 20 % longer, windows computed anew 1.6 times as long (benchmarks/schedules.py,
# where 160, 320 and whole are one schedule: 300 candidates are two pieces for the threads' sake).
PIECE_ROWS = 160
THREAD_ROWS = 64  # sample rows from which one more thread pays
SCRATCH_BYTES = 31 << 20
Key = tuple[Tensor, Tensor]  # key and value of one frame, [b,s or 1,heads,d]


def rollout_reference(predictor: Predictor, z: Tensor, past: Tensor, actions: Tensor) -> Tensor:
    """Roll out window by window: z [B,T,D], past [B,T-1,A], actions [B,S,H,A] -> float32 [B,S,H,D].

    Source: stable-worldmodel ``wm/lewm/lewm.py``, ``LeWM.rollout``.
    """
    B, S, H, A = actions.shape
    T, n = z.shape[1], predictor.config.n_frames
    frames = z[:, None].expand(B, S, T, -1).flatten(0, 1)  # [B*S,T,D]
    blocks = torch.cat([past[:, None].expand(B, S, T - 1, A), actions], 2).flatten(0, 1)
    for t in range(H):
        low = max(0, T + t - n)
        following = predictor(frames[:, low:], blocks[:, low : T + t])[:, -1:]
        frames = torch.cat([frames, following.to(frames.dtype)], 1)
    return frames[:, T:].unflatten(0, (B, S)).float()


@dataclass(frozen=True)
class _Layer:
    """One predictor block in packed form.

    ``alone`` is attention over a single key, out(v(h)) with every bias; ``kv`` and ``out`` work on
    differences and have none.
    """

    adaln: PackedLinear
    q: PackedLinear
    kv: PackedLinear
    out: PackedLinear
    alone: PackedLinear
    up: PackedLinear
    down: PackedLinear


@dataclass
class _Seen:
    """What one layer keeps of the frames seen so far.

    Attributes:
        first: Normed input h_0 of the window's first frame, [b,s or 1,D].
        alone: What attention gives a token that sees only that frame, out(v_0), likewise.
        keys: Keys and values of the frames behind it, minus its own.
    """

    first: Tensor | None = None
    alone: Tensor | None = None
    keys: list[Key] = field(default_factory=list)


class FastRollout:
    """A predictor prepared for rollouts. Weights are copied when it is built.

    Args:
        predictor: The predictor; the dtype of its matrices is the dtype of the products.
        piece_rows: Most sample rows of one piece on a CPU; no bit of a result depends on it.
    """

    def __init__(self, predictor: Predictor, piece_rows: int = PIECE_ROWS) -> None:
        self.piece_rows = piece_rows
        self.config = c = predictor.config
        embed_in, embed_out = _linears(predictor.action_embed)
        proj_in, proj_out = _linears(predictor.proj)
        self.dtype = dtype = proj_in.weight.dtype
        self.pos_embed = predictor.pos_embed.detach().to(dtype)
        self.action_in = PackedLinear(embed_in.weight, embed_in.bias, dtype, c.action_act)
        # the embedding is only ever used as silu(embedding)
        self.action_out = PackedLinear(embed_out.weight, embed_out.bias, dtype, "silu")
        self.layers = [_pack(cast(PredictorBlock, block), dtype) for block in predictor.blk]
        self.proj_in = PackedLinear(*_fold_norm(predictor.norm, proj_in), dtype, c.proj_act)
        self.proj_out = PackedLinear(proj_out.weight, proj_out.bias, dtype)
        # glibc keeps twice the largest block below 32 MiB it ever got back; less, and a rollout
        # spends a fifth of its time on pages handed in and asked for again
        torch.empty(SCRATCH_BYTES, dtype=torch.uint8)

    def __call__(self, z: Tensor, past: Tensor, actions: Tensor) -> Tensor:
        """Roll out z [B,T,D], past [B,T-1,A], actions [B,S,H,A] -> float32 [B,S,H,D]."""
        B, S = actions.shape[:2]
        if z.device.type != "cpu":
            return self._roll(z, past, actions)
        # pieces a row, or rows a piece
        count = max(math.ceil(S / self.piece_rows), 2 if S >= 2 * THREAD_ROWS else 1)
        step = max(1, self.piece_rows // S)
        rows = [slice(b, b + step) for b in range(0, B, step)]
        pieces = [
            (z[row], past[row], part)
            for row in rows
            for part in actions[row].tensor_split(count, 1)
        ]
        most = pieces[0][2].shape[:2].numel() // THREAD_ROWS
        rolled = iter(map_on_cores(self._roll, pieces, most))
        return torch.cat([torch.cat([*islice(rolled, count)], 1) for _ in rows])

    def _roll(self, z: Tensor, past: Tensor, actions: Tensor) -> Tensor:
        """Roll out one piece."""
        b, s, H, _ = actions.shape
        T, n = z.shape[1], self.config.n_frames
        # frames before the newest share frame and action over all samples
        frames = [*z[:, :-1, None].to(self.dtype).unbind(1)]  # T-1 x [b,1,D]
        frames.append(z[:, -1, None].to(self.dtype).expand(b, s, -1))
        shared, own = self._modulate(past[:, None]), self._modulate(actions)
        window: list[_Seen] = []
        predicted: list[Tensor] = []
        for t in range(H):
            newest = T - 1 + t
            low = max(0, newest + 1 - n)
            if low or not window:  # positions restarted: nothing can be kept
                window = [_Seen() for _ in self.layers]
                first = low
            else:
                first = newest
            if first < T - 1:
                mods = [mod[first:] for mod in shared]
                self._extend(window, frames[first : T - 1], mods, first - low)
                first = T - 1
            mods = [mod[first - T + 1 : t + 1] for mod in own]
            x = self._extend(window, frames[first : newest + 1], mods, first - low)
            predicted.append(self._project(x))
            frames.append(predicted[-1])
        return torch.stack(predicted, 2).float()

    def _modulate(self, actions: Tensor) -> list[Tensor]:
        """Embed blocks [b,s,k,A]; every layer's modulations [k,b,s,6,D], scales with their 1."""
        b, s, k, A = actions.shape
        flat = actions.permute(2, 0, 1, 3).reshape(-1, A).to(self.dtype)
        if not k:
            return []
        condition = self.action_out(self.action_in(flat))
        # one product a layer: all at once would leave the range of the allocator's reuse
        return [layer.adaln(condition).view(k, b, s, 6, -1) for layer in self.layers]

    def _extend(
        self, window: list[_Seen], frames: list[Tensor], mods: list[Tensor], position: int
    ) -> Tensor:
        """Append frames to a window; return the newest one's tokens after the last layer, [b,s,D].

        Args:
            window: What every layer keeps of the frames before; extended in place.
            frames: m latents [b,s,D], the first at ``position``.
            mods: Their modulations, [m,b,s,6,D] a layer.
            position: Index of the first new frame in the window.
        """
        m = len(frames)
        x = torch.stack(frames).add_(self.pos_embed[position : position + m, None, None])
        for layer, mod, seen in zip(self.layers, mods, window, strict=True):
            is_last = layer is self.layers[-1]
            x = self._block(layer, x, mod, seen, m - 1 if is_last else 0)
        return x[-1]

    def _block(self, layer: _Layer, x: Tensor, mod: Tensor, seen: _Seen, start: int) -> Tensor:
        """Run one block on tokens [m,b,s,D] (overwritten); only those from ``start`` on go on."""
        shift_a, scale_a, gate_a, shift_m, scale_m, gate_m = mod.unbind(-2)
        y = self._attend(layer, self._norm(x, scale_a, shift_a), seen, start)
        x = x[start:].addcmul_(gate_a[start:], y)
        h = self._norm(x, scale_m[start:], shift_m[start:])
        return x.addcmul_(gate_m[start:], layer.down(layer.up(h)))

    def _attend(self, layer: _Layer, h: Tensor, seen: _Seen, start: int) -> Tensor:
        """Attend from normed tokens [m,b,s,D], those from ``start`` on, to all up to themselves."""
        if seen.first is None:
            seen.first, seen.alone = h[0], layer.alone(h[0])
            if len(h) == 1:
                return seen.alone[None]
            rest = self._attend(layer, h[1:], seen, max(0, start - 1))
            return rest if start else torch.cat([seen.alone.expand_as(rest[0])[None], rest])
        assert seen.alone is not None  # set with first
        c, before = self.config, len(seen.keys)
        kv = layer.kv(h - seen.first).unflatten(-1, (2, c.n_head, c.head_dim))
        seen.keys.extend((one[..., 0, :, :], one[..., 1, :, :]) for one in kv)
        q = layer.q(h[start:]).unflatten(-1, (c.n_head, c.head_dim))
        mixed = torch.empty_like(q)
        for i, query in enumerate(q):
            self._mix(query, seen.keys[: before + start + i + 1], mixed[i])
        return layer.out(mixed.flatten(-2)).add_(seen.alone)

    def _mix(self, query: Tensor, keys: list[Key], out: Tensor) -> None:
        """Write sum_{j>0} w_j (v_j - v_0), [b,s,heads,d]; the query carries the scale."""
        scores = [(query * k).sum(-1).float() for k, _ in keys]  # the kernel adds up in float32
        # softmax in parts: PyTorch's kernel rounds a tensor's last few numbers differently, and a
        # candidate's bits would depend on how many there are
        powers = torch.stack([torch.zeros_like(scores[0]), *scores])
        powers.sub_(powers.amax(0)).exp_()
        weights = powers.div_(powers.sum(0)).to(query.dtype)
        torch.mul(weights[1, ..., None], keys[0][1], out=out)
        for weight, (_, v) in zip(weights[2:, ..., None], keys[1:], strict=True):
            out.addcmul_(weight, v)

    def _norm(self, x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
        """Modulated LayerNorm, then the layer's own, whose affine part is in the next matrix."""
        dim = x.shape[-1:]
        h = F.layer_norm(x, dim, eps=self.config.adaln_eps)
        torch.addcmul(shift, h, scale, out=h)
        return F.layer_norm(h, dim, eps=self.config.ln_eps)

    def _project(self, x: Tensor) -> Tensor:
        h = F.layer_norm(x, x.shape[-1:], eps=self.config.ln_eps)
        return self.proj_out(self.proj_in(h))


def _linears(mlp: nn.Sequential) -> tuple[nn.Linear, nn.Linear]:
    return cast(nn.Linear, mlp[0]), cast(nn.Linear, mlp[2])


def _fold_norm(norm: nn.LayerNorm, linear: nn.Linear) -> tuple[Tensor, Tensor]:
    """Move a LayerNorm's affine part into the linear layer behind it: W gamma, b + W beta."""
    weight = linear.weight.double()
    bias = weight @ norm.bias.double()
    if linear.bias is not None:
        bias = bias + linear.bias.double()
    return (weight * norm.weight.double()).float(), bias.float()


def _pack(block: PredictorBlock, dtype: torch.dtype) -> _Layer:
    weight, bias = _fold_norm(block.ln1, block.attn_qkv)
    inner = len(weight) // 3
    scale = (inner // block.n_head) ** -0.5
    q_weight, q_bias = weight[:inner] * scale, bias[:inner] * scale
    out_weight, out_bias = block.attn_out.weight.double(), block.attn_out.bias.double()
    alone_weight = out_weight @ weight[2 * inner :].double()
    alone_bias = out_weight @ bias[2 * inner :].double() + out_bias
    adaln_bias = block.adaln.bias.float().unflatten(0, (6, -1)).clone()
    adaln_bias[[1, 4]] += 1  # the 1 of (1 + scale)
    return _Layer(
        adaln=PackedLinear(block.adaln.weight, adaln_bias.flatten(), dtype),
        q=PackedLinear(q_weight, q_bias, dtype),
        kv=PackedLinear(weight[inner:], None, dtype),
        out=PackedLinear(block.attn_out.weight, None, dtype),
        alone=PackedLinear(alone_weight.float(), alone_bias.float(), dtype),
        up=PackedLinear(*_fold_norm(block.ln2, block.ffn_up), dtype, block.act_name),
        down=PackedLinear(block.ffn_down.weight, block.ffn_down.bias, dtype),
    )
