"""The models that ship with the package know what their cards say, on play no training saw."""

import numpy as np
import pytest
import torch

from jepa_wm.bundle.reader import Bundle, find_bundle
from jepa_wm.control.interfaces import Context
from jepa_wm.envs.reach_play import play
from jepa_wm.envs.reach_rendering import ReachRenderer
from jepa_wm.envs.tworoom import TwoRoom
from jepa_wm.envs.tworoom_play import play as walk
from jepa_wm.models import load_world_model

CPU = torch.device("cpu")
EPISODES, RIVALS = 24, 31


@pytest.fixture(scope="module")
def world():
    return load_world_model(find_bundle("vjepa2-ac.gguf"), CPU)


@pytest.fixture(scope="module")
def windows(world):
    """Latents [E,2,N,D] one step apart, poses and actions of held-out play."""
    recorded, renderer = play(900_001, EPISODES, 6), ReachRenderer(256)
    frames = np.stack([[renderer.render(s) for s in states[4:6]] for states in recorded.states])
    z = world.encode(world.preprocess(torch.from_numpy(frames)))
    poses = torch.from_numpy(recorded.states[:, 4, :7]).float()
    return z, poses, torch.from_numpy(recorded.actions[:, 4])


def test_the_arms_next_frame_is_predicted_better_than_by_copying(world, windows):
    z, poses, actions = windows
    known = Context(z[:, :1], actions[:, None][:, :0], poses[:, None])
    predicted = world.rollout(known, actions[:, None, None])[:, 0, 0]
    error, copy = ((a - z[:, 1]).abs().mean().item() for a in (predicted, z[:, 0]))
    assert error < 0.75 * copy, f"L1 {error:.3f}, copying the last frame {copy:.3f}"


def test_the_arms_true_action_is_among_the_best_of_many(world, windows):
    z, poses, actions = windows
    generator = torch.Generator().manual_seed(0)
    rivals = actions[:, None].repeat(1, RIVALS + 1, 1)
    rivals[:, 1:, :3] = 0.15 * (torch.rand(EPISODES, RIVALS, 3, generator=generator) - 0.5)
    known = Context(z[:, :1], actions[:, None][:, :0], poses[:, None])
    costs = (world.rollout(known, rivals[:, :, None])[:, :, 0] - z[:, None, 1]).abs().mean((2, 3))
    ranks = (costs < costs[:, :1]).sum(1).float()
    assert ranks.median() <= 2, ranks.tolist()
    assert ranks.mean() < 6, ranks.tolist()  # by chance 15.5


def test_tworooms_model_sees_the_dot_and_follows_it_through_the_door():
    """In px, by its goal map: where the dot is, and where 25 steps of play take it."""
    bundle = Bundle.open(find_bundle("lewm-tworoom.gguf"))
    model, env = load_world_model(bundle, CPU), TwoRoom()
    to_px = 16 * torch.tensor(bundle.get("jepa_wm.goal.map")).view(2, -1).T
    recorded = walk(900_002, EPISODES, 25)
    ends = torch.from_numpy(recorded.states[:, [0, 25]]).float()
    frames = np.stack([[env.render_state(s) for s in pair] for pair in ends.numpy()])
    z = model.encode(model.preprocess(torch.from_numpy(frames)))
    mean, std = (torch.tensor(bundle.get(f"jepa_wm.action.{k}")) for k in ("mean", "std"))
    blocks = ((torch.from_numpy(recorded.actions) - mean) / std).reshape(EPISODES, 1, 5, 10)
    predicted = model.rollout(Context(z[:, :1], blocks[:, 0, :0]), blocks)[:, 0, -1]

    moved = ends[:, 1] - ends[:, 0]
    seen = ((z[:, 1] - z[:, 0]) @ to_px - moved).norm(dim=1)
    dreamt = ((predicted - z[:, 1]) @ to_px).norm(dim=1)
    crossed = (ends[:, 0, 0] < 112) != (ends[:, 1, 0] < 112)
    assert crossed.sum() > EPISODES / 4 and moved.norm(dim=1).mean() > 60
    assert seen.mean() < 3, f"displacements are {seen.mean():.1f} px off"
    assert dreamt.mean() < 3, f"predictions are {dreamt.mean():.1f} px off"
