"""A model's layers as the stages of one rank of a plan."""

from __future__ import annotations

from copy import deepcopy
from typing import TYPE_CHECKING

import torch.distributed as dist
from torch import nn

from schedc.errors import InvalidInput
from schedc.runtime.session.acceptance import read

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from schedc.ir.plan import Plan

__all__ = ["build_stages"]


def build_stages(layers: Iterable[nn.Module], plan: Path | str | Plan, rank: int | None = None) -> dict[int, nn.Sequential]:
    """This rank's stages for `load`, by index: of each the layers that the plan gives it, one after another.

    Args:
        layers: the whole model in the order of the forward, as the job's profile or partition counts it: a list of modules, or an
            `nn.Sequential`. Each takes what the one before gives.
        plan: the plan file, or the plan.
        rank: in the pipeline; None: `torch.distributed`'s.

    Returns:
        The stages, of the modules themselves. Where two of them have the same layers (both paths of a bidirectional placement), the
        second one has copies.

    Raises:
        InvalidInput: the file is no plan of a known version, does not say which layers a stage has, or is for other layers or
            ranks.
    """
    plan, given = read(plan, verify=False), list(layers)
    bounds = [stage.layers for stage in plan.problem.stages]
    known = [each for each in bounds if each is not None]
    if len(known) < len(bounds):
        raise InvalidInput(
            f"plan {plan.name!r} does not say which layers its stages have; compile it with a profile.json or pipeline.partition"
        )
    count = max(last for _, last in known)
    if len(given) != count:
        raise InvalidInput(f"the model has {len(given)} layers, plan {plan.name!r} is for {count}; give build_stages as many")
    rank = dist.get_rank() if rank is None else rank
    if not 0 <= rank < plan.problem.ranks:
        raise InvalidInput(f"this is rank {rank}, plan {plan.name!r} is for the ranks 0 to {plan.problem.ranks - 1}")
    stages: dict[int, nn.Sequential] = {}
    for stage in plan.problem.stages_on(rank):
        own = nn.Sequential(*given[slice(*known[stage])])
        stages[stage] = deepcopy(own) if any(known[stage] == known[other] for other in stages) else own
    return stages
