"""run_episodes: tasks, an agent and a vector environment in; episodes out.

The environments are stepped in lock step through Gymnasium's vector API with automatic reset off.
An episode's record does not depend on how many run beside it. Frames are made only when the agent
looks at them or the episode is filmed, and only of the rows that still run: rendering costs far
more than physics.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from jepa_wm.control.agent import Agent, plans_by_row
from jepa_wm.control.episode import Episode, Rules, Task
from jepa_wm.control.spaces import check_space, fit_actions, space_size
from jepa_wm.errors import ConfigError

Envs = SyncVectorEnv | AsyncVectorEnv
Info = dict[str, Any]


def make_envs(make: Callable[[], gymnasium.Env], num_envs: int, asynchronous: bool = False) -> Envs:
    """Build the vector environment ``run_episodes`` wants, automatic reset off.

    ``asynchronous`` gives each copy its own process; the episodes are the same.
    """
    kind = AsyncVectorEnv if asynchronous else SyncVectorEnv
    return kind([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED)


def run_episodes(
    envs: Envs,
    agent: Agent,
    tasks: Sequence[Task],
    rules: Rules,
    progress: Callable[[int, int], None] | None = None,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Run every task once, ``envs.num_envs`` at a time; the last batch may be smaller.

    Args:
        envs: From ``make_envs``; actions are a one-dimensional Box, or choices: Discrete or
            MultiDiscrete. The agent gives choices as whole numbers [B,a], with a = 1 for Discrete.
        agent: Acts; reset once a batch.
        tasks: What to do; ids are unique.
        rules: The protocol.
        progress: Called with (steps done, steps at most) after each lock step; steps are those of a
            batch, so a bar reaches its end whatever stops early.
        on_episode: Called with each episode when its batch ends, in task order.

    Returns:
        One episode a task, in task order.

    Raises:
        ConfigError: the environment is of the wrong kind, or lacks a key the rules name.
        ValueError: two tasks share an id, or an action is outside the action space.
    """
    check_space(envs.single_action_space)
    if envs.metadata.get("autoreset_mode") != AutoresetMode.DISABLED:
        raise ConfigError("the vector environment resets by itself; build it with make_envs")
    ids = [task.id for task in tasks]
    if len(set(ids)) != len(ids):
        raise ValueError("task ids must be unique; an id names the episode's files")
    size, episodes = envs.num_envs, []
    batches = [tasks[at : at + size] for at in range(0, len(tasks), size)]
    if any(task.options is not None for task in tasks):
        envs.reset()  # from here on row by row, which needs an observation of all
    for index, batch in enumerate(batches):
        run = _Lockstep(envs, agent, batch, rules)
        while run.active.any():
            run.advance()
            if progress:
                progress(index * rules.budget + run.step, len(batches) * rules.budget)
        made = list(run.episodes())
        episodes += made
        if progress:
            progress((index + 1) * rules.budget, len(batches) * rules.budget)
        if on_episode:
            for episode in made:
                on_episode(episode)
    return episodes


class _Log:
    """What one row has seen so far."""

    def __init__(self, task: Task, info: Info, rules: Rules) -> None:
        self.task, self.rules = task, rules
        self.infos = [info]
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.frames: list[np.ndarray] = []
        self.streak, self.success = 0, False
        self.presolved = self.solved

    @property
    def solved(self) -> bool:
        """Whether the newest info meets the goal."""
        return self.rules.scored and bool(_pick(self.infos[-1], self.rules.success, "info"))

    @property
    def _counts(self) -> bool:
        """Whether success counts at the newest state."""
        steps, segment = len(self.actions), self.rules.segment
        return segment is None or steps % segment == 0 or steps == self.rules.budget

    def add(self, action: np.ndarray, reward: float, info: Info, ended: bool) -> bool:
        """Record a step; return whether the episode goes on."""
        self.actions.append(action)
        self.rewards.append(reward)
        self.infos.append(info)
        self.streak = self.streak + 1 if self.solved else 0
        self.success |= self.streak >= self.rules.hold and self._counts
        if ended and self.streak and not self.success:
            raise ConfigError(
                f"hold={self.rules.hold}, but the environment ended at the first success; "
                "make it so that it runs on"
                if self.rules.hold > 1
                else f"success counts {self.rules.criterion}, but the environment ended before; "
                "make it so that it runs on"
            )
        stop = self.success and self.rules.stop_on_success
        return not (ended or stop or len(self.actions) >= self.rules.budget)


class _Lockstep:
    """One batch of tasks in the vector environment; rows past the batch idle with zero actions."""

    def __init__(self, envs: Envs, agent: Agent, tasks: Sequence[Task], rules: Rules) -> None:
        self.envs, self.agent, self.tasks, self.rules = envs, agent, tasks, rules
        self._space = check_space(envs.single_action_space)
        self.padded = [*tasks, *[tasks[0]] * (envs.num_envs - len(tasks))]
        self.seconds = {name: np.zeros(len(tasks)) for name in ("environment", "render")}
        began = time.perf_counter()
        self.observations, infos = self._reset()
        self._took("environment", began, np.arange(len(tasks)))
        self.logs = [_Log(task, info, rules) for task, info in zip(tasks, infos, strict=False)]
        self.active = np.array([not log.presolved for log in self.logs])
        self.step = 0
        self._film(np.arange(len(tasks)))
        goals = [task.goal for task in tasks if task.goal is not None]
        if goals and len(goals) < len(tasks):
            raise ValueError("either every task has a goal or none")
        felt = [task.goal_proprio for task in tasks if task.goal_proprio is not None]
        told = (np.stack(felt),) if len(felt) == len(tasks) else ()
        seeds = [task.seed for task in tasks]
        agent.reset(np.stack(goals) if goals else None, seeds, rules.budget, *told)

    def advance(self) -> None:
        """One environment step of every row."""
        rows = np.flatnonzero(self.active)
        frames = proprio = None
        if self.agent.needs_frames:
            frames = self._see(self.rules.frames, rows)
            if self.rules.proprio is not None:
                proprio = self._see(self.rules.proprio, rows)
        actions = self._checked(self.agent.act(frames, proprio, self.active.copy()), rows)
        began = time.perf_counter()
        self.observations, rewards, terminated, truncated, infos = self.envs.step(actions)
        self._took("environment", began, rows)
        ended = terminated | truncated
        for row in rows.tolist():
            log = self.logs[row]
            going = log.add(actions[row], float(rewards[row]), _row(infos, row), bool(ended[row]))
            self.active[row] = going
        self.step += 1
        self._film(rows)
        for ending in np.flatnonzero(ended).tolist():  # it may not be stepped on: let it idle
            self._reset_row(ending)

    def episodes(self) -> Iterator[Episode]:
        """The batch's records, in task order."""
        plans_of = plans_by_row(self.agent.decisions, len(self.tasks))
        for row, (log, plans) in enumerate(zip(self.logs, plans_of, strict=True)):
            task, size = log.task, space_size(self._space)
            states = None
            if self.rules.states is not None:
                states = np.stack([_pick(info, self.rules.states, "info") for info in log.infos])
            yield Episode(
                id=int(task.id),
                seed=int(task.seed),
                success=log.success,
                presolved=log.presolved,
                actions=np.array(log.actions, dtype=np.float32).reshape(len(log.actions), size),
                rewards=np.array(log.rewards, dtype=np.float64),
                metrics=_metrics(log.infos),
                goal=task.goal if task.goal_frame is None else task.goal_frame,
                frames=np.stack(log.frames) if log.frames else None,
                states=states,
                seconds=plans["encode_seconds"] + plans["plan_seconds"] if plans else np.zeros(0),
                plans=plans,
                timing={name: float(spent[row]) for name, spent in self.seconds.items()},
                config=self.rules.describe(),
            )

    def _reset(self) -> tuple[Any, list[Info]]:
        seeds: list[int | None] = [_reset_seed(task) for task in self.padded]
        if all(task.options is None for task in self.padded):
            observations, infos = self.envs.reset(seed=seeds)
            return observations, [_row(infos, row) for row in range(len(seeds))]
        answers = [self._reset_row(row) for row in range(len(seeds))]
        return answers[-1][0], [info for _, info in answers]

    def _reset_row(self, row: int) -> tuple[Any, Info]:
        mask = np.arange(self.envs.num_envs) == row
        tasks = zip(self.padded, mask, strict=True)
        seeds = [_reset_seed(task) if mine else None for task, mine in tasks]
        options = {**(self.padded[row].options or {}), "reset_mask": mask}
        observations, infos = self.envs.reset(seed=seeds, options=options)
        return observations, _row(infos, row)

    def _checked(self, actions: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """Fit actions [n,a] into the vector's [num_envs,a]; refuse what the env does not take."""
        return fit_actions(
            actions, rows, self._space, self.envs.num_envs, lambda row: self.tasks[row].id
        )

    def _see(self, source: str, rows: np.ndarray) -> np.ndarray:
        """What ``rows`` show of ``source`` now, [n,...] with zeros elsewhere."""
        if source == "render":
            views = self._render(rows)
        elif source == "observation" and not isinstance(self.observations, dict):
            views = [np.asarray(self.observations[row]) for row in rows]
        elif isinstance(self.observations, dict) and source in self.observations:
            views = [self.observations[source][row] for row in rows]
        else:
            keys = list(self.observations) if isinstance(self.observations, dict) else []
            what = f"observation {sorted(keys)} or info"
            views = [np.asarray(_pick(self.logs[row].infos[-1], source, what)) for row in rows]
        seen = np.zeros((len(self.tasks), *views[0].shape), dtype=views[0].dtype)
        seen[rows] = np.stack(views)
        return seen

    def _film(self, rows: np.ndarray) -> None:
        wanted = np.array([row for row in rows if self.tasks[row].id in self.rules.film], dtype=int)
        for row, frame in zip(wanted, self._render(wanted), strict=True):
            self.logs[row].frames.append(frame)

    def _render(self, rows: np.ndarray) -> list[np.ndarray]:
        began = time.perf_counter()
        frames = _render(self.envs, rows)
        self._took("render", began, rows)
        return frames

    def _took(self, what: str, began: float, rows: np.ndarray) -> None:
        """Share the wall seconds since ``began`` among the rows they were spent on."""
        if len(rows):
            self.seconds[what][rows] += (time.perf_counter() - began) / len(rows)


def _reset_seed(task: Task) -> int:
    return task.seed if task.reset_seed is None else task.reset_seed


def _render(envs: Envs, rows: np.ndarray) -> list[np.ndarray]:
    """Render some rows; environments in other processes can only render all together."""
    if not len(rows):
        return []
    if isinstance(envs, SyncVectorEnv):
        frames = [envs.envs[row].render() for row in rows]
    else:
        everyone = envs.call("render")
        frames = [everyone[row] for row in rows]
    if not all(isinstance(frame, np.ndarray) for frame in frames):
        raise ConfigError("the environment renders no frames; make it with render_mode='rgb_array'")
    return frames


def _row(infos: Info, row: int) -> Info:
    """One environment's info out of the vector's, whose ``_key`` masks say who has the key."""
    return {
        key: value[row]
        for key, value in infos.items()
        if isinstance(value, np.ndarray) and f"_{key}" in infos and infos[f"_{key}"][row]
    }


def _pick(info: Info, key: str, what: str) -> Any:
    if key not in info:
        raise ConfigError(f"{key!r} is not in the environment's {what}; it has {sorted(info)}")
    return info[key]


def _metrics(infos: Sequence[Info]) -> dict[str, np.ndarray]:
    """Every scalar that all infos have, stacked over time."""
    shared = [key for key in infos[0] if all(key in info for info in infos)]
    columns = {key: np.array([info[key] for info in infos]) for key in sorted(shared)}
    return {
        key: column
        for key, column in columns.items()
        if column.ndim == 1 and column.dtype.kind in "bif"
    }
