"""What a checkpoint has besides weights and the optimizer's state: the layout, steps, random states, and what a job has by name."""

from __future__ import annotations

import hashlib
import pickle
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_flatten

from schedc.errors import InvalidInput
from schedc.runtime.stage.recompute import RandomStates
from schedc.runtime.transports.choice import stage_device
from schedc.spelling import counted

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.runtime.session.pipe import Pipe


class Stateful(Protocol):
    """A schedule of the learning rate, a `GradScaler`, a loader of batches."""

    def state_dict(self) -> dict[str, Any]:
        """What it is to go on with."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Go on with this."""


Job: TypeAlias = Mapping[str, Stateful | Sequence[Stateful]]
"""By name, what has a state; or several that are alike, or none: a rank has a schedule for each of its optimizers."""


def layout_of(pipe: Pipe) -> str:
    """Which layers are where, in words and with a digest of all of it; orders of ops are no part of a layout."""
    problem, pipelines = pipe.plan.problem, pipe.hooks.pipelines
    zero = None if problem.data_parallel is None else problem.data_parallel.zero_stage
    stages = [(stage.rank, stage.layers) for stage in problem.stages]
    digest = hashlib.sha256(repr((dist.get_world_size(), pipelines, zero, problem.paths, stages)).encode()).hexdigest()
    words = [counted(dist.get_world_size(), "process"), f"{counted(pipelines, 'pipeline')} of {counted(problem.ranks, 'rank')}"]
    return f"{', '.join([*words, counted(len(stages), 'stage')])}{f', ZeRO {zero}' if zero else ''} ({digest[:12]})"


def run_state(pipe: Pipe) -> dict[str, Any]:
    """The same on all processes: the layout, how many steps the job has made, and updates where steps overlap."""
    own = getattr(pipe, "optimizers", None)
    return {"layout": layout_of(pipe), "steps": pipe.steps.made} | ({} if own is None else {"updates": own.updates})


def set_run_state(pipe: Pipe, state: Mapping[str, Any]) -> None:
    """Go on from there."""
    pipe.steps.made = state.get("steps", pipe.steps.made)
    if "updates" in state:
        own: Any = pipe
        own.optimizers.updates = state["updates"]


def random_state(pipe: Pipe) -> tuple[Any, ...]:
    """Of this process: torch's on the host and on the stages' device, Python's and NumPy's."""
    host, accelerators, python, numpy = RandomStates.now([stage_device(pipe.stages)])
    return host, [*accelerators.values()], python, numpy


def set_random_state(pipe: Pipe, state: tuple[Any, ...]) -> None:
    """Let this process draw on from there."""
    host, accelerators, python, numpy = state if "numpy" in sys.modules else (*state[:3], None)
    RandomStates(host, dict.fromkeys([stage_device(pipe.stages)], *accelerators) if accelerators else {}, python, numpy).restore()


def job_state(job: Job) -> dict[str, Any]:
    """Of this process, by name: in a tuple, as torch takes dicts apart."""
    return {name: (each[0].state_dict(),) for name, each in _lists(job).items() if each}


def set_job_state(job: Job, state: Mapping[str, Any]) -> None:
    """Let all go on from there."""
    for name, each in _lists(job).items():
        for one in each:
            one.load_state_dict(deepcopy(state[name][0]))


def check_job_states(path: Path | str, given: Sequence[Mapping[str, Any]]) -> None:
    """Refuse to save one for several that have the same name and are not the same, as loaders of several pipelines."""
    for name in dict.fromkeys(name for found in given for name in found):
        first, *others = [found[name] for found in given if name in found]
        if not all(_alike(first, other) for other in others):
            raise InvalidInput(
                f"{path}: job={{{name!r}: …}} has not the same state on all processes, and is saved once; give each its own name"
            )


def _lists(job: Job) -> dict[str, Sequence[Stateful]]:
    return {name: each if isinstance(each, Sequence) else [each] for name, each in job.items()}


def _alike(one: Any, other: Any) -> bool:
    (values, form), (more, another) = tree_flatten(one), tree_flatten(other)
    return form == another and all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) else pickle.dumps(a) == pickle.dumps(b)
        for a, b in zip(values, more, strict=True)
    )
