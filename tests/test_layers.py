"""Who may import whom: the table of the house, read off the imports of every module."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import jepa_wm

ROOT = Path(jepa_wm.__file__).parent
CHECKOUT = ROOT.parent

STANDARD = set(sys.stdlib_module_names)
# what runs with python -m; launch is their one door to hydra, experiments the half they share
LEAVES = {p.stem for p in ROOT.glob("*.py") if '__name__ == "__main__"' in p.read_text()}
LEAVES |= {"__main__"}
RECORDS = {"control.interfaces", "control.episode", "control.rates", "control.statistics"}
# part (the longest name that fits wins) -> (what of ours, what of others); a part imports itself
TABLE: dict[str, tuple[set[str], set[str]]] = {
    "errors": (set(), set()),
    "runtime": ({"errors"}, {"torch"}),
    "hub": ({"errors"}, {"huggingface_hub"}),
    "launch": ({"errors", "runtime"}, {"hydra", "omegaconf"}),
    "control.streams": (set(), {"torch"}),
    "control.interfaces": ({"control.streams"}, {"torch"}),
    "control.actions": ({"errors"}, {"torch", "numpy"}),
    "control.situation": ({"control.interfaces"}, {"torch"}),
    "control.distances": (set(), {"torch"}),
    "control.nearest": (set(), {"torch"}),
    "control.objectives": (
        {"control.interfaces", "control.distances", "control.situation", "errors"},
        {"torch"},
    ),
    "control": ({"control", "errors", "runtime"}, {"torch", "numpy", "gymnasium"}),
    "planners": ({"control.interfaces", "errors", "control.streams"}, {"torch", "numpy", "cmaes"}),
    "bundle": ({"errors", "hub"}, {"gguf", "numpy", "torch"}),
    "media": ({"errors"}, {"numpy", "PIL", "imageio_ffmpeg"}),
    "models": ({"control.interfaces", "errors", "bundle"}, {"torch", "numpy", "safetensors"}),
    "inputs": ({"errors", "runtime", "bundle", "media", "models"}, set()),
    # the runtime is held against it, so it may not know the runtime
    "spec": ({"bundle", "errors"}, {"numpy"}),
    "parity": (
        {"errors", "bundle", "models", "spec"},
        {"torch", "numpy", "transformers", "timm", "safetensors"},
    ),
    "training": ({"models", "bundle", "errors", "runtime", *RECORDS}, {"torch", "numpy", "tqdm"}),
    "viz": (
        {"errors", *RECORDS},
        {"matplotlib", "numpy", "torch", "imageio", "imageio_ffmpeg", "PIL"},
    ),
    "experiments": (
        {"errors", "runtime", "launch", "bundle", "models", "control", "viz", "training", "envs"},
        {"torch", "numpy", "gymnasium", "matplotlib", "imageio", "tqdm", "ray"},
    ),
    "data": (set(), set()),
}
ENVS_MAY = {"gymnasium", "pymunk", "pygame", "numpy"}


def imports(path):
    """Yield the dotted names a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            base = node.module or ""
            # "from jepa_wm import errors" imports a module, not a name of one
            named = (f"{base}.{alias.name}" for alias in node.names)
            yield from named if base == "jepa_wm" else [base]


def within(module, part):
    return module == part or module.startswith(part + ".")


def part_of(module):
    """Find the row of a dotted name inside jepa_wm."""
    rows = [row for row in TABLE if within(module, row)]
    return max(rows, key=len, default=None)


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        yield name.removesuffix(".__init__"), path


def test_every_module_imports_only_what_its_part_may():
    wrong = []
    for name, path in modules():
        row = part_of(name)
        if row is None:  # leaves and the package itself
            continue
        ours, others = TABLE[row]
        for imported in imports(path):
            top, _, inner = imported.partition(".")
            if top == "jepa_wm":
                allowed = any(within(inner, part) for part in (*ours, row))
            else:
                allowed = top in others or top in STANDARD
            if not allowed:
                wrong.append(f"{name} imports {imported}")
    assert not wrong, "; ".join(wrong)


def test_no_one_imports_a_leaf():
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules()
        for imported in imports(path)
        if imported.startswith("jepa_wm.") and imported.split(".")[1] in LEAVES - {name}
    ]
    assert not wrong, "; ".join(wrong)


def test_every_module_is_in_the_table_or_a_leaf():
    unknown = [n for n, _ in modules() if part_of(n) is None and n not in LEAVES | {"__init__"}]
    assert not unknown, unknown


def test_environments_know_nothing_of_the_package():
    wrong = []
    for path in sorted((CHECKOUT / "envs").glob("*.py")):
        for imported in imports(path):
            top = imported.split(".")[0]
            within = imported.startswith("jepa_wm.envs")
            if not (within or top in ENVS_MAY or top in STANDARD):
                wrong.append(f"envs/{path.name} imports {imported}")
    assert not wrong, "; ".join(wrong)


def test_hydra_is_imported_by_leaves_only():
    wrong = [
        name
        for name, path in modules()
        if name not in LEAVES | {"launch"}
        and any(i.split(".")[0] in ("hydra", "omegaconf") for i in imports(path))
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("module", ["jepa_wm", "jepa_wm.models", "jepa_wm.planners"])
def test_importing_stays_light(module):
    code = (
        f"import sys, {module}; "
        "print(*{'matplotlib', 'pygame', 'hydra', 'gymnasium', 'torchvision', 'transformers', "
        "'huggingface_hub'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=CHECKOUT
    )
    assert result.stdout.strip() == "" and result.stderr == ""


def test_no_module_beside_the_leaves_is_named_like_a_standard_one():
    """It would be found first by ``python jepa_wm/plan.py``, whose folder leads the path."""
    clashes = {path.stem for path in ROOT.glob("*.py")} & STANDARD - {"__main__"}
    assert not clashes, clashes
