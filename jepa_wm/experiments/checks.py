"""Options that cannot work, refused before anything long begins."""

from collections.abc import Mapping
from typing import Any

from jepa_wm.control.statistics import Measure
from jepa_wm.errors import ConfigError

COUNTS = ("episodes", "budget", "num_envs", "replan_every", "hold", "goal_offset")
_FIELDS = set(Measure.__dataclass_fields__)
_WORDS = {"key", "label", "unit"}
_MEASURE = (
    "{key: of info, label: its name, unit: its unit}, with numbers scale and threshold if need be"
)
FLAGS = ("warm_start", "shrink_horizon", "baselines", "ceiling")


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
    for name in FLAGS:
        if type(options[name]) is not bool:
            raise ConfigError(f"{name}={options[name]!r} must be true or false")
    film, history = options["film"], options["history"]
    if type(film) is not int or film < 0:
        raise ConfigError(f"film={film!r} must be a whole number >= 0")
    if history is not None and (type(history) is not int or history < 1):
        raise ConfigError(f"history={history!r} must be a whole number >= 1, or null")
    read_measures(options["task"])


def read_measures(task: Mapping[str, Any]) -> tuple[Measure, ...]:
    """Return what is reported of each episode, ``task.measures``.

    Raises:
        ConfigError: there are none, or one is no measure.
    """
    given = task["measures"]
    if not isinstance(given, list) or not given:
        raise ConfigError(f"task.measures={given!r} must be a list of at least one {_MEASURE}")
    for one in given:
        if not _is_measure(one):
            raise ConfigError(f"task.measures: {one!r} must be {_MEASURE}")
    return tuple(Measure(**one) for one in given)


def _is_measure(given: object) -> bool:
    if not isinstance(given, Mapping) or not _WORDS <= set(given) <= _FIELDS:
        return False
    numbers = [given.get("scale", 1.0), given.get("threshold")]
    are_numbers = type(numbers[0]) in (int, float) and type(numbers[1]) in (int, float, type(None))
    return are_numbers and all(isinstance(given[name], str) for name in _WORDS)
