"""Limits of environment actions: inside, nearest, and left alone where they already hold."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.discrete import DiscreteCodec
from jepa_wm.control.limits import ActionLimit, Limits, WithinLimits, read_limits
from jepa_wm.control.nearest import in_box_and_ball
from jepa_wm.errors import ConfigError

QUICK = settings(max_examples=30, deadline=None)
SEEDS = st.integers(0, 2**31 - 1)
SIDES = ([-1.0, -0.5, -2.0], [0.5, 1.0, 2.0])


def codec(block=1, a=3, **changes):
    low, high = (side[:a] for side in SIDES)
    plain = {"mean": [0.1, -0.2, 0.3][:a], "std": [0.5, 2.0, 1.0][:a], "low": low, "high": high}
    return ActionCodec(block=block, **plain | changes)


def limits(nodes, of=None):
    return read_limits(nodes, of or codec())


def draw(seed, *shape):
    return 2 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def nearest_by_multiplier(y, low, high, radius, shape):
    """The multiplier of the ball by bisection, in float64: slow and plain."""
    y, low, high = (x.double() for x in (y, low, high))

    def at(multiplier):
        if shape == "l2":
            return (y / (1 + multiplier)).clamp(low, high)
        return (y.sign() * (y.abs() - multiplier).clamp_min(0)).clamp(low, high)

    def size(x):
        return x.norm() if shape == "l2" else x.abs().sum()

    few, many = 0.0, 1e12
    if size(at(few)) <= radius:
        return at(few)
    for _ in range(120):
        middle = (few + many) / 2 if many < 2 * few + 1 else (few * many) ** 0.5 + 1e-9
        few, many = (middle, many) if size(at(middle)) > radius else (few, middle)
    return at(many)


@QUICK
@given(SEEDS, st.integers(1, 5), st.sampled_from(["l1", "l2"]), st.floats(0.01, 2))
def test_the_nearest_point_of_a_box_and_a_ball(seed, n, shape, room):
    y, side, width = draw(seed, 3, n)
    low = 0.3 - side.abs()
    high = low + width.abs()
    least = torch.zeros(n).clamp(low, high).norm(p=1 if shape == "l1" else 2)
    radius = float(least) + room
    found = in_box_and_ball(y, low, high, radius, shape)
    exact = nearest_by_multiplier(y, low, high, radius, shape)
    error = (found - exact).abs().max()
    assert error < 1e-5, f"{error:.1e}"
    # and whatever it is computed by: no point of the set lies on y's side of it
    others = low + (high - low) * torch.rand(500, n, generator=torch.Generator().manual_seed(seed))
    others = others[others.norm(dim=1, p=1 if shape == "l1" else 2) <= radius]
    assert ((others - found) @ (y - found) < 1e-5).all()


SETS = {
    "box": {"slow": {"shape": "box", "limit": [0.3, 0.4, 0.5]}},
    "ends": {"right": {"shape": "box", "low": 0.1, "high": [0.2, 0.3, 9.0]}},
    "l1": {"size": {"shape": "l1", "limit": 0.6}},
    "l2": {"size": {"shape": "l2", "limit": 0.6, "dims": [2, 0]}},
    "rate": {"calm": {"shape": "rate", "limit": 0.25}},
    "rate and l2": {
        "calm": {"shape": "rate", "limit": [0.2, 0.1], "dims": [0, 2]},
        "size": {"shape": "l2", "limit": 0.7},
        "slow": {"shape": "box", "limit": 0.6, "dims": [1]},
    },
    "rate, l1 and ends": {
        "calm": {"shape": "rate", "limit": 0.15},
        "size": {"shape": "l1", "limit": 0.8, "dims": [0, 1]},
        "right": {"shape": "box", "low": -0.1, "high": 0.4},
    },
    "nothing": {"still": {"shape": "box", "limit": 0.0}},
    "no size": {"still": {"shape": "l2", "limit": 0}},
    "no change": {"same": {"shape": "rate", "limit": 0.0}},
}


def excess(steps, nodes, before=None, of=None):
    """The most by which env actions [..,K,a] break limits, written anew."""
    of = of or codec()
    over = [of.low - steps, steps - of.high]
    for node in nodes.values():
        dims = node.get("dims", list(range(steps.shape[-1])))
        part, limit = steps[..., dims], torch.as_tensor(node.get("limit", 0.0))
        if node["shape"] == "l1":
            over.append(part.abs().sum(-1) - limit)
        elif node["shape"] == "l2":
            over.append(part.square().sum(-1).sqrt() - limit)
        elif node["shape"] == "rate":
            over.append(part.diff(dim=-2).abs() - limit)
            if before is not None:
                first = part[..., 0, :] - before[..., dims].view(
                    len(part), *[1] * (part.ndim - 3), -1
                )
                over.append(first.abs() - limit)
        elif "limit" in node:
            over.append(part.abs() - limit)
        else:
            over += [torch.as_tensor(node["low"]) - part, part - torch.as_tensor(node["high"])]
    return max(one.max().item() for one in over if one.numel())


@pytest.mark.parametrize("name", SETS)
@QUICK
@given(SEEDS, st.booleans())
def test_what_is_moved_is_inside_and_moved_once(name, seed, known):
    made = limits(SETS[name])
    before = None
    if known:  # what was executed is always allowed itself
        before = made.steps.nearest(draw(seed + 1, 2, 1, 3))[:, 0]
    steps = draw(seed, 2, 4, 6, 3)
    kept = steps.clone()
    found = made.steps.nearest(steps, before)
    assert torch.equal(steps, kept), "arguments are not changed"
    assert excess(found, SETS[name], before) < 2e-6
    again = made.steps.nearest(found, before)
    assert (again - found).abs().max() < 2e-6


@pytest.mark.parametrize("name", SETS)
@QUICK
@given(SEEDS)
def test_every_step_is_the_nearest_within_reach(name, seed):
    """Step by step, from the steps before."""
    made, nodes = limits(SETS[name]), SETS[name]
    steps = draw(seed, 1, 3, 3)
    found = made.steps.nearest(steps)[0]
    allowed = made.steps
    for step in range(3):
        low, high = allowed.low, allowed.high
        if step and allowed.reach is not None:
            low = low.maximum(found[step - 1] - allowed.reach)
            high = high.minimum(found[step - 1] + allowed.reach).maximum(low)
        near = steps[0, step].double().clamp(low.double(), high.double())
        for node in nodes.values():
            if node["shape"] in ("l1", "l2"):
                dims = node.get("dims", [0, 1, 2])
                near[dims] = nearest_by_multiplier(
                    steps[0, step, dims], low[dims], high[dims], node["limit"], node["shape"]
                )
        error = (found[step] - near).abs().max()
        assert error < 1e-5, f"{error:.1e}"


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("block", [1, 2])
@QUICK
@given(SEEDS)
def test_in_solver_space_it_is_the_same_and_what_is_allowed_keeps_its_bits(name, block, seed):
    of = codec(block)
    made = limits(SETS[name], of)
    before = made.steps.nearest(draw(seed + 1, 2, 1, 3))[:, 0]
    constraint = WithinLimits(of, made.steps, before)
    plans = draw(seed, 2, 5, 4 // block, block * 3)
    found = constraint(plans)
    assert found.shape == plans.shape
    raw = of.mean + of.std * found.reshape(2, 5, 4, 3)
    assert excess(raw, SETS[name], before, of) < 4e-6
    near = made.steps.nearest(of.mean + of.std * plans.reshape(2, 5, 4, 3), before)
    torch.testing.assert_close(raw, near, atol=2e-6, rtol=0)
    inner = Limits(of, {**made.limits, "inner": ActionLimit(shape="box", low=-9.0, high=9.0)})
    twice = WithinLimits(of, inner.steps, before)(found)
    assert (twice - found).abs().max() < 1e-5
    small = constraint(0.7 * found + 0.3 * found.roll(1, 1))  # a mean of two allowed plans
    blend = of.mean + of.std * small.reshape(2, 5, 4, 3)
    torch.testing.assert_close(
        blend, of.mean + of.std * (0.7 * found + 0.3 * found.roll(1, 1)).reshape(2, 5, 4, 3),
        atol=4e-6, rtol=0,
    )  # fmt: skip


def test_plans_well_inside_are_not_touched_to_the_bit():
    of = codec(2)
    nodes = {"calm": {"shape": "rate", "limit": 3.0}, "size": {"shape": "l2", "limit": 5.0}}
    made = limits(nodes, of)
    plans = of.encode(0.04 * draw(0, 2, 5, 6, 3))
    assert torch.equal(WithinLimits(of, made.steps, torch.zeros(2, 3))(plans), plans)
    outside = plans.clone()
    outside[0, 0, 1, 4] = 99.0
    moved = WithinLimits(of, made.steps, torch.zeros(2, 3))(outside)
    assert not torch.equal(moved, outside)
    assert torch.equal(moved[:, 1:], plans[:, 1:]) and torch.equal(moved[1], plans[1])
    assert torch.equal(moved[0, 0, 0], plans[0, 0, 0]), "the blocks before it"


def test_a_first_step_is_free_of_rates_until_something_was_executed():
    made = limits({"calm": {"shape": "rate", "limit": 0.1}})
    steps = torch.tensor([[[0.4, 0.5, 1.0], [0.0, 0.5, 2.0]]])
    assert made.steps.nearest(steps)[0].tolist() == [
        pytest.approx([0.4, 0.5, 1.0]), pytest.approx([0.3, 0.5, 1.1]),
    ]  # fmt: skip
    warm = made.steps.nearest(steps, torch.tensor([[0.0, 0.5, 1.0]]))[0]
    torch.testing.assert_close(warm, torch.tensor([[0.1, 0.5, 1.0], [0.0, 0.5, 1.1]]))


def test_the_dead_zone_is_kept_in_what_is_executed():
    zone = codec(dead_zone=[0.0, 0.0, 0.25])
    made = limits({"size": {"shape": "l2", "limit": 0.3}}, zone)
    steps = torch.tensor([[[0.4, 0.0, 0.3]]])
    assert made.steps.nearest(steps)[0, 0, 2].item() == pytest.approx(0.18)
    assert made.apply(steps, None)[0, 0].tolist() == [pytest.approx(0.24), 0.0, 0.0]


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            {"a": {"shape": "ball", "limit": 1}},
            "limits.a: shape='ball' must be one of box, l1, l2, rate",
        ),
        ({"a": {"shape": "l2"}}, "limits.a: give limit$"),
        ({"a": {"shape": "box"}}, "limits.a: give limit, or low and high"),
        ({"a": {"shape": "l2", "limit": -1}}, "limits.a: limit=-1 must be a finite number >= 0"),
        (
            {"a": {"shape": "l1", "limit": [1, 1, 1]}},
            r"limits.a: limit=\[1, 1, 1\] must be a finite",
        ),
        ({"a": {"shape": "rate", "limit": [1, 2]}}, r"limit=\[1, 2\] must be .*, or 3 of them"),
        ({"a": {"shape": "rate", "limit": "slow"}}, "limit='slow' must be a finite number"),
        ({"a": {"shape": "box", "limit": float("nan")}}, "limit=nan must be a finite number"),
        ({"a": {"shape": "l2", "low": 0.0}}, "limits.a: low and high are for shape=box"),
        ({"a": {"shape": "l2", "limit": 1, "dims": [3]}}, r"dims=\[3\] must be .* 0 to 2, or null"),
        ({"a": {"shape": "l2", "limit": 1, "dims": 1}}, "dims=1 must be different dimensions"),
        ({"a": {"shape": "l2", "limit": 1, "dims": []}}, r"dims=\[\] must be different dimensions"),
        ({"a": {"limit": 1}}, "limits.a={'limit': 1} must have shape and others of"),
        (
            {"a": {"shape": "l2", "radius": 1}},
            "limits.a=.*'radius'.* must have shape and others of",
        ),
        ({"a": 3}, "limits.a=3 must have shape"),
        (3, "limits=3 must be named"),
        (
            {"a": {"shape": "l2", "limit": 1}, "b": {"shape": "l1", "limit": 1, "dims": [1]}},
            "limits.a and limits.b are both balls of dimension 1; give it one",
        ),
        (
            {"a": {"shape": "box", "low": 0.6, "high": 0.9}},
            "limits.a: dimension 0 is left 0.6 to 0.5, nothing, with the environment's box",
        ),
        (
            {"a": {"shape": "box", "low": 0.4, "high": 0.9}, "b": {"shape": "l2", "limit": 0.5}},
            "limits.b: limit=0.5 but the box begins at 0.69282",
        ),
        (
            {"a": {"shape": "box", "limit": -1}, "b": {"shape": "what"}},
            "limits.a: limit=-1 .*; limits.b: shape='what'",
        ),
    ],
)
def test_impossible_limits_are_refused_by_name(nodes, message):
    with pytest.raises(ConfigError, match=message):
        limits(nodes)


def test_what_a_dead_zone_would_break_is_refused():
    zone = codec(dead_zone=[0.0, 0.0, 0.25])
    with pytest.raises(ConfigError, match=r"limits.a: dimension 2 has a dead zone of 0.25"):
        limits({"a": {"shape": "rate", "limit": 1}}, zone)
    assert limits({"a": {"shape": "rate", "limit": 1, "dims": [0, 1]}}, zone)
    with pytest.raises(ConfigError, match=r"limits.a: dimension 2 is left 0.3 to 1, without 0"):
        limits({"a": {"shape": "box", "low": 0.3, "high": 1.0, "dims": [2]}}, zone)


def test_choices_have_no_limits():
    choices = DiscreteCodec(block=1, choices=(4,))
    with pytest.raises(ConfigError, match=r"limits: the action space is .* choices have no size"):
        limits({"a": {"shape": "l2", "limit": 1}}, choices)
    assert limits({}, choices) is None


def test_no_limits_are_none():
    assert limits({}) is None and limits(None) is None
