"""What the rank processes of the fault tests run: steps in which something goes wrong, and what each rank says to it and when.

Times are on `time.monotonic`, which all processes of a host share.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, NamedTuple

import torch
from rank_processes import gave_up, until_others_give_up
from torch import nn

import schedc.runtime
from runs.pipeline_runs import loss_fn, make_batch, make_stages
from schedc.ir.ops import token
from schedc.runtime.common.hooks import Observer, OpTimes

if TYPE_CHECKING:
    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan


class Said(NamedTuple):
    """What a rank has said to a fault."""

    error: str | None
    """`Type: message`; None: the steps went well."""
    at_s: float
    """When."""


def said_to(error: BaseException) -> Said:
    """The error and its notes, now."""
    return Said(" / ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", ())]), time.monotonic())


class Death(NamedTuple):
    """How and when a process ends itself."""

    rank: int
    after: int
    """The number of the op after which its last moments begin, over all steps; 0: before the first."""
    fraction: float
    """How far into the next op, in units of the time that an op has taken so far on average."""
    way: str
    """`kill` or `exit`."""
    diary: str
    """The file that gets its last words: when, and in which op."""


class Dying(Observer):
    """Ends the process at an arbitrary moment: a second thread does it, wherever the first then is."""

    def __init__(self, plan: Plan, death: Death) -> None:
        self._ops = plan.ranks[death.rank].compute
        self._death = death
        self._ran = 0
        self._begun_s = 0.0

    def begin_step(self, step: int, now_ns: int) -> None:
        if self._ran == 0:
            self._begun_s = time.monotonic()
            self._watch()

    def op(self, times: OpTimes) -> None:
        self._ran += 1
        self._watch()

    def _watch(self) -> None:
        if self._ran == self._death.after:
            spent_s = time.monotonic() - self._begun_s
            delay_s = self._death.fraction * (spent_s / self._ran if self._ran else 0.002)
            Thread(target=self._end, args=(delay_s, self._ops[self._ran % len(self._ops)]), daemon=True).start()

    def _end(self, delay_s: float, op: Op) -> None:
        time.sleep(delay_s)
        Path(self._death.diary).write_text(f"{time.monotonic()} {token(op)}", encoding="utf-8")
        if self._death.way == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(1)


def die(rank: int, plan: Plan, death: Death, timeout_s: float) -> Said:
    """Train until one rank ends itself."""
    observe = Dying(plan, death) if rank == death.rank else None
    pipe = schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=timeout_s, observe=observe)
    try:
        for step in range(10_000):
            pipe.step(*make_batch(plan, step))
    except schedc.runtime.TransferFailed as error:
        return said_to(error)
    return Said(None, time.monotonic())


class Late(nn.Module):
    """A stage that sleeps once, in its third forward; None: until another rank has given up."""

    def __init__(self, inner: nn.Module, seconds: float | None) -> None:
        super().__init__()
        self.inner = inner
        self.seconds = seconds
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 3:
            until_others_give_up() if self.seconds is None else time.sleep(self.seconds)
        result: torch.Tensor = self.inner(x)
        return result


def be_late(rank: int, plan: Plan, culprit: int, seconds: float | None, timeout_s: float) -> tuple[Said, list[float]]:
    """Three steps with a rank that is late once: the error if any, and the losses of the steps."""
    stages = make_stages(plan, rank)
    if rank == culprit:
        stages = {stage: Late(module, seconds) for stage, module in stages.items()}
    losses: list[float] = []
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=timeout_s) as pipe:
            for step in range(3):
                losses.append(pipe.step(*make_batch(plan, step)).item())
    except Exception as error:
        gave_up()
        return said_to(error), losses
    return Said(None, time.monotonic()), losses


def lose_numbers(
    rank: int, plan: Plan, wrong: dict[int, float], check_loss: bool
) -> list[tuple[Said, float | None, list[float], bool]]:
    """Three steps; in the second, the losses of the microbatches `wrong` become what it says.

    Returns:
        Of each step the error, the loss, the microbatches' losses, and whether all gradients are finite.
    """
    stages = make_stages(plan, rank)
    parameters = list(nn.ModuleList(stages.values()).parameters())
    results: list[tuple[Said, float | None, list[float], bool]] = []
    count = plan.problem.microbatches
    samples = len(make_batch(plan, 0)[0]) // count

    def loss_of(logits: torch.Tensor, numbered: torch.Tensor) -> torch.Tensor:
        number, targets = int(numbered[0, 0]), numbered[:, 1:]
        loss = loss_fn(logits, targets)
        return loss * wrong[number] if len(results) == 1 and number in wrong else loss

    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_of, timeout_s=60, check_loss=check_loss) as pipe:
        for step in range(3):
            for parameter in parameters:
                parameter.grad = None
            inputs, targets = make_batch(plan, step)
            numbers = torch.arange(count).repeat_interleave(samples)[:, None]
            said, total = Said(None, time.monotonic()), None
            try:
                total = pipe.step(inputs, torch.cat([numbers, targets], 1)).item()
            except schedc.runtime.NonFiniteLoss as error:
                said = said_to(error)
            finite = all(bool(parameter.grad.isfinite().all()) for parameter in parameters if parameter.grad is not None)
            results.append((said, total, pipe.losses.tolist(), finite))
    return results


class Reshaping(nn.Module):
    """A stage whose output has another width than the next one takes; from forward `after` on."""

    def __init__(self, inner: nn.Module, after: int) -> None:
        super().__init__()
        self.inner = inner
        self.after = after
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y: torch.Tensor = self.inner(x)
        return torch.cat([y, y], -1) if self.calls > self.after else y


def misfit(rank: int, plans: list[Plan], culprit: int | None, after: int, timeout_s: float) -> Said:
    """Load plan `plans[rank]` and run two steps; the culprit's stages change their outputs' width after `after` forwards."""
    plan = plans[rank]
    try:
        stages = make_stages(plan, rank) if rank < plan.problem.ranks else {}
        if rank == culprit:
            stages = {stage: Reshaping(module, after) for stage, module in stages.items()}
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=timeout_s) as pipe:
            for step in range(2):
                pipe.step(*make_batch(plan, step))
    except Exception as error:
        return said_to(error)
    return Said(None, time.monotonic())


def grow(rank: int, plan: Plan, steps: int, every: int) -> list[tuple[int, int]]:
    """Train; after each `every` steps, the process's resident bytes and the number of living tensors."""
    found = []
    with schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60) as pipe:
        for step in range(steps):
            pipe.step(*make_batch(plan, step % 8))
            if (step + 1) % every == 0:
                gc.collect()
                living = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
                pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
                found.append((pages * os.sysconf("SC_PAGE_SIZE"), living))
    return found
