"""Measuring a device's table: products of a model, what streams through its memory, and collectives of the processes.

Each product is measured alone, on random 16-bit numbers: a matrix product as F, B and W have it, a grouped one as one batched
product of equal parts (routing is balanced), attention by PyTorch's fused kernel under the causal mask, its backward as a whole.
Rows are given as soon as they are known, so that whoever writes them down can go on with what is left.
"""

from __future__ import annotations

import os
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Literal

import torch
from torch import distributed as dist

from schedc.formats.operator_table import Constants
from schedc.runtime.profiling.meters import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from schedc.formats.operator_table import CollectiveRow, Phase, Product, ShareRow

PHASES: tuple[Phase, ...] = ("forward", "backward_input", "backward_weight")
KINDS: tuple[Literal["all-gather", "reduce-scatter", "all-to-all"], ...] = (
    "all-gather",
    "reduce-scatter",
    "all-to-all",
)
STREAMED_BYTES, SMALL_BYTES = 2**28, 2**12
"""Of a tensor that is copied for the memory's bandwidth; and of one whose copy takes nothing but its launch."""
SENT_BYTES = tuple(2**power for power in range(16, 29, 2))
"""What one device sends in a collective: 64 KiB to 256 MiB."""


def took_s(work: Callable[[], object], device: torch.device, repeats: int, warmup: int) -> float:
    """The median of the seconds that it takes."""
    watch = Watch(device)
    for _ in range(warmup):
        work()
    for _ in range(repeats):
        watch.start()
        work()
        watch.stop("work")
    return max(1e-9, median(watch.times()["work"]) / 1e9)


def measured(
    products: list[Product], device: torch.device, peak_flops_per_s: float, *, repeats: int, warmup: int
) -> Iterator[list[ShareRow]]:
    """The rows of each product, one after another; nothing of one that the device has no memory for."""
    for product in products:
        rows: list[ShareRow] = []
        try:
            works = _attention(product, device) if product.engine == "attention" else _matrices(product, device)
            for phase, work, flops in zip(PHASES, works, product.flops, strict=False):
                share = flops / took_s(work, device, repeats, warmup) / peak_flops_per_s
                rows.append((product.engine, phase, *product.shape, float(f"{share:.4g}")))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            rows.clear()
        yield rows


def _matrices(product: Product, device: torch.device) -> list[Callable[[], object]]:
    number, tokens, inner, outer = (max(1, round(each)) for each in product.shape)
    batch = () if product.engine == "matrix" else (number,)
    values, weights, gradients = (
        torch.randn(*batch, *shape, device=device, dtype=torch.bfloat16)
        for shape in ((tokens, inner), (inner, outer), (tokens, outer))
    )
    return [
        lambda: values @ weights,
        lambda: gradients @ weights.mT,
        lambda: values.mT @ gradients,
    ]


def _attention(product: Product, device: torch.device) -> list[Callable[[], object]]:
    heads, tokens, inner, outer = (max(1, round(each)) for each in product.shape)
    queries, keys, values = (
        torch.randn(product.batch, heads, tokens, width, device=device, dtype=torch.bfloat16, requires_grad=True)
        for width in (inner, inner, outer)
    )
    attention = torch.nn.functional.scaled_dot_product_attention
    out = attention(queries, keys, values, is_causal=True)
    gradient = torch.randn_like(out)
    return [
        lambda: attention(queries, keys, values, is_causal=True),
        lambda: torch.autograd.grad(out, (queries, keys, values), gradient, retain_graph=True),
    ]


def measured_constants(device: torch.device, memory_bytes_per_s: float, *, repeats: int, warmup: int) -> Constants:
    """The share of the memory's bandwidth of a copy, and of one of rows in another order; and what a small operation takes."""
    rows = torch.zeros(STREAMED_BYTES // 8192, 4096, device=device, dtype=torch.bfloat16)
    order, other, small = torch.randperm(len(rows), device=device), torch.empty_like(rows), rows[0, : SMALL_BYTES // 2]
    shares = [
        float(f"{2 * rows.nbytes / took_s(work, device, repeats, warmup) / memory_bytes_per_s:.4g}")
        for work in (lambda: other.copy_(rows), lambda: torch.index_select(rows, 0, order, out=other))
    ]
    least_s = float(f"{took_s(lambda: small.add_(1), device, repeats, warmup):.4g}")
    return Constants(memory=shares[0], permute=shares[1], launch_s=least_s, move_s=least_s)


def measured_collectives(
    device: torch.device, *, repeats: int, warmup: int, sizes: Sequence[int] = SENT_BYTES
) -> Iterator[CollectiveRow]:
    """Of all processes together, by kind and by what one of them sends."""
    group = dist.get_world_size()
    gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)  # torch's names since 2.13
    scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)
    for sent in sizes:
        part = torch.zeros(max(1, sent // (2 * (group - 1))), device=device, dtype=torch.bfloat16)
        whole, other = part.repeat(group), part.repeat(group)
        seconds = []
        for work in (partial(gather, whole, part), partial(scatter, part, whole), partial(dist.all_to_all_single, other, whole)):
            dist.barrier()
            seconds.append(float(f"{took_s(work, device, repeats, warmup):.4g}"))
        for kind, each_s in zip(KINDS, seconds, strict=True):
            yield kind, group, float(part.nbytes * (group - 1)), each_s


def collectives_of_all(device: torch.device, *, repeats: int, warmup: int) -> list[CollectiveRow] | None:
    """Under torchrun with several processes, `measured_collectives`: all on rank 0, else nothing; None: there is one process."""
    if int(os.environ.get("WORLD_SIZE", "1")) < 2:
        return None
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        rows = list(measured_collectives(device, repeats=repeats, warmup=warmup))
        return rows if dist.get_rank() == 0 else []
    finally:
        dist.destroy_process_group()
