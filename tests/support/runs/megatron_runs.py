"""Megatron-Core's GPT model on CPUs: what the ranks of a test run, by a plan and, whole, by Megatron's own function.

Megatron expects GPUs. Here the core of its attention is PyTorch's, as its own keeps a buffer on a GPU, and tokens are counted
on the CPU.
"""

from __future__ import annotations

import warnings
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.distributed_c10d import _world

with warnings.catch_warnings():  # Megatron's imports warn of much
    warnings.simplefilter("ignore")
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.pipeline_parallel.schedules import forward_backward_no_pipelining
    from megatron.core.tensor_parallel import random as megatron_random
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.moe import moe_utils, router
    from megatron.core.transformer.transformer_config import TransformerConfig

from runs.harness import relative_error
from runs.megatron_engine import Counting, delay
from schedc.runtime.frameworks.megatron import forward_backward_func_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from schedc.ir.plan import Plan

VOCABULARY, WIDTH, LENGTH, SAMPLES = 32, 16, 8, 2


@dataclass(frozen=True)
class Case:
    """What to run."""

    plan: Plan
    layers: tuple[int, ...]
    """Decoder layers of each stage."""
    loss: str = "mean"
    """`mean`: the loss function gives a microbatch's mean; `tokens`: the sum and the number of tokens."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the model's configuration."""
    scale: float | None = None
    """What `grad_scale_func` multiplies by."""
    calls: tuple[str, ...] = ("step", "step")
    """One after another: `step`, `forward` (alone) or `collect` (forward, for other data than losses)."""
    together: bool = False
    """Whether a layer has a backward that cannot be split."""
    tensor_parallel: int = 1
    delayed: bool = False
    """Whether linear layers are Transformer Engine's, as `megatron_engine` has them, with `delay_wgrad_compute`."""
    twice: bool = False
    """Whether the last stage, of two layers, has one MLP for both."""
    lengths: tuple[int, ...] = (LENGTH,)
    """Of sequences; each of a step's microbatches has the next one, with `variable_seq_lengths`, else each call."""

    def length(self, number: int) -> int:
        """Of a call's, or a microbatch's, sequences."""
        return self.lengths[number % len(self.lengths)]


@dataclass
class Found:
    """What a rank has seen."""

    error: float = 0.0
    """The largest relative error of a weight's gradient."""
    stores: list[Any] = field(default_factory=list)
    expected: list[Any] = field(default_factory=list)
    """What the loss functions gave, of both."""
    tokens: list[Any] = field(default_factory=list)
    """What `finalize_model_grads_func` was called with."""
    expected_tokens: list[Any] = field(default_factory=list)
    warned: list[str] = field(default_factory=list)
    split_layers: int = 0
    """How many linear layers had backwards that can be split."""
    delayed: dict[str, int] = field(default_factory=dict)
    """How many delayed gradients of weights ops of each kind have computed."""


class Together(ColumnParallelLinear):  # type: ignore[misc]  # mypy runs where Megatron is not installed
    """A layer that computes its gradients in one backward in a way of its own, as Transformer Engine's do."""

    def _forward_impl(self, *arguments: Any, **others: Any) -> Any:
        return super()._forward_impl(*arguments, **others)


class CoreAttention(nn.Module):
    """PyTorch's attention in the place of Megatron's."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        length, samples, heads, width = query.shape
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        given = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return given.permute(2, 0, 1, 3).reshape(length, samples, heads * width)


class Norm(nn.LayerNorm):
    """PyTorch's in the place of Megatron's, which has none on CPUs for sequence parallelism; TP ranks sum its gradients then."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps)
        for weight in self.parameters():
            weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


def config_of(layers: int, **options: Any) -> TransformerConfig:
    """The configuration of a model or of a chunk of it."""
    return TransformerConfig(
        num_layers=layers,
        hidden_size=WIDTH,
        num_attention_heads=2,
        use_cpu_initialization=True,
        params_dtype=torch.float64,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        bias_dropout_fusion=False,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        **options,
    )


def chunk_of(layers: int, *, first: bool, last: bool, tied: bool = False, vp_stage: int | None = None, **options: Any) -> GPTModel:
    """Some layers of a model, with the embedding and the head at its ends; with a `vp_stage`, a share of the layers."""
    spec = get_gpt_layer_local_spec(num_experts=options.get("num_moe_experts"), moe_grouped_gemm=False)
    spec.submodules.self_attention.submodules.core_attention = CoreAttention
    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    with patch.object(transformer_block, "LayerNormImpl", Norm):
        model = GPTModel(
            config_of(layers, **options),
            spec,
            vocab_size=VOCABULARY,
            max_sequence_length=LENGTH,
            pre_process=first,
            post_process=last,
            share_embeddings_and_output_weights=tied,
            vp_stage=vp_stage,
        )
    return model.double()


def chunks_of(case: Case, rank: int, whole: GPTModel) -> list[GPTModel]:
    """A rank's chunks, with the weights of the whole model."""
    own = case.plan.problem.stages_on(rank)
    last = len(case.layers) - 1
    chunks = [chunk_of(case.layers[stage], first=stage == 0, last=stage == last, **case.options) for stage in own]
    weights = dict(whole.named_parameters())
    for stage, chunk in zip(own, chunks, strict=True):
        if case.together:
            chunk.decoder.layers[0].mlp.linear_fc1.__class__ = Together
        if case.twice and stage == last:
            _share(chunk.decoder.layers)
        if case.delayed:
            delay(chunk)
        for name, weight in chunk.named_parameters():
            weight.data.copy_(weights[whole_name(name, sum(case.layers[:stage]))].data)
    return chunks


def _share(layers: Any) -> None:
    """Let the last two layers have one MLP."""
    layers[-1].mlp = layers[-2].mlp


def whole_name(name: str, before: int) -> str:
    """What a weight of a chunk is called in the whole model; `before`: the layers before the chunk."""
    if not name.startswith("decoder.layers."):
        return name
    number, rest = name.removeprefix("decoder.layers.").split(".", 1)
    return f"decoder.layers.{int(number) + before}.{rest}"


def batches(case: Case, step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """Tokens, labels and the mask of the loss, microbatch by microbatch."""
    generator = torch.Generator().manual_seed(step)
    for microbatch in range(case.plan.problem.microbatches):
        length = case.length(step + microbatch if case.options.get("variable_seq_lengths") else step)
        tokens = torch.randint(VOCABULARY, (SAMPLES, length + 1), generator=generator)
        yield tokens[:, :-1], tokens[:, 1:], torch.rand(SAMPLES, length, generator=generator) < 0.7


def forward_step(kind: str, data_iterator: Iterator[Any], model: Any) -> tuple[torch.Tensor, Callable[..., Any]]:
    """As a training job has it."""
    tokens, labels, mask = next(data_iterator)
    output = model(tokens, torch.arange(tokens.shape[1]).expand(tokens.shape), None, labels=labels)
    return output, partial(loss_func, kind, mask)


def loss_func(kind: str, mask: torch.Tensor, losses: torch.Tensor, non_loss_data: bool = False) -> Any:
    """A microbatch's loss, as a mean or as a sum with its tokens."""
    if non_loss_data:
        return losses.detach().sum().item()
    total, count = (losses * mask).sum(), mask.sum()
    if kind == "mean":
        return total / count, {"lm loss": (total / count).item()}
    return total, count.to(torch.int), {"lm loss": (total.item(), count.item())}


@contextmanager
def without_gpu() -> Iterator[None]:
    """Where Megatron asks for tensors on a GPU, it gets them on the CPU, and there is no state of a GPU's random numbers."""
    zeros = torch.zeros
    states: dict[str, Any] = {name: lambda *_, **__: None for name in ("_get_cuda_rng_state", "_set_cuda_rng_state")}
    on_cpu = patch.object(torch, "zeros", lambda *size, device=None, **more: zeros(*size, **more))
    here = patch.object(torch.cuda, "current_device", lambda: torch.device("cpu"))
    without_engine = patch.object(moe_utils, "te_general_gemm", None, create=True)  # not defined without Transformer Engine
    states["FP8GlobalStateManager"] = SimpleNamespace(is_fp8_enabled=lambda: False, get_fp8_recipe=lambda: None)  # nor these
    states |= dict.fromkeys(("activation_recompute_forward", "fp8_autocast"), lambda **_: nullcontext())
    # What it keeps of auxiliary losses for its logs is as long as the first model of a process.
    unlogged = patch.object(router, "save_to_aux_losses_tracker", lambda *_, **__: None)
    as_it_is = patch.object(megatron_random.CudaRNGStatesTracker, "fork", lambda *_, **__: nullcontext())
    with on_cpu, here, without_engine, unlogged, as_it_is, patch.multiple(megatron_random, create=True, **states):
        yield


def prepare(ranks: int, tensor_parallel: int = 1) -> None:
    """Let Megatron make its groups, for pipelines of this many ranks.

    Those of other pipelines, which it forgets, are destroyed here: gloo has threads for each.
    """
    if parallel_state.model_parallel_is_initialized():
        sizes = parallel_state.get_tensor_model_parallel_world_size(), parallel_state.get_pipeline_model_parallel_world_size()
        if sizes == (tensor_parallel, ranks):
            return
        parallel_state.destroy_model_parallel()
        for group in [group for group in _world.pg_map if group is not dist.group.WORLD]:
            dist.destroy_process_group(group)
    parallel_state.initialize_model_parallel(tensor_parallel, ranks)


def configure(case: Case, model: Any, tokens: list[Any]) -> None:
    """Set what a training job sets in a model's configuration."""
    config = model.config
    config.calculate_per_token_loss = case.options.get("calculate_per_token_loss", False)
    config.grad_scale_func = None if case.scale is None else lambda loss: loss * case.scale
    config.finalize_model_grads_func = lambda chunks, count, **_: tokens.append(None if count is None else int(count))


def train(rank: int, case: Case) -> Found | str:
    """Run the case by its plan and, whole, by Megatron."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare(case.plan.problem.ranks, case.tensor_parallel)
        rank = parallel_state.get_pipeline_model_parallel_rank()
        torch.manual_seed(0)
        whole = chunk_of(sum(case.layers), first=True, last=True, **case.options)
        if case.twice:
            _share(whole.decoder.layers)
        chunks = chunks_of(case, rank, whole)
    found = Found()
    configure(case, whole, found.expected_tokens)
    for chunk in chunks:
        configure(case, chunk, found.tokens)
    counting = Counting()
    run = forward_backward_func_from(case.plan, timeout_s=60, observe=counting)
    common: dict[str, Any] = {
        "forward_step_func": partial(forward_step, case.loss),
        "num_microbatches": case.plan.problem.microbatches,
        "micro_batch_size": SAMPLES,
    }
    with warnings.catch_warnings(record=True) as caught, without_gpu():
        warnings.simplefilter("always")
        for number, call in enumerate(case.calls):
            kind = {"forward_only": call != "step", "collect_non_loss_data": call == "collect"}
            given = {"seq_length": case.length(number), **kind, **common}
            with torch.set_grad_enabled(call == "step"):
                found.stores.append(run(data_iterator=[batches(case, number) for _ in chunks], model=[*chunks], **given))
                found.expected.append(forward_backward_no_pipelining(data_iterator=batches(case, number), model=whole, **given))
    found.split_layers, found.delayed = len(run._split), {kind: count for kind, count in counting.of_kind.items() if count}
    run.close()
    assert not any("_forward_impl" in vars(layer) for chunk in chunks for layer in chunk.modules())
    found.warned = [text for text in (str(warning.message) for warning in caught) if text.startswith("plan ")]
    found.error = max_error(case, rank, whole, chunks)
    return found


def max_error(case: Case, rank: int, whole: GPTModel, chunks: Sequence[GPTModel]) -> float:
    """The largest relative difference of a weight's gradient from the whole model's; both may be None."""
    weights = dict(whole.named_parameters())
    worst = 0.0
    for stage, chunk in zip(case.plan.problem.stages_on(rank), chunks, strict=True):
        for name, weight in chunk.named_parameters():
            expected = weights[whole_name(name, sum(case.layers[:stage]))].grad
            assert (weight.grad is None) == (expected is None), name
            if expected is not None:
                worst = max(worst, relative_error(weight.grad, expected))
    return worst


def refused(rank: int, plan: Plan) -> None:
    """Call with a model that rank 1 refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        prepare(2)
        chunk = chunk_of(1, first=rank == 0, last=rank == 1)
    chunk.config.hybrid_context_parallel = rank == 1
    forward_backward_func_from(plan)(
        forward_step_func=partial(forward_step, "mean"), data_iterator=None, model=chunk, num_microbatches=4
    )
