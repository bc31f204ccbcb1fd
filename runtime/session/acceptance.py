"""Whether one rank of a job accepts a plan: that it is sound, and made for this job's ranks, stages and replicas."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch.nn.parameter import is_lazy

from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.formats.plan.plan_file import read_plan
from schedc.ir import Kind, Plan
from schedc.runtime.common.program import replicas_of
from schedc.runtime.stage.apart import check_stages, fsdp_roots
from schedc.runtime.stage.training import is_graph, losses_of, with_loss

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from torch import nn

    from schedc.runtime.asynchronous.optimizers import StageOptimizers
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.stage.training import LossFn


def read(plan: Path | str | Plan, *, verify: bool, steps: int | None = None) -> Plan:
    """The plan.

    Args:
        plan: the plan file, or the plan.
        verify: whether to check that it is sound; `schedc.verify` is imported for it.
        steps: of how many steps a run is wanted, of a period, which is then checked in any case; None: the plan itself.

    Raises:
        InvalidInput: the file is no plan of a known version, or no period.
        CheckFailed: the plan breaks a rule.
    """
    plan = plan if isinstance(plan, Plan) else read_plan(plan)
    if verify or steps is not None:
        from schedc.verify.plan.checks import verify_plan

        violations = verify_plan(plan)
        if violations:
            more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
            raise CheckFailed(f"plan {plan.name!r} breaks a rule: {violations[0]}{more}")
    if steps is not None:
        from schedc.lower.run import run_of

        plan = run_of(plan, steps)
    return plan


def check_fit(
    plan: Plan,
    *,
    stages: Mapping[int, nn.Module],
    loss_fn: LossFn | None,
    groups: Groups,
    replicas: Collection[int] | None,
    own_hooks: bool,
    recompute: bool | Collection[int],
    optimizers: StageOptimizers | None = None,
) -> None:
    """Refuse a sound plan that is not for this rank of this job.

    `replicas` are the processes of the data_parallel_group, None: none was given; `own_hooks`: whether the job sums gradients over
    replicas itself; stages in `recompute` keep only their inputs; `optimizers` make updates in runs of steps that overlap.

    Raises:
        SchedcError: says why.
    """
    problem, rank = plan.problem, groups.rank
    if problem.ranks != groups.size:
        raise InvalidInput(
            f"plan {plan.name!r} is for {problem.ranks} ranks, this job has {groups.size}; start as many, or compile for as many"
        )
    trained = with_loss(problem, stages, loss_fn)
    stages_of_plan = range(len(problem.stages))
    unknown = [] if isinstance(recompute, bool) else sorted(set(recompute) - {*stages_of_plan})
    if unknown:
        raise InvalidInput(
            f"recompute: plan {plan.name!r} has no stage {unknown[0]}; its stages are 0 to {len(stages_of_plan) - 1}"
        )
    whole = [stage for stage, module in trained.items() if not fsdp_roots(module)] if problem.is_sharded else []
    if whole:
        raise Unsupported(
            f"plan {plan.name!r} gathers and releases weights within the step (ZeRO 3), and stage {whole[0]} has whole ones; give"
            " load stages with fully_shard around them, or compile with zero_stage = 1"
        )
    if problem.data_parallel is not None or replicas is not None or own_hooks:
        _check_replicas(plan, trained, replicas, own_hooks=own_hooks)
    expected = problem.stages_on(rank)
    if sorted(stages) != list(expected):
        raise InvalidInput(f"rank {rank} was given stages {sorted(stages)}, plan {plan.name!r} puts stages {list(expected)} there")
    planned = [problem.stages[stage].parameters for stage in expected]
    found = [sum(weight.numel() for weight in stages[stage].parameters() if not is_lazy(weight)) for stage in expected]
    if found != planned and sorted(found) == sorted(planned):  # other numbers say nothing: a model may be sharded, or a smaller one
        raise InvalidInput(
            f"rank {rank} was given the stages {list(expected)} with {found} parameters, expected {planned}, as plan {plan.name!r}"
            " has them: the same in another order"
        )
    for stage, names in losses_of(problem, stages).items():
        missing = [
            name for name in names if stage in stages and (name not in loss_fn if isinstance(loss_fn, Mapping) else not loss_fn)
        ]
        if missing:
            what = f"loss {missing[0]!r} of stage" if is_graph(problem, stages) else "last stage"
            raise InvalidInput(f"rank {rank} has the {what} {stage}, but was given no loss_fn{' of this name' if loss_fn else ''}")
    split = {op.stage for op in plan.ranks[rank].compute if op.kind is Kind.B}
    check_stages(trained, split=split, summed=replicas is not None or bool(replicas_of(problem)))
    if problem.updates is not None:
        from schedc.runtime.asynchronous.optimizers import check_updates

        check_updates(plan, trained, optimizers)


def _check_replicas(plan: Plan, stages: Mapping[int, nn.Module], replicas: Collection[int] | None, *, own_hooks: bool) -> None:
    """Refuse a plan for another number of pipelines than the job has, and stages that cannot be replicas; as `check_fit`."""
    parallel = plan.problem.data_parallel
    if replicas_of(plan.problem) and (own_hooks or replicas is not None):
        given = "replicas were" if own_hooks else "a data_parallel_group was"
        raise Unsupported(
            f"plan {plan.name!r} has stages that are replicas of each other, and {given} given;"
            " the runtime sums gradients inside a pipeline or between pipelines, not both"
        )
    if own_hooks:
        return
    if replicas is None:
        if parallel is not None and parallel.size > 1:
            raise InvalidInput(
                f"plan {plan.name!r} has the collectives of {parallel.size} replicas; give load a data_parallel_group of as many"
                " processes, or compile the job without [data_parallel]"
            )
        return
    if parallel is not None and parallel.size not in (1, len(replicas)):  # 1: tied weights alone
        raise InvalidInput(
            f"plan {plan.name!r} is for {parallel.size} replicas, the data_parallel_group has {len(replicas)} processes;"
            " start as many pipelines, or compile for as many"
        )
    from schedc.runtime.replicas.pipelines import check_weights

    zero_one = parallel is not None and parallel.zero_stage == 1
    wrapped = [stage for stage, module in stages.items() if fsdp_roots(module)] if zero_one else []
    if wrapped:  # it keeps its shards in memory of its own
        raise Unsupported(
            f"stage {wrapped[0]} has fully_shard around it, whose weights ZeRO 1 of plan {plan.name!r} does not share out;"
            " compile with zero_stage = 0 or 3"
        )
    check_weights(stages, replicas, sharded=zero_one)
