"""LeWM once more, from the paper and the authors' tensor names, in float64 and without our modules.

``drop`` names one quirk to leave out, so that tests can show that they would notice.
"""

import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

GOLDEN = Path(__file__).parent.parent / "golden"


def unpack(name):
    """Read a golden file: (weights by source name, other arrays), all torch."""
    arrays = np.load(GOLDEN / name)
    layout = json.loads(str(arrays["layout"]))
    flat, weights, at = torch.from_numpy(arrays["weights"]).float(), {}, 0
    for key, shape in layout.items():
        size = int(np.prod(shape))
        weights[key] = flat[at : at + size].reshape(shape)
        at += size
    others = {n: torch.from_numpy(arrays[n]) for n in arrays.files if "/" in n}
    return weights, others


class Reference:
    def __init__(self, weights, heads, dim_head, drop="", n_frames=3):
        self.w = {name: tensor.double() for name, tensor in weights.items()}
        self.heads, self.dim_head, self.drop, self.n_frames = heads, dim_head, drop, n_frames
        self.depth = sum(".to_qkv.weight" in name for name in weights)

    def linear(self, x, name):
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def norm(self, x, name, eps):
        return F.layer_norm(x, x.shape[-1:], self.w[f"{name}.weight"], self.w[f"{name}.bias"], eps)

    def mlp(self, x, name):
        """Linear, BatchNorm in evaluation, GELU, Linear."""
        x = self.linear(x, f"{name}.net.0")
        stats = [self.w[f"{name}.net.1.{p}"] for p in ("running_mean", "running_var")]
        affine = [self.w[f"{name}.net.1.{p}"] for p in ("weight", "bias")]
        eps = 0.5 if self.drop == "batch norm eps" else 1e-5
        flat = F.batch_norm(x.flatten(0, -2), *stats, *affine, eps=eps)
        return self.linear(F.gelu(flat).reshape(x.shape), f"{name}.net.3")

    def embed_actions(self, actions):
        kernel, bias = (self.w[f"action_encoder.patch_embed.{p}"] for p in ("weight", "bias"))
        x = F.linear(actions.double(), kernel[:, :, 0], bias)
        act = F.gelu if self.drop == "silu in the action embedding" else F.silu
        return self.linear(act(self.linear(x, "action_encoder.embed.0")), "action_encoder.embed.2")

    def attention(self, x, name):
        x = x if self.drop == "ln inside attention" else self.norm(x, f"{name}.norm", self.ln_eps)
        split = (*x.shape[:-1], 3, self.heads, self.dim_head)
        q, k, v = self.linear(x, f"{name}.to_qkv").reshape(split).permute(2, 0, 3, 1, 4)
        width = x.shape[-1] / self.heads if self.drop == "scale by head_dim" else self.dim_head
        scores = q @ k.transpose(-1, -2) / width**0.5
        if self.drop != "causal mask":
            T = x.shape[1]
            scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return self.linear(mixed, f"{name}.to_out.0")

    def feed_forward(self, x, name):
        x = x if self.drop == "ln inside the mlp" else self.norm(x, f"{name}.net.0", self.ln_eps)
        approximate = "tanh" if self.drop == "erf gelu" else "none"
        hidden = F.gelu(self.linear(x, f"{name}.net.1"), approximate=approximate)
        return self.linear(hidden, f"{name}.net.4")

    @property
    def ln_eps(self):
        return 1e-3 if self.drop == "ln eps" else 1e-5

    def predict(self, z, actions):
        condition = self.embed_actions(actions)
        if self.drop != "adaln on silu":
            condition = F.silu(condition)
        x = z.double()
        if self.drop != "positions":
            x = x + self.w["predictor.pos_embedding"][0, : z.shape[1]]
        eps = 1e-3 if self.drop == "adaln eps" else 1e-6
        one = 0 if self.drop == "scale is 1 + s" else 1
        for i in range(self.depth):
            name = f"predictor.transformer.layers.{i}"
            mod = self.linear(condition, f"{name}.adaLN_modulation.1").chunk(6, -1)
            if self.drop == "order of the modulation":
                mod = mod[1], mod[0], *mod[2:]
            h = F.layer_norm(x, x.shape[-1:], eps=eps) * (one + mod[1]) + mod[0]
            x = x + mod[2] * self.attention(h, f"{name}.attn")
            h = F.layer_norm(x, x.shape[-1:], eps=eps) * (one + mod[4]) + mod[3]
            x = x + mod[5] * self.feed_forward(h, f"{name}.mlp")
        if self.drop != "final norm":
            x = self.norm(x, "predictor.transformer.norm", 1e-5)
        return self.mlp(x, "pred_proj")

    def rollout(self, z, past, plan):
        """One plan: z [T,D], past [T-1,A], plan [H,A] -> [H,D]."""
        frames, blocks = list(z.double()), torch.cat([past, plan]).double()
        shift = 1 if self.drop == "action of index k leaves frame k" else 0
        blocks = torch.cat([torch.zeros(shift, blocks.shape[1]), blocks])
        for _ in plan:
            end = len(frames)
            low = max(0, end - self.n_frames)
            window = torch.stack(frames[low:])[None]
            if self.drop == "positions restart" and low:
                table = self.w["predictor.pos_embedding"]
                self.w["predictor.pos_embedding"] = table.roll(-low, 1)
                frames.append(self.predict(window, blocks[None, low:end])[0, -1])
                self.w["predictor.pos_embedding"] = table
            else:
                frames.append(self.predict(window, blocks[None, low:end])[0, -1])
        return torch.stack(frames[len(z) :])
