"""What rank processes run in the tests of pipes: steps of a plan, beside the same model without a pipeline; what is refused."""

from __future__ import annotations

import gc
import logging
import os
import signal
from functools import partial
from logging.handlers import QueueHandler
from queue import SimpleQueue
from time import sleep
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import nn

import schedc.runtime
from runs.harness import (
    Orders,
    Run,
    cannot_go_on,
    gradients_of,
    living_tensors,
    load,
    make_batch,
    make_stages,
    noting,
    on_forward,
    relative_error,
    said,
    weights_of,
)
from schedc.ir.ops import token
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.common.groups import Groups
from schedc.runtime.common.hooks import Observer, OpTimes
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.stage.block import StageBlock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.ir.plan import Plan


def train(rank: int, plan: Plan, steps: int = 2, **options: Any) -> dict[str, Any]:
    """Train with the plan and without: the largest relative error of a gradient, both losses, whether the order was the plan's."""
    run, orders = Run(plan), Orders()
    errors, losses, expected = [], [], []
    with run.load(observe=orders, **options):
        for step in range(steps):
            run.clear()
            loss, right = run.step(step)
            losses.append(loss.item())
            expected.append(right.item())
            errors += run.gradient_errors()
            run.descend()
    in_order = orders.steps == [[token(op) for op in plan.ranks[rank].compute]] * steps
    return {"error": max(errors), "losses": losses, "expected": expected, "in_order": in_order}


def accumulate(rank: int, plan: Plan) -> float:
    """Two steps without `zero_grad` between: the largest error against the sum of both steps' gradients taken apart."""
    stages = make_stages(plan, rank)
    alone = []
    with load(plan, stages) as pipe:
        for step in range(2):
            pipe.step(*make_batch(plan, step))
            alone.append(gradients_of(stages))
            for weight in weights_of(stages):
                weight.grad = None
        for step in range(2):
            pipe.step(*make_batch(plan, step))
    sums = [one + other for one, other in zip(*alone, strict=True)]
    return max(relative_error(weight.grad, total) for weight, total in zip(weights_of(stages), sums, strict=True))


def live_things(rank: int, plan: Plan) -> tuple[list[int], list[int]]:
    """What the process holds in memory: blocks after each op of the first step, tensors after each of four steps."""
    blocks: list[int] = []
    counts: list[int] = []

    class Blocks(Observer):
        def op(self, times: OpTimes) -> None:
            if not counts:
                blocks.append(sum(type(thing) is StageBlock for thing in gc.get_objects()))

    with load(plan, make_stages(plan, rank), observe=Blocks()) as pipe:
        for step in range(4):
            pipe.step(*make_batch(plan, step))
            counts.append(living_tensors())
    return blocks, counts


ENDS = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "exit": lambda: os._exit(1),
    "raise": cannot_go_on,
}
"""How a rank ends, gets stuck or fails."""


def fail(rank: int, plan: Plan, culprit: int, way: str, timeout_s: float, **options: Any) -> list[str]:
    """Train until one rank fails in its third forward: this rank's error, the notes on it, and what a further step says."""
    stages = make_stages(plan, rank)
    if rank == culprit:
        on_forward(stages, 3, ENDS[way])
    pipe = load(plan, stages, timeout_s=timeout_s, **options)
    lines = []
    for step in range(2):
        try:
            pipe.step(*make_batch(plan, step))
        except Exception as error:
            lines += [said(error), *getattr(error, "__notes__", ())]
    return lines


def late(rank: int, plan: Plan, forwards: Sequence[int], late_s: float, **limits: float) -> list[str]:
    """Three steps in which rank 1 pauses before some of its forwards: what is said and logged, with the steps that have run."""
    stages, lines, logged = make_stages(plan, rank), list[str](), SimpleQueue[logging.LogRecord]()
    handler = QueueHandler(logged)
    logging.getLogger("schedc").addHandler(handler)
    for number in forwards if rank == 1 else ():
        on_forward(stages, number, partial(sleep, late_s))
    with noting(lines), load(plan, stages, **limits) as pipe:
        for step in range(3):
            pipe.step(*make_batch(plan, step))
            lines += (logged.get().getMessage() for _ in range(logged.qsize()))
            lines.append("stepped")
    logging.getLogger("schedc").removeHandler(handler)
    return lines


class Ending(nn.Linear):
    """A stage whose process ends when its weights are first looked at."""

    def parameters(self, recurse: bool = True) -> Any:
        os._exit(1)


def load_without(rank: int, plan: Plan, culprit: int, comes: bool) -> str:
    """Load, but for one rank, which ends before it or in it."""
    if rank == culprit and not comes:
        os._exit(1)
    stages = make_stages(plan, rank)
    load(plan, {stage: Ending(1, 1) for stage in stages} if rank == culprit else stages, timeout_s=60.0 if comes else 2.0)
    return "loaded"


def refuse(
    rank: int,
    plans: Sequence[Any],
    stages: Sequence[Sequence[int]],
    seeds: Sequence[int] = (0, 0),
    own: Mapping[int, nn.Module] | None = None,
    each: Sequence[Mapping[str, Any]] = ({}, {}),
    **more: Any,
) -> str:
    """Load what is given for this rank, its own stages or such as are made from its seed.

    `more` goes to `load`, and what `each` has for this rank.
    """
    torch.manual_seed(seeds[rank])
    made = {stage: nn.Linear(2, 2) for stage in stages[rank]} if own is None else own
    pipe = load(plans[rank], made, **each[rank], **more)
    dist.barrier()  # none is loading any more
    pipe.close()
    return "accepted"


def said_at_load(rank: int, plan: Plan) -> list[str]:
    """What ranks exchange while they load, by its class."""
    given = list[str]()

    def noted(groups: Groups, value: object, *what: str) -> list[object]:
        given.append(type(value).__name__)
        return exchange(groups, value, *what)

    exchange = Groups.exchange
    with patch.object(Groups, "exchange", noted):
        load(plan, make_stages(plan, rank)).close()
    return given


def refuse_monitored(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse`, where rank 0 alone has a monitor."""
    return refuse(rank, plans, stages, observe=Observer() if rank else Monitor())


def refuse_sharing(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse`, where rank 1 would choose its order, and both have peers that would not know."""
    alone = [dist.new_group([0]), dist.new_group([1])]
    return refuse(rank, plans, stages, swap_group=alone[rank], each=({}, {"kind": ChoosingPipe}))


def refuse_built(rank: int, plans: Sequence[Any], sizes: Sequence[Sequence[int]]) -> str:
    """`refuse`, with stages of layers that have a width of this rank's sizes; 0: something that has no weights."""
    own = schedc.runtime.build_stages([nn.Linear(2, size) if size else nn.Identity() for size in sizes[rank]], plans[rank], rank)
    return refuse(rank, plans, [[], []], own=own)


def refuse_wide(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse`, where stage 0 is wider than the others."""
    return refuse(rank, plans, stages, own={stage: nn.Linear(2, 2 if stage else 3) for stage in stages[rank]})


def refuse_mirrored(rank: int, plans: Sequence[Any], stages: Sequence[Sequence[int]]) -> str:
    """`refuse` for a bidirectional plan, all stages with the same weights."""
    own = {stage: nn.Linear(2, 2) for stage in stages[rank]}
    for weight in weights_of(own):
        nn.init.ones_(weight)
    return refuse(rank, plans, stages, own=own)


def refuse_later(rank: int, plan: Plan) -> list[str]:
    """What steps after the first say to what does not fit on rank 1 alone: a batch, targets, weights; then to what does."""
    lines = list[str]()
    with load(plan, make_stages(plan, rank)) as pipe:
        inputs, targets = make_batch(plan, 0)
        pipe.step(inputs, targets)
        right = inputs, targets, None
        wrongs = (inputs[:0], targets[:0], None), (inputs, torch.tensor(1), None), (inputs, targets[1:], None), (*right[:2], [1.0])
        for wrong in *wrongs, right:
            own, its, weights = wrong if rank == 1 else right
            with noting(lines):
                pipe.step(own, its, weights=weights)
    return lines
