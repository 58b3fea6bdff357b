"""The one door to Hydra: ``conf/<name>.yaml`` and the command line in, plain values out.

Leaves call ``launch``; whatever a user gets wrong ends in one line on stderr and exit status 1.
"""

import importlib
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, TextIO

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, InstantiationException
from hydra.types import RunMode
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from jepa_wm.errors import ConfigError, JepaError
from jepa_wm.runtime import command

_QUOTING = (
    "; a value with special characters (= , ( ) ~ #) needs two pairs of quotes: "
    "'model=\"epoch=3.gguf\"'"
)


def _one_line(error: BaseException) -> str:
    """Squeeze an error's text into one line, without what only Hydra's developers need."""
    text = " ".join(str(error).split())
    for noise in (
        "Set the environment variable",
        "Config search path:",
        "To append to your config",
        " was raised from the environment creator",  # gymnasium's, with every argument
    ):
        text = text.partition(noise)[0]
    return text.strip().rstrip(".")


def _refusal(
    error: BaseException, config_name: str, words: Sequence[str], also: Sequence[str] = ()
) -> ConfigError:
    """Say in one line what is wrong with the words of a command line, and what may help."""
    special = any("=" in word.partition("=")[2] for word in words)
    hint = _QUOTING if special else _did_you_mean(error, config_name, also)
    return ConfigError(_one_line(error) + hint)


def _did_you_mean(error: BaseException, config_name: str, also: Sequence[str] = ()) -> str:
    """Suggest option names for a misspelt override, or nothing."""
    named = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in struct", str(error))
    if named is None:
        return ""
    text = (resources.files("jepa_wm.conf") / f"{config_name}.yaml").read_text()
    options = [str(key) for key in OmegaConf.create(text)]
    wrong = (named[1] or named[2]).split(".")[0]
    close = get_close_matches(wrong, [*options, *also, "env", "planner", "objective"], n=1)
    return f"; did you mean {close[0]}?" if close and close[0] != wrong else ""


def build(node: dict[str, Any], what: str) -> Any:
    """Instantiate a config node with a ``_target_``.

    Args:
        node: Plain values of the node.
        what: Its name on the command line, for the error.

    Raises:
        ConfigError: nothing can be built from it, or the target does not take these values, or
            refuses them.
    """
    if not isinstance(node, dict) or "_target_" not in node:
        told = "null" if node is None else repr(node)
        raise ConfigError(
            f"{what}={told} names nothing to build; it must be a mapping with a _target_, as in "
            "the files of conf/"
        )
    try:
        return instantiate(node, _convert_="all")  # plain lists and dicts, records as they are
    except InstantiationException as error:
        cause = error.__cause__ or error
        raise ConfigError(f"{what}: {_one_line(cause)}") from error


def preset_node(group: str, name: str) -> dict[str, Any]:
    """Return the plain values of ``conf/<group>/<name>.yaml``, for ``build``.

    Args:
        group: ``planner``, ``objective`` or ``env``.
        name: File name without ``.yaml``.

    Raises:
        ConfigError: there is no such file.
    """
    folder = resources.files("jepa_wm.conf") / group
    path = folder / f"{name}.yaml"
    if not path.is_file():
        names = sorted(f.name.removesuffix(".yaml") for f in folder.iterdir() if ".yaml" in f.name)
        raise ConfigError(f"no preset {group}={name}; there are {', '.join(names)}")
    return OmegaConf.to_container(OmegaConf.create(path.read_text()))  # type: ignore[return-value]


def preset(group: str, name: str) -> Any:
    """Instantiate ``conf/<group>/<name>.yaml``; see ``preset_node``."""
    return build(preset_node(group, name), f"{group}={name}")


def compose(
    config_name: str, overrides: Sequence[str], also: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """Compose ``conf/<config_name>.yaml`` for a leaf that wants it more than once.

    Args:
        config_name: File in ``conf/`` without ``.yaml``.
        overrides: As on a command line, e.g. ``planner=mppi``.
        also: Names beside the file's own that a misspelt one may have meant.

    Returns:
        The options as plain Python values, and the name chosen of every group.

    Raises:
        ConfigError: an override is misspelt or has no such value.
    """
    try:
        with hydra.initialize_config_module("jepa_wm.conf", version_base=None):
            found = hydra.compose(config_name, list(overrides), return_hydra_config=True)
        chosen = {k: v for k, v in found.hydra.runtime.choices.items() if "/" not in k}
        with open_dict(found):
            del found["hydra"]  # its own values are not all there outside a run
        plain = OmegaConf.to_container(found, resolve=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise _refusal(error, config_name, overrides, also) from error
    return plain, chosen  # type: ignore[return-value]


@dataclass(frozen=True)
class Job:
    """What Hydra calls: once, or for each combination of a multirun, in whatever process.

    Attributes:
        module: Where the leaf's function lies; a worker imports it by name.
        function: Its name.
        folder: Where the command was given: relative paths are meant from there.
        single: The run that is no multirun, with Hydra's own values: for after Hydra is done, which
            would add lines to our errors.
    """

    module: str
    function: str
    folder: str
    single: list[tuple[DictConfig, Any]] = field(default_factory=list)

    def __call__(self, config: DictConfig) -> None:
        """Run a job of a multirun; its results are files, a mistake is raised with its name."""
        run = HydraConfig.get()
        if run.mode != RunMode.MULTIRUN:
            self.single.append((config, run))
            return
        if os.getcwd() != self.folder:  # a worker of Ray may start elsewhere
            os.chdir(self.folder)
        try:
            options = _plain(config, run)
            if options.get("out", "") is None:
                options["out"] = run.runtime.output_dir
            getattr(importlib.import_module(self.module), self.function)(options)
        except (JepaError, HydraException, OmegaConfBaseException) as error:
            told = f"job {run.job.num} ({' '.join(run.overrides.task)}): {_one_line(error)}"
            folder = Path(run.runtime.output_dir)
            (folder / "error.txt").write_text(told + "\n", encoding="utf-8")
            told += f"; the others ran: {folder.parent}"
            raise ConfigError(told) from None  # a cause may not travel between processes


class _WithoutHydra(io.TextIOBase):
    """Standard error without the line that Hydra adds to a job's error."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self.stream.encoding

    def write(self, text: str) -> int:
        is_hydras = text.startswith("Error executing job with overrides")
        return len(text) if is_hydras else self.stream.write(text)

    def flush(self) -> None:
        self.stream.flush()

    def fileno(self) -> int:
        return self.stream.fileno()

    def isatty(self) -> bool:
        return self.stream.isatty()


def _plain(config: DictConfig, run: Any) -> dict[str, Any]:
    """Return a run's options as plain values, with what was chosen and given to get them.

    ``preset`` holds the name chosen of every group, ``overrides`` the command line.
    """
    options = OmegaConf.to_container(config, resolve=True)
    chosen = {k: v for k, v in run.runtime.choices.items() if "/" not in k}
    told = {"preset": chosen, "overrides": list(run.overrides.task)}
    return {**options, **told}  # type: ignore[dict-item]


def launch(main: Callable[[dict[str, Any]], None], config_name: str) -> None:
    """Run ``main`` on the composed options as plain Python values; with ``-m`` once a combination.

    Args:
        main: The leaf, a function of a module; receives nested dicts, lists, numbers and strings,
            and beside the file's own ``preset`` (the name chosen of every group) and ``overrides``.
        config_name: File in ``conf/`` without ``.yaml``.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # Hydra then raises instead of printing its own report
    job = Job(_module_of(main, config_name), main.__name__, os.getcwd())
    begin = hydra.main(
        version_base=None, config_path="pkg://jepa_wm.conf", config_name=config_name
    )(job)

    def run() -> None:
        try:
            with redirect_stderr(_WithoutHydra(sys.stderr)):
                begin()
            found = [_plain(*one) for one in job.single]
        except (HydraException, OmegaConfBaseException) as error:
            raise _refusal(error, config_name, sys.argv[1:]) from error
        except ValueError as error:
            if "Config group override" not in str(error):  # Hydra's own, of group=null or =3
                raise
            raise _refusal(error, config_name, sys.argv[1:]) from error
        for options in found:
            main(options)

    command(run)


def _module_of(main: Callable[[dict[str, Any]], None], config_name: str) -> str:
    """Return the name by which another process imports a leaf's module."""
    if main.__module__ != "__main__":
        return main.__module__
    spec = sys.modules["__main__"].__spec__  # of python -m; none of a file run by its path
    return spec.name if spec else f"jepa_wm.{config_name}"
