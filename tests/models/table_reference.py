"""I-JEPA and V-JEPA once more, from the papers and the authors' names, in float64, without modules.

``drop`` names one quirk to leave out, so that tests can show that they would notice.
"""

import torch
import torch.nn.functional as F

QUIRKS_OF_BLOCKS = ("eps", "erf gelu", "heads", "final norm")
QUIRKS_OF_CONTEXTS = ("positions before the gather", "gather before the blocks")
QUIRKS_OF_TABLES = ("resampled in time", "trilinear", "corners not aligned", "time leads")
QUIRKS_OF_PREDICTIONS = (
    "context positions", "target positions", "mask token", "context first",
)  # fmt: skip


class Reference:
    """Both halves of a checkpoint: ``encoder.*`` and ``predictor.*``."""

    def __init__(self, weights, heads, stored, drop=""):
        self.w = {name: tensor.double() for name, tensor in weights.items()}
        self.heads, self.stored, self.drop = heads, stored, drop
        self.eps = 1e-5 if drop == "eps" else 1e-6

    def linear(self, x, name):
        return F.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def norm(self, x, name):
        return F.layer_norm(
            x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], self.eps
        )

    def blocks(self, x, name):
        for i in range(2):
            x = x + self.attention(self.norm(x, f"{name}.{i}.norm1"), f"{name}.{i}.attn")
            h = self.linear(self.norm(x, f"{name}.{i}.norm2"), f"{name}.{i}.mlp.fc1")
            h = F.gelu(h, approximate="tanh" if self.drop == "erf gelu" else "none")
            x = x + self.linear(h, f"{name}.{i}.mlp.fc2")
        return x

    def attention(self, x, name):
        heads = 2 * self.heads if self.drop == "heads" else self.heads
        B, N, D = x.shape
        qkv = self.linear(x, f"{name}.qkv").reshape(B, N, 3, heads, D // heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (D // heads) ** 0.5
        return self.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), f"{name}.proj")

    def table(self, grid):
        """The encoder's table on a grid (time, rows, columns), resampled as V-JEPA does."""
        table = self.w["encoder.pos_embed"][0]
        if grid == self.stored:
            return table
        volume = table.reshape(*self.stored, -1)
        if self.drop == "time leads":
            volume = table.reshape(*self.stored[1:], self.stored[0], -1).movedim(2, 0)
        if self.drop == "resampled in time":  # cut or repeated instead
            volume = volume[torch.arange(grid[0]).clamp(max=self.stored[0] - 1)]
        volume = volume.movedim(-1, 0)[None]
        mode, extra = "trilinear", {"align_corners": self.drop == "corners not aligned"}
        if self.drop == "trilinear":
            mode, extra = "nearest", {}
        return F.interpolate(volume, grid, mode=mode, **extra)[0].flatten(1).T

    def encode(self, pixels, ids=None):
        """Pixels [B,C,h,w] or [B,T,C,h,w] -> tokens, of the patches ``ids`` [B,K] only."""
        kernel = self.w["encoder.patch_embed.proj.weight"]
        clips = pixels.double()[:, None] if pixels.ndim == 4 else pixels.double()
        kernel = kernel if kernel.ndim == 5 else kernel[:, :, None]
        bias = self.w["encoder.patch_embed.proj.bias"]
        x = F.conv3d(clips.transpose(1, 2), kernel, bias, stride=kernel.shape[2:])
        table = self.table(tuple(x.shape[2:]))
        x = x.flatten(2).mT
        if self.drop == "positions before the gather" and ids is not None:
            x = pick(x, ids) + table[: ids.shape[1]]
        elif self.drop == "gather before the blocks" or ids is None:
            x = x + table
        else:
            x = pick(x + table, ids)
        x = self.blocks(x, "encoder.blocks")
        x = x if self.drop == "final norm" else self.norm(x, "encoder.norm")
        return pick(x, ids) if self.drop == "gather before the blocks" and ids is not None else x

    def predict(self, z, context_ids, target_ids, token="mask_token"):
        """Latents [B,K,D] of context ids [B,K] and target ids [B,M] -> predictions [B,M,D]."""
        table = self.w["predictor.predictor_pos_embed"][0]
        x = self.linear(z.double(), "predictor.predictor_embed")
        if self.drop != "context positions":
            x = x + table[context_ids]
        mask = self.w[f"predictor.{token}"] * (self.drop != "mask token")
        targets = mask + table[target_ids] * (self.drop != "target positions")
        x = self.blocks(torch.cat([x, targets], 1), "predictor.predictor_blocks")
        x = x if self.drop == "final norm" else self.norm(x, "predictor.predictor_norm")
        M = target_ids.shape[1]
        x = x[:, :M] if self.drop == "context first" else x[:, -M:]
        return self.linear(x, "predictor.predictor_proj")


def pick(x, ids):
    """Rows of x [B,N,D] by ids [B,K]."""
    return x.gather(1, ids[..., None].expand(*ids.shape, x.shape[-1]))
