"""The V-JEPA 2-AC world model: the cached rollout is the plain one, whatever is asked for."""

import pytest
import torch
from conftest import ARM
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from jepa_wm.control.interfaces import Context
from jepa_wm.errors import BundleError
from jepa_wm.models import load_world_model
from jepa_wm.models.pose import compose

CPU = torch.device("cpu")


@pytest.fixture
def world(tiny):
    return load_world_model(tiny("vjepa2", **ARM), CPU)


def poses(*lead, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*lead, 7, generator=generator) * 0.5 + 0.2


def context(B, T, seed=0, N=16, D=64):
    generator = torch.Generator().manual_seed(seed)
    z = torch.nn.functional.layer_norm(torch.randn(B, T, N, D, generator=generator), (D,))
    return Context(z, 0.1 * torch.randn(B, T - 1, 7, generator=generator), poses(B, T, seed=seed))


def candidates(B, S, H, seed=1):
    return 0.2 * torch.randn(B, S, H, 7, generator=torch.Generator().manual_seed(seed))


def relative(a, b):
    return ((a - b).abs().max() / b.abs().max()).item()


@pytest.mark.parametrize("T", [1, 2, 3, 4])
@pytest.mark.parametrize("H", [1, 2, 3, 6])
def test_the_cached_rollout_is_recomputation(world, T, H):
    known, actions = context(2, T), candidates(2, 3, H)
    error = relative(world.rollout(known, actions), world.rollout_reference(known, actions))
    assert error < 1e-5, f"T={T} H={H}: {error:.1e}"


def test_every_step_moves_the_pose(world):
    """A rollout step by step, each from the context the last one left, is the whole rollout."""
    known, actions = context(1, 2), candidates(1, 1, 3)
    whole = world.rollout(known, actions)[0, 0]
    for step in range(3):
        nxt = world.rollout(known, actions[:, :, step : step + 1])[:, 0]
        assert relative(nxt[0, 0], whole[step]) < 1e-5
        action = actions[:, 0, step : step + 1]
        pose = compose(known.proprio[:, -1:], action)
        known = Context(
            torch.cat([known.z, nxt], 1),
            torch.cat([known.actions, action], 1),
            torch.cat([known.proprio, pose], 1),
        )


def test_candidates_and_problems_are_independent(world):
    known, actions = context(2, 2), candidates(2, 4, 2)
    together = world.rollout(known, actions)
    alone = world.rollout(
        Context(known.z[1:], known.actions[1:], known.proprio[1:]), actions[1:, 2:3]
    )
    assert relative(alone[0, 0], together[1, 2]) < 1e-5


def test_the_future_does_not_reach_back(world):
    known, actions = context(1, 2), candidates(1, 2, 3)
    later = actions.clone()
    later[:, :, 2] += 0.5
    a, b = world.rollout(known, actions), world.rollout(known, later)
    assert torch.equal(a[:, :, :2], b[:, :, :2]) and not torch.allclose(a[:, :, 2], b[:, :, 2])


def test_poses_and_past_actions_matter(world):
    known, actions = context(1, 3), candidates(1, 1, 1)
    z = world.rollout(known, actions)
    for changed in (
        Context(known.z, known.actions + 0.3, known.proprio),
        Context(known.z, known.actions, known.proprio + 0.3),
    ):
        assert relative(world.rollout(changed, actions), z) > 1e-3


def test_old_frames_make_room_for_the_steps(world):
    known, actions = context(1, 9), candidates(1, 1, 3)
    cut = Context(known.z[:, -7:], known.actions[:, -6:], known.proprio[:, -7:])
    assert torch.equal(world.rollout(known, actions), world.rollout(cut, actions))
    with pytest.raises(ValueError, match="10 steps given, the predictor has 9 frame slots"):
        world.rollout(known, candidates(1, 1, 10))


def test_a_frame_is_encoded_as_a_clip_of_itself_and_normed(world):
    frames = torch.randint(0, 256, (2, 3, 20, 24, 3), dtype=torch.uint8)
    pixels = world.preprocess(frames)
    z = world.encode(pixels)
    assert z.shape == (2, 3, 16, 64) and z.dtype == torch.float32
    tokens = world.model.encode(pixels[1, 2].expand(1, 2, -1, -1, -1))[0]
    wanted = (tokens - tokens.mean(-1, keepdim=True)) / (
        tokens.var(-1, unbiased=False, keepdim=True) + 1e-5
    ).sqrt()
    torch.testing.assert_close(z[1, 2], wanted, rtol=1e-4, atol=1e-5)


def test_what_does_not_fit_is_refused(world, tiny):
    known, actions = context(1, 2), candidates(1, 1, 1)
    with pytest.raises(ValueError, match="needs the arm's pose"):
        world.rollout(Context(known.z, known.actions), actions)
    with pytest.raises(ValueError, match=r"actions must be \[1,S,H,7\]"):
        world.rollout(known, actions[..., :6])
    with pytest.raises(ValueError, match=r"poses of the context must be \[1, 2, 7\]"):
        world.rollout(Context(known.z, known.actions, known.proprio[:, 1:]), actions)
    narrow = tiny("vjepa2", **ARM | {"jepa.pred.action_dim": 5})
    with pytest.raises(BundleError, match="cannot be planned with: actions of 5 and states of 7"):
        load_world_model(narrow, CPU)


def test_bfloat16_stays_near(tiny):
    path = tiny("vjepa2", **ARM)
    exact, near = (load_world_model(path, CPU, kind) for kind in (torch.float32, torch.bfloat16))
    known, actions = context(1, 2), candidates(1, 3, 2)
    error = relative(near.rollout(known, actions), exact.rollout(known, actions))
    assert 0 < error < 0.1, error


class Attentions(TorchDispatchMode):
    """Whether each fused attention made meanwhile was given more than queries, keys and values."""

    def __init__(self):
        super().__init__()
        self.masked = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "scaled_dot_product" in str(func):
            self.masked.append(len(args) > 3 or bool(kwargs))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("T", [1, 3])
def test_no_attention_of_a_rollout_has_a_mask(world, T):
    known, actions = context(2, T), candidates(2, 3, 2)
    with Attentions() as seen:
        world.rollout(known, actions)
    assert seen.masked == [False] * (world.predictor.config.n_layer * (T - 1 + 2))


@pytest.mark.gpu
@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("H", [1, 2, 3])
def test_flash_attention_serves_a_rollout_in_bfloat16(tiny, T, H):
    """Flash alone is allowed: a call it could not take would raise."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("flash attention needs compute capability 8.0")
    path, device = tiny("vjepa2", **ARM), torch.device("cuda")
    exact = load_world_model(path, CPU).rollout(context(2, T), candidates(2, 3, H))
    world, known = load_world_model(path, device, torch.bfloat16), context(2, T)
    there = Context(*(x.to(device) for x in (known.z, known.actions, known.proprio)))
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        found = world.rollout(there, candidates(2, 3, H).to(device))
    assert relative(found.cpu(), exact) < 0.1


@pytest.mark.parametrize("T", [1, 3])
@pytest.mark.parametrize("H", [1, 2, 4])
def test_a_candidate_costs_no_more_than_was_estimated(world, T, H):
    """Bytes alive at once, by the profiler; the allocator's share is left out."""
    known, actions = context(1, T), candidates(1, 64, H)
    world.rollout(known, actions)
    with torch.profiler.profile(profile_memory=True) as profile:
        world.rollout(known, actions)
    events = profile.profiler.kineto_results.events()
    events = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    estimate = world.candidate_bytes(H, T)
    assert estimate / 3 < peak / 64 < estimate, f"{peak / 64:.0f} of {estimate}"


def test_kept_frames_take_their_keys_and_values_alone(world):
    assert world._room(3, 2, CPU).shape == (2, 2, 3, 2, 2 * 18, 32)
    c = world.predictor.config
    step = 4 * 2 * c.n_layer * 18 * c.embed_dim
    assert world.candidate_bytes(6) - world.candidate_bytes(5) >= step


def test_the_gradient_of_a_rollout_is_its_slope(world):
    torch.manual_seed(0)
    start, plans = context(2, 2), candidates(2, 3, 2)
    wanted, along = plans.clone().requires_grad_(), torch.randn_like(plans)
    z = world.rollout(start, wanted)
    torch.testing.assert_close(z.detach(), world.rollout(start, plans), atol=2e-5, rtol=1e-5)
    weights = torch.randn_like(z)
    (gradient,) = torch.autograd.grad((weights * z).sum(), wanted)
    ends = [world.rollout(start, plans + sign * 1e-3 * along) for sign in (1, -1)]
    slope = (weights * (ends[0] - ends[1])).double().sum() / 2e-3
    assert (gradient * along).double().sum().item() == pytest.approx(slope.item(), rel=5e-2)


def test_the_pose_is_foretold_step_by_step(world):
    known, actions = context(2, 2), candidates(2, 3, 4)
    found = world.predict_proprio(known, actions)
    for b, s in ((0, 0), (1, 2)):
        pose = known.proprio[b, -1]
        for step in range(4):
            pose = compose(pose, actions[b, s, step])
            torch.testing.assert_close(found[b, s, step], pose, atol=1e-6, rtol=0)
    with pytest.raises(ValueError, match="needs the arm's pose"):
        world.predict_proprio(Context(known.z, known.actions), actions)
