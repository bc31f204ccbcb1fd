"""The list scheduler: a Problem and a Rule in, a Schedule and its end out.

It runs the pipeline forward in time. Whenever a rank is free it starts the op that goes first among those that are ready and that
memory admits; it never strands itself, on any placement (the proof is at `list_kernel.admits`). Links and trunks are served in
order of ready time, as the cost model has it, so the end that it returns is the one that the schedule really has; only where a
trunk is shared and durations are 0 does it not tell the moments within a nanosecond apart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schedc.compiled.compiler import at_hand, compile_ahead, compiled
from schedc.ir import Kind, Parts, Problem, Schedule
from schedc.solvers.kernel.joints import NO_ROOM, Room, takes_joints
from schedc.solvers.kernel.list_kernel import run_chain_rule, run_rule
from schedc.solvers.kernel.scheduler_state import Rule, scheduler_of, set_rule
from schedc.solvers.kernel.tables import SchedulerState, as_arrays, ops_of, read_back, refresh

if TYPE_CHECKING:
    from collections.abc import Callable

COMPILE_FROM_OPS = 100_000
"""From this many ops on, over all rules, the compiled kernel pays for importing numba. Until it is at hand, the plain one runs."""
COMPILE_ANEW_FROM_OPS = 1_000_000
"""From this many ops on, compiling it takes less than running plain to the end; for fewer, the child process that compiles would
only take a processor from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSchedule:
    """What the list scheduler made.

    Its ops are packed into integers until `schedule` is asked for: making that many objects costs as much as finding their order,
    and most rules that are tried are not kept.
    """

    packed: tuple[tuple[int, ...], ...]
    """Per rank, codes of `tables`, as are the next two."""
    stages: int
    width: int
    parts_of: tuple[int, ...]
    """Per stage, into how many parts its W are cut where they are."""
    end_ns: int
    """When the last op or collective ends, by the scheduler's own clock."""
    span_ns: int
    """The longest time from the first start to the last end on one rank."""

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        orders = tuple(ops_of(codes, self.stages, self.width) for codes in self.packed)
        cut = {op.stage for order in orders for op in order if op.part >= 0} if max(self.parts_of) > 1 else ()
        parts = tuple(Parts(kind=Kind.W, stage=stage, shares=(1,) * self.parts_of[stage]) for stage in sorted(cut))
        return Schedule(orders=orders, parts=parts)

    def objective_ns(self, objective: str) -> int:
        """What the problem's objective makes of it."""
        return self.span_ns if objective == "stage-span" else self.end_ns


class ListScheduler:
    """The list scheduler for one problem, of which many rules may be tried."""

    def __init__(self, problem: Problem, *, n_sub: int = 1, rules: int = 1, room: Room = NO_ROOM) -> None:
        """Prepare for about this many rules, which cut a W into at most `n_sub` parts.

        Raises:
            Unsupported: a rank's memory limit does not hold one microbatch.
        """
        self.problem = problem
        self._n_sub = n_sub
        self._scheduler = scheduler_of(problem, n_sub, room=room)
        self._arrays: SchedulerState | None = None
        ops = 3 * len(self._scheduler.blocks) * rules
        self._large = ops >= COMPILE_FROM_OPS
        if ops >= COMPILE_ANEW_FROM_OPS:
            compile_ahead(rule_kernel(problem))

    def __call__(self, rule: Rule) -> ListSchedule:
        """The schedule that the rule gives. Its memory peaks never exceed the problem's limits.

        But of a graph, values that wait for others may, as `Room` says.
        Backwards are split into B and W where the problem allows it, else fused. A W is cut only where something else ran between
        its parts. Warm-up counts are lowered to what the microbatches, the caps, the memory limits and the stage before allow: no
        stage could wait for more.

        Raises:
            ValueError: the rule does not fit the problem's stages, or cuts a W into more parts than the scheduler is prepared for.
        """
        if rule.n_sub > self._n_sub:
            raise ValueError(f"n_sub is {rule.n_sub}; expected at most {self._n_sub}, which the scheduler was made for")
        scheduler = self._scheduler
        set_rule(scheduler, self.problem, rule)
        if self._large and self._arrays is None and at_hand(rule_kernel(self.problem)):  # it may have come since the last rule
            self._arrays = as_arrays(scheduler)
        if self._arrays is None:
            run_rule(*scheduler)
        else:
            scheduler = run_compiled(scheduler, self._arrays)
        return list_schedule_of(scheduler)


def list_schedule_of(scheduler: SchedulerState) -> ListSchedule:
    """What a run has written into its scheduler."""
    (settings,) = scheduler.settings
    parts = [1] * settings.stages
    for lane in scheduler.lanes:
        parts[lane.stage] = lane.parts
    return ListSchedule(
        packed=tuple(tuple(scheduler.order[rank.order_from : rank.order_at]) for rank in scheduler.ranks),
        stages=settings.stages,
        width=settings.width,
        parts_of=tuple(parts),
        end_ns=max(settings.scattered_ns, *(rank.free_ns for rank in scheduler.ranks)),
        span_ns=max(rank.free_ns - rank.begun_ns for rank in scheduler.ranks),
    )


def list_schedule(problem: Problem, rule: Rule, *, room: Room = NO_ROOM) -> ListSchedule:
    """The schedule that the rule gives; `ListScheduler` for one rule."""
    return ListScheduler(problem, n_sub=rule.n_sub, room=room)(rule)


def rule_kernel(problem: Problem) -> Callable[..., Any]:
    """The form of `run_rule` that is compiled for the problem."""
    return run_rule if takes_joints(problem) else run_chain_rule


def run_compiled(scheduler: SchedulerState, arrays: SchedulerState) -> SchedulerState:
    """Run the compiled kernel on arrays of the scheduler; returns the scheduler with what it writes for others."""
    compiled(run_rule if scheduler.settings[0].slices else run_chain_rule)(*refresh(arrays, scheduler))
    return read_back(scheduler, arrays)
