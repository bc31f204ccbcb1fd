"""What rank processes of `benchmarks/runtime` run whose steps are timed: stages that compute nothing, and what their steps take.

And stages that take their time, and connections that do: for steps whose times are to be predictable.
"""

from __future__ import annotations

import cProfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

import schedc.runtime
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.program import program_of
from schedc.runtime.execution.runner import Executor
from schedc.runtime.execution.wiring import Wiring
from schedc.runtime.stage.training import Training
from schedc.runtime.transports.base import only
from schedc.runtime.transports.gloo import GlooTransfer, GlooTransport, connect_gloo

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir.plan import Plan
    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.program import Instruction

LIMIT_S = 60.0
OP_S = 0.010
"""How long each F, B and W of a stage takes that takes its time."""


class Cost(NamedTuple):
    """What one op of a step takes, in microseconds, in the best of several runs; and how many ops and transfers a step has."""

    wall_us: float
    """By the clock, waiting for other ranks included."""
    thread_us: float
    """Of the processor, in the thread that runs the step."""
    compute_us: float
    """Of that, in the stages, their losses and autograd."""
    transport_us: float
    """Of that, in gloo's send, receive and wait."""
    ops: int
    transfers: int


class _Parts:
    """The processor time that the calling thread has spent in some methods."""

    def __init__(self) -> None:
        self.spent_ns = {"compute": 0, "transport": 0}

    def count(self, owner: type, name: str, part: str) -> None:
        """Count a method from now on."""
        method = getattr(owner, name)
        spent_ns, now_ns = self.spent_ns, time.thread_time_ns

        def counted(*arguments: Any) -> Any:
            begun_ns = now_ns()
            result = method(*arguments)
            spent_ns[part] += now_ns() - begun_ns
            return result

        setattr(owner, name, counted)


def _parts() -> _Parts:
    """Count what is not the executor's: what computes, and what carries."""
    parts = _Parts()
    parts.count(Training, "run", "compute")
    for owner, name in ((GlooTransport, "send"), (GlooTransport, "receive"), (GlooTransfer, "wait")):
        parts.count(owner, name, "transport")
    return parts


class Nothing:
    """Computes nothing: every op gives the same tensor, or as many of them as it must."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._output: Value = (torch.zeros(shape, requires_grad=True),)
        self._gradient: Value = (torch.zeros(shape),)

    def run(self, instruction: Instruction, values: Sequence[Value]) -> Sequence[Value]:
        return [self._gradient if gift.message.gradient else self._output for gift in instruction.gives]


def executor_alone(rank: int, plan: Plan, shape: tuple[int, ...], steps: int, repeats: int, profile: bool) -> Cost | str:
    """The executor with `Nothing` for its Compute, over the plan's real wires."""
    groups = Groups(LIMIT_S)
    wiring = Wiring(plan, groups, LIMIT_S, only(connect_gloo))
    executor = Executor(program=program_of(plan, rank), wiring=wiring, compute=Nothing(shape))

    def step() -> None:
        executor.run()
        wiring.finish()

    with ExitStack() as stack:
        stack.callback(groups.close)
        stack.callback(wiring.close)
        return _measured(step, plan, rank, steps, repeats, profile)


class Empty(nn.Module):
    """A stage without work, whose input and output are one and the same, but for the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)


class Scale(nn.Module):
    """A first stage with one weight, so that there is something to differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x * self.weight
        return result


def empty_stages(
    rank: int, plan: Plan, shape: tuple[int, ...], steps: int, repeats: int, profile: bool, seed: int | None = None
) -> Cost | str:
    """Whole steps of a pipe whose stages are empty, but for the first; the loss is a sum."""
    firsts = {path[0] for path in plan.problem.paths}
    stages: dict[int, nn.Module] = {stage: Scale() if stage in firsts else Empty() for stage in plan.problem.stages_on(rank)}
    batch = [torch.zeros(shape)] * plan.problem.microbatches
    with schedc.runtime.load(plan, stages=stages, loss_fn=lambda y, _: y.sum(), timeout_s=LIMIT_S, seed=seed) as pipe:
        return _measured(lambda: pipe.step(batch, batch), plan, rank, steps, repeats, profile)


def _measured(step: Callable[[], object], plan: Plan, rank: int, steps: int, repeats: int, profile: bool) -> Cost | str:
    """Run the step often; with `profile`, where the time goes instead of how much it is."""
    ops = len(plan.ranks[rank].compute)
    for _ in range(5):
        step()
    if profile:
        profiler = cProfile.Profile(time.thread_time)
        profiler.enable()
        for _ in range(steps):
            step()
        profiler.disable()
        return _profile_table(profiler, steps * ops)
    transfers = sum(len(channel.transfers) for channel in plan.ranks[rank].channels)
    parts = _parts()
    runs = []
    for _ in range(repeats):
        parts.spent_ns.update(compute=0, transport=0)
        wall_ns, thread_ns = time.perf_counter_ns(), time.thread_time_ns()
        for _ in range(steps):
            step()
        spent_ns = (time.perf_counter_ns() - wall_ns, time.thread_time_ns() - thread_ns, *parts.spent_ns.values())
        wall, thread, compute, transport = (ns / (steps * ops) / 1e3 for ns in spent_ns)
        runs.append(Cost(wall, thread, compute, transport, ops, transfers))
    return min(runs, key=lambda cost: cost.thread_us)


def _profile_table(profiler: cProfile.Profile, ops: int) -> str:
    """The functions that take the most time of their own, per op."""
    lines = [f"{'own us/op':>10}{'calls/op':>10}  function"]
    for entry in sorted(profiler.getstats(), key=lambda one: -one.inlinetime)[:22]:
        code = entry.code
        where = code if isinstance(code, str) else f"{Path(code.co_filename).name}:{code.co_firstlineno} {code.co_name}"
        lines.append(f"{entry.inlinetime / ops * 1e6:>10.2f}{entry.callcount / ops:>10.2f}  {where}")
    return "\n".join(lines)


class Slow:
    """A group whose messages to one rank, from this one, are late."""

    def __init__(self, group: Any, peer: int, latency_s: float) -> None:
        self._group, self._peer, self._latency_s = group, peer, latency_s

    def __getattr__(self, name: str) -> Any:
        """All else is the group's."""
        return getattr(self._group, name)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        """As the group's."""
        return Late(partial(self._group.send, tensors, peer, tag), self._latency_s if peer == self._peer else 0.0)


class Late:
    """What a thread sends when its time has come."""

    def __init__(self, send: Callable[[], Any], latency_s: float) -> None:
        self._work: Any = None
        self._sent = threading.Event()
        self._send = send
        timer = threading.Timer(latency_s, self._run)
        timer.daemon = True
        timer.start()

    def _run(self) -> None:
        self._work = self._send()
        self._sent.set()

    def wait(self, *limit: Any) -> None:
        self._sent.wait()
        self._work.wait(*limit)


class Work(torch.autograd.Function):
    """Waits as long as an op takes, and gives what it gets."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """F."""
        time.sleep(OP_S)
        return x + weight

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        """B and W together."""
        (gradient,) = gradients
        time.sleep(2 * OP_S)
        return gradient, gradient.sum()


class Stage(nn.Module):
    """A stage that takes its time, and has a buffer and a weight to put back."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))
        self.register_buffer("table", torch.zeros(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """F."""
        work: Any = Work
        y: torch.Tensor = work.apply(x, self.weight)
        return y
