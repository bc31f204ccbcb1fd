"""What the rank processes of benchmarks/runtime/gpu.py and two_gpus.py run: a pipeline of two ranks, on one GPU or on two."""

from __future__ import annotations

import json
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import schedc.runtime
from runs.harness import on_forward, relative_error
from runs.pipeline_runs import ENDS

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.transports.choice import Channels

MS = 1e3
"""A trace's times are microseconds."""


def make_stage(index: int, width: int, depth: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Linear layers with norms, always with the same weights."""
    torch.manual_seed(index)
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()]
    return nn.Sequential(*layers).to(device=device, dtype=dtype)


def loss_fn(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean square, in single precision."""
    return nn.functional.mse_loss(output.float(), targets.float())


def make_batch(plan: Plan, width: int, samples: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator(device).manual_seed(7)
    shape = (2, samples * plan.problem.microbatches, width)
    batch = torch.randn(shape, generator=generator, device=device).to(dtype)
    return batch[0], batch[1]


def equal(
    rank: int,
    plan: Plan,
    dtype_name: str,
    width: int,
    depth: int,
    samples: int,
    device_name: str = "cuda:0",
    channels: Channels = "delegate",
    breaks: bool = False,
) -> dict[str, Any]:
    """The largest relative error of a gradient against the model without a pipeline, microbatch by microbatch, and both losses.

    `device_name` may have `{rank}` in it. `breaks`: rank 0 gives up the first of two channels after the first step.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    device, dtype = torch.device(device_name.format(rank=rank)), getattr(torch, dtype_name)
    count = len(plan.problem.stages)
    whole = [make_stage(index, width, depth, dtype, device) for index in range(count)]
    own = {index: make_stage(index, width, depth, dtype, device) for index in plan.problem.stages_on(rank)}
    inputs, targets = make_batch(plan, width, samples, dtype, device)
    with (
        warnings.catch_warnings(record=True) as told,
        schedc.runtime.load(plan, stages=own, loss_fn=loss_fn, channels=channels) as pipe,
    ):
        warnings.simplefilter("always")
        for step in range(4 if breaks else 2):
            if breaks and step == 1 and rank == 0:
                for ends in pipe.steps.wiring._ends.values():
                    ends.give_up()
            for stage in own.values():
                stage.zero_grad()
            loss = float(pipe.step(inputs, targets))
    expected = 0.0
    microbatches = plan.problem.microbatches
    for x, y in zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True):
        part = loss_fn(nn.Sequential(*whole)(x), y) / microbatches
        torch.autograd.backward(part)
        expected += float(part.detach())
    pairs = [pair for index, stage in own.items() for pair in zip(stage.parameters(), whole[index].parameters(), strict=True)]
    error = max(relative_error(mine.grad, other.grad) for mine, other in pairs)
    return {"error": error, "loss": loss, "expected": expected, "told": [str(warning.message) for warning in told]}


def look(module: nn.Module, inputs: Any) -> None:
    """Look at what comes."""
    float(inputs[0].detach().sum())


def lose_peer(rank: int, plan: Plan, channels: Channels, timeout_s: float, device_name: str, way: str) -> tuple[str, float, float]:
    """Rank 0 ends (`ends`) or sleeps (`sleeps`) in the second step: what rank 1 says, after how many seconds; and what it computes
    on its device afterwards, which must be 64."""
    device = torch.device(device_name.format(rank=rank))
    own = {index: make_stage(index, 64, 2, torch.float32, device) for index in plan.problem.stages_on(rank)}
    for stage in own.values() if rank == 1 else ():  # looks at what comes, for which the host waits in CUDA, without a limit
        stage.register_forward_pre_hook(look)
    inputs, targets = make_batch(plan, 64, 4, torch.float32, device)
    said, waited_s = "nothing", 0.0
    with schedc.runtime.load(plan, stages=own, loss_fn=loss_fn, channels=channels, timeout_s=timeout_s) as pipe:
        pipe.step(inputs, targets)
        if rank == 0 and way == "ends":
            on_forward(own, 1, ENDS["exit"])
        elif rank == 0:
            time.sleep(6 * timeout_s)
        begun_s = time.monotonic()
        try:
            pipe.step(inputs, targets)
        except schedc.runtime.TransferFailed as error:
            said, waited_s = str(error), time.monotonic() - begun_s
    return said, waited_s, float(torch.ones(64, device=device).sum())


def overlap(rank: int, plan: Plan, width: int, depth: int, samples: int) -> dict[str, Any]:
    """From a profiler's trace of one step: how long the GPU copied, and for how much of that this rank's kernels ran."""
    from torch.profiler import ProfilerActivity, profile

    device, dtype = torch.device("cuda", 0), torch.bfloat16
    own = {index: make_stage(index, width, depth, dtype, device) for index in plan.problem.stages_on(rank)}
    inputs, targets = make_batch(plan, width, samples, dtype, device)
    with schedc.runtime.load(plan, stages=own, loss_fn=loss_fn, channels="delegate") as pipe:
        for _ in range(3):
            pipe.step(inputs, targets)
        with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as trace:
            pipe.step(inputs, targets)
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "trace.json"
        trace.export_chrome_trace(str(path))
        return read_overlap(json.loads(path.read_text())["traceEvents"])


def read_overlap(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Copies between host and device on other streams than the kernels', and their time beside a kernel, in milliseconds."""
    kernels = [event for event in events if event.get("cat") == "kernel"]
    copies = [event for event in events if event.get("cat") == "gpu_memcpy" and "DtoD" not in event["name"]]
    busy = {event["args"]["stream"] for event in kernels}
    apart = [copy for copy in copies if copy["args"]["stream"] not in busy]
    spans = sorted((event["ts"], event["ts"] + event["dur"]) for event in kernels)
    beside = sum(
        max(0.0, min(end, copy["ts"] + copy["dur"]) - max(begin, copy["ts"])) for copy in apart for begin, end in spans
    )  # kernels of one stream do not overlap
    return {
        "kernel_streams": len(busy),
        "copy_streams": len({copy["args"]["stream"] for copy in apart}),
        "copies": len(apart),
        "copy_ms": sum(copy["dur"] for copy in apart) / MS,
        "beside_ms": beside / MS,
    }
