"""Run and plan with JEPA world models: one GGUF file in, embeddings, predictions, actions out."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # importing the package stays light
    import torch

    from jepa_wm.models import Model

# In a bare checkout ``envs/`` and ``conf/`` lie beside the package instead of inside it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file():
    __path__.append(str(_checkout))

__version__ = "0.1.0"
__all__ = ["load"]


def load(
    path: Path | str,
    device: "torch.device | str" = "cpu",
    dtype: "torch.dtype | str" = "float32",
    weights: str = "expanded",
) -> "Model":
    """Load a bundle as a model that embeds, encodes, predicts and classifies.

    Args:
        path: A GGUF file, a bundle that ships with the package (``lewm.gguf``), or its name on the
            hub (``hf://OWNER/REPO/FILE``).
        device: ``cpu``, ``cuda``, ``cuda:N``, ``auto`` or a torch device.
        dtype: Of the matrices: ``float32``, ``bfloat16``, ``float16``, ``auto`` or a torch dtype;
            results are float32.
        weights: ``expanded``, or ``quantised``: matrices stay in memory as they are in the file.

    Raises:
        BundleError: there is no such bundle, it is broken, or its family is not implemented.
        ConfigError: the device is absent, the dtype or the kind of weights unknown, or the hub has
            no such file.
    """
    from jepa_wm.bundle.reader import find_bundle
    from jepa_wm.models import load as load_model
    from jepa_wm.runtime import resolve_device, resolve_dtype

    where = resolve_device(str(device))
    kind = resolve_dtype(str(dtype).removeprefix("torch."), where)
    return load_model(find_bundle(path), where, kind, weights)
