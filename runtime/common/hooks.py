"""What a pipe calls in a step: observers, which are told what happens, and hooks between a stage and its replicas.

The built-in data parallelism is one user of the hooks (`schedc.runtime.replicas.collectives`); a job may pass its own to `load`.
Times are on `time.perf_counter_ns` of the rank's process.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Op, Plan

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from schedc.runtime.common.program import ShardMoment


class OpTimes(NamedTuple):
    """One op of a step."""

    op: Op
    asked_ns: int
    """When the rank was free for it: the op before it had ended."""
    begun_ns: int
    """When its work began: what it waited for had come."""
    ended_ns: int


class Observer:
    """Called with what happens in the steps of one rank; these methods do nothing, override those that matter.

    They run in the thread of the step, between its ops: keep them short.
    """

    joint = False
    """Whether it agrees with those of other ranks while they train: then all ranks load with one that does, or none."""

    def begin_step(self, step: int, now_ns: int) -> None:
        """Step number `step` of this pipe begins; the first is 0."""

    def op(self, times: OpTimes) -> None:
        """An op has run. On a GPU this is called after the step, when its events are known; always in the order of the queue."""

    def sent(self, transfer: Op, peer: int, now_ns: int) -> None:
        """At this time the rank began to hand a transfer, named by the op that produced it, to its channel to rank `peer`."""

    def taken(self, transfer: Op, peer: int, now_ns: int) -> None:
        """A transfer from rank `peer` had come by now, when an op takes it; it may have come earlier."""

    def swapped(self, plan: Plan) -> None:
        """From the next step on, another plan runs."""

    def end_step(self, step: int, now_ns: int) -> None:
        """The step has ended on this rank, losses and collectives included."""


class Observers(Observer):
    """Several of them, called one after the other."""

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Take them."""
        self.all = tuple(observers)
        self.joint = any(observer.joint for observer in self.all)
        for name in ("begin_step", "op", "sent", "taken", "swapped", "end_step"):
            setattr(self, name, partial(_call_each, [getattr(observer, name) for observer in self.all]))


def _call_each(methods: Sequence[Callable[..., None]], *arguments: Any) -> None:
    for method in methods:
        method(*arguments)


def observers_in(observer: Observer | None) -> tuple[Observer, ...]:
    """Those that one is, or is several of."""
    return observer.all if isinstance(observer, Observers) else () if observer is None else (observer,)


class ReplicaHooks:
    """Called in every step of one rank, in the thread of the step; these methods do nothing, override those that matter.

    An exception that one of them raises leaves `step` and closes the pipe, so that the other ranks fail as well.
    """

    pipelines: int = 1
    """The step divides its gradients by this number, so that their sum over this many pipelines belongs to the mean loss of all."""

    agrees: bool = False
    """Whether `end_step` agrees on `step_counts` with the other pipelines: a step that does not count runs again, with all hooks,
    in all pipelines or in none. Where hooks do not do that, a channel that fails ends the step, though another could take over."""
    step_counts: bool = True
    """Before `end_step`: whether the step counts in this pipeline, or runs again since a channel has failed. After it: whether it
    counts in all pipelines."""

    way: Sequence[float] = ()
    """Before `end_step`: what this pipeline divides its losses by, and scales its gradients with; to be the same in all."""

    def begin_call(self, call: str, *, fits: bool = True) -> None:
        """First of all in a step, an evaluation or a gather: what this pipeline is called for, which is to be the same in all.

        Before a step or an evaluation, `fits` is on the ranks with inputs whether the batch fits in this pipeline.
        """

    def begins(self, fits: bool) -> bool:
        """Then, on the ranks with inputs: whether the call begins, the same in all pipelines; it should if the batch fits in all.

        Hooks that do not know what others say let it begin: where it does not fit, a pipe that begins is closed.
        """
        return fits or self.pipelines > 1

    def begin_step(self) -> None:
        """Before the step's first op. The stages' `.grad` are what they were before the step."""

    def on_weights_needed(self, stage: int) -> None:
        """Before the first F of a stage of this rank; return when the stage's weights are those that the step is to use."""

    def on_gradients_complete(self, stage: int) -> None:
        """After the last W or BW of a stage: the step adds nothing more to its weights' `.grad`.

        Start what replicas do with them, and return: the rank's next op waits. A weight that two stages share is complete with the
        later of the two.
        """

    def at(self, moment: ShardMoment) -> None:
        """Between two ops, in place of the two above, where the plan says when sharded weights are gathered and released."""

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        """After the step's last op and transfer: return when the gradients are what the optimizer is to see.

        Args:
            loss: the mean loss of this pipeline, a float64 scalar on the CPU, the same on all its ranks.

        Returns:
            What `step` returns; the same on all ranks of the pipeline.
        """
        return loss

    def total(self, value: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """Over all pipelines the sum, or the largest, of a float64 scalar on the CPU; the same rank of all calls it together."""
        if self.pipelines > 1:
            raise Unsupported("this needs a sum over pipelines; give the hooks passed to load as replicas a method total")
        return value

    def gather(self) -> None:
        """Make the modules' weights whole after the optimizer's step, for a checkpoint; all replicas do this together."""

    def shards(self) -> list[Any]:
        """What this process owns of its stages' weights.

        Raises:
            InvalidInput: the weights are not sharded.
        """
        raise InvalidInput("there are no shards: load was given no data_parallel_group; the modules' parameters are the weights")

    def check_swap(self, running: Plan, other: Plan) -> None:
        """Refuse to move from one plan to another, which moves no stage.

        Raises:
            InvalidInput: says why not.
        """

    def close(self) -> None:
        """The pipe is closed; closing again does nothing."""


def shards_of(hooks: ReplicaHooks) -> list[Any] | None:
    """As `ReplicaHooks.shards`; None: the weights are not sharded."""
    try:
        return hooks.shards()
    except InvalidInput:
        return None


def check_same_way(ways: Sequence[Sequence[float]], what: str) -> None:
    """Refuse a step whose loss would be neither a sum nor a mean.

    Args:
        ways: of each of them what its losses are divided by, and the scale of its gradients.
        what: they are, for the message: `pipelines`.

    Raises:
        InvalidInput: they differ.
    """
    other = next((way for way in ways if way != ways[0]), None)
    if other is not None:
        (divisor, scale), (second, another) = ways[0], other
        differ = f"divide the loss by {divisor:g} and {second:g}"
        if divisor == second:
            differ = f"scale the gradients by {scale:g} and {another:g}"
        raise InvalidInput(f"two {what} {differ}; give step the same divide_by and scale in all, and weights in all or in none")
