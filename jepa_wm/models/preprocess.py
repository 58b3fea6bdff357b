"""Preprocessing: camera frames in, model pixels out, exactly as the keys ``jepa.pre.*`` say.

The recipe is the one of the torchvision-backed Hugging Face processors: antialiased resize on uint8
(rounded back to uint8), centre crop, then one fused ``(x - 255 mean) / (255 std)``. Everything
upstream hands over raw frames and never a normalisation constant.

On a CPU the resize is torch's integer kernel, bit for bit torchvision's. CUDA has none: there the
filter runs in float32 and rounds, as torchvision does there, which may differ by one of 255 levels.
"""

from dataclasses import dataclass
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from jepa_wm.bundle.reader import Bundle

FLOAT_SLACK = 1e-3  # float frames may overshoot [0, 1] by rounding, not more
MAX_PIXELS = 64 << 20  # of a frame halfway through its resize: a thin one would grow without bound


@dataclass(frozen=True, kw_only=True)
class Preprocess:
    """Turns raw frames into a model's input.

    Attributes:
        mean: Per-channel mean of pixels scaled to [0, 1].
        std: Per-channel standard deviation on the same scale.
        resize_short: Short side after the resize, pixels (``shortest_edge`` only).
        crop: Side of the square the model sees, pixels; 0 means ``resize_short``.
        resample: ``bilinear`` or ``bicubic``, antialiased.
        resize_mode: ``shortest_edge`` (keep the aspect, crop the centre) or ``squash`` (resize
            straight to the square).
        rescale: Pixel scale before normalisation, 1/255 in every published file.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize_short: int
    crop: int
    resample: str = "bilinear"
    resize_mode: str = "shortest_edge"
    rescale: float = 1 / 255

    @classmethod
    def from_bundle(cls, bundle: Bundle) -> Self:
        """Read the recipe from ``jepa.pre.*``; absent sizes are the encoder's."""
        img_size = int(bundle.get("jepa.enc.img_size"))
        resize_short = bundle.get("jepa.pre.resize_short")
        crop = bundle.get("jepa.pre.crop")
        return cls(
            mean=tuple(float(m) for m in bundle.get("jepa.pre.mean")),
            std=tuple(float(s) for s in bundle.get("jepa.pre.std")),
            resize_short=img_size if resize_short is None else int(resize_short),
            crop=img_size if crop is None else int(crop),
            resample=bundle.get("jepa.pre.resample"),
            resize_mode=bundle.get("jepa.pre.resize_mode"),
            rescale=float(bundle.get("jepa.pre.rescale")),
        )

    @property
    def size(self) -> int:
        """Side of the square the model receives, in pixels."""
        return self.crop or self.resize_short

    def __call__(self, frames: Tensor) -> Tensor:
        """Return model pixels, float32 [..,C,size,size], on the frames' device.

        Args:
            frames: RGB, uint8 0-255 or float 0-1, channels last [..,H,W,C] or first [..,C,H,W].
                Floats are rounded to the 8-bit grid first, so the same picture gives the same
                pixels in every form.

        Raises:
            ValueError: the shape has no (or two possible) channel axes, float values leave [0, 1],
                or ``MAX_PIXELS`` would be exceeded: thin frames, or a forged recipe.
        """
        pixels = self._channels_first(self._to_uint8(frames))
        lead = pixels.shape[:-3]
        pixels = self._resize(pixels.reshape(-1, *pixels.shape[-3:]))
        return self._normalise(pixels).reshape(*lead, len(self.mean), self.size, self.size)

    def picture(self, pixels: Tensor) -> Tensor:
        """Undo the normalisation: model pixels float [..,C,h,w] to RGB uint8 [..,h,w,C]."""
        mean, std = self._statistics(pixels.device)
        levels = (pixels.float() * std + mean).round().clamp(0, 255)
        return levels.to(torch.uint8).movedim(-3, -1)

    def _to_uint8(self, frames: Tensor) -> Tensor:
        if frames.dtype == torch.uint8:
            return frames
        if not frames.is_floating_point():
            raise ValueError(f"frames are {frames.dtype}; give uint8 in 0-255 or float in 0-1")
        low, high = (frames.min().item(), frames.max().item()) if frames.numel() else (0.0, 0.0)
        if not (low >= -FLOAT_SLACK and high <= 1 + FLOAT_SLACK):  # also catches NaN
            raise ValueError(
                f"float frames must lie in [0, 1], got [{low:.3g}, {high:.3g}]: hand over raw "
                "frames (uint8 0-255 or float 0-1); the bundle's mean and std are applied here"
            )
        return (frames.float() * 255).round().clamp(0, 255).to(torch.uint8)

    def _channels_first(self, frames: Tensor) -> Tensor:
        channels = len(self.mean)
        if frames.ndim < 3:
            raise ValueError(
                f"frames need 3 or more axes [..,H,W,{channels}], got {list(frames.shape)}"
            )
        last, first = frames.shape[-1] == channels, frames.shape[-3] == channels
        if last == first:
            what = (
                "either axis could be the channels"
                if last
                else f"no axis holds {channels} channels"
            )
            raise ValueError(
                f"frames {list(frames.shape)}: {what}; "
                f"give [..,H,W,{channels}] or [..,{channels},H,W]"
            )
        if 0 in frames.shape:
            raise ValueError(f"frames {list(frames.shape)} hold no pixels")
        return frames.movedim(-1, -3) if last else frames

    def _resize(self, pixels: Tensor) -> Tensor:
        """Resize and crop [N,C,H,W]; as many frames at once as keep what lies between bounded."""
        height, width = pixels.shape[-2:]
        size = self._resized(height, width)
        if self.size**2 > MAX_PIXELS:  # a crop beyond the picture is padded, whatever its size
            raise ValueError(
                f"the model's recipe makes pictures of {self.size}x{self.size} pixels; the limit "
                f"is {MAX_PIXELS >> 20} Mpx"
            )
        between = max(height, size[0]) * size[1]  # rows are resized first
        if between > MAX_PIXELS:
            raise ValueError(
                f"frames of {height}x{width} pixels would be resized to {size[0]}x{size[1]}, over "
                f"{between >> 20} Mpx on the way; the limit is {MAX_PIXELS >> 20}: crop them first"
            )
        parts = [
            self._centre_crop(self._resample(part, size))
            for part in pixels.split(MAX_PIXELS // between)
        ]
        return torch.cat(parts)

    def _resized(self, height: int, width: int) -> tuple[int, int]:
        """Return rows and columns after the resize, before the crop."""
        if self.resize_mode == "squash":
            return self.size, self.size
        short, long = min(height, width), max(height, width)
        long = int(self.resize_short * long / short)  # truncated, as torchvision does
        return (self.resize_short, long) if height <= width else (long, self.resize_short)

    def _resample(self, pixels: Tensor, size: tuple[int, int]) -> Tensor:
        if tuple(pixels.shape[-2:]) == size:
            return pixels
        if pixels.device.type == "cpu":  # integer kernels exist on the CPU only
            return F.interpolate(pixels, size, mode=self.resample, antialias=True)
        resized = F.interpolate(pixels.float(), size, mode=self.resample, antialias=True)
        return resized.clamp(0, 255).round().to(torch.uint8)

    def _centre_crop(self, pixels: Tensor) -> Tensor:
        """Cut or zero-pad to the square, half pixels down as HF does."""
        rows, columns = pixels.shape[-2:]
        pad_rows, pad_columns = max(self.size - rows, 0), max(self.size - columns, 0)
        if pad_rows or pad_columns:
            left, top = pad_columns // 2, pad_rows // 2
            pixels = F.pad(pixels, (left, pad_columns - left, top, pad_rows - top))
        top = max(rows - self.size, 0) // 2
        left = max(columns - self.size, 0) // 2
        return pixels[..., top : top + self.size, left : left + self.size]

    def _normalise(self, pixels: Tensor) -> Tensor:
        mean, std = self._statistics(pixels.device)
        return pixels.float().sub_(mean).div_(std)

    def _statistics(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return mean and deviation of unscaled pixels, float32 [C,1,1]."""
        scale = 1 / self.rescale
        if abs(scale - round(scale)) < 1e-3:
            scale = round(scale)  # 1/255 was stored as float32
        # float32 on purpose: the order of roundings is the reference's
        mean = torch.tensor(self.mean, device=device) * scale
        std = torch.tensor(self.std, device=device) * scale
        return mean[:, None, None], std[:, None, None]
