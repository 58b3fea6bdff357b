"""A loaded bundle: encoder, predictor and head where there are any, and their preprocessing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from jepa_wm.bundle.groups import split_groups
from jepa_wm.bundle.reader import Bundle
from jepa_wm.errors import BundleError
from jepa_wm.models.heads import AttentivePool, LinearClassifier, build_head
from jepa_wm.models.layers import Linear, prepare_linears
from jepa_wm.models.masked import MaskedPredictor, Prediction
from jepa_wm.models.preprocess import Preprocess
from jepa_wm.models.quantised import QuantisedLinear, are_finite, can_join
from jepa_wm.models.vit import EncoderConfig, ViT, checked_ids, gather_rows

Frames = Tensor | NDArray[np.generic] | Sequence[Tensor | NDArray[np.generic]]
"""Frames in one array, or a sequence of pictures [H,W,3] that need not have one size."""


class Model(nn.Module):
    """What every family builds; parameters are named like the bundle's tensors.

    Attributes:
        enc: The encoder.
        pred: The predictor, or None.
        head: The classifier, or None.
        preprocess: The bundle's pixel recipe.
        labels: Names of the classes in order, empty if the bundle has none.
        still_frames: Frames a model of clips is given for a still picture (the picture repeated).
    """

    def __init__(
        self,
        enc: ViT,
        pred: nn.Module | None,
        preprocess: Preprocess,
        *,
        head: AttentivePool | LinearClassifier | None = None,
        labels: tuple[str, ...] = (),
        still_frames: int = 1,
    ) -> None:
        super().__init__()
        self.enc = enc
        self.pred = pred
        self.head = head
        self.preprocess = preprocess
        self.labels = labels
        self.still_frames = still_frames

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.enc.patch_embed.weight.device

    @torch.inference_mode()
    def embed(self, frames: Frames, pool: str | None = None) -> Tensor:
        """Return the embedding of each image or clip, float32 [..,D] (``none``: [..,N,D]).

        Args:
            frames: RGB, uint8 0-255 or float 0-1, channels last or first, any size, as a tensor or
                numpy array. A model of images takes [..,H,W,3]; a model of clips takes
                [..,T,H,W,3], or one still picture [H,W,3], which is repeated ``still_frames``
                times. Pictures of different sizes come as a sequence of T.
            pool: ``cls``, ``mean`` (over patches), ``none`` (all tokens) or ``projected`` (LeWM's
                latent); the family's own by default.

        Raises:
            ValueError: the frames are not pictures (``Preprocess``), or the model lacks the pool.
            TypeError: they are no tensor, array or sequence of these.
        """
        return self.embed_pixels(self.pixels(frames), pool)

    def pixels(self, frames: Frames) -> Tensor:
        """Preprocess raw frames (as ``embed``) into what ``encode`` takes, with leading axes."""
        if isinstance(frames, Sequence) and not isinstance(frames, str):
            parts = [self._prepared(frame) for frame in frames]
            if len({part.shape for part in parts}) != 1:  # pictures may differ in size, not clips
                shapes = ", ".join(str(list(frame.shape)) for frame in frames) or "none"
                raise ValueError(f"frames of one kind wanted, got {shapes}")
            pixels = torch.stack(parts)
        else:
            pixels = self._prepared(frames)
        if self.enc.config.takes_clips and pixels.ndim == 3:
            pixels = pixels.expand(self.still_frames, *pixels.shape)
        return pixels

    def _prepared(self, frames: Tensor | NDArray[np.generic]) -> Tensor:
        if isinstance(frames, np.ndarray):
            frames = torch.as_tensor(np.ascontiguousarray(frames))  # torch turns no axis round
        if not isinstance(frames, Tensor):
            kind = type(frames).__name__
            raise TypeError(f"frames are a {kind}, wanted a tensor or array: np.asarray(picture)")
        return self.preprocess(frames.to(self.device))

    def embed_pixels(self, pixels: Tensor, pool: str | None = None) -> Tensor:
        """Return the embedding of preprocessed pixels float [..,C,h,w] or [..,T,C,h,w]."""
        axes = 4 if self.enc.config.takes_clips else 3
        pixels = self._input(pixels)
        lead = pixels.shape[:-axes]
        z = self.enc.embed(pixels.reshape(-1, *pixels.shape[-axes:]), pool).float()
        return z.reshape(*lead, *z.shape[1:])

    @torch.inference_mode()
    def encode(self, pixels: Tensor, ids: Tensor | None = None, levels: bool = False) -> Tensor:
        """Encode preprocessed pixels into tokens float32 [B,prefix+N,D].

        Args:
            pixels: float [B,C,h,w] or, for a model of clips, [B,T,C,h,w].
            ids: int64 [K] or [B,K], the patches to encode; all by default.
            levels: Concatenate the levels of the hierarchy (V-JEPA 2.1) to [..,levels*D].

        Raises:
            ValueError: the shapes do not fit the model, pixels are not float or ids no integers.
        """
        encode = self.enc.levels if levels else self.enc
        return encode(self._input(pixels), None if ids is None else self._ids(ids)).float()

    @torch.inference_mode()
    def predict(
        self,
        pixels: Tensor,
        context_ids: Tensor,
        target_ids: Tensor,
        *,
        mask_index: int = 1,
        whole_clip: bool = False,
    ) -> Prediction:
        """Predict the latents of target patches from the latents of context patches.

        Args:
            pixels: float [B,C,h,w] or [B,T,C,h,w], preprocessed.
            context_ids: int64 [K] or [B,K], the patches that are seen.
            target_ids: int64 [M] or [B,M], the patches to predict; time slots beyond the clip are
                allowed where positions are rotary.
            mask_index: Which mask token stands for the targets; the references use 1 unless told.
            whole_clip: Encode everything and pick the context afterwards, as transformers does,
                instead of showing the encoder the context only, as in training.

        Raises:
            ValueError: the bundle has no masked predictor, or ids do not fit.
        """
        if not isinstance(self.pred, MaskedPredictor):
            raise ValueError(
                "this bundle has no masked predictor (jepa.pred.kind = masked); a predictor of the "
                "next frame is used through load_world_model"
            )
        context_ids, target_ids = self._ids(context_ids), self._ids(target_ids)
        encode = self.enc.levels if self.pred.config.n_hier_in > 1 else self.enc
        pixels = self._input(pixels)
        if whole_clip:
            z = encode(pixels)[:, self.enc.config.prefix :]
            z = gather_rows(z, checked_ids(context_ids, z.shape[1], len(z)))
        else:
            z = encode(pixels, context_ids)[:, self.enc.config.prefix :]
        is_image = self.enc.config.image_patch_embed and pixels.shape[1] == 1
        return self.pred(z, context_ids, target_ids, mask_index=mask_index, is_image=is_image)

    @torch.inference_mode()
    def classify(self, frames: Frames) -> Tensor:
        """Return the logits of each image or clip, float32 [..,n_classes]; frames as ``embed``.

        Raises:
            ValueError: the bundle has no head, or the frames are not pictures.
        """
        return self.classify_pixels(self.pixels(frames))

    def classify_pixels(self, pixels: Tensor) -> Tensor:
        """Return the logits of preprocessed pixels float [..,C,h,w] or [..,T,C,h,w]."""
        if self.head is None:
            raise ValueError("this bundle has no classifier (jepa.head.kind = none)")
        axes = 4 if self.enc.config.takes_clips else 3
        pixels = self._input(pixels)
        tokens = self.enc(pixels.reshape(-1, *pixels.shape[-axes:]))
        logits = self.head(tokens).float()
        return logits.reshape(*pixels.shape[:-axes], -1)

    def _input(self, pixels: Tensor) -> Tensor:
        pixels = torch.as_tensor(pixels)
        if not pixels.is_floating_point():  # raw pictures would give features all the same
            raise ValueError(
                f"pixels are {pixels.dtype}, wanted preprocessed floats: "
                "model.pixels(frames) makes them from pictures"
            )
        if 0 in pixels.shape:
            raise ValueError(f"pixels {list(pixels.shape)} are none: give one picture or more")
        return pixels.to(self.device, torch.float32)

    def _ids(self, ids: Tensor) -> Tensor:
        ids = torch.as_tensor(ids)
        if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
            raise ValueError(f"ids are {ids.dtype}, wanted int64; a mask's are mask.nonzero()[:,0]")
        return ids.to(self.device, torch.int64)

    def prepare(self, dtype: torch.dtype) -> None:
        """Reduce the matrices to ``dtype`` and pack them; norms, tokens and tables stay float32."""
        prepare_linears(self, dtype)


def encoder_config(bundle: Bundle) -> EncoderConfig:
    """Read the encoder's sizes from a bundle's ``jepa.enc.*`` keys."""
    keys = {name: f"jepa.enc.{name}" for name in EncoderConfig.__dataclass_fields__}
    keys["pos_interp"] = "jepa_wm.enc.pos_interp"
    return EncoderConfig(**{name: bundle.get(key) for name, key in keys.items()})


def build_encoder(bundle: Bundle, pred: nn.Module | None = None, still_frames: int = 1) -> Model:
    """Build a model of a plain ViT, a given predictor and the bundle's head."""
    return Model(
        ViT(encoder_config(bundle)),
        pred,
        Preprocess.from_bundle(bundle),
        head=build_head(bundle),
        labels=bundle.get("jepa.head.labels"),
        still_frames=still_frames,
    )


def load_tensors(
    model: nn.Module,
    bundle: Bundle,
    device: torch.device,
    dtype: torch.dtype,
    quantised: bool = False,
) -> None:
    """Fill every parameter of ``model`` from the bundle's tensor of the same name, one at a time.

    The model is built on the meta device; the finished weights are set aside first, so that beside
    them there is never more than one tensor in float32 (and no memory in pieces). Matrices of
    linear layers take ``dtype``, all else stays float32. Separate q, k and v
    (``jepa.enc.qkv_fused`` false) are stacked. The bundle was checked when it was opened, so a name
    that does not fit here is a fault of ours. With ``quantised`` the matrices of block types stay
    as they are stored (``QuantisedLinear``).
    """
    if quantised:
        keep_quantised(model, bundle, device, dtype)
    for module in model.modules():
        kind = dtype if isinstance(module, Linear) else torch.float32
        for name, empty in list(module.named_parameters(recurse=False)):
            if empty.is_meta:
                weight = torch.empty(empty.shape, dtype=kind, device=device)
                setattr(module, name, nn.Parameter(weight, requires_grad=False))
    kept = {name for name, part in model.named_modules() if isinstance(part, QuantisedLinear)}
    for name, weight in model.named_parameters():
        if name.rpartition(".")[0] in kept:  # has its bias
            continue
        tensor = _tensor(bundle, name)
        if tensor.shape != weight.shape:  # copying would broadcast
            raise ValueError(f"{name}: {list(tensor.shape)} for {list(weight.shape)}")
        weight.copy_(tensor)
    model.eval()


def keep_quantised(
    model: nn.Module, bundle: Bundle, device: torch.device, dtype: torch.dtype
) -> None:
    """Put a ``QuantisedLinear`` in the place of every linear layer stored in a block type.

    Raises:
        BundleError: a matrix holds infinite values.
    """
    for name, module in list(model.named_modules()):
        if not isinstance(module, Linear):
            continue
        stored = _stored_names(bundle, f"{name}.weight")
        parts = [split_groups(bundle.encoded(one)) for one in stored]
        if not can_join(parts):
            continue
        groups = [part for part in parts if part is not None]
        wrong = [one for one, part in zip(stored, groups, strict=True) if not are_finite(part)]
        if wrong:
            raise BundleError(f"{bundle.path}: tensor {wrong[0]} holds NaN or infinite values")
        bias = None if module.bias is None else _tensor(bundle, f"{name}.bias")
        parent, _, child = name.rpartition(".")
        linear = QuantisedLinear(groups, bias, dtype, device)
        setattr(model.get_submodule(parent), child, linear)


def _tensor(bundle: Bundle, name: str) -> Tensor:
    parts = [bundle.tensor(one) for one in _stored_names(bundle, name)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _stored_names(bundle: Bundle, name: str) -> list[str]:
    """Return the name of a parameter in the file: its own, or those of q, k and v."""
    if ".attn_qkv." in name and not bundle.has(name):
        return [name.replace(".attn_qkv.", f".attn_{part}.") for part in "qkv"]
    return [name]


def hidden_sizes(bundle: Bundle, names: Mapping[str, str]) -> dict[str, Any]:
    """Return the rows of the tensors that carry a size no key states: field name -> rows."""
    return {field: bundle.shape(tensor)[0] for field, tensor in names.items()}
