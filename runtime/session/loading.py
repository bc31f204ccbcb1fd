"""Loading a plan into a training job: read, check, agree with the other ranks, open the channels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Plan, Problem
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.hooks import Observer, Observers, ReplicaHooks, observers_in
from schedc.runtime.common.program import replicas_of, wires_of
from schedc.runtime.session.acceptance import check_fit
from schedc.runtime.session.agreement import LOADED, Agreement, agree
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.session.step import Steps
from schedc.runtime.stage.apart import fsdp_roots
from schedc.runtime.stage.training import is_graph, with_loss
from schedc.runtime.transports.base import QUEUES
from schedc.runtime.transports.choice import (
    Channels,
    TransportRequest,
    connection,
    hardware_of,
    stage_device,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    import torch
    import torch.distributed as dist
    from torch import nn

    from schedc.runtime.asynchronous.optimizers import StageOptimizers
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.replicas.pipelines import Pipelines
    from schedc.runtime.session.swap import SwapGroup
    from schedc.runtime.stage.training import LossFn
    from schedc.runtime.transports.base import ChannelsOf


def load(
    plan: Path | str | Plan,
    *,
    stages: Mapping[int, nn.Module],
    loss_fn: LossFn | None = None,
    timeout_s: float = 60.0,
    pipeline_group: dist.ProcessGroup | None = None,
    observe: Observer | Sequence[Observer] | None = None,
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
    optimizers: StageOptimizers | Mapping[int, torch.optim.Optimizer | Sequence[torch.optim.Optimizer]] | None = None,
    steps: int | None = None,
    sequence_dim: int = 1,
    varying: bool = False,
    first_timeout_s: float | None = None,
    recovery_timeout_s: float = 0.0,
    seed: int | None = None,
    first_step: int = 0,
) -> Pipe:
    """Make this process one rank of the plan. All ranks call it together; it refuses on all of them, or on none.

    Args:
        plan: the plan file, or the plan.
        stages: this rank's stages by index, on the CPU or on one GPU. Each takes tensors as positional arguments and gives a
            tensor or a tuple of tensors, of the same number, shapes and types for all microbatches whose inputs have the same
            shapes and types; the next stage takes them. A first stage gets the microbatch's inputs. Of a graph as docs/graphs.md
            says.
        loss_fn: takes what a last stage gives and the microbatch's targets, gives their mean loss. Needed where that is. Of a graph
            one for all stages that compute a loss, or a dict by stage, or by module where `build_stages` knows these.
        timeout_s: how long an op waits for another rank before the step fails; above the longest wait of a sound step.
        pipeline_group: the processes of this pipeline, rank by rank; None: all processes of the job.
        observe: called with what happens in the steps; one, or several.
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
        queues: how many tensors of a wire the delegate has under way at once (`transports.delegate.queues_needed`); with `gloo`
            and `nccl`, which have no delegate, it is left out.
        wrap: puts something around what carries tensors, on all ranks: called with the plan's problem, the groups of its ranks and
            the device of this rank's stages. `schedc.runtime.emulation.injected.inject_links` lets every transfer arrive when the
            plan's links say.
        kind: the class of what this gives.
        optimizers: one or several of each stage of this rank, for a plan whose steps overlap, and for no other: it has the
            updates, and what this gives is an `AsynchronousPipe`, whose `step` runs all steps of the plan.
        steps: how many of them a run has, where the plan is one period of steps that overlap.
        sequence_dim: of inputs and targets, the dimension that is cut where the plan's microbatches are in slices; 1 or more.
        varying: whether what a stage gives may have other shapes where inputs have the same; each tensor's are said before it then.
        first_timeout_s: in place of `timeout_s` until the first step of a plan has ended, in which stages may be compiled; None:
            the same.
        recovery_timeout_s: for how long ranks wait for one that is late, if that is above twice `timeout_s` and a step may run
            again: theirs does then, with the late rank. One that has ended is not waited for.
        seed: from which each layer draws its random numbers, by step and microbatch, whatever the plan and the rank; None: ranks
            draw what comes.
        first_step: how many steps the job has made before, for `seed` and for checkpoints; `load_checkpoint` sets it.

    Raises:
        InvalidInput: the file is no plan of a known version, is for other ranks or stages, or two options exclude each other.
        CheckFailed: the plan breaks a rule, or another rank has refused or has another plan or other weights of a replica.
        Unsupported: the plan asks for what this runtime does not do.
        TransferFailed: another rank has ended, or does not call `load` within `timeout_s`.
    """
    if data_parallel_group is not None and replicas is not None:
        raise InvalidInput("load was given a data_parallel_group and replicas; give it one of them")
    if optimizers is not None:
        from schedc.runtime.session.asynchronous import pipe_with

        kind = pipe_with(optimizers, kind)
    updating = getattr(kind, "optimizers", None)
    if replicas is not None and updating is not None:
        raise Unsupported("load was given optimizers and replicas, which know no steps that overlap; give data_parallel_group=")
    if observe is not None and not isinstance(observe, Observer):
        if not isinstance(observe, Sequence) or not all(isinstance(one, Observer) for one in observe):
            raise InvalidInput(f"load was given observe={observe!r}, expected a schedc.runtime.Observer, or a list of several")
        observe = Observers(observe)
    groups = Groups(timeout_s, pipeline_group)
    pipelines: Pipelines | None = None
    peers: SwapGroup | None = None
    beside: list[Groups] = []
    groups.beside = beside
    try:
        if data_parallel_group is not None:
            from schedc.runtime.replicas.pipelines import Pipelines

            pipelines = Pipelines(max(timeout_s, first_timeout_s or 0), data_parallel_group)
            beside.append(pipelines)
        if swap_group is not None:
            from schedc.runtime.session.swap import SwapGroup

            peers = SwapGroup(timeout_s, swap_group)
            beside.append(peers)
        fits = partial(
            check_fit,
            stages=stages,
            loss_fn=loss_fn,
            groups=groups,
            replicas=None if pipelines is None else pipelines.processes,
            own_hooks=replicas is not None,
            recompute=recompute,
            optimizers=updating,
        )

        def accept(found: Plan, own: Agreement) -> Agreement:
            fits(found)
            trained = with_loss(found.problem, stages, loss_fn)
            kind.check(found, trained, alone=peers is None)
            sharded = any(map(fsdp_roots, trained.values()))
            if grad_dtype is not None and sharded:
                raise Unsupported("load was given grad_dtype and fully_shard; give fully_shard MixedPrecisionPolicy(reduce_dtype=)")
            if found.problem.slices:
                from schedc.runtime.stage.slices import check_slices

                check_slices(stages, sequence_dim)
            if found.problem.slices or is_graph(found.problem, stages):
                from schedc.runtime.session.graph import check_graph

                check_graph(found, kind.runner, kind.training, joint=observe is not None and observe.joint)
            if updating is not None and observe is not None and observe.joint:
                raise Unsupported(f"a {joint} was given and optimizers; ranks do not adapt where steps overlap")
            request = TransportRequest(channels=channels, queues=queues, hardware=hardware_of(stage_device(stages)))
            own = replace(own, request=request, agrees=own.agrees and not sharded)  # what FSDP has reduced cannot run again
            replicated = {stage for members in replicas_of(found.problem) for stage in members}
            if pipelines is None and not replicated:
                return own
            from schedc.runtime.replicas.copies import weights_digest

            among = () if pipelines is None else pipelines.processes
            digests = {one: weights_digest(trained[one], among) for one in trained if pipelines is not None or one in replicated}
            return replace(own, weights=digests)

        joint = ", ".join(type(one).__name__ for one in observers_in(observe) if one.joint) or "none that agrees"
        ties = [(module, names) for module in stages.values() for names in (getattr(module, "ties_of_ranks", None),) if names]
        own = Agreement(
            rank=groups.rank,
            beside=tuple(others.name for others in beside),
            wrapped=wrap is not None,
            options={
                "check_loss": str(check_loss),
                "grad_dtype": str(grad_dtype),
                "observe": joint,
                "optimizers": str(updating),
                "varying": str(varying),
                "seed": str(seed),
                "first_step": str(first_step),
            },
            layers=next((getattr(module, "layers_of_model", ()) for module in stages.values()), ()),  # of build_stages' alone
            pipelines=replicas.pipelines if replicas is not None else 1 if pipelines is None else pipelines.size,
            ties=bool(ties),  # of build_stages' alone
            agrees=updating is None and (replicas is None or replicas.agrees),  # what updates have changed cannot run again
        )
        checked, said = agree(plan, own, accept, groups, steps)
        wired = _channels_of(checked, said, groups.rank, stage_device(stages))
        trained = with_loss(checked.problem, stages, loss_fn)
        if grad_dtype is not None:
            from schedc.runtime.replicas.buckets import set_gradient_type

            set_gradient_type(trained.values(), grad_dtype)
        hooks = ReplicaHooks() if replicas is None else replicas
        if pipelines is not None:
            if updating is None:
                from schedc.runtime.replicas.collectives import ReplicaCollectives as Collectives
            else:
                from schedc.runtime.replicas.updates import UpdateCollectives as Collectives
            hooks = Collectives(checked, groups.rank, trained, pipelines)
        elif replicas_of(checked.problem):
            from schedc.runtime.replicas.copies import ReplicaSums

            hooks = ReplicaSums(checked.problem, trained, groups)
        drawing = None
        if seed is not None:
            from schedc.runtime.session.drawing import Drawing

            drawing = Drawing(seed, 0 if pipelines is None else pipelines.rank, stage_device(stages))
        ranks_steps = Steps(
            checked,
            stages,
            groups,
            training=kind.training,
            runner=kind.runner,
            loss_fn=loss_fn,
            timeout_s=timeout_s,
            observe=observe,
            hooks=hooks,
            among=() if pipelines is None else pipelines.processes,
            recompute=recompute,
            swap_group=peers,
            channels=wired,
            wrap=None if wrap is None else wrap(checked.problem, groups, stage_device(stages)),
            sequence_dim=sequence_dim,
            varying=varying,
            first_timeout_s=first_timeout_s,
            recovery_timeout_s=recovery_timeout_s,
            drawing=drawing,
            first_step=first_step,
        )
        pipe = kind(ranks_steps, observe=observe, fits=fits, check_loss=check_loss)
    except BaseException:
        for others in (*beside, groups):
            others.close()
        raise
    try:  # a rank that is ready before the others must not close what they are still connecting
        for others in reversed(beside):
            pipe.steps.retries = any(others.exchange(pipe.steps.retries, LOADED))
        groups.exchange(None, LOADED)
        if any(one.ties for one in said):
            from schedc.runtime.replicas.copies import tied, weights_named

            pipe.steps.ties = tied(pipe.steps.ties, pipe.hooks, checked, stages, groups, weights_named(ties))
    except BaseException:
        pipe.close()
        raise
    return pipe


def _channels_of(plan: Plan, said: Sequence[Agreement], rank: int, device: torch.device) -> ChannelsOf:
    """What connects this rank's wires, from what all ranks request."""
    requests = [one.request for one in said if one.request is not None]
    connected = connection(requests, rank, device)
    own = requests[rank]
    if own.channels == "auto" and own.hardware.serial is not None:
        from schedc.runtime.transports.gpus import warn_of_serial

        warn_of_serial(own.hardware.serial, stacklevel=4)
    pairs = [(wire.source, wire.destination) for wire in wires_of(plan)]
    over_nccl = sum(connected(*pair)[0].name == "NCCL" for pair in pairs if rank in pair)
    if over_nccl:
        from schedc.runtime.transports.gpus import warn_of_settings

        warn_of_settings(over_nccl, stacklevel=4)
    return connected if all(one.agrees for one in said) else lambda *pair: connected(*pair)[:1]
