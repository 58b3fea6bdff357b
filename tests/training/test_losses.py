"""The training losses: SIGReg against its definition, and one number on one rank and on two."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from jepa_wm.training.losses import prediction_loss, random_directions, sigreg


def slow_sigreg(z, directions):
    """The definition, sample by sample and knot by knot, in float64."""
    G, N, _ = z.shape
    M = directions.shape[1]
    knots = [3.0 * k / 16 for k in range(17)]
    total = 0.0
    for g in range(G):
        for m in range(M):
            s = z[g].double() @ directions[:, m].double()
            for k, t in enumerate(knots):
                phi = torch.exp(torch.tensor(-0.5 * t * t, dtype=torch.float64))
                weight = (3.0 / 16) * (1 if k in (0, 16) else 2)
                error = ((t * s).cos().mean() - phi) ** 2 + (t * s).sin().mean() ** 2
                total += float(weight * phi * error)
    return N * total / (G * M)


def test_sigreg_is_its_definition():
    generator = torch.Generator().manual_seed(0)
    z = 0.7 * torch.randn(3, 20, 5, generator=generator) + 0.3
    directions = random_directions(5, 4, generator)
    assert torch.allclose(directions.norm(dim=0), torch.ones(4))
    assert sigreg(z, directions).item() == pytest.approx(slow_sigreg(z, directions), rel=1e-5)


def test_sigreg_prefers_a_standard_normal():
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(1, 512, 8, generator=generator)
    directions = random_directions(8, 64, generator)
    good = sigreg(normal, directions)
    assert good < 0.2 * sigreg(0.3 * normal, directions)  # too narrow
    assert good < 0.2 * sigreg(normal + 1, directions)  # off centre
    assert good < 0.2 * sigreg(normal[..., :1].expand(-1, -1, 8), directions)  # one dimension


def test_sigreg_stays_in_float32_under_autocast():
    z = torch.randn(1, 64, 4, generator=torch.Generator().manual_seed(2))
    directions = random_directions(4, 16, torch.Generator().manual_seed(3))
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(sigreg(z, directions), sigreg(z, directions).float())
        inside = sigreg(z, directions)
    assert torch.equal(inside, sigreg(z, directions))


def test_the_target_receives_gradients():
    predicted = torch.zeros(2, 3, 4, requires_grad=True)
    target = torch.ones(2, 3, 4, requires_grad=True)
    prediction_loss(predicted, target).backward()
    assert torch.equal(target.grad, -predicted.grad)
    assert target.grad.abs().sum() > 0


def _rank(rank, ranks, port, z, directions, queue):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    mine = z[:, rank::ranks].clone().requires_grad_()
    value = sigreg(mine, directions)
    value.backward()
    # averaging parameter gradients over ranks divides by their number
    queue.put((rank, value.item(), (mine.grad / ranks).numpy()))
    dist.destroy_process_group()


def test_two_ranks_give_the_value_and_gradient_of_one(free_port):
    generator = torch.Generator().manual_seed(4)
    z = torch.randn(2, 12, 6, generator=generator)
    directions = random_directions(6, 32, generator)
    whole = z.clone().requires_grad_()
    value = sigreg(whole, directions)
    value.backward()
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=_rank, args=(rank, 2, free_port, z, directions, queue))
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=600) for _ in workers]
    for worker in workers:
        worker.join(60)
    for rank, found, gradient in answers:
        assert found == pytest.approx(value.item(), rel=1e-5)
        expected = whole.grad[:, rank::2]
        torch.testing.assert_close(torch.from_numpy(gradient), expected, rtol=1e-4, atol=1e-6)
