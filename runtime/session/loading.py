"""Loading a plan into a training job: read, check, agree with the other ranks, open the channels."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import CheckFailed, InvalidInput, SchedcError
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.loss_module import with_loss
from schedc.runtime.common.program import replicas_of, wires_of
from schedc.runtime.session.acceptance import check_fit, read
from schedc.runtime.session.offers import Offer, Report, disagreement, plan_digest
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.transports.choice import check_requests, connection
from schedc.runtime.transports.requests import QUEUES, TransportRequest, hardware_of, stage_device

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    import torch.distributed as dist
    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.common.observer import Observer
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.replicas.pipelines import Pipelines
    from schedc.runtime.session.lockstep import Lockstep
    from schedc.runtime.transports.base import ChannelsOf
    from schedc.runtime.transports.requests import Channels


def load(
    plan: Path | str | Plan,
    *,
    stages: Mapping[int, nn.Module],
    loss_fn: Callable[[Any, Any], torch.Tensor] | None = None,
    timeout_s: float = 60.0,
    pipeline_group: dist.ProcessGroup | None = None,
    observe: Observer | None = None,
    check_loss: bool = True,
    recompute: bool | Collection[int] = False,
    grad_dtype: torch.dtype | None = None,
    data_parallel_group: dist.ProcessGroup | None = None,
    replicas: ReplicaHooks | None = None,
    swap_group: dist.ProcessGroup | None = None,
    channels: Channels = "auto",
    queues: int = QUEUES,
    wrap: Callable[[Problem, Groups, torch.device], Wrap] | None = None,
    kind: type[Pipe] = Pipe,
) -> Pipe:
    """Make this process one rank of the plan. All ranks call it together; it refuses on all of them, or on none.

    Args:
        plan: the plan file, or the plan.
        stages: this rank's stages by index, on the CPU or on one GPU. Each takes tensors as positional arguments and gives a
            tensor or a tuple of tensors, of the same number, shapes and types for all microbatches; the next stage takes them. A
            first stage gets the microbatch's inputs.
        loss_fn: takes what a last stage gives and the microbatch's targets, gives their mean loss. Needed where that is.
        timeout_s: how long an op waits for another rank before the step fails; above the longest wait of a sound step.
        pipeline_group: the processes of this pipeline, rank by rank; None: all processes of the job.
        observe: called with what happens in the steps.
        check_loss: whether a step raises `NonFiniteLoss` where a microbatch's loss is infinite or NaN.
        recompute: the stages that keep only their inputs from F, and run it again before their backward, besides those of which
            the plan says so; True: all.
        grad_dtype: the type in which the gradients of floating-point weights add up, and which `.grad` has afterwards; None: the
            weight's own.
        data_parallel_group: the same rank of all pipelines of the job, as many as the plan's `size`; None: there is one pipeline.
        replicas: what to do between these, in place of the sums and gathers that come with a `data_parallel_group`.
        swap_group: the same rank of each pipeline that must move to another plan with the same step, since their stages have
            collectives with this one's (tensor or expert parallelism). None: this pipeline moves by itself.
        channels: what carries tensors from rank to rank. `gloo` for stages on the CPU; `nccl` for GPUs; `delegate` through the
            host's memory by helper threads, for both; `auto`: gloo on the CPU, NCCL between GPUs, with the delegate to
            take over where it fails, and the delegate between ranks that share a GPU.
        queues: how many tensors of a wire the delegate has under way at once (`transports.delegate.queues_needed`).
        wrap: puts something around what carries tensors, on all ranks: called with the plan's problem, the groups of its ranks and
            the device of this rank's stages. `schedc.runtime.emulation.injected.inject_links` lets every transfer arrive when the
            plan's links say.
        kind: the class of what this gives.

    Raises:
        InvalidInput: the file is no plan of a known version, is for other ranks or stages, or two options exclude each other.
        CheckFailed: the plan breaks a rule, or another rank has refused or has another plan or other weights of a replica.
        Unsupported: the plan asks for what this runtime does not do.
        TransferFailed: another rank has ended, or does not call `load` within `timeout_s`.
    """
    if data_parallel_group is not None and replicas is not None:
        raise InvalidInput("load was given a data_parallel_group and replicas; give it one of them")
    groups = Groups(timeout_s, pipeline_group)
    pipelines: Pipelines | None = None
    lockstep: Lockstep | None = None
    beside: list[Groups] = []
    groups.beside = beside
    try:
        if data_parallel_group is not None:
            from schedc.runtime.replicas.pipelines import Pipelines

            pipelines = Pipelines(timeout_s, data_parallel_group)
            beside.append(pipelines)
        if swap_group is not None:
            from schedc.runtime.session.lockstep import Lockstep

            lockstep = Lockstep(timeout_s, swap_group)
            beside.append(lockstep)
        fits = partial(
            check_fit,
            stages=stages,
            loss_fn=loss_fn,
            groups=groups,
            replicas=None if pipelines is None else pipelines.size,
            own_hooks=replicas is not None,
            recompute=recompute,
        )
        joint = "none that agrees" if observe is None or not observe.joint else type(observe).__name__
        options = {"check_loss": str(check_loss), "grad_dtype": str(grad_dtype), "observe": joint}
        layers = next((getattr(module, "layers_of_model", ()) for module in stages.values()), ())  # of build_stages' alone
        report = Report(rank=groups.rank, wrapped=wrap is not None, options=options, layers=layers)
        if replicas is not None:
            report = replace(report, pipelines=replicas.pipelines, agrees=replicas.agrees)
        elif pipelines is not None:
            report = replace(report, pipelines=pipelines.size)
        checked, wired = _agree(plan, stages, loss_fn, fits, groups, pipelines, lockstep, channels, queues, report, kind)
        if grad_dtype is not None:
            from schedc.runtime.replicas.gradients import set_gradient_type

            set_gradient_type(with_loss(checked.problem, stages, loss_fn).values(), grad_dtype)
        hooks = ReplicaHooks() if replicas is None else replicas
        if pipelines is not None or replicas_of(checked.problem):
            from schedc.runtime.session.peers import hooks_of

            hooks = hooks_of(checked, with_loss(checked.problem, stages, loss_fn), groups, pipelines)
        pipe = kind(
            checked,
            stages,
            groups,
            loss_fn=loss_fn,
            timeout_s=timeout_s,
            observe=observe,
            fits=fits,
            check_loss=check_loss,
            recompute=recompute,
            hooks=hooks,
            lockstep=lockstep,
            channels=wired,
            wrap=None if wrap is None else wrap(checked.problem, groups, stage_device(stages)),
        )
    except BaseException:
        for others in (*beside, groups):
            others.close()
        raise
    try:  # a rank that is ready before the others must not close what they are still connecting
        for others in reversed(beside):
            pipe.retries = any(others.exchange(pipe.retries))
        ties = [(module, names) for module in stages.values() for names in (getattr(module, "ties_of_ranks", None),) if names]
        if any(groups.exchange(bool(ties))):  # of build_stages' alone
            from schedc.runtime.replicas.ties import tied, weights_named

            pipe.hooks = tied(pipe.hooks, checked, stages, groups, weights_named(ties))
    except BaseException:
        pipe.close()
        raise
    return pipe


def _agree(
    plan: Path | str | Plan,
    stages: Mapping[int, nn.Module],
    loss_fn: Callable[[Any, Any], torch.Tensor] | None,
    fits: Callable[[Plan], None],
    groups: Groups,
    pipelines: Pipelines | None,
    lockstep: Lockstep | None,
    channels: Channels,
    queues: int,
    report: Report,
    kind: type[Pipe],
) -> tuple[Plan, ChannelsOf]:
    """The plan, once every rank of every pipeline accepts it and all have the same; and what connects this rank's wires.

    `report` has what this rank was given besides.
    """
    checked: Plan | None = None
    refusal: SchedcError | None = None
    try:  # rank 0 verifies the plan for all: those that have the same need not do it again
        checked = read(plan, verify=groups.rank == 0)
        offer = Offer(refusal=None, digest=plan_digest(checked))
    except SchedcError as error:
        refusal, offer = error, Offer(refusal=str(error), digest="")
    reason = disagreement(groups.exchange(offer), groups.size)
    if reason is not None and refusal is None:
        refusal = CheckFailed(reason)
    report = replace(report, offer=offer)
    device = torch.device("cpu")
    if checked is not None and refusal is None:
        try:
            fits(checked)
            trained = with_loss(checked.problem, stages, loss_fn)
            kind.check(checked, trained, alone=lockstep is None)
            device = stage_device(stages)
            request = TransportRequest(channels=channels, queues=queues, hardware=hardware_of(device))
            report = replace(report, request=request)
            if pipelines is not None or replicas_of(checked.problem):
                from schedc.runtime.session.peers import weights_of_replicas

                report = replace(report, weights=weights_of_replicas(checked, trained, across=pipelines is not None))
        except SchedcError as error:
            refusal = error
    if refusal is not None:
        report = replace(report, offer=Offer(refusal=str(refusal), digest=""))
    for others in groups.beside:
        from schedc.runtime.session.peers import apart

        reason = apart(others.exchange(report), replicas=others is pipelines)
        if reason is not None and refusal is None:
            refusal = CheckFailed(reason)
            report = replace(report, offer=Offer(refusal=reason, digest=""))
    reports = groups.exchange(report)
    if refusal is not None:
        raise refusal
    reason = disagreement([other.offer for other in reports], groups.size)
    if reason is not None:
        raise CheckFailed(reason)
    assert checked is not None
    if replicas_of(checked.problem):
        from schedc.runtime.replicas.shared_weights import check_equal

        everywhere = {stage: digest for other in reports for stage, digest in other.weights.items()}
        check_equal(replicas_of(checked.problem), everywhere)
    requests = [other.request for other in reports if other.request is not None]
    ways = [(other.wrapped, other.pipelines, other.options) for other in reports]
    if any(way != ways[0] for way in ways):
        from schedc.runtime.session.disagreeing import unlike_ranks

        raise InvalidInput(unlike_ranks(ways))
    if len({other.layers for other in reports}) > 1:
        from schedc.runtime.session.disagreeing import unlike_layers

        reason = unlike_layers(checked.problem, [other.layers for other in reports])
        if reason is not None:
            raise InvalidInput(reason)
    pairs = [(wire.source, wire.destination) for wire in wires_of(checked)]
    check_requests(requests, pairs)
    connected = connection(requests, groups.rank, device)
    over_nccl = sum(connected(*pair)[0].name == "NCCL" for pair in pairs if groups.rank in pair)
    if over_nccl:
        from schedc.runtime.transports.gpus import warn_of_settings

        warn_of_settings(over_nccl, stacklevel=4)
    return checked, connected if all(one.agrees for one in reports) else lambda *pair: connected(*pair)[:1]
