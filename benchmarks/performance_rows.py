"""The rows of the README's performance table: what is read from which script, and what is asked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

NO_CUDA = "no CUDA device at hand"
MIB = 1 << 20


class NotMeasuredError(Exception):
    """Why a figure is not among the results."""


@dataclass(frozen=True)
class Reading:
    """One row's figures.

    Attributes:
        value: What is held against floor and aim: times as fast, seconds or bytes.
        ours: In words, with its unit.
        theirs: The peer's, likewise, or none.
        ratio: Figures of ``timing.speedup``, or none.
    """

    value: float
    ours: str
    theirs: str = ""
    ratio: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        script: Name in the results.
        what: What is measured.
        peer: With whom it is compared.
        read: The script's figures -> a reading.
        floor: What it must reach, as written: at least ``1.5x``, at most ``0.7 s``, or ``within``
            a bound.
        aim: What it should reach.
        missing: Why the script may not have run.
    """

    script: str
    what: str
    peer: str
    read: Callable[[Any], Reading]
    floor: str = ""
    aim: str = ""
    missing: str = "not measured"


def seconds(value: float) -> str:
    """Write seconds in a readable unit."""
    if value >= 0.1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.1f} ms" if value >= 1e-3 else f"{1e6 * value:.0f} us"


def paired(
    ratio: Mapping[str, float],
    ours: Mapping[str, float],
    theirs: Mapping[str, float],
    count: int = 1,
) -> Reading:
    """Read a ratio of two timings, each of so many things at once."""
    mine, peer = (seconds(one["median"] / count) for one in (ours, theirs))
    return Reading(ratio["median"], mine, peer, ratio)


def of(found: Mapping[str, Any], dtype: str) -> Any:
    """Return a dtype's figures."""
    if dtype not in found:
        raise NotMeasuredError(f"no {dtype} in hardware")
    return found[dtype]


def solve(mine: str, theirs: str = "float32", problems: int = 1) -> Callable[[Any], Reading]:
    """Read a solve of ``lewm_solve.py`` against the peer's, each of a dtype, per problem."""

    def read(found: Any) -> Reading:
        solves = found["solves"]
        if f"ours {mine}" not in solves:
            raise NotMeasuredError(f"no {mine} in hardware")
        if f"peer {theirs}" not in solves:
            raise NotMeasuredError("peer not installed")
        ratio = found["ratios"][f"peer {theirs} / ours {mine}"]
        reading = paired(ratio, solves[f"ours {mine}"], solves[f"peer {theirs}"], problems)
        return replace(reading, ours=f"{reading.ours}, {agreement(found['parity'], mine)}")

    return read


def agreement(parity: Any, mine: str) -> str:
    """Write how far costs, or elites in lower precision, are those of the peer in float32."""
    stages = parity[f"ours {mine}"].values()
    if mine.startswith("float32"):
        return f"costs within {max(one['max_relative_difference'] for one in stages):.0e}"
    return f"{min(one['elite_overlap'] for one in stages):.0%} of its elites"


def own_solve(planner: str) -> Callable[[Any], Reading]:
    """Read a solve of a bundle, no peer."""

    def read(found: Any) -> Reading:
        value = found["solves"][planner]["median"]
        return Reading(value, f"{seconds(value)} ({found['dtype'].removeprefix('torch.')})")

    return read


def part(name: str) -> Callable[[Any], Reading]:
    """Read a part of the time to the first plan."""

    def read(found: Any) -> Reading:
        value, cpu = (found["parts"][key]["median"] for key in (name, "cpu"))
        return Reading(value, f"{seconds(value)} ({seconds(cpu)} of cpu)")

    return read


def encoder(prefix: str, dtype: str) -> Callable[[Any], Reading]:
    """Read an encoder against transformers."""

    def read(found: Any) -> Reading:
        names = [name for name in found["encoders"] if name.startswith(prefix)]
        if not names:
            raise NotMeasuredError("not measured")
        row = of(found["encoders"][names[0]], dtype)
        return paired(row["ratio"], row["ours"], row["transformers"])

    return read


def by_frame(dtype: str) -> Callable[[Any], Reading]:
    """Read attention by frame against a dense mask."""

    def read(found: Any) -> Reading:
        row = of(found["levjepa"], dtype)["blocks"]
        return paired(row["ratio"], row["by frame"], row["dense mask"])

    return read


def rollout(horizon: int, dtype: str = "float32") -> Callable[[Any], Reading]:
    """Read a rollout against the authors' loop."""

    def read(found: Any) -> Reading:
        if found["rollouts"]["peer"] is None:
            raise NotMeasuredError("peer not installed")
        row = of(found["rollouts"], dtype)[str(horizon)]
        return paired(row["ratio"], row["ours"], row["recomputed"])

    return read


def environment(peer: str, kind: str) -> Callable[[Any], Reading]:
    """Read an environment against a peer's: step, render or both."""

    def read(found: Any) -> Reading:
        if peer not in found["environments"]:
            raise NotMeasuredError("peer not installed")
        ours, theirs = found["environments"]["jepa_wm"], found["environments"][peer]
        return paired(found["ratios"][peer][kind], ours[kind], theirs[kind])

    return read


def memory(bound: str) -> Callable[[Any], Reading]:
    """Read a peak of memory, as a share of its bound."""

    def read(found: Any) -> Reading:
        peak, most = found["peak"], found[bound]
        return Reading(peak / most, f"{peak / MIB:,.0f} of {most / MIB:,.0f} MiB")

    return read


def schedule(
    model: str, way: str = "pieces of 160", peer: str = "windows anew"
) -> Callable[[Any], Reading]:
    """Read a LeWM rollout in one order against another."""

    def read(found: Any) -> Reading:
        ways = found["schedules"][model]["ways"]
        if way not in ways:
            raise NotMeasuredError("not measured on a CPU")
        return paired(ways[way]["ratio"], ways[way], ways[peer])

    return read


def launches(found: Any) -> Reading:
    """Read what the host launches per iteration of a recorded solve, and of one that is not."""
    recorded, eager = (found["solves"][way]["per_iteration"] for way in ("recorded", "eager"))
    return Reading(recorded, f"{recorded:.2f} ({eager:,.0f} if not recorded)")


SWM, HF, GYM, AC = "stable-worldmodel", "transformers, sdpa", "gym-pusht", "authors' loop"
LEWM = "full-size LeWM, CEM 300 x 30 x 5"
EIGHT = "8 environments at once, for each of them"
ROWS = (
    Row("lewm_solve", f"{LEWM}, fp32", SWM, solve("float32"), "1.5x", "2.2x"),
    Row("lewm_solve", "the same, bf16", f"{SWM}, fp32", solve("bfloat16"), "5x", "9x"),
    Row("lewm_solve", "the same, bf16", f"{SWM}, bf16", solve("bfloat16", "bfloat16")),
    Row("lewm_batch", f"{EIGHT}, fp32", SWM, solve("float32", problems=8)),
    Row("lewm_batch", "the same, bf16", f"{SWM}, fp32", solve("bfloat16", "float32", 8),
        "6x", "10x"),
    Row("lewm_batch", "the same, bf16, all in one call of the model", f"{SWM}, fp32",
        solve("bfloat16, at once", "float32", 8)),
    Row("schedules", "full-size LeWM, one rollout of 300 x 5, in pieces of 160",
        "every window anew", schedule("full-size LeWM")),
    Row("schedules", "bundled LeWM, the same", "every window anew", schedule("bundled LeWM")),
    Row("lewm_bundle", "bundled LeWM, CEM 300 x 30 x 5", "", own_solve("lewm"), "0.7 s", "0.3 s"),
    Row("lewm_bundle", "bundled LeWM, default planner", "", own_solve("cem")),
    Row("first_plan", "first plan after process start", "", part("total"), "6 s", "3 s"),
    Row("encoders", "V-JEPA 2 ViT-L, 4 layers, 2,048 tokens, bf16", HF,
        encoder("vjepa2", "bfloat16"), "1x", "1.3x"),
    Row("encoders", "the same, fp32", HF, encoder("vjepa2", "float32"), "1x", "1.2x"),
    Row("encoders", "I-JEPA ViT-H, 4 layers, 4 x 256 tokens, bf16", HF,
        encoder("ijepa", "bfloat16"), "1x", "1.2x"),
    Row("encoders", "the same, fp32", HF, encoder("ijepa", "float32"), "1x", "1.2x"),
    Row("encoders", "ViT-S, 8 x 197 tokens, bf16", HF, encoder("hfvit", "bfloat16"), "1x", "1.2x"),
    Row("encoders", "the same, fp32", HF, encoder("hfvit", "float32"), "1x", "1.2x"),
    Row("levjepa_attention", "LeVJEPA ViT-L blocks, 3,137 tokens, bf16", "dense mask",
        by_frame("bfloat16"), "1.5x", "1.9x"),
    Row("levjepa_attention", "the same, fp32", "dense mask", by_frame("float32")),
    Row("ac_rollout", "V-JEPA 2-AC rollout, 2 steps, fp32", AC, rollout(2), "1.5x", "1.65x"),
    Row("ac_rollout", "the same, 4 steps", AC, rollout(4), "2.5x", "3x"),
    Row("pusht_env", "PushT step", SWM, environment(SWM, "step"), "1x", "2x"),
    Row("pusht_env", "PushT step", GYM, environment(GYM, "step"), "1x", "2x"),
    Row("pusht_env", "PushT step and 224 px render", SWM, environment(SWM, "both"), "1.5x", "4x"),
    Row("pusht_env", "PushT step and 224 px render", GYM, environment(GYM, "both"), "1.5x", "4x"),
    Row("loading", "memory: loading a 1 GB f16 bundle to bf16", "", memory("bound"), "within"),
    Row("ac_memory", "memory: V-JEPA 2-AC, 400 candidates of 2 steps", "", memory("budget"),
        "within"),
    Row("lewm_cuda", f"on an H200: 50 environments, {LEWM}", SWM,
        solve("bfloat16", "float32", 50), "20x", "60x", NO_CUDA),
    Row("launches", "on a GPU: kernels launched by the host per iteration", "", launches,
        "3", "1", NO_CUDA),
)  # fmt: skip
