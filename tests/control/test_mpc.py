"""The loop: what the model and the planner are given, when, and that no row feels another."""

import functools

import numpy as np
import pytest
import torch
from point_mass import BOX, SPEED, PointModel, positions

from jepa_wm.control.actions import ActionCodec
from jepa_wm.control.discrete import DiscreteCodec
from jepa_wm.control.interfaces import Context
from jepa_wm.control.mpc import MPC, RolloutCost
from jepa_wm.control.objectives import GoalDistance
from jepa_wm.planners.cem import CEM

torch.set_num_threads(1)
CPU = torch.device("cpu")
L2 = functools.partial(GoalDistance, norm="l2", reduce="sum", steps="last")
UNIT = ActionCodec(block=2, mean=[0, 0], std=[1, 1], low=BOX[0], high=BOX[1])


def small_cem(**changes):
    settings = {
        "horizon": 4,
        "num_samples": 64,
        "num_elites": 8,
        "iterations": 4,
        "init_std": 1.0,
        "min_std": 0.0,
        "momentum": 0.0,
        "momentum_std": None,
        "constraints": {},
        "clip": True,
        "include_mean": True,
        "returns": "mean",
        "std_estimator": "unbiased",
    }
    return CEM(**{**settings, **changes})


def make(model=None, codec=UNIT, **changes):
    settings = {"planner": small_cem(), "objective": L2, "device": CPU, "replan_every": 1}
    return MPC(world_model=model or PointModel(), codec=codec, **{**settings, **changes})


class Seen(PointModel):
    """A point model that notes what it is shown."""

    def __init__(self):
        self.encoded, self.contexts, self.horizons = [], [], []

    def encode(self, frames):
        self.encoded.append(frames.clone())
        return super().encode(frames)

    def rollout(self, context, actions):
        if not self.contexts or self.contexts[-1] is not context:
            self.contexts.append(context)
        self.horizons.append(actions.shape[2])
        return super().rollout(context, actions)


def drive(mpc, starts, goals, steps, seeds=None, active=None, budget=None):
    """Run the loop on the exact dynamics; positions [B,2] -> actions [steps,B,2]."""
    at = np.array(starts, dtype=np.float32)
    mpc.reset(goals, range(len(at)) if seeds is None else seeds, budget)
    taken = []
    for step in range(steps):
        mask = None if active is None else active(step)
        action = mpc.act(at, active=mask)
        at = at + np.float32(SPEED) * action
        taken.append(action)
    return np.stack(taken), at


def contexts(model):
    """The distinct contexts of a run, one a decision."""
    kept, before = [], None
    for context in model.contexts:
        if (
            before is None
            or before.z.shape != context.z.shape
            or not torch.equal(before.z, context.z)
        ):
            kept.append(context)
        before = context
    return kept


def test_the_loop_reaches_its_goals():
    starts, goals = positions(0, 5) * 0.5, positions(1, 5) * 0.5
    mpc = make(planner=small_cem(num_samples=300, num_elites=30, iterations=10))
    _, at = drive(mpc, starts, goals, 30, budget=30)
    assert np.linalg.norm(at - goals, axis=1).max() < 0.02


def test_a_row_acts_the_same_in_any_company_and_order():
    starts, goals = positions(0, 7), positions(1, 7)
    alone = [drive(make(), starts[[b]], goals[[b]], 7, seeds=[b])[0][:, 0] for b in range(7)]
    for rows in ([0, 1], [6, 2], [3, 5, 0, 6, 1, 4, 2]):
        together, _ = drive(make(), starts[rows], goals[rows], 7, seeds=rows)
        for index, row in enumerate(rows):
            assert np.array_equal(together[:, index], alone[row]), (rows, row)


@pytest.mark.parametrize("replan_every", [1, 2])
def test_dropping_rows_changes_nothing_for_the_rest_and_they_cost_nothing(replan_every):
    starts, goals = positions(0, 4), positions(1, 4)
    model = Seen()
    whole, _ = drive(make(replan_every=replan_every), starts, goals, 9)
    until = np.array([9, 2, 9, 5])  # rows 1 and 3 stop, row 3 in the middle of a block
    some, _ = drive(
        make(model, replan_every=replan_every), starts, goals, 9, active=lambda t: t < until
    )
    for row, end in enumerate(until):
        assert np.array_equal(some[:end, row], whole[:end, row])
        assert not some[end:, row].any(), "a dropped row gets zeros"
    assert model.contexts[-1].z.shape[0] == 2
    assert model.encoded[-1].shape[0] == 2


def test_all_rows_dropped_is_all_zeros():
    mpc = make()
    mpc.reset(positions(1, 2), [0, 1])
    assert not mpc.act(positions(0, 2), active=np.zeros(2, bool)).any()
    assert not mpc.act(None).any()


def test_a_dropped_row_cannot_come_back():
    mpc = make()
    mpc.reset(positions(1, 2), [0, 1])
    mpc.act(positions(0, 2), active=np.array([True, False]))
    with pytest.raises(ValueError, match=r"rows \[1\] were dropped"):
        mpc.act(positions(0, 2), active=np.array([True, True]))


def test_seeds_decide_and_every_decision_draws_anew():
    starts = goals = np.zeros((2, 2), np.float32)
    mpc = make(planner=small_cem(iterations=1), warm_start=False)
    one, _ = drive(mpc, starts, goals, 3, seeds=[5, 6])
    again, _ = drive(mpc, starts, goals, 3, seeds=[5, 5])
    assert np.array_equal(one[:, 0], again[:, 0])
    assert np.array_equal(again[:, 0], again[:, 1])
    assert not np.array_equal(one[:, 0], one[:, 1])
    mpc.reset(goals, [5, 6])
    mpc.act(starts)
    mpc.act(None)
    mpc.act(starts)
    first, second = (decision.plan.actions for decision in mpc.decisions)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("history", [None, 1, 2])
def test_history_grows_from_real_frames_with_the_blocks_executed_between(history):
    model, tight = (
        Seen(),
        ActionCodec(block=2, mean=[0, 0], std=[0.5, 0.5], low=BOX[0], high=BOX[1]),
    )
    mpc = make(model, tight, history=history, planner=small_cem(clip=False, init_std=4.0))
    starts, goals = positions(0, 2), positions(1, 2) * 9  # so far away that actions meet the box
    actions, _ = drive(mpc, starts, goals, 10)
    most = history or 3
    at = np.concatenate([starts[None], starts + np.cumsum(SPEED * actions, axis=0)])
    frames = torch.from_numpy(at[::2].copy()).transpose(0, 1)  # [B,6,2], at the block boundaries
    blocks = tight.encode(actions.transpose(1, 0, 2))  # [B,5,4], as executed
    assert (np.abs(actions) == 1).any()
    for decision, context in enumerate(contexts(model)):
        known = min(decision + 1, most)
        first = decision + 1 - known
        torch.testing.assert_close(context.z, frames[:, first : decision + 1])
        torch.testing.assert_close(context.actions, blocks[:, first:decision])
    assert decision == 4


def test_frames_are_encoded_once_each_and_goals_once():
    model = Seen()
    drive(make(model), positions(0, 3), positions(1, 3), 10)
    assert [len(frames) for frames in model.encoded] == [3] * 6  # goals, then one a block
    assert all(frames.shape[1] == 1 for frames in model.encoded)


@pytest.mark.parametrize(("history", "looks"), [(1, [0, 4, 8]), (3, [0, 2, 4, 6, 8])])
def test_frames_are_wanted_only_where_they_are_looked_at(history, looks):
    mpc, at = make(history=history, replan_every=2), positions(0, 1)
    mpc.reset(positions(1, 1), [0])
    wanted = []
    for step in range(10):
        if mpc.needs_frames:
            wanted.append(step)
        mpc.act(at if mpc.needs_frames else None)
    assert wanted == looks
    assert [decision.step for decision in mpc.decisions] == [0, 4, 8]


def test_blocks_between_replans_enter_the_history_too():
    model = Seen()
    actions, _ = drive(make(model, replan_every=2), positions(0, 1), positions(1, 1), 6)
    last = model.contexts[-1]
    assert last.z.shape == (1, 3, 2)
    torch.testing.assert_close(last.actions[0], UNIT.encode(actions[:4, 0]))


@pytest.mark.parametrize(
    ("budget", "shrink", "horizons"),
    [
        (10, True, [4, 4, 3, 2, 1]),
        (5, True, [3, 2, 1]),
        (10, False, [4] * 5),
        (None, True, [4] * 5),
    ],
)
def test_the_horizon_shrinks_to_the_time_left(budget, shrink, horizons):
    mpc = make(shrink_horizon=shrink)
    drive(mpc, positions(0, 1), positions(1, 1), min(10, budget or 10), budget=budget)
    assert [decision.plan.actions.shape[1] for decision in mpc.decisions] == horizons


def test_a_plan_shorter_than_replan_every_is_replaced_when_it_ends():
    mpc = make(replan_every=4)
    drive(mpc, positions(0, 1), positions(1, 1), 12, budget=12)
    assert [(d.step, d.plan.actions.shape[1]) for d in mpc.decisions] == [(0, 4), (8, 2)]


@pytest.mark.parametrize("blocks", [1, 2, 4])
def test_the_warm_start_is_the_rest_of_the_last_plan_and_cold_is_cold(blocks):
    still = small_cem(iterations=1, num_samples=1, num_elites=1, init_std=0.0)  # returns its start
    for warm in (True, False):
        mpc = make(planner=small_cem(), warm_start=warm, replan_every=blocks)
        mpc.reset(positions(1, 1), [0])
        mpc.act(positions(0, 1))
        plan = mpc.last_plan.actions
        mpc.planner = still
        for _ in range(2 * blocks):
            mpc.act(positions(0, 1))
        rest = torch.cat([plan[:, blocks:], torch.zeros(1, blocks, 4)], 1)
        assert torch.equal(mpc.last_plan.actions, rest if warm else torch.zeros(1, 4, 4))


def test_a_failed_solve_is_not_a_warm_start():
    class Breaks(PointModel):
        broken = True

        def rollout(self, context, actions):
            return super().rollout(context, actions) * (torch.nan if self.broken else 1)

    model, at = Breaks(), positions(0, 1)
    mpc, fresh = make(model), make(warm_start=False)
    for loop in (mpc, fresh):
        loop.reset(positions(1, 1), [0])
    assert np.isfinite(mpc.act(at)).all()
    assert mpc.last_plan.cost.isinf().all()
    fresh.act(at)
    model.broken = False
    for loop in (mpc, fresh):
        loop.act(None)
        loop.act(at)
    assert torch.equal(mpc.last_plan.actions, fresh.last_plan.actions)


def test_last_plan_is_the_one_being_executed():
    mpc = make()
    assert mpc.last_plan is None
    mpc.reset(positions(1, 2), [0, 1])
    first = mpc.act(positions(0, 2))
    second = mpc.act(None)
    executed = UNIT.decode(mpc.last_plan.actions)[:, :2].numpy()
    assert np.array_equal(np.stack([first, second], 1), executed)


def test_actions_are_float32_inside_the_box_of_the_env():
    codec = ActionCodec(
        block=2, mean=[0.1, -0.2], std=[3.0, 0.3], low=[-0.7, -0.1], high=[0.3, 0.1]
    )
    mpc = make(codec=codec, planner=small_cem(clip=False, init_std=5.0))
    actions, _ = drive(mpc, positions(0, 3), positions(1, 3) * 9, 6)
    assert actions.dtype == np.float32
    low, high = np.float32([-0.7, -0.1]), np.float32([0.3, 0.1])
    assert ((actions >= low) & (actions <= high)).all()
    assert (actions == high).any()


def test_candidates_are_clipped_to_the_box_in_solver_space():
    codec = ActionCodec(block=2, mean=[0.5, 0], std=[0.25, 0.5], low=BOX[0], high=BOX[1])
    seen = []

    class Looks(PointModel):
        def rollout(self, context, actions):
            seen.append(actions)
            return super().rollout(context, actions)

    drive(
        make(Looks(), codec, planner=small_cem(init_std=9.0)), positions(0, 1), positions(1, 1), 1
    )
    x, y = torch.cat([one.flatten(0, 2) for one in seen]).unflatten(1, (2, 2)).unbind(2)
    assert (x.amin(), x.amax()) == (-6, 2)  # (-1 - .5) / .25 and (1 - .5) / .25
    assert (y.amin(), y.amax()) == (-2, 2)


def test_numpy_list_and_tensor_observations_are_the_same():
    at, goals = positions(0, 2), positions(1, 2)
    answers = []
    for kind in (np.asarray, torch.from_numpy, lambda values: values.tolist()):
        mpc = make()
        mpc.reset(kind(goals), [0, 1])
        answers.append(mpc.act(kind(at), proprio=kind(at)))
    assert np.array_equal(answers[0], answers[1])
    assert np.array_equal(answers[0], answers[2])


def test_frames_of_any_layout_are_taken():
    wide = np.zeros((2, 4), np.float32)
    wide[:, ::2] = positions(0, 2)
    wide.setflags(write=False)
    mpc = make()
    mpc.reset(positions(1, 2), [0, 1])
    strided = mpc.act(wide[:, ::2])
    mpc.reset(positions(1, 2), [0, 1])
    assert np.array_equal(strided, mpc.act(positions(0, 2)))


def test_proprio_travels_with_the_history():
    model = Seen()
    mpc, pose = make(model), np.arange(6.0).reshape(2, 3)
    mpc.reset(positions(1, 2), [0, 1])
    for step in range(8):
        mpc.act(positions(0, 2), pose + step)
    assert model.contexts[-1].proprio[1].tolist() == [[5, 6, 7], [7, 8, 9], [9, 10, 11]]
    assert model.contexts[-1].proprio.dtype == torch.float32


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"replan_every": 5}, "replan_every=5 must be 1..horizon=4"),
        ({"replan_every": 0}, "replan_every=0"),
        ({"history": 4}, "history=4 must be 1..3, the model's own"),
        ({"history": 0}, "history=0"),
        ({"chunk": 0}, "chunk=0 must be >= 1 or null"),
        ({"history": 0, "replan_every": 9}, "replan_every=9 .*; history=0"),
        (
            {"codec": ActionCodec(block=5, mean=[0] * 2, std=[1] * 2, low=BOX[0], high=BOX[1])},
            r"takes 4 action numbers, the codec gives 10 \(block 5 x 2\)",
        ),
        (
            {"codec": DiscreteCodec(block=5, choices=[3, 4])},
            r"takes 4 action numbers, the codec gives 35 \(block 5 x 7\)",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


def test_calls_that_make_no_sense_are_refused():
    mpc = make()
    with pytest.raises(ValueError, match=r"before MPC\.reset"):
        mpc.act(positions(0, 1))
    with pytest.raises(ValueError, match="one goal and one seed a row, got 2 and 3"):
        mpc.reset(positions(0, 2), [0, 1, 2])
    with pytest.raises(ValueError, match="got none and 1"):
        mpc.reset(None, [0])
    with pytest.raises(ValueError, match="budget=0"):
        mpc.reset(positions(0, 1), [0], 0)
    mpc.reset(positions(0, 2), [0, 1])
    with pytest.raises(ValueError, match="needs 2 frames, one a row, got 3"):
        mpc.act(positions(0, 3))
    with pytest.raises(ValueError, match="needs 2 frames, one a row, got none"):
        mpc.act(None)
    with pytest.raises(ValueError, match=r"proprio must be \[2, P\], got 1 rows"):
        mpc.act(positions(0, 2), np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"step 0: proprio is not finite"):
        mpc.act(positions(0, 2), np.full((2, 2), np.nan))
    with pytest.raises(ValueError, match=r"active must be \[2\], got \[3\]"):
        mpc.act(positions(0, 2), active=np.ones(3, bool))


@pytest.mark.parametrize("chunk", [None, 1, 3, 5, 7, 10, 13, 35, 99])
def test_a_cost_in_pieces_is_the_cost_at_once(chunk):
    class Coupled(PointModel):  # a rollout that would notice rows and contexts being mixed up
        def rollout(self, context, actions):
            scale = (
                context.z[:, -1].sum(1)[:, None, None, None] + context.proprio[:, 0, :1, None, None]
            )
            return super().rollout(context, actions) * scale

    z, goal_z = torch.randn(5, 1, 2), torch.randn(5, 2)
    actions = torch.randn(5, 7, 3, 4)
    context = Context(z, torch.zeros(5, 0, 4), torch.randn(5, 1, 1))
    costs = RolloutCost(Coupled(), L2, goal_z, context, chunk)(actions)
    for row in range(5):
        known = Context(z[[row]], torch.zeros(1, 0, 4), context.proprio[[row]])
        alone = L2(goal_z[[row]])(Coupled().rollout(known, actions[[row]]), actions[[row]])
        assert torch.equal(costs[[row]], alone)


@pytest.mark.parametrize(("chunk", "largest"), [(None, 35), (7, 7), (3, 3), (15, 14)])
def test_no_rollout_is_larger_than_the_chunk(chunk, largest):
    sizes = []

    class Counts(PointModel):
        def rollout(self, context, actions):
            sizes.append(actions.shape[0] * actions.shape[1])
            return super().rollout(context, actions)

    context = Context(torch.zeros(5, 1, 2), torch.zeros(5, 0, 4))
    RolloutCost(Counts(), L2, torch.zeros(5, 2), context, chunk)(torch.zeros(5, 7, 3, 4))
    assert max(sizes) == largest
    assert sum(sizes) == 35


def test_the_objective_sees_one_latent_an_action_in_order():
    """z' = z + a from 0 under actions 1, 2, 3 visits 1, 3, 6."""
    seen = []

    def factory(goal_z):
        def cost(z, actions):
            seen.append(z)
            return z.sum((2, 3))

        return cost

    actions = torch.tensor([1.0, 2.0, 3.0])[None, None, :, None] * torch.tensor([10.0, 0, 0, 0])
    context = Context(torch.zeros(1, 1, 2), torch.zeros(1, 0, 4))
    RolloutCost(PointModel(), factory, torch.zeros(1, 2), context)(actions)
    torch.testing.assert_close(seen[0][0, 0, :, 0], torch.tensor([1.0, 3.0, 6.0]))


def test_row_by_row_is_all_at_once():
    starts, goals = positions(0, 3), positions(1, 3)
    model = Seen()
    pieces, _ = drive(make(model, encode_rows=1), starts, goals, 5)
    assert np.array_equal(pieces, drive(make(), starts, goals, 5)[0])
    assert all(len(frames) == 1 for frames in model.encoded)
    assert all(len(context.z) == 1 for context in model.contexts)


def test_decisions_say_who_when_and_how_long():
    mpc = make()
    drive(mpc, positions(0, 3), positions(1, 3), 5, active=lambda t: np.array([t < 2, True, True]))
    assert [d.step for d in mpc.decisions] == [0, 2, 4]
    assert [d.rows.tolist() for d in mpc.decisions] == [[0, 1, 2], [1, 2], [1, 2]]
    assert all(d.plan_seconds > 0 and d.encode_seconds > 0 for d in mpc.decisions)
    assert all(len(d.plan.cost) == len(d.rows) for d in mpc.decisions)
    mpc.reset(positions(1, 1), [0])
    assert not mpc.decisions


def test_a_proposal_suggests_plans_every_solve_tries_first():
    """A policy that knows the way: the planner has only to take it."""
    seen = []

    def straight(context, goal_z):
        seen.append((context.z.clone(), goal_z.clone()))
        move = (goal_z - context.z[:, -1]) / (2 * SPEED)  # both actions of the first block
        return move.repeat(1, 2)[:, None, None]  # [B,1,1,A]

    wide = ActionCodec(block=2, mean=[0, 0], std=[1, 1], low=[-20, -20], high=[20, 20])
    few = small_cem(num_samples=4, num_elites=1, iterations=1, returns="best")
    mpc = make(codec=wide, planner=few, proposal=straight)
    begin, goals = positions(0, 2), positions(1, 2)
    mpc.reset(goals, [0, 1])
    action = mpc.act(begin)
    np.testing.assert_allclose(action, (goals - begin) / (2 * SPEED), atol=1e-5)
    assert mpc.last_plan.cost.max() < 1e-9
    assert torch.equal(seen[0][1], torch.from_numpy(goals))
    assert mpc.decisions[0].evaluations == 4 + 1  # the candidates, and the mean once more


def test_a_proposal_of_another_shape_is_refused():
    mpc = make(proposal=lambda context, goal_z: torch.zeros(1, 1, 9, 4))
    mpc.reset(positions(0, 1), [0])
    with pytest.raises(ValueError, match=r"plans \[1,K,<=4,4\], got \[1, 1, 9, 4\]"):
        mpc.act(positions(1, 1))
