"""What rank processes run in the tests of delayed links, recorders and monitors."""

from __future__ import annotations

import time
from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from runs.harness import gradients_of, load, make_batch, make_stages, noting
from schedc.ir.ops import Kind, Op
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.program import Message, Wire
from schedc.runtime.emulation.injected import Injection, inject_links
from schedc.runtime.execution.channels import TAGS
from schedc.runtime.measure.clocks import clock_offsets
from schedc.runtime.measure.recording import Recorder, write_trace
from schedc.runtime.transports.gloo import connect_gloo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.execution.wiring import Wrap
    from schedc.runtime.measure.clocks import ClockOffset

KIND = TensorMeta(torch.float32, (3,))


def wire_of(source: int, destination: int, count: int) -> Wire:
    """A wire with some transfers, all outputs of its source's stage."""
    return Wire(
        source=source,
        destination=destination,
        name="send",
        receiver_name="recv",
        transfers=tuple(Op(Kind.F, source, m) for m in range(count)),
        messages=tuple(Message(False, source, destination, m, source) for m in range(count)),
    )


def exchange(
    rank: int, problem: Problem, pairs: Sequence[tuple[int, int]], count: int, late_s: float = 0.0, hosts: bool = False
) -> dict[tuple[int, int], list[Any]]:
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
    finally:
        groups.close()
    return found


def train_delayed(rank: int, plan: Plan, injected: Sequence[bool], trace: LinkTrace | None = None) -> tuple[int, list[Any]]:
    """One step, and one more that is timed: its nanoseconds and the gradients."""
    stages = make_stages(plan, rank)
    with load(plan, stages, wrap=partial(inject_links, trace=trace) if injected[rank] else None) as pipe:
        pipe.step(*make_batch(plan, 0))
        begun_ns = perf_counter_ns()
        pipe.step(*make_batch(plan, 1))
        taken_ns = perf_counter_ns() - begun_ns
    return taken_ns, [gradient.tolist() for gradient in gradients_of(stages)]


def train_and_write(rank: int, plan: Plan, steps: int, path: Path, keep: int, skip: int) -> list[tuple[int, int]]:
    """Train with a recorder and write its trace; when each step began and ended here."""
    recorder = Recorder(keep, skip=skip)
    times = []
    with load(plan, make_stages(plan, rank), observe=recorder) as pipe:
        for step in range(steps):
            begin_ns = perf_counter_ns()
            pipe.step(*make_batch(plan, step))
            times.append((begin_ns, perf_counter_ns()))
        write_trace(recorder, plan, dist.new_group(backend="gloo"), path)
    return times


def train_and_fail_to_write(rank: int, plan: Plan, other: Plan, directory: Path) -> list[str]:
    """What writing says without a step, for another plan, into no directory, and with steps that only one rank has."""
    group = dist.new_group(backend="gloo")
    recorder, late = Recorder(skip=0), Recorder(skip=rank)
    lines = list[str]()

    def attempt(heard: Recorder, of: Plan, path: Path) -> None:
        with noting(lines):
            write_trace(heard, of, group, path)
            lines.append("written")

    attempt(recorder, plan, directory / "trace.json")
    for heard in (recorder, late):
        with load(plan, make_stages(plan, rank), observe=heard) as pipe:
            for step in range(2):
                pipe.step(*make_batch(plan, step))
    attempt(recorder, other, directory / "trace.json")
    attempt(recorder, plan, directory / "nowhere" / "trace.json")
    attempt(late, plan, directory / "trace.json")
    return lines


def offsets(rank: int) -> list[ClockOffset]:
    """The clocks of all ranks, on rank 0."""
    return clock_offsets(dist.new_group(backend="gloo"))


def monitor_steps(
    rank: int,
    plan: Plan,
    steps: int,
    trace: LinkTrace | None = None,
    at_steps: Mapping[int, int] | None = None,
    monitored: bool = True,
    least_gap_s: float = 0.0,
    **options: Any,
) -> dict[str, Any]:
    """Train with a monitor, over links that change at given steps.

    Args:
        rank: this one.
        plan: what is run.
        steps: how many.
        trace: of links that are injected; None: none are.
        at_steps: by step, to which nanosecond the trace's clock is set before it.
        monitored: whether with a monitor.
        least_gap_s: as of `Monitor`.
        options: of `load`.

    Returns:
        By step, what has changed by then; every how many steps one is measured; the gradients; of each link to here, alarms,
        confirmed, rejected and unanswered.
    """
    monitor, injections = Monitor(least_gap_s=least_gap_s), []

    def inject(problem: Problem, groups: Groups, device: torch.device) -> Wrap:
        injections.append(Injection(problem, groups, device=device, trace=trace))
        return injections[0].wrap

    wrap = monitor.wrap if trace is None else partial(monitor.wrap, around=inject)
    stages = make_stages(plan, rank)
    found = []
    with load(plan, stages, **({"observe": monitor, "wrap": wrap} if monitored else {}), **options) as pipe:
        for step in range(steps):
            if step in (at_steps or {}):
                injections[0].clock.start(perf_counter_ns() - (at_steps or {})[step])
            pipe.step(*make_batch(plan, step))
            found.append(monitor.conditions())
    monitor.close()
    return {
        "found": found,
        "every": monitor.every,
        "gradients": [gradient.tolist() for gradient in gradients_of(stages)],
        "watches": {
            peer: (watch.alarms, watch.confirmed, watch.rejected, watch.unanswered) for peer, watch in monitor.links.items()
        },
    }


def move(rank: int, plans: Sequence[Plan], steps: int) -> list[Any]:
    """Train with one plan after the other, and evaluate between them; then load anew, and close the monitor while training.

    Returns:
        The gradients of the last plan, which links have been watched, whether the last plan ran; and after the second load what the
        monitor said at first, which links it has watched, and whether a step after its end gave the same loss as before.
    """
    monitor, stages = Monitor(), make_stages(plans[0], rank)
    watching = {"observe": monitor, "wrap": monitor.wrap}
    with load(plans[0], stages, **watching) as pipe:
        for number, plan in enumerate(plans):
            if number:
                pipe.evaluate(*make_batch(plan, 0))
                pipe.swap(plan)
            for step in range(steps):
                for module in stages.values():
                    module.zero_grad()
                pipe.step(*make_batch(plan, step))
        ran = pipe.plan.ranks == plans[-1].ranks
        pipe.evaluate(*make_batch(plans[-1], 0))  # as the next step, this has no stamps where steps are short
    gradients = [gradient.tolist() for gradient in gradients_of(stages)]
    watched = sorted(monitor.links)
    with load(plans[0], stages, **watching) as pipe:
        first = monitor.conditions()
        losses = [pipe.step(*make_batch(plans[0], 0)).item() for _ in range(steps)]
        again = sorted(monitor.links)
        if rank == 0:
            monitor.close()
        losses += [pipe.step(*make_batch(plans[0], 0)).item() for _ in range(steps)]
    monitor.close()
    return [gradients, watched, ran, first, again, len(set(losses)) == 1]
