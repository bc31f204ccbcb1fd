"""What a plan in torchtitan is refused for, before any weight is made: what has not been tested, or would train wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtitan.distributed.activation_checkpoint import FullAC

from schedc.errors import InvalidInput, SchedcError, Unsupported
from schedc.ir.ops import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.plan import Plan


def check_job(plan: Plan, *, parallel_dims: Any, training: Any, parallelism: Any, compile_config: Any, ac_config: Any) -> None:
    """Refuse a plan that is not for a job of torchtitan.

    Args:
        plan: the plan.
        parallel_dims: torchtitan's `ParallelDims`; the others are the sections of its configuration.
        training: see there.
        parallelism: see there.
        compile_config: see there.
        ac_config: of the activation checkpointing; None: there is none.

    Raises:
        SchedcError: says why.
    """
    for error in _errors(plan, parallel_dims, training, parallelism, compile_config, ac_config):
        raise error


def _errors(
    plan: Plan, parallel_dims: Any, training: Any, parallelism: Any, compile_config: Any, ac_config: Any
) -> Iterator[SchedcError]:
    problem, name = plan.problem, plan.name
    if problem.paths != (tuple(range(len(problem.stages))),):
        yield Unsupported(
            f"plan {name!r}: torchtitan's stages are one path in their order; compile without bidirectional placement"
        )
    if problem.data_parallel is not None:
        yield Unsupported(
            f"plan {name!r} has collectives of its own, and torchtitan's FSDP has them already; compile without [data_parallel]"
        )
    if parallel_dims.pp != problem.ranks:
        yield InvalidInput(
            f"plan {name!r} is for {problem.ranks} ranks; found parallelism.pipeline_parallel_degree = {parallel_dims.pp}, expected"
            f" {problem.ranks}"
        )
    size, batch = parallelism.pipeline_parallel_microbatch_size, training.local_batch_size
    if batch != size * problem.microbatches:
        yield InvalidInput(
            f"plan {name!r} is for {problem.microbatches} microbatches; found training.local_batch_size = {batch} with"
            f" parallelism.pipeline_parallel_microbatch_size = {size}, expected {size * problem.microbatches}"
        )
    if parallelism.pipeline_parallel_schedule_csv:
        yield InvalidInput(
            "parallelism.pipeline_parallel_schedule_csv: found a CSV beside a plan, expected one of them; leave it empty"
        )
    for degree, what in (("tp", "tensor"), ("cp", "context"), ("ep", "expert")):
        if getattr(parallel_dims, degree) > 1:
            yield Unsupported(f"plan {name!r}: {what} parallelism in torchtitan is not supported; set its degree to 1")
    if parallelism.spmd_backend == "full_dtensor":
        yield Unsupported(
            f"plan {name!r}: what stages exchange is plain tensors; set parallelism.spmd_backend to spmd_types or partial_dtensor"
        )
    if training.enable_cpu_offload:
        yield Unsupported(f"plan {name!r}: parameters on the CPU beside a GPU are not supported; unset training.enable_cpu_offload")
    recomputed = [index for index, stage in enumerate(problem.stages) if stage.recompute]
    if recomputed:
        yield Unsupported(
            f"plan {name!r} recomputes stage {recomputed[0]} as a whole; in torchtitan set activation_checkpoint, and compile"
            " without recompute from a profile that was measured with it"
        )
    if any(op.kind is Kind.B for rank in plan.ranks for op in rank.compute):
        yield from _errors_of_split(name, parallelism, compile_config, ac_config)


def _errors_of_split(name: str, parallelism: Any, compile_config: Any, ac_config: Any) -> Iterator[SchedcError]:
    """What does not work where B and W are apart."""
    otherwise = "or compile with split_backward = false"
    if compile_config is not None and compile_config.enable and "model" in compile_config.components:
        yield Unsupported(
            f"plan {name!r} has B and W apart, and a compiled block computes both at once; leave 'model' out of compile.components,"
            f" {otherwise}"
        )
    if parallelism.fsdp_reshard_after_forward == "always":
        yield Unsupported(
            f"plan {name!r} has B and W apart, and W needs weights that FSDP would have released; set"
            f" parallelism.fsdp_reshard_after_forward to default, {otherwise}"
        )
    if ac_config is not None and not isinstance(ac_config, FullAC.Config):
        yield Unsupported(
            f"plan {name!r} has B and W apart, and with activation_checkpoint {type(ac_config).__qualname__} a block runs backward"
            f" once; take FullAC or none, {otherwise}"
        )
