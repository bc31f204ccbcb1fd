"""The host does not wait for the device while ops and collectives are issued: on a GPU it would no longer run ahead of it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
import torch
from runs.stage_blocks import WIDTH, Residual
from torch import nn
from torch.overrides import TorchFunctionMode

from schedc.runtime.replicas.buckets import Bucket, Partners, ShardedBucket
from schedc.runtime.stage.block import StageBlock

if TYPE_CHECKING:
    from collections.abc import Iterator

GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))
TENSOR: Any = torch.Tensor
READING = {getattr(TENSOR, name) for name in ("item", "tolist", "__bool__", "__int__", "__float__", "cpu", "numpy", "nonzero")}


class Waited(AssertionError):
    """The host has read what the device computes."""


class _Refusing(TorchFunctionMode):
    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in READING:
            raise Waited(function.__name__)
        return function(*args, **(kwargs or {}))


@contextmanager
def never_waiting(device: str) -> Iterator[None]:
    """Raises where the host would wait: as CUDA says, or, on a CPU, as what is called says."""
    if device == "cpu":
        with _Refusing():
            yield
        return
    debug: Any = torch.cuda.set_sync_debug_mode
    debug("error")
    try:
        yield
    finally:
        debug("default")


class Alone:
    """A group of one process, whose collectives are copies."""

    def size(self) -> int:
        return 1

    def rank(self) -> int:
        return 0

    def wait(self) -> None:
        """As work that is done."""

    def allreduce(self, _: Any) -> Alone:
        return self

    def _reduce_scatter_base(self, share: torch.Tensor, flat: torch.Tensor, _: Any) -> Alone:
        share.copy_(flat)
        return self


def stage_on(device: str, *, unused: bool = False) -> tuple[Any, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    stage: Any = nn.Sequential(Residual(), nn.Linear(WIDTH, WIDTH)).double().to(device)
    if unused:
        stage.register_parameter("unused", nn.Parameter(torch.zeros(3, dtype=torch.float64, device=device)))
    x = torch.randn(2, 3, WIDTH, dtype=torch.float64).to(device)
    return stage, x, torch.randn(2, 3, WIDTH, dtype=torch.float64).to(device)


def run_blocks(stage: nn.Module, x: torch.Tensor, gradient: torch.Tensor, *, split: bool) -> None:
    blocks = [StageBlock(stage, [x.clone().requires_grad_()], split=split) for _ in range(2)]
    for block in blocks:
        block.take()
        if split:
            block.backward_input((gradient,))
            block.take()
            block.backward_weight()
        else:
            block.backward((gradient,))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("zero", [0, 1])
def test_ops_and_collectives_of_a_step(zero: int, split: bool, device: str) -> None:
    stage, x, gradient = stage_on(device)
    group: Any = Alone()
    partners = Partners(group, "lost")
    named = dict(stage.named_parameters())
    bucket: Bucket | ShardedBucket
    if zero:
        bucket = ShardedBucket(0, {weight: name for name, weight in named.items()}, partners, 0)
    else:
        bucket = Bucket([[weight] for weight in named.values()], partners, "sums")
    run_blocks(stage, x, gradient, split=split)  # what is done once
    expected = {name: weight.grad.clone() for name, weight in named.items()}
    for _ in range(2):
        for weight in named.values():
            weight.grad = None
        with never_waiting(device):
            bucket.begin()
            run_blocks(stage, x, gradient, split=split)
            bucket.start()
            bucket.finish()
        if isinstance(bucket, ShardedBucket):
            found: dict[str, Any] = {shard.name: shard.weight.grad for shard in bucket.shards}
            for shard in bucket.shards:
                shard.weight.grad = None
        else:
            found = {name: weight.grad for name, weight in named.items()}
        for name, value in expected.items():
            assert found[name] is not None and torch.equal(found[name].reshape(value.shape), value)


@pytest.mark.parametrize("zero", [0, 1])
def test_a_weight_that_this_process_has_not_used_is_looked_for(zero: int) -> None:
    """Others may have a gradient of it; only then the host reads, and the test before would see it."""
    stage, x, gradient = stage_on("cpu", unused=True)
    group: Any = Alone()
    names = {weight: name for name, weight in stage.named_parameters()}
    bucket: Any = (
        ShardedBucket(0, names, Partners(group, "lost"), 0) if zero else Bucket([[w] for w in names], Partners(group, ""), "")
    )
    bucket.begin()
    run_blocks(stage, x, gradient, split=True)
    bucket.start()
    with pytest.raises(Waited, match="tolist"), never_waiting("cpu"):
        bucket.finish()
    bucket.begin()
    run_blocks(stage, x, gradient, split=True)
    bucket.start()
    bucket.finish()
    assert stage.unused.grad is None and all(
        one.weight.grad is None for one in getattr(bucket, "shards", []) if one.name == "unused"
    )
