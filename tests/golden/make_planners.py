"""Make planners.npz: published planners, run on a toy cost with their noise recorded.

Needs the checkouts of six repositories side by side in one folder, named as on GitHub (iCEM,
pytorch_mppi, tdmpc2, jepa-wms, dino_wm, stable-worldmodel), and the packages colorednoise, einops
and forwardable: ``python tests/golden/make_planners.py FOLDER`` rewrites the file. What else those
repositories import is not used here and replaced by empty modules.

Noise is kept as [rounds,S,H,A], of a solve or several; plans as [H,A] or [solves,H,A].
"""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

S, H, A = 20, 4, 2
RNG = np.random.default_rng(0)
TOY = {"weights": RNG.normal(0, 0.7, (A, 3)), "goal": RNG.normal(0, 0.8, (H, 3))}
TOY = {name: values.astype(np.float32) for name, values in TOY.items()}
BOUND = 0.9  # of the planners that clip: some candidates are outside


def cost(actions):
    """Distance of a path to a goal path, [..,H,A] -> [..]."""
    weights, goal = (torch.as_tensor(TOY[k]).to(actions.dtype) for k in ("weights", "goal"))
    return (torch.tanh(actions.cumsum(-2) @ weights) - goal).square().sum((-1, -2))


class Empty(ModuleType):
    """A module that has whatever is imported from it, as an empty class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class Recorded:
    """torch.randn with a generator of its own, its draws kept; in force in a ``with``."""

    def __init__(self, seed):
        self.generator, self.draws = torch.Generator().manual_seed(seed), []

    def __enter__(self):
        self.randn, self.exponential = torch.randn, torch.Tensor.exponential_

        def randn(*shape, dtype=None, **_):
            self.draws.append(self.randn(*shape, generator=self.generator, dtype=dtype))
            return self.draws[-1]

        def exponential_(values):
            return self.exponential(values, generator=self.generator)

        torch.randn, torch.Tensor.exponential_ = randn, exponential_
        return self.draws

    def __exit__(self, *_):
        torch.randn, torch.Tensor.exponential_ = self.randn, self.exponential


def borrow(folder, *empty):
    """Import from a checkout; forget the modules of the checkout before."""
    if borrow.last:
        sys.path.remove(borrow.last)
        for name, module in list(sys.modules.items()):
            if isinstance(module, Empty) or borrow.last in str(getattr(module, "__file__", None)):
                del sys.modules[name]
    borrow.last = str(folder)
    sys.path.insert(0, borrow.last)
    sys.modules |= {name: Empty(name) for name in empty}


borrow.last = ""


def stable_worldmodel(root):
    """Three solvers of stable-worldmodel, batch of one."""
    package = root / "stable-worldmodel" / "stable_worldmodel"
    names = ("stable_worldmodel", "stable_worldmodel.planning", "stable_worldmodel.planning.solver")
    borrow(root / "stable-worldmodel", *names)
    for name in names:  # without running what their __init__ imports
        sys.modules[name].__path__ = [str(package.joinpath(*name.split(".")[1:]))]
    from stable_worldmodel.planning.solver.cem import CEMSolver
    from stable_worldmodel.planning.solver.mppi import MPPISolver
    from stable_worldmodel.planning.solver.predictive_sampling import PredictiveSamplingSolver

    scored = SimpleNamespace(
        get_cost=lambda info, actions: cost(actions), parameters=lambda: iter([torch.zeros(1)])
    )
    solvers = {
        "lewm": CEMSolver(scored, num_samples=S, n_steps=6, topk=5),
        "mppi_swm": MPPISolver(scored, num_samples=S, n_steps=6, topk=5),
        "predictive_sampling": PredictiveSamplingSolver(scored, num_samples=S),
    }
    space = SimpleNamespace(shape=(1, A))
    for seed, (name, solver) in enumerate(solvers.items()):
        config = SimpleNamespace(horizon=H, action_block=1)
        solver.configure(action_space=space, n_envs=1, config=config)
        with Recorded(seed) as draws:
            plan = solver.solve({"pixels": torch.zeros(1, 1)})["actions"][0]
        yield name, torch.cat(draws), plan


def dino_wm(root):
    """CEMPlanner of DINO-WM, without its simulator."""
    borrow(root / "dino_wm", "utils")
    sys.modules["utils"].move_to_device = lambda values, device: values
    from planning.cem import CEMPlanner

    world = SimpleNamespace(
        parameters=lambda: iter([torch.zeros(1)]),
        encode_obs=lambda seen: seen,
        rollout=lambda obs_0, act: (act, None),
    )
    planner = CEMPlanner(
        horizon=H, topk=5, num_samples=S, var_scale=1, opt_steps=6, eval_every=1, wm=world,
        action_dim=A, objective_fn=lambda act, goal: cost(act), evaluator=None, log_filename=None,
        preprocessor=SimpleNamespace(transform_obs=lambda seen: seen),
        wandb_run=SimpleNamespace(log=lambda values: None),
    )  # fmt: skip
    seen = {"visual": torch.zeros(1, 1)}
    with Recorded(10) as draws:
        plan, _ = planner.plan(seen, seen)
    yield "dino_wm", torch.stack(draws), plan[0]


def jepa_wms(root):
    """CEM with and without limits, and MPPI, of jepa-wms; it draws [H,S,A]."""
    borrow(root / "jepa-wms", "nevergrad", "evals.simu_env_planning.planning.planning.objectives")
    from evals.simu_env_planning.planning.planning.planner import CEMPlanner, MPPIPlanner

    shared = {"unroll": lambda *_, **__: None, "horizon": H, "action_dim": A, "num_samples": S}
    limits = {"var_scale": 0.4, "max_norms": [0.5, 0.3], "max_norm_dims": [[0], [1]]}
    planners = {
        "jepa_wms": CEMPlanner(**shared, iterations=6, num_elites=5),
        "jepa_wms_droid": CEMPlanner(**shared, iterations=6, num_elites=5, **limits),
        "jepa_wms_mppi": MPPIPlanner(**shared, iterations=6, num_elites=8),
    }
    for seed, (name, planner) in enumerate(planners.items()):
        planner.device = torch.device("cpu")
        planner.cost_function = lambda actions, z: cost(actions.transpose(0, 1))
        more = {"eval_mode": True} if name.endswith("mppi") else {}
        with Recorded(20 + seed) as draws:
            planner.plan(torch.zeros(1), **more)
        yield name, torch.stack(draws).transpose(1, 2), planner._prev_mean


def tdmpc2(root):
    """Two solves of TD-MPC2, the second from the mean of the first; 4 plans of a policy in each."""
    borrow(root / "tdmpc2" / "tdmpc2", "common.layers", "common.world_model", "common.scale")
    from tdmpc2 import TDMPC2

    policy, drawn = torch.Generator().manual_seed(40), []

    def pi(z, task):
        drawn.append(torch.rand(len(z), A, generator=policy) * 2 - 1)
        return drawn[-1], None

    cfg = SimpleNamespace(
        num_pi_trajs=4, horizon=H, action_dim=A, num_samples=S, num_elites=8, iterations=5,
        temperature=0.5, min_std=0.05, max_std=2, multitask=False,
    )  # fmt: skip
    agent = SimpleNamespace(
        cfg=cfg, device=torch.device("cpu"), _prev_mean=torch.zeros(H, A),
        model=SimpleNamespace(encode=lambda z, task: z, pi=pi, next=lambda z, a, task: z),
        _estimate_value=lambda z, actions, task: -cost(actions.transpose(0, 1))[:, None],
    )  # fmt: skip
    noise, waits, means, first = [], [], [], []
    for solve in range(2):
        with Recorded(30 + solve) as draws:
            original = torch.Tensor.exponential_

            def kept(values, original=original):
                waits.append(original(values).clone())
                return values

            torch.Tensor.exponential_ = kept
            first.append(TDMPC2._plan(agent, torch.zeros(1, 1), t0=solve == 0, eval_mode=True))
        noise += [draw.transpose(0, 1) for draw in draws]
        means.append(agent._prev_mean.clone())
    yield "tdmpc2", torch.stack(noise), torch.stack(means)
    plans = torch.stack(drawn).reshape(2, H, 4, A).transpose(1, 2)
    for name, values in {"policy": plans, "waits": waits, "first": first}.items():
        yield f"tdmpc2.{name}", torch.stack(list(values))


def pytorch_mppi(root):
    """Three commands of pytorch_mppi; each shifts its plan first."""
    borrow(root / "pytorch_mppi" / "src", "arm_pytorch_utilities")
    sys.modules["arm_pytorch_utilities"].handle_batch_input = lambda n: lambda function: function
    from pytorch_mppi.mppi import MPPI

    spread = torch.tensor([0.4, 0.9])
    planner = MPPI(
        None, None, 1, torch.diag(spread.square()), num_samples=S, horizon=H,
        u_min=torch.full((A,), -BOUND), u_max=torch.full((A,), BOUND), U_init=torch.zeros(H, A),
    )  # fmt: skip
    planner._compute_rollout_costs = lambda actions: (cost(actions), None, None)
    plans = []
    with Recorded(50) as draws:
        for _ in range(3):
            planner.command(torch.zeros(1))
            plans.append(planner.U.clone())
    yield "mppi_it", torch.stack(draws), torch.stack(plans)


def icem(root):
    """Three steps of iCEM. Of each: its first action, the mean of the next step, its elites."""
    borrow(
        root / "iCEM" / "icem", "allogger", "gym", "sklearn", "sklearn.model_selection", "models",
        "environments", "environments.abstract_environments", "misc.base_types",
        "controllers.random",
    )  # fmt: skip
    import colorednoise
    from controllers.icem import MpcICem
    from misc.rolloutbuffer import Rollout, RolloutBuffer

    class Controller(MpcICem):
        """The controller on the toy cost."""

        def __init__(self):
            self.horizon, self.num_sim_traj, self.factor_decrease_num = H, 40, 1.25
            self._parse_action_sampler_params(
                alpha=0.1, elites_size=10, opt_iterations=3, init_std=0.5, use_mean_actions=True,
                keep_previous_elites=True, shift_elites_over_time=True, fraction_elites_reused=0.3,
                noise_beta=3.0,
            )  # fmt: skip
            ends = np.full(A, BOUND)
            self.env = SimpleNamespace(action_space=SimpleNamespace(low=-ends, high=ends))
            self.num_elites, self.dim_samples = 10, (H, A)
            self.forward_model = SimpleNamespace(
                reset=lambda seen: None, got_actual_observation_and_env_state=lambda **_: None
            )
            self.logger = SimpleNamespace(log=lambda *_, **__: None)
            self.verbose = self.do_visualize_plan = False
            self.forward_model_state = self.cost_fn = None

        def simulate_trajectories(self, *, obs, state, action_sequences):
            seen = np.zeros((H, 1))
            paths = [Rollout.from_dict(observations=seen, actions=a) for a in action_sequences]
            return RolloutBuffer(rollouts=paths)

        def trajectory_cost_fn(self, cost_fn, paths):
            return cost(torch.from_numpy(paths.as_array("actions"))).numpy()

    noise, rng, original = [], np.random.default_rng(60), colorednoise.powerlaw_psd_gaussian

    def recorded(beta, size):
        draw = original(beta, size, random_state=rng).astype(np.float32)
        noise.append(torch.from_numpy(draw).transpose(1, 2))
        return draw.astype(np.float64)

    colorednoise.powerlaw_psd_gaussian = recorded
    controller, found = Controller(), {"first": [], "mean": [], "elites": []}
    controller.beginning_of_rollout(observation=None, state=None, mode=None)
    for _ in range(3):
        found["first"].append(controller.get_action(None, None))
        found["mean"].append(controller.mean.copy())
        found["elites"].append(controller.elite_samples.as_array("actions")[:3])
    yield "icem_paper.counts", torch.tensor([len(draw) for draw in noise])
    yield "icem_paper.noise", torch.cat(noise)
    for name, values in found.items():
        yield f"icem_paper.{name}", torch.from_numpy(np.stack(values))


def main(root):
    """Run all and write the file."""
    found = dict(TOY)
    for source in (stable_worldmodel, dino_wm, jepa_wms, tdmpc2, pytorch_mppi, icem):
        for name, *values in source(root):
            keys = [name] if len(values) == 1 else [f"{name}.noise", f"{name}.plan"]
            found |= {key: value.numpy() for key, value in zip(keys, values, strict=True)}
    found = {k: v.astype(np.float32) if v.dtype == np.float64 else v for k, v in found.items()}
    np.savez_compressed(Path(__file__).parent / "planners.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
