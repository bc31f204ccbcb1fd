"""Several pipelines of Megatron-Core's GPT model, with its own DistributedDataParallel, `finalize_model_grads`, and optimizer.

Gradients, or weights where an optimizer shards these, are compared with those of the whole model on the batches of all pipelines.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from runs.harness import relative_error
from runs.megatron_engine import delay
from runs.megatron_runs import LENGTH, SAMPLES, Case, batches, chunk_of, forward_step, prepare, whole_name, without_gpu

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining

from schedc.runtime.frameworks.megatron import forward_backward_func_from

if TYPE_CHECKING:
    from collections.abc import Iterator

    from megatron.core.models.gpt import GPTModel


RATE, EPS = 1e-2, 1e-3
"""Of Adam; with an epsilon that gradients are far below which are zero but for rounding (of the keys' biases)."""


@dataclass(frozen=True)
class Parallel:
    """A case in several pipelines, of which each stage has as many layers as the others."""

    case: Case
    tied: bool = False
    """Whether the embedding and the head share their weights."""
    overlap: bool = False
    """Whether gradients are reduced beside the backwards."""
    aligned: bool = False
    """Whether Megatron's `grad_sync_func` and `param_sync_func` start that."""
    sharded: bool = False
    """Whether Megatron's distributed optimizer updates the weights; then these are compared."""
    clip: float = 0.0
    """By which norm of all gradients, which Megatron computes in float32; 0: by none."""
    gather: bool = False
    """Whether its weights are gathered beside the forwards."""
    fuse: bool = False
    """Whether linear layers, of a case with delayed gradients, add to `main_grad` themselves."""


def train(rank: int, parallel: Parallel) -> float:
    """The largest relative error of a gradient, or of a weight, after some steps."""
    case, ranks = parallel.case, parallel.case.plan.problem.ranks
    with warnings.catch_warnings(), on_cpu():
        warnings.simplefilter("ignore")
        prepare(ranks)
        own = case.plan.problem.stages_on(parallel_state.get_pipeline_model_parallel_rank())
        torch.manual_seed(0)
        whole = chunk_of(sum(case.layers), first=True, last=True, tied=parallel.tied, **case.options)
        model = [wrapped(parallel, whole, stage, number if len(own) > 1 else None) for number, stage in enumerate(own)]
        config = model[0].config
        config.finalize_model_grads_func = finalize_model_grads
        if parallel.aligned:
            config.no_sync_func = [chunk.no_sync for chunk in model]
            config.grad_sync_func = [chunk.start_grad_sync for chunk in model]
            if parallel.gather:
                config.param_sync_func = [chunk.start_param_sync for chunk in model]
        for chunk in model:
            for name in ("finalize_model_grads_func", "no_sync_func", "grad_sync_func", "param_sync_func"):
                setattr(chunk.module.config, name, getattr(config, name))
        options = {"use_distributed_optimizer": True, "overlap_param_gather": parallel.gather, "clip_grad": parallel.clip}
        of_model = OptimizerConfig(optimizer="adam", lr=RATE, adam_eps=EPS, weight_decay=0.0, **options)
        optimizer = get_megatron_optimizer(of_model, model) if parallel.sharded else None
        of_whole = torch.optim.AdamW(whole.parameters(), lr=RATE, eps=EPS, weight_decay=0.0)
        run = forward_backward_func_from(case.plan)
        pipelines, pipeline = dist.get_world_size() // ranks, parallel_state.get_data_parallel_rank()
        common: dict[str, Any] = {
            "forward_step_func": partial(forward_step, case.loss),
            "num_microbatches": case.plan.problem.microbatches,
            "seq_length": LENGTH,
            "micro_batch_size": SAMPLES,
        }
        tokens: list[int] = []
        whole.config.finalize_model_grads_func = lambda _, count, **__: tokens.append(int(count))
        for step in range(3 if parallel.sharded else 2):
            for chunk in model:
                chunk.zero_grad_buffer()
            run(data_iterator=[batches(case, pipelines * step + pipeline) for _ in own], model=[*model], **common)
            of_whole.zero_grad()
            tokens.clear()
            for other in range(pipelines):
                if not case.options.get("calculate_per_token_loss"):
                    whole.config.finalize_model_grads_func = None
                forward_backward_no_pipelining(data_iterator=batches(case, pipelines * step + other), model=whole, **common)
            for weight in whole.parameters():
                if weight.grad is not None:
                    weight.grad /= sum(tokens) if tokens else pipelines
            if optimizer is not None:
                _, norm, _ = optimizer.step()
                if parallel.clip:
                    assert norm > parallel.clip
                    torch.nn.utils.clip_grad_norm_(whole.parameters(), parallel.clip)
                of_whole.step()
        run.close()
        if parallel.gather:
            for chunk in model:
                chunk.disable_forward_pre_hook()
    expected = dict(whole.named_parameters())
    worst = 0.0
    for stage, chunk in zip(own, model, strict=True):
        for name, weight in named(parallel, stage, chunk.module):
            of_one, found = (expected[name], weight) if parallel.sharded else (expected[name].grad, weight.main_grad)
            worst = max(worst, relative_error(found.detach(), of_one.detach()))
    return worst


def wrapped(parallel: Parallel, whole: GPTModel, stage: int, vp_stage: int | None) -> Any:
    """A chunk with the weights of the whole model, in Megatron's DistributedDataParallel."""
    case, ranks = parallel.case, parallel.case.plan.problem.ranks
    options = {"pipeline_model_parallel_size": ranks, "pipeline_dtype": torch.float64, **case.options}
    if vp_stage is not None:
        options["virtual_pipeline_model_parallel_size"] = len(case.layers) // ranks
    chunk = chunk_of(
        sum(case.layers), first=stage == 0, last=stage == len(case.layers) - 1, tied=parallel.tied, vp_stage=vp_stage, **options
    )
    weights = dict(whole.named_parameters())
    for name, weight in named(parallel, stage, chunk):
        weight.data.copy_(weights[name].data)
    if case.delayed:
        delay(chunk, fuse=parallel.fuse)
    ddp_config = DistributedDataParallelConfig(
        overlap_grad_reduce=parallel.overlap,
        use_distributed_optimizer=parallel.sharded,
        overlap_param_gather=parallel.gather,
        align_param_gather=parallel.gather and parallel.aligned,
        delay_wgrad_compute=case.delayed,
        bucket_size=2000,  # elements, which makes several of them
    )
    return DistributedDataParallel(chunk.config, ddp_config, chunk)


def named(parallel: Parallel, stage: int, chunk: GPTModel) -> Iterator[tuple[str, Any]]:
    """A chunk's weights by their names in the whole model."""
    before = sum(parallel.case.layers[:stage])
    for name, weight in chunk.named_parameters():
        is_tied = parallel.tied and name == "output_layer.weight"
        yield "embedding.word_embeddings.weight" if is_tied else whole_name(name, before), weight


@contextmanager
def on_cpu() -> Iterator[None]:
    """Megatron's buffers and copies stay on the CPU; its optimizer finds weights that it knows, as on a GPU,
    and takes them and their gradients in all digits that they have."""
    tensor, kind = torch.tensor, torch.Tensor.type
    here = patch.object(torch.Tensor, "cuda", lambda self, *_, **__: self)
    made = patch.object(torch, "tensor", lambda *given, device=None, **more: tensor(*given, **more))
    known = patch.object(
        torch.Tensor, "type", lambda one, *to, **more: kind(one, *to, **more) if to or more else "torch.cuda.FloatTensor"
    )
    precise = patch.object(torch.Tensor, "float", lambda one: one if one.dtype == torch.float64 else one.to(torch.float32))
    with here, made, known, precise, without_gpu():
        yield
