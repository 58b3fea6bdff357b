"""Options that cannot work, refused before anything long begins."""

from collections.abc import Mapping
from typing import Any

from jepa_wm.errors import ConfigError

COUNTS = ("episodes", "budget", "num_envs", "replan_every", "hold")


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what no run of ``conf/plan.yaml`` can do.

    Raises:
        ConfigError: the model is missing or was read as a number, or a count is none.
    """
    model = options["model"]
    if model is None:
        raise ConfigError("model is required: model=FILE.gguf, a bundled name, or model=simulator")
    if not isinstance(model, str):
        raise ConfigError(f"model={model!r} was read as a number; quote it: 'model=\"{model}\"'")
    for name in COUNTS:
        if type(options[name]) is not int or options[name] < 1:
            raise ConfigError(f"{name}={options[name]!r} must be a whole number >= 1")
