import threading
from dataclasses import replace

import pytest
import torch

from jepa_wm.control.cost import RolloutCost
from jepa_wm.control.interfaces import Context
from jepa_wm.control.solver import Solver
from jepa_wm.launch import preset
from jepa_wm.models import load_world_model
from jepa_wm.models.cores import map_on_cores


def test_results_come_in_the_order_of_the_pieces(threads):
    threads(4)
    barrier = threading.Barrier(2, timeout=120)

    def late(x):
        if x < 2:  # the first piece cannot end before the second has begun
            barrier.wait()
        return torch.tensor(x)

    assert [int(y) for y in map_on_cores(late, [(i,) for i in range(9)])] == list(range(9))


@pytest.mark.parametrize(
    ("have", "pieces", "most", "share"),
    [
        (2, 2, 9, 1),
        (5, 2, 9, 2),
        (3, 8, 9, 1),
        (4, 1, 9, 4),
        (4, 1, 1, 1),
        (9, 2, 3, 3),
        (2, 1, 0, 1),
    ],
)
def test_threads_are_shared_out_and_given_back(threads, have, pieces, most, share):
    threads(have)
    seen = map_on_cores(lambda _: torch.tensor(torch.get_num_threads()), [(0,)] * pieces, most)
    assert [int(n) for n in seen] == [share] * pieces
    assert torch.get_num_threads() == have
    later = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [have]


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_of_the_caller_holds_in_the_pieces(threads, mode):
    threads(2)
    with torch.inference_mode(mode):
        found = map_on_cores(lambda: torch.tensor(torch.is_inference_mode_enabled()), [()] * 2)
    assert [bool(x) for x in found] == [mode, mode]


def test_an_error_in_a_piece_is_raised_and_the_threads_are_given_back(threads):
    threads(2)

    def fail(x):
        raise ValueError(f"piece {x}")

    with pytest.raises(ValueError, match="piece 0"):
        map_on_cores(fail, [(0,), (1,)])
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("shape", [(1, 300), (3, 61), (2, 333), (4, 1)])
def test_rollouts_do_not_depend_on_the_number_of_threads(tiny, threads, shape):
    B, S = shape
    model = load_world_model(tiny("lewm"), torch.device("cpu"))
    D = model.predictor.config.embed_dim
    generator = torch.Generator().manual_seed(0)
    z, past, actions = (
        torch.randn(*size, generator=generator) for size in ((B, 2, D), (B, 1, 10), (B, S, 4, 10))
    )
    found = []
    for count in (1, 2, 3):
        threads(count)
        found.append(model.rollout(Context(z, past), actions))
    assert all(torch.equal(found[0], other) for other in found[1:])
    reference = model.rollout_reference(Context(z, past), actions)
    torch.testing.assert_close(found[0], reference, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cem", "icem"])
def test_whole_solves_do_not_depend_on_the_number_of_threads(tiny, threads, name):
    """The second, warm one starts from the first: a bit that differed there would grow."""
    model, device = load_world_model(tiny("lewm"), torch.device("cpu")), torch.device("cpu")
    B, A, D = 2, 10, model.predictor.config.embed_dim
    draw = torch.Generator().manual_seed(0)
    z, goal = torch.randn(B, 1, D, generator=draw), torch.randn(B, D, generator=draw)
    planner = replace(preset("planner", name), iterations=2)
    if name == "icem":
        planner = replace(planner, noise_block=5)
    box = (torch.full((A,), -2.0), torch.full((A,), 2.0))
    found = []
    for count in (1, 2):
        threads(count)
        context, start = Context(z, torch.zeros(B, 0, A)), planner.start(B, A, device)
        for solve in range(2):
            cost = RolloutCost(model, preset("objective", "goal_l2"), goal, context, rows=1)
            plan, _ = Solver(planner, box, device).solve(cost, start, [solve, 7 + solve])
            start = planner.shift(plan, 1)
        found.append(plan)
    assert all(torch.equal(found[0].actions, other.actions) for other in found[1:])
    assert all(torch.equal(found[0].cost, other.cost) for other in found[1:])


@pytest.mark.parametrize(("B", "S", "chunk"), [(1, 4, None), (3, 5, 5), (2, 7, 3)])
def test_gradients_do_not_depend_on_the_number_of_threads(tiny, threads, B, S, chunk):
    """Nor on the threads that a piece runs in, where the modes of autograd are their own."""
    model = load_world_model(tiny("lewm"), torch.device("cpu"))
    D, draw = model.predictor.config.embed_dim, torch.Generator().manual_seed(0)
    z, goal = torch.randn(B, 1, D, generator=draw), torch.randn(B, D, generator=draw)
    given, context = torch.randn(B, S, 3, 10, generator=draw), Context(z, torch.zeros(B, 0, 10))
    found, seen, inside = [], set(), model.rollout

    def rollout(*args):
        seen.add((threading.get_ident(), torch.get_num_threads()))
        return inside(*args)

    model.rollout = rollout
    for count in (1, 2, 3):
        threads(count)
        seen.clear()
        cost = RolloutCost(model, preset("objective", "goal_l2"), goal, context, chunk, rows=1)
        actions = given.clone().requires_grad_()
        costs = cost(actions)
        costs.sum().backward()
        assert {share for _, share in seen} == {1}, "few candidates pay for no second thread"
        found.append((costs.detach(), actions.grad))
    assert all(torch.equal(found[0][i], other[i]) for other in found[1:] for i in range(2))
    exact = given.clone().requires_grad_()
    objective = preset("objective", "goal_l2")(goal)
    objective(inside(context, exact), exact).sum().backward()
    torch.testing.assert_close(found[0][1], exact.grad, rtol=1e-4, atol=1e-5)


def test_a_model_without_gradient_says_so_from_other_threads_too(tiny, threads):
    threads(2)
    model = load_world_model(tiny("lewm"), torch.device("cpu"))
    D, inside = model.predictor.config.embed_dim, model.rollout
    model.rollout = lambda context, actions: inside(context, actions.detach())
    context = Context(torch.randn(3, 1, D), torch.zeros(3, 0, 10))
    cost = RolloutCost(model, preset("objective", "goal_l2"), torch.randn(3, D), context, rows=1)
    assert not cost(torch.randn(3, 2, 2, 10).requires_grad_()).requires_grad
