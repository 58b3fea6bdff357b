"""What ``lewm_solve.py`` times: one CEM solve by this package and by stable-worldmodel.

A ``Contender`` is a model, a start and a goal behind two functions: ``solve`` runs one CEM solve,
encoding both frames first, and ``cost`` scores given candidates. The peer's weights are random and
travel as a user's would: state dict, converter, bundle, runtime.
"""

import contextlib
import io
import json
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box
from omegaconf import OmegaConf
from torch import Tensor, nn

from jepa_wm.bundle.writer import write_bundle
from jepa_wm.control.interfaces import Context, Plan, WorldModel
from jepa_wm.control.mpc import RolloutCost
from jepa_wm.convert import convert
from jepa_wm.launch import build
from jepa_wm.models.lewm import LeWM, PredictorConfig
from jepa_wm.models.vit import EncoderConfig

CPU = torch.device("cpu")
PEER_COMMIT = "addbab40377da680dadbfbc90250fe749f6f57e3"
INSTALL_PEER = (
    "pip install --no-deps einops "
    f"git+https://github.com/galilai-group/stable-worldmodel@{PEER_COMMIT[:7]} && "
    "pip install transformers torchvision tabulate typer rich"
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Sizes of a LeWM; the defaults are the published PushT model's (18 M parameters)."""

    image: int = 224
    patch: int = 14
    dim: int = 192
    enc_layers: int = 12
    enc_heads: int = 3
    enc_ffn: int = 768
    layers: int = 6
    heads: int = 16
    head_dim: int = 64
    ffn: int = 2048
    hidden: int = 2048
    frames: int = 3
    action: int = 10  # solver action size A: 5 environment actions of 2 numbers


@dataclass(frozen=True)
class Contender:
    """One way to solve the problem.

    Attributes:
        name: Shown in the tables.
        solve: (iterations, seed) -> plan float32 [1,H,A]; encodes start and goal as well.
        cost: Candidates float32 [1,S,H,A] -> costs float32 [1,S], frames encoded anew.
        split: (iterations, seed) -> seconds by part, or None where the parts cannot be told apart.
    """

    name: str
    solve: Callable[[int, int], Plan]
    cost: Callable[[Tensor], Tensor]
    split: Callable[[int, int], dict[str, float]] | None = None


def preset(group: str, name: str) -> Any:
    """Instantiate ``conf/<group>/<name>.yaml``."""
    text = (files("jepa_wm.conf") / group / f"{name}.yaml").read_text()
    node = dict(OmegaConf.create(text))
    return build(node, f"{group}/{name}.yaml")


def random_frames(size: int, seed: int = 7) -> tuple[Tensor, Tensor]:
    """Return a start and a goal, preprocessed: float32 [1,1,3,size,size] each, blobs and noise."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(2, 3, 4, 4, generator=generator)
    smooth = nn.functional.interpolate(coarse, (size, size), mode="bilinear")
    both = smooth + 0.2 * torch.randn(smooth.shape, generator=generator)
    return both[None, :1], both[None, 1:]


def randomise(module: nn.Module, seed: int = 0) -> None:
    """Fill every parameter and buffer, modulations and norms included, at order-1 activations."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if not value.is_floating_point():
            continue  # num_batches_tracked
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            noise = 0.5 + noise.abs()
        elif name.endswith(".weight"):
            matrix = value.ndim > 1
            noise = noise / math.sqrt(value[0].numel()) if matrix else 1 + 0.2 * noise
        else:  # biases, running means, tokens, position tables
            noise = 0.2 * noise
        value.copy_(noise)


def random_bundle(path: Path, sizes: Sizes) -> Path:
    """Write a LeWM bundle with random weights, no peer needed."""
    s = sizes
    encoder = EncoderConfig(
        embed_dim=s.dim, n_layer=s.enc_layers, n_head=s.enc_heads, ffn_dim=s.enc_ffn,
        patch_size=s.patch, img_size=s.image, ln_eps=1e-12,
    )  # fmt: skip
    predictor = PredictorConfig(
        embed_dim=s.dim, n_layer=s.layers, n_head=s.heads, head_dim=s.head_dim, ffn_dim=s.ffn,
        n_frames=s.frames, action_dim=s.action, action_hidden=4 * s.dim, proj_hidden=s.hidden,
    )  # fmt: skip
    model = LeWM(encoder, predictor, s.hidden)
    randomise(model)
    keys = ("embed_dim", "n_layer", "n_head", "ffn_dim", "patch_size", "img_size", "ln_eps")
    hidden = ("action_hidden", "proj_hidden")
    meta = {
        "general.name": "random-lewm",
        "jepa.family": "lewm",
        "jepa.modality": "image",
        **{f"jepa.enc.{key}": getattr(encoder, key) for key in keys},
        "jepa.enc.pos_type": "learned",
        "jepa.enc.cls_token": True,
        "jepa.pred.kind": "lewm",
        **{f"jepa.pred.{k}": v for k, v in vars(predictor).items() if k not in hidden},
        "jepa.pre.resize_short": s.image,
        "jepa.pre.crop": s.image,
        "jepa.pre.resize_mode": "squash",
    }
    return write_bundle(path, meta, dict(model.state_dict()))


def ours(name: str, model: WorldModel, frames: tuple[Tensor, Tensor], planner: Any) -> Contender:
    """Return this package as a contender: the parts ``MPC`` puts together, B = 1."""
    objective = preset("objective", "goal_l2")
    unbounded = torch.full((model.action_dim,), torch.inf)

    def make_cost() -> RolloutCost:
        z, goal_z = (model.encode(frame) for frame in frames)
        context = Context(z, torch.zeros(1, 0, model.action_dim))
        return RolloutCost(model, objective, goal_z[:, 0], context, planner.num_samples, rows=1)

    def plan(cost: Callable[[Tensor], Tensor], iterations: int, seed: int) -> Plan:
        start = planner.start(1, model.action_dim, CPU)
        generators = [torch.Generator().manual_seed(seed)]
        wanted = replace(planner, iterations=iterations)
        return wanted.plan(cost, start, (-unbounded, unbounded), generators)

    def split(iterations: int, seed: int) -> dict[str, float]:
        spent = 0.0

        def timed(actions: Tensor) -> Tensor:
            nonlocal spent
            began = time.perf_counter()
            costs = cost(actions)
            spent += time.perf_counter() - began
            return costs

        began = time.perf_counter()
        cost = make_cost()
        encoded = time.perf_counter()
        plan(timed, iterations, seed)
        planned = time.perf_counter() - encoded
        return {"encode": encoded - began, "rollout": spent, "update": planned - spent}

    return Contender(
        name,
        lambda iterations, seed: plan(make_cost(), iterations, seed),
        lambda actions: make_cost()(actions),
        split,
    )


def build_peer(sizes: Sizes) -> nn.Module:
    """Build stable-worldmodel's LeWM with random weights, as its training config composes it.

    Raises:
        ImportError: the peer is not installed.
    """
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from stable_worldmodel.wm.lewm import LeWM as PeerLeWM
        from stable_worldmodel.wm.lewm.module import MLP, Embedder, Predictor
    from transformers import ViTConfig, ViTModel

    s = sizes
    vit = ViTConfig(
        hidden_size=s.dim, num_hidden_layers=s.enc_layers, num_attention_heads=s.enc_heads,
        intermediate_size=s.enc_ffn, patch_size=s.patch, image_size=s.image,
    )  # fmt: skip
    projectors = [MLP(s.dim, s.hidden, s.dim, norm_fn=nn.BatchNorm1d) for _ in range(2)]
    model = PeerLeWM(
        encoder=ViTModel(vit, add_pooling_layer=False),
        predictor=Predictor(
            num_frames=s.frames, depth=s.layers, heads=s.heads, mlp_dim=s.ffn, input_dim=s.dim,
            hidden_dim=s.dim, dim_head=s.head_dim,
        ),
        action_encoder=Embedder(s.action, smoothed_dim=s.action, emb_dim=s.dim),
        projector=projectors[0],
        pred_proj=projectors[1],
    )  # fmt: skip
    randomise(model)
    return model.eval().requires_grad_(False)


def convert_peer(model: nn.Module, sizes: Sizes, folder: Path) -> Path:
    """Save the peer's checkpoint with its config.json and convert it; return the bundle's path."""
    torch.save(model.state_dict(), folder / "weights.pt")
    encoder = {
        "patch_size": sizes.patch, "image_size": sizes.image,
        "num_attention_heads": sizes.enc_heads,
    }  # fmt: skip
    predictor = {"heads": sizes.heads, "dim_head": sizes.head_dim}
    (folder / "config.json").write_text(json.dumps({"encoder": encoder, "predictor": predictor}))
    convert("lewm", folder, folder / "peer.gguf", "f32", {})
    return folder / "peer.gguf"


def peer(
    name: str, model: Any, frames: tuple[Tensor, Tensor], planner: Any, dtype: torch.dtype
) -> Contender:
    """Return stable-worldmodel's CEMSolver as a contender, with the settings of ``planner``.

    Args:
        name: Shown in the tables.
        model: Its LeWM, in ``dtype``.
        frames: Start and goal, float32 [1,1,3,h,w].
        planner: Our CEM, whose settings it gets.
        dtype: bfloat16 runs the whole solve under autocast, as the peer's own ``bf16=true`` does.
    """
    from stable_worldmodel.planning import CEMSolver, GoalMSE, ShootingCostEvaluator

    action_dim = model.action_encoder.input_dim
    evaluator = ShootingCostEvaluator(model, GoalMSE())
    info = {"pixels": frames[0], "goal": frames[1], "action": torch.zeros(1, 1, action_dim)}
    autocast = partial(torch.autocast, "cpu", torch.bfloat16, enabled=dtype == torch.bfloat16)

    def solve(iterations: int, seed: int) -> Plan:
        solver = CEMSolver(
            evaluator, num_samples=planner.num_samples, var_scale=planner.init_std,
            n_steps=iterations, topk=planner.num_elites, seed=seed,
        )  # fmt: skip
        space = Box(-np.inf, np.inf, (1, action_dim))
        config = SimpleNamespace(horizon=planner.horizon, action_block=1)
        solver.configure(action_space=space, n_envs=1, config=config)
        with autocast(), contextlib.redirect_stdout(io.StringIO()):
            found = solver.solve(info)
        cost = torch.tensor(found["costs"])
        return Plan(found["actions"].float(), found["var"][0].float(), cost)

    @torch.inference_mode()
    def cost(actions: Tensor) -> Tensor:
        expanded = {
            key: value[:, None].expand(1, actions.shape[1], *value.shape[1:]).to(dtype)
            for key, value in info.items()
        }
        with autocast():
            return evaluator.get_cost(expanded, actions.to(dtype)).float()

    return Contender(name, solve, cost)
