"""What the rank processes of the tests of injected delays run."""

from __future__ import annotations

import time
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch

import schedc.runtime
from runs.pipeline_runs import loss_fn, make_batch, make_stages
from schedc.errors import SchedcError
from schedc.ir.ops import Kind, Op
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.program import Message, Wire
from schedc.runtime.emulation.injected import Injection, inject_links
from schedc.runtime.execution.channels import TAGS
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

KIND = TensorMeta(torch.float32, (3,))


def wire_of(source: int, destination: int, count: int) -> Wire:
    """A wire with some transfers, all outputs of its source's stage."""
    return Wire(
        source=source,
        destination=destination,
        name="send",
        receiver_name="recv",
        transfers=tuple(Op(Kind.F, source, m) for m in range(count)),
        messages=tuple(Message(False, source, m) for m in range(count)),
    )


def exchange(
    rank: int, problem: Problem, pairs: Sequence[tuple[int, int]], count: int, late_s: float = 0.0, hosts: bool = False
) -> Any:
    """Send messages on each of the pairs: when each was sent, or when each was there and what it said.

    Args:
        rank: this one.
        problem: whose links are injected.
        pairs: which ranks send to which.
        count: how many messages.
        late_s: how much later than the sends the receives are posted.
        hosts: whether the ranks think that each has a host of its own.
    """
    groups = Groups(60)
    try:
        with patch("schedc.runtime.emulation.injected.clock_name", lambda: f"host {rank}" if hosts else "host"):
            injection = Injection(problem, groups)
        ends = {}
        for source, destination in pairs:
            if rank in (source, destination):
                wire = wire_of(source, destination, count)
                ends[source, destination] = injection.wrap(wire, connect_gloo(wire, groups)).data
        found: dict[tuple[int, int], list[Any]] = {}
        groups.exchange(None)
        for (source, destination), end in ends.items():
            if rank == source:
                sends = []
                found[source, destination] = times = []
                for at in range(count):
                    times.append(perf_counter_ns())
                    sends.append(end.send(torch.full(KIND.shape, float(at)), at * TAGS))
                for sent in sends:
                    sent.wait(60)
            else:
                time.sleep(late_s)
                expected = [end.receive(KIND, at * TAGS) for at in range(count)]
                values = [(incoming.wait(60), perf_counter_ns()) for incoming in expected]
                found[source, destination] = [(value.tolist(), when) for value, when in values]
        groups.exchange(None)
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        groups.close()
    return found


def train(rank: int, plan: Plan, injected: Sequence[bool], trace: LinkTrace | None = None) -> Any:
    """One step, and one more that is timed: its nanoseconds and the gradients; or why `load` refuses."""
    stages = make_stages(plan, rank)
    try:
        wrap = partial(inject_links, trace=trace) if injected[rank] else None
        pipe = schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=60, wrap=wrap)
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    with pipe:
        pipe.step(*make_batch(plan, 0))
        begun_ns = perf_counter_ns()
        pipe.step(*make_batch(plan, 1))
        taken_ns = perf_counter_ns() - begun_ns
    gradients = [
        parameter.grad.tolist() for stage in stages.values() for parameter in stage.parameters() if parameter.grad is not None
    ]
    return taken_ns, gradients
