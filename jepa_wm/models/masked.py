"""The masked predictor: latents of unseen patches from latents of seen ones.

I-JEPA and V-JEPA add rows of a position table, V-JEPA 2 and 2.1 turn queries and keys; 2.1 adds a
modality vector, takes several levels and predicts the context too. Attribute names are GGUF tensor
names without ``pred.``.

Paper: I-JEPA, arXiv 2301.08243; V-JEPA, arXiv 2404.08471; V-JEPA 2, arXiv 2506.09985. Source:
    facebookresearch/ijepa, jepa and vjepa2, ``VisionTransformerPredictor``. The references sort
    rows by id before the blocks and undo it behind them; attention does not see the order, so this
    does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from jepa_wm.bundle.reader import Bundle
from jepa_wm.models.layers import Linear, mlp
from jepa_wm.models.plain_predictor import PlainPredictorConfig
from jepa_wm.models.rope import Rope, grid_positions, rope_table
from jepa_wm.models.vit import gather_rows

MAX_SLOTS = 65_536  # time slots a target id may reach: bounds the ids, not a table


class Prediction(NamedTuple):
    """What a masked predictor gives back.

    Attributes:
        target: float32 [B,M,levels*out_dim], rows in the order of the target ids.
        context: float32 [B,K,levels*out_dim], the context rows projected likewise, or None where
            the bundle has no ``pred.proj_context``.
    """

    target: Tensor
    context: Tensor | None


@dataclass(frozen=True, kw_only=True)
class MaskedConfig(PlainPredictorConfig):
    """Sizes and switches, as the keys ``jepa.pred.*`` give them; what is not there is said.

    RoPE decodes ids on ``grid_size``, whatever the encoder's grid is.

    Attributes:
        n_mask_tokens: Mask tokens stored.
        rope_interpolate: Rescale RoPE positions to ``rope_ref_grid``.
        rope_ref_grid: Grid side for that.
        n_hier_in: Encoder levels concatenated in the input.
        modality_embed: A vector for images or for clips is added to every row.
        context_proj: Context rows are projected too.
        enc_dim: Encoder width (``jepa.enc.embed_dim``).
        embed_hidden: Hidden width of ``pred.embed`` with several levels, from its tensor.
        n_positions: Rows of ``pred.pos_embed``, 0 with RoPE, from its tensor.
    """

    n_mask_tokens: int
    rope_interpolate: bool = False
    rope_ref_grid: int | None = None
    n_hier_in: int = 1
    modality_embed: bool = False
    context_proj: bool = False
    enc_dim: int = 0
    embed_hidden: int = 0
    n_positions: int = 0

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> "MaskedConfig":
        """Read the sizes from a bundle's keys and, where there is none, its tensors' shapes."""
        elsewhere = {
            "enc_dim": bundle.get("jepa.enc.embed_dim"),
            "embed_hidden": _rows(bundle, "pred.embed.0.weight"),
            "n_positions": _rows(bundle, "pred.pos_embed"),
        }
        return cls.read(bundle, elsewhere)


def _rows(bundle: Bundle, name: str) -> int:
    return bundle.shape(name)[0] if bundle.has(name) else 0


class MaskedPredictor(nn.Module):
    """Predicts the latents of target patches from those of context patches."""

    def __init__(self, config: MaskedConfig) -> None:
        super().__init__()
        self.config = c = config
        D, source = c.embed_dim, c.n_hier_in * c.enc_dim
        self.embed = (
            Linear(source, D) if c.n_hier_in == 1 else mlp(source, c.embed_hidden, D, "gelu_erf")
        )
        self.mask_tokens = nn.Parameter(torch.zeros(c.n_mask_tokens, D))
        self.pos_embed = nn.Parameter(torch.zeros(c.n_positions, D)) if c.n_positions else None
        self.mod_embed_img = nn.Parameter(torch.zeros(D)) if c.modality_embed else None
        self.mod_embed_video = nn.Parameter(torch.zeros(D)) if c.modality_embed else None
        self.blk = c.blocks()
        self.norm = nn.LayerNorm(D, c.ln_eps)
        self.proj = Linear(D, c.n_hier_in * c.out_dim)
        self.proj_context = Linear(D, c.n_hier_in * c.out_dim) if c.context_proj else None

    def forward(
        self,
        context: Tensor,
        context_ids: Tensor,
        target_ids: Tensor,
        *,
        mask_index: int = 1,
        is_image: bool = False,
    ) -> Prediction:
        """Predict targets.

        Args:
            context: Latents of the context patches, float [B,K,levels*D].
            context_ids: int64 [K] or [B,K], where they lie.
            target_ids: int64 [M] or [B,M], where the targets lie; may repeat or overlap.
            mask_index: Mask token for the targets, modulo their number; 1 is what the references
                use unless told otherwise.
            is_image: The latents are of a single image: its modality vector is added.

        Raises:
            ValueError: shapes do not fit each other or the model, or ids beyond the positions.
        """
        B, K = self._checked(context, context_ids, target_ids)
        ids = torch.cat([context_ids.expand(B, K), target_ids.expand(B, -1)], 1)
        x = self.embed(context)
        token = self.mask_tokens[mask_index % len(self.mask_tokens)].to(x.dtype)
        x = torch.cat([x, token.expand(B, ids.shape[1] - K, -1)], 1)
        if self.pos_embed is not None:
            x = x + gather_rows(self.pos_embed, ids)
        modality = self.mod_embed_img if is_image else self.mod_embed_video
        x = x if modality is None else x + modality
        rope = self._rope(ids)
        for block in self.blk:
            x = block(x, rope)
        x = self.norm(x)
        seen = None if self.proj_context is None else self.proj_context(x[:, :K]).float()
        return Prediction(self.proj(x[:, K:]).float(), seen)

    def predict_blocks(
        self,
        contexts: Sequence[Tensor],
        context_ids: Sequence[Tensor],
        target_ids: Sequence[Tensor],
    ) -> Tensor:
        """Predict every target block from every context, as I-JEPA trains.

        Args:
            contexts: Latents float [B,K,D] of each context block.
            context_ids: Their ids, int64 [K] or [B,K].
            target_ids: Ids of each target block, int64 [M] or [B,M], all of one length.

        Returns:
            float32 [P*E*B,M,out_dim]: target block outermost, then context block, then image.

        Source: facebookresearch/ijepa ``VisionTransformerPredictor.forward``.
        """
        rows = [
            self(context, seen, target).target
            for target in target_ids
            for context, seen in zip(contexts, context_ids, strict=True)
        ]
        return torch.cat(rows)

    @property
    def most_ids(self) -> int:
        """Ids lie below this: the rows of the position table, or a bound where there is none."""
        return self.config.n_positions or self.config.grid_size**2 * MAX_SLOTS

    def _rope(self, ids: Tensor) -> Rope | None:
        c = self.config
        if self.pos_embed is not None:
            return None
        ref_grid = c.rope_ref_grid if c.rope_interpolate else None
        positions = grid_positions(ids, (c.grid_size, c.grid_size), ref_grid)
        return rope_table(positions, c.embed_dim // c.n_head, c.rope_theta, c.rope_freq_layout)

    def _checked(self, context: Tensor, context_ids: Tensor, target_ids: Tensor) -> tuple[int, int]:
        c = self.config
        width = c.n_hier_in * c.enc_dim
        if context.ndim != 3 or context.shape[-1] != width:
            raise ValueError(f"context must be [B,K,{width}], got {list(context.shape)}")
        B, K, _ = context.shape
        most = self.most_ids
        for name, ids, count in (("context", context_ids, K), ("target", target_ids, None)):
            fits = ids.ndim in (1, 2) and (ids.ndim == 1 or len(ids) == B) and ids.numel() > 0
            if not fits or count not in (None, ids.shape[-1]):
                wanted = "M" if count is None else count
                raise ValueError(
                    f"{name} ids must be [{wanted}] or [{B},{wanted}], got {list(ids.shape)}"
                )
            if int(ids.min()) < 0 or int(ids.max()) >= most:
                raise ValueError(f"{name} ids must lie in 0 to {most - 1}")
        return B, K


def build_masked(bundle: Bundle) -> MaskedPredictor | None:
    """Build the empty masked predictor a bundle holds, if any."""
    if bundle.get("jepa.pred.kind") != "masked":
        return None
    return MaskedPredictor(MaskedConfig.from_bundle(bundle))
