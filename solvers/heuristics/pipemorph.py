"""PipeMorph's planning (its section 4, algorithms 1 to 4): warm-up forwards that absorb slow links, then B before F before W.

Takes a Problem with one stage on each rank and one path; gives a Schedule. The warm-up counts are planned by `initial_warm_up` or
`adapted_warm_up`, pure functions of numbers; the list scheduler does the rest (algorithms 3 and 4, by events, not time steps).
"""

from __future__ import annotations

from enum import StrEnum
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Kind, Problem, Schedule
from schedc.solvers.common.method import FUSED, Constructive, fusing_frees, fusing_saves_time
from schedc.solvers.kernel.list_scheduler import list_schedule
from schedc.solvers.kernel.scheduler_state import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence


BACKWARD_FORWARD_WEIGHT = (1, 0, 2)
"""The priorities of F, B and W after warm-up (algorithm 3, line 12)."""


class Policy(StrEnum):
    """Whose warm-up counts PipeMorph takes."""

    ADAPTED = "adapted"
    """To the links (algorithm 2)."""
    INITIAL = "initial"
    """For unknown links (algorithm 1): from the first rank's memory limit or, without one, slackness 2 everywhere."""


class PipeMorph(Constructive, frozen=True):
    """PipeMorph's schedule of the problem.

    Every stage first runs its warm-up count of F and nothing else; then B before F before W. The paper's planner knows no memory
    limit after warm-up; here a limit holds throughout: warm-up counts are lowered to what fits, and an F that does not fit
    waits, so that W release memory. A warm-up count above the stage before it cannot be met and is lowered to that.
    """

    name, place = "pipemorph", 130
    policy: Policy = Policy.ADAPTED
    warm_up: tuple[Annotated[int, Meta(ge=0, le=2**20)], ...] | None = None
    """The warm-up counts along the path instead of a policy's."""

    @classmethod
    def candidates(cls, problem: Problem) -> tuple[str, ...]:
        """Both policies; where fusing may pay, with every backward fused, too."""
        texts = (cls.name, f"{cls.name}{{policy=initial}}")
        may_pay = fusing_saves_time(problem) or fusing_frees(problem)
        return (*texts, *(text + FUSED for text in texts)) if may_pay else texts

    def construct(self, problem: Problem) -> Schedule:
        """The schedule of a problem with one path, and one stage on each rank, in any order of ranks.

        Raises:
            InvalidInput: the warm-up counts do not fit the problem.
            Unsupported: the placement is another one, or a memory limit does not hold one microbatch.
        """
        if len(problem.paths) > 1 or any(len(problem.stages_on(rank)) != 1 for rank in range(problem.ranks)):
            raise Unsupported(f"pipemorph needs one path and one stage on each rank; the placement is {problem.placement}")
        path = problem.paths[0]
        counts = planned_warm_up(problem, self.policy) if self.warm_up is None else self.warm_up
        if len(counts) != len(path):
            raise InvalidInput(f"pipemorph: warm_up: found {list(counts)}, expected a list of {len(path)} counts")
        per_stage = dict(zip(path, counts, strict=True))
        rule = Rule(
            priority=(BACKWARD_FORWARD_WEIGHT,) * len(path),
            in_flight=(None,) * len(path),
            warm_up=tuple(per_stage[stage] for stage in range(len(path))),
            weight_lag=(0,) * len(path),
        )
        return list_schedule(problem, rule).schedule


def initial_warm_up(stages: int, microbatches: int, most_in_flight: int) -> tuple[int, ...]:
    """The warm-up counts that make every slackness as large as memory allows (algorithm 1).

    Args:
        stages: S.
        microbatches: N; no count is above it (the paper's may be).
        most_in_flight: x_max, how many activations the first stage can hold; at least 1.
    """
    if most_in_flight < 1:
        raise ValueError(f"most_in_flight must be at least 1, got {most_in_flight}")
    if stages == 1:
        return (min(most_in_flight, microbatches),)
    average, larger = divmod(most_in_flight - 1, stages - 1)
    slackness = [average + 1 if i < larger else average for i in range(stages - 1)]
    return tuple(min(count, microbatches) for count in accumulate(slackness, lambda x, delta: x - delta, initial=most_in_flight))


def adapted_warm_up(
    forward_ns: Sequence[int], backward_input_ns: Sequence[int], round_trip_ns: Sequence[int], microbatches: int
) -> tuple[int, ...]:
    """The warm-up counts whose slackness absorbs the links' delays (algorithm 2).

    The printed algorithm has `t_{i+1}^B` and a floor where Equation 1 needs `t_i^B` and a ceiling; this one satisfies Equation 1:
    `t_i^F + t_i^B + 2 c_i <= slackness_i (t_{i+1}^F + t_{i+1}^B)`. Its clip at N - 2S is never below 2 here, where the printed one
    goes below 0 for N < 2S, and no count is above N.

    Args:
        forward_ns: t_i^F along the path.
        backward_input_ns: t_i^B along the path.
        round_trip_ns: 2 c_i, the delay from stage i to stage i + 1 and back; one fewer.
        microbatches: N.
    """
    both_ns = [forward + backward for forward, backward in zip(forward_ns, backward_input_ns, strict=True)]
    most = max(microbatches - 2 * len(both_ns), 2)
    counts = [1]
    for (here_ns, next_ns), delay_ns in zip(reversed(tuple(pairwise(both_ns))), reversed(round_trip_ns), strict=True):
        needed = -(-(here_ns + delay_ns) // max(next_ns, 1))
        counts.append(counts[-1] + min(most, max(needed, 2)))
    return tuple(min(count, microbatches) for count in reversed(counts))


def planned_warm_up(problem: Problem, policy: Policy) -> tuple[int, ...]:
    """The warm-up counts of a policy along the problem's only path, before a memory limit lowers them.

    A link's latency and its occupancy by one message both count as delay. Fused backwards count as B; costs that differ by
    microbatch count with their largest.
    """
    path = problem.paths[0]
    stages = [problem.stages[index] for index in path]
    if policy is Policy.INITIAL:
        limit_bytes, first_bytes = problem.memory_limit_bytes[stages[0].rank], stages[0].activation_bytes
        if limit_bytes is None or not first_bytes:
            return initial_warm_up(len(path), problem.microbatches, 2 * len(path) - 1)
        return initial_warm_up(len(path), problem.microbatches, max(1, (limit_bytes - stages[0].recomputed_bytes) // first_bytes))
    backward = Kind.B if problem.split_backward else Kind.BW
    delays_ns = []
    for before, after in pairwise(stages):
        onward, back = problem.link(before.rank, after.rank), problem.link(after.rank, before.rank)
        there_ns = onward.latency_ns + onward.occupancy_ns(before.message_bytes)
        delays_ns.append(there_ns + back.latency_ns + back.occupancy_ns(before.gradient_message_bytes))
    forward_ns, backward_ns = ([max(stage.durations_ns(kind)) for stage in stages] for kind in (Kind.F, backward))
    return adapted_warm_up(forward_ns, backward_ns, delays_ns, problem.microbatches)
