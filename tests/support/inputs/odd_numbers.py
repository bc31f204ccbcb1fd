"""A small problem in the numbers of real jobs: odd nanoseconds of a step that takes seconds, odd bytes of GiB."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from schedc.ir.costs import DURATIONS

if TYPE_CHECKING:
    from random import Random

    from schedc.ir.problem import Problem

MOST_ODD_NS, MOST_ODD_BYTES = 99, 999
"""What is added to a time, or to a size, at most."""


@dataclass(frozen=True, slots=True)
class Odd:
    """A problem in odd numbers, and what its optimum then is."""

    problem: Problem
    unit_ns: int
    """What 1 ns of the small problem has become, at least."""
    slack_ns: int
    """What is added to all times together: the optimum is that of the small one × `unit_ns`, and at most this more."""


def odd(problem: Problem, random: Random, *, scaled: bool = True) -> Odd:
    """The problem with times some 10^7 and sizes some 10^9 times as large, each with an odd rest of its own.

    The same schedules fit the memory: limits grow by what all rests together come to, which is less than one old byte has become.
    A time or a size of 0 stays 0. Links must say what they cost in nanoseconds. A problem that is large already is not `scaled`: it
    only gets the rests.

    *The optimum.* A schedule of the one is a schedule of the other in the same order. Start times of the odd problem, with shorter
    ops, suit the small one; those of the small one suit the odd one if each start is put off by the rests before it.
    """
    unit_ns, unit_bytes = (random.randrange(10**7 + 1, 3 * 10**7, 2), random.randrange(2**29 + 1, 2**31, 2)) if scaled else (1, 1)
    slack_ns = slack_bytes = 0

    def time(value: int, often: int = 1) -> int:
        nonlocal slack_ns
        rest = random.randint(1, MOST_ODD_NS) if value else 0
        slack_ns += rest * often
        return value * unit_ns + rest

    stages = []
    for stage in problem.stages:
        each: dict[str, Any] = {}
        for name in DURATIONS.values():
            values = getattr(stage, name)
            made = {value: time(value, problem.microbatches) for value in sorted(set(values))}  # what was alike stays alike
            each[name] = tuple(made[value] for value in values)
        whole, again, after = stage.activation_bytes, stage.recomputed_bytes, stage.activation_after_input_bytes
        rest, more = (random.randint(1, MOST_ODD_BYTES) if size else 0 for size in (whole, again))
        left = random.randint(0, rest) if after else 0
        slack_bytes += (rest + more) * problem.microbatches
        stages.append(
            replace(
                stage,
                **each,
                activation_bytes=whole * unit_bytes + rest,
                recomputed_bytes=again * unit_bytes + more,
                activation_after_input_bytes=after * unit_bytes + left,
            )
        )
    messages = 2 * problem.microbatches * len(problem.stages)
    links = tuple(
        replace(link, latency_ns=time(link.latency_ns, messages), transfer_ns=time(link.transfer_ns or 0, messages))
        for link in problem.links
    )
    parallel = problem.data_parallel
    if parallel is not None:
        scatter = tuple(map(time, parallel.reduce_scatter_ns))
        gather = tuple(time(value, 3 * problem.microbatches if problem.is_sharded else 1) for value in parallel.all_gather_ns)
        rests = [[random.randint(1, MOST_ODD_BYTES) for _ in parallel.gathered_bytes] for _ in (0, 1)]
        slack_bytes += sum(map(sum, rests))
        gathered, gradients = (
            tuple(size * unit_bytes + rest for size, rest in zip(sizes, of_sizes, strict=True))
            for sizes, of_sizes in zip((parallel.gathered_bytes, parallel.gradient_bytes), rests, strict=True)
        )
        parallel = replace(
            parallel, reduce_scatter_ns=scatter, all_gather_ns=gather, gathered_bytes=gathered, gradient_bytes=gradients
        )
    limits = tuple(None if limit is None else limit * unit_bytes + slack_bytes for limit in problem.memory_limit_bytes)
    large = replace(problem, stages=tuple(stages), links=links, data_parallel=parallel, memory_limit_bytes=limits)
    return Odd(large, unit_ns, slack_ns)
