"""Loading a plan into a training job: read, check, agree with the other ranks, open the channels."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.ir.plan import Plan
from schedc.runtime.groups import Groups
from schedc.runtime.pipe import Pipe
from schedc.runtime.replicas import check_equal_weights, replicas_of, weights_digest
from schedc.text.plan_file import plan_json, read_plan
from schedc.verify.plan import verify_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn

    from schedc.runtime.observe import Observer

__all__ = ["load"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """What a rank tells the others before a pipe is opened."""

    error: str | None
    plan_sha256: str
    weights: dict[int, str]
    """A digest of the weights of each stage that has replicas."""


def load(
    plan: Path | str | Plan,
    *,
    stages: Mapping[int, nn.Module],
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None = None,
    timeout_s: float = 60.0,
    pipeline_group: dist.ProcessGroup | None = None,
    observe: Observer | None = None,
) -> Pipe:
    """Make this process one rank of the plan. All ranks call it together; it refuses on all of them, or on none.

    Args:
        plan: the plan file, or the plan.
        stages: this rank's stages by index. Each takes one tensor and gives one tensor, on the CPU; its outputs have the same shape
            and type for all microbatches. A first stage gets the microbatch's inputs.
        loss_fn: takes a last stage's output and the microbatch's targets, gives their mean loss. Needed on ranks with a last stage.
        timeout_s: how long an op waits for another rank before the step fails; above the longest wait of a sound step.
        pipeline_group: the processes of this pipeline, rank by rank; None: all processes of the job.
        observe: hears what happens in the steps.

    Raises:
        InvalidInput: the file is no plan of a known version, or its ranks or stages are not those of this job.
        CheckFailed: the plan breaks a rule, or another rank has refused or has another plan or other weights of a replica.
        Unsupported: the plan asks for what this runtime does not do.
        TransferFailed: another rank has ended, or does not call `load` within `timeout_s`.
    """
    groups = Groups(timeout_s, pipeline_group)
    try:
        checked = _agree(plan, stages, loss_fn, groups)
        return Pipe(checked, stages, groups, loss_fn=loss_fn, timeout_s=timeout_s, observe=observe)
    except BaseException:
        groups.close()
        raise


def _agree(
    plan: Path | str | Plan,
    stages: Mapping[int, nn.Module],
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    groups: Groups,
) -> Plan:
    """The plan, once every rank accepts it and all have the same."""
    refusal: SchedcError | None = None
    report = _Report(error="", plan_sha256="", weights={})
    try:
        plan = plan if isinstance(plan, Plan) else read_plan(plan)
        _check(plan, stages, loss_fn, groups)
        replicated = {stage for members in replicas_of(plan.problem) for stage in members}
        weights = {stage: weights_digest(module) for stage, module in stages.items() if stage in replicated}
        report = _Report(error=None, plan_sha256=hashlib.sha256(plan_json(plan)).hexdigest(), weights=weights)
    except SchedcError as error:
        refusal = error
        report = _Report(error=str(error), plan_sha256="", weights={})
    reports = groups.exchange(report)
    if refusal is not None:
        raise refusal
    assert isinstance(plan, Plan)
    for rank, other in enumerate(reports):
        if other.error is not None:
            raise CheckFailed(f"rank {rank} has refused the plan: {other.error}")
    for rank, other in enumerate(reports):
        if other.plan_sha256 != reports[0].plan_sha256:
            raise CheckFailed(
                f"ranks 0 and {rank} have different plans (sha256 {reports[0].plan_sha256[:12]}… and {other.plan_sha256[:12]}…);"
                " give all ranks the same file"
            )
    everywhere = {stage: digest for other in reports for stage, digest in other.weights.items()}
    check_equal_weights(replicas_of(plan.problem), everywhere)
    return plan


def _check(
    plan: Plan,
    stages: Mapping[int, nn.Module],
    loss_fn: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None,
    groups: Groups,
) -> None:
    """Refuse a plan that is unsound, or not for this rank of this job.

    Raises:
        SchedcError: says why.
    """
    violations = verify_plan(plan)
    if violations:
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise CheckFailed(f"plan {plan.name!r} breaks a rule: {violations[0]}{more}")
    problem, rank = plan.problem, groups.rank
    if problem.ranks != groups.size:
        raise InvalidInput(
            f"plan {plan.name!r} is for {problem.ranks} ranks, this job has {groups.size}; start as many, or compile for as many"
        )
    collectives = [collective.token for own in plan.ranks for collective in own.collectives]
    if collectives:
        raise Unsupported(
            f"plan {plan.name!r} has data-parallel collectives ({collectives[0]} first), which the runtime does not run;"
            " compile the job without [data_parallel]"
        )
    expected = problem.stages_on(rank)
    if sorted(stages) != list(expected):
        raise InvalidInput(f"rank {rank} was given stages {sorted(stages)}, plan {plan.name!r} puts stages {list(expected)} there")
    last = sorted({path[-1] for path in problem.paths} & stages.keys())
    if last and loss_fn is None:
        raise InvalidInput(f"rank {rank} has the last stage {last[0]}, but was given no loss_fn")
    for index, stage in stages.items():
        devices = {parameter.device.type for parameter in stage.parameters()} - {"cpu"}
        if devices:
            raise Unsupported(f"stage {index} is on {min(devices)}; the runtime executes stages on the CPU, move it there")
