"""Whether a plan can run a Megatron model: what is refused, in one line, before anything is computed."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Kind, Plan
from schedc.runtime.frameworks.megatron_backwards import delayed_layers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn


_UNSUPPORTED = {
    "overlap_moe_expert_parallel_comm": "it runs a forward and a backward of two microbatches as one op",
    "defer_embedding_wgrad_compute": "the plan says when weights' gradients are computed",
    "hybrid_context_parallel": "it has an order of its own",
    "num_microbatches_with_partial_activation_checkpoints": "it counts microbatches in an order of its own",
    "fine_grained_activation_offloading": "it expects Megatron's own order of forwards and backwards",
    "cpu_offloading": "it expects Megatron's own order of forwards and backwards",
    "enable_cuda_graph": "graphs are captured for Megatron's own order",
    "external_cuda_graph": "graphs are captured for Megatron's own order",
}
"""Options of a model's configuration that must be off, and why."""
_SHARDED = ("FullyShardedDataParallel", "TorchFullyShardedDataParallel")
"""What wraps a chunk and lets go of weights between ops."""
_WITH_WEIGHTS = {"mlp", "moe", "shared_experts", "mla_up_proj"}
"""Of the `recompute_modules`, those with linear layers in them."""


def check_model(plan: Plan, chunks: Sequence[nn.Module], config: Any, rank: int) -> None:
    """Refuse a plan that cannot run these chunks of a model.

    Raises:
        SchedcError: says why not.
    """
    _check_plan(plan)
    for option, why in _UNSUPPORTED.items():
        found = getattr(config, option, None)
        if found:
            raise Unsupported(f"the model has {option} = {found}, which a plan does not run: {why}; leave it out")
    if getattr(config, "cuda_graph_impl", "none") != "none":
        raise Unsupported(
            f"the model has cuda_graph_impl = {config.cuda_graph_impl!r}, whose graphs are captured for Megatron's own order"
        )
    for chunk in chunks:
        if any(type(part).__name__ in _SHARDED for part in chunk.modules()):
            raise Unsupported("the model is sharded by FSDP, which the plan does not run; use Megatron's DistributedDataParallel")
        if delayed_layers([chunk]):
            wrapper = getattr(chunk, "ddp_config", config)
            for holds, holder in (("configuration", config), ("DistributedDataParallelConfig", wrapper)):
                if not holder.delay_wgrad_compute:
                    raise InvalidInput(
                        f"layers of the model delay their weights' gradients, and its {holds} has delay_wgrad_compute = False, so"
                        " that these would be lost; expected True, when the layers are built and after"
                    )
    own = plan.problem.stages_on(rank) if rank < plan.problem.ranks else ()
    if len(own) != len(chunks):
        raise InvalidInput(
            f"rank {rank} has {len(chunks)} model chunks, plan {plan.name!r} puts {len(own)} stages there: {list(own)};"
            " build one chunk for each stage, or compile with as many chunks"
        )
    ends = {"pre_process": plan.problem.paths[0][0], "post_process": plan.problem.paths[0][-1]}
    for number, (stage, chunk) in enumerate(zip(own, chunks, strict=True)):
        place = f"rank {rank}: model chunk {number}, which is stage {stage} of plan {plan.name!r},"
        for name, where in ends.items():
            found = _of(chunk, name)
            if found is not None and bool(found) != (stage == where):
                raise InvalidInput(f"{place} has {name} = {found}, expected {stage == where}")
        vp_stage = _of(chunk, "vp_stage")
        if vp_stage is not None and len(chunks) > 1 and vp_stage != number:
            raise InvalidInput(f"{place} has vp_stage = {vp_stage}, expected {number}; give the chunks in their order")
    first, last = (plan.problem.stages[where].rank for where in ends.values())
    if (first, last) != (0, plan.problem.ranks - 1) and any(map(_ties, chunks)):
        raise Unsupported(
            f"plan {plan.name!r} has its first stage on rank {first} and its last on rank {last}, and Megatron sums the gradients"
            " of shared embeddings between the first and the last rank; compile with placement unidirectional or loop, or build the"
            " model with share_embeddings_and_output_weights = False and without modules for further tokens"
        )


def check_call(plan: Plan, chunks: int, iterators: Sequence[Any], num_microbatches: int) -> None:
    """Refuse a call that does not fit the plan.

    Raises:
        InvalidInput: says why not.
    """
    if num_microbatches != plan.problem.microbatches:
        raise InvalidInput(
            f"num_microbatches: found {num_microbatches}, plan {plan.name!r} has {plan.problem.microbatches}; compile for as many"
        )
    if len(iterators) != chunks:
        raise InvalidInput(f"data_iterator: found {len(iterators)} for {chunks} model chunks, expected a list with one for each")
    given = [id(iterator) for iterator in iterators if iterator is not None]
    if len(set(given)) < len(given):
        raise InvalidInput(
            "data_iterator: found the same iterator for two chunks, expected one of its own for each: both take all batches"
        )


def splits(plan: Plan) -> bool:
    """Whether the plan has B and W apart."""
    return any(op.kind is Kind.B for rank in plan.ranks for op in rank.compute)


def warn_of_backwards(plan: Plan, config: Any, together: Sequence[str]) -> None:
    """Say where a plan that has B and W apart runs otherwise than it says.

    The layers `together` compute all their gradients in one backward.
    """
    selective = config.recompute_granularity == "selective"
    recomputed = _WITH_WEIGHTS.intersection(config.recompute_modules or ()) if selective else ()
    if (config.recompute_granularity == "full" or recomputed) and not config.delay_wgrad_compute:
        what = f"recompute_modules = {sorted(recomputed)}" if recomputed else "recompute_granularity = 'full'"
        why = f"{what} computes all gradients of what is recomputed at once: B does W's work there"
    elif together:
        more = f" and of {len(together) - 1} more" if len(together) > 1 else ""
        why = f"the layer {together[0]!r}{more} computes all its gradients at once: in B, and W only adds them up"
    else:
        return
    warnings.warn(
        f"plan {plan.name!r} has B and W apart, and {why}; compile with split_backward = false", RuntimeWarning, stacklevel=4
    )


def _check_plan(plan: Plan) -> None:
    """Refuse what no model can run."""
    problem = plan.problem
    if problem.edges or problem.slices:
        raise Unsupported(
            f"plan {plan.name!r}: its stages are a graph, or its microbatches in slices, and Megatron has a chain of whole ones;"
            " compile without modules, edges, a split head and slices"
        )
    if len(problem.paths) > 1:
        raise Unsupported(
            f"plan {plan.name!r} has two paths (a bidirectional placement), whose replicas of a stage Megatron does not have"
        )
    recomputing = [index for index, stage in enumerate(problem.stages) if stage.recompute]
    if recomputing:
        raise Unsupported(
            f"plan {plan.name!r} recomputes stage {recomputing[0]}, which would take its batches twice; Megatron recomputes by"
            ' itself (recompute_granularity): compile with recompute = "none" from costs that include it'
        )
    for rank in plan.ranks:
        latest: dict[int, int] = {}
        for op in rank.compute:
            if op.kind is Kind.F:
                before = latest.setdefault(op.stage, op.microbatch)
                if before > op.microbatch:
                    raise Unsupported(
                        f"plan {plan.name!r} runs microbatch {before} of stage {op.stage} before {op.microbatch}; Megatron's data"
                        ' iterators give them in their order: compile with microbatch_order = "given", or with another method'
                    )
                latest[op.stage] = op.microbatch


def _of(chunk: nn.Module, name: str) -> Any:
    """An attribute of a chunk, whatever it is wrapped in; None where it has no such."""
    part: Any = chunk
    while not hasattr(part, name) and hasattr(part, "module"):
        part = part.module
    return getattr(part, name, None)


def _ties(chunk: nn.Module) -> bool:
    """Whether a chunk shares its embedding with others."""
    return bool(_of(chunk, "share_embeddings_and_output_weights") or getattr(_of(chunk, "config"), "mtp_num_layers", None))
