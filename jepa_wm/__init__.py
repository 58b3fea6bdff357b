"""Plan with JEPA world models: one GGUF file in, actions out."""

from pathlib import Path

# In a bare checkout ``envs/`` and ``conf/`` lie beside the package instead of inside it.
_checkout = Path(__file__).resolve().parent.parent
if (_checkout / "pyproject.toml").is_file():
    __path__.append(str(_checkout))

__version__ = "0.1.0"
