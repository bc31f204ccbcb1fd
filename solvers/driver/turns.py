"""Who works on a problem in `auto`, in which turn, with which share of the time, and what for: one table, by the kind of problem.

`benchmarks/schedules/ablation.py` shows what each search is worth.
"""

from __future__ import annotations

from typing import NamedTuple

from schedc.ir import Problem
from schedc.solvers.common.method import fusing_saves_time
from schedc.solvers.common.microbatch_order import order_is_open

CPSAT_OPS = 12_000
"""Up to this many compute ops `auto` hands the problem to CP-SAT as a whole."""


class Turn(NamedTuple):
    """What a search gets when its turn comes."""

    search: str
    share: float
    """Of the time or work that is left then."""
    aim: str
    """What it is there for."""


RULES, ORDERS, PROOF = "rules of a list scheduler", "single ops of known schedules", "the optimum, or a bound"
NEAR = "a schedule little longer than the bound"
ANEW = (Turn("polish{rounds=40,anew=true}", 0.4, ORDERS),) * 3
"""Where `polish` ends depends on its seed, by up to a percent or two; from its best it seldom gets further."""
TURNS: dict[str, tuple[Turn, ...]] = {
    "steps overlap": (Turn("modulo", 1.0, PROOF),),
    # The order decides most. CP-SAT has it open, too; it finds less than the searches, which go on after it, but proves more.
    "the order of microbatches is open": (
        Turn("local{rounds=12}", 0.6, RULES),
        Turn("polish{rounds=4}", 0.3, ORDERS),
        Turn("cpsat", 0.5, PROOF),
    ),
    "too many ops for CP-SAT": (
        Turn("pace", 0.4, PROOF),
        Turn("local{rounds=4}", 0.4, RULES),
        Turn("polish{rounds=4}", 0.3, ORDERS),
        Turn("local{rounds=12}", 0.5, RULES),
        Turn("polish{rounds=12}", 0.5, ORDERS),
    ),
    # The searches find more than CP-SAT does. Polishing comes before the rules, which would leave it little time, and after them.
    "one stage on a rank, and BW cheaper than B and W": (
        Turn("polish{rounds=12}", 0.3, ORDERS),
        Turn("local{rounds=8}", 0.35, RULES),
        Turn("polish{rounds=6}", 0.3, ORDERS),
        Turn("cpsat", 0.5, PROOF),
    ),
    "one stage on a rank": (
        Turn("local{rounds=3}", 0.3, RULES),
        Turn("polish{rounds=2}", 0.2, ORDERS),
        Turn("cpsat", 1.0, PROOF),
    ),
    # With several chunks on a rank, bounds are weaker and good rules rarer: easy ones are proven soon, the others need the search.
    # Polishing comes first: from where the rules end it gets no further (of ten m70 cells five are proven in 30 s, not two).
    # `refute` comes before the longest searches, so that they can end at its bound; CP-SAT seeks a schedule near it.
    "several stages on a rank, and BW cheaper than B and W": (
        Turn("polish{rounds=40}", 0.4, ORDERS),
        Turn("local{rounds=4}", 0.2, RULES),
        Turn("polish{rounds=8}", 0.3, ORDERS),
        Turn("cpsat", 0.15, PROOF),
        Turn("refute", 0.2, PROOF),
        Turn("cpsat{near=true}", 0.25, NEAR),
        *ANEW,
        Turn("polish{rounds=60}", 0.8, ORDERS),
        Turn("cpsat", 1.0, PROOF),
    ),
    "several stages on a rank": (
        Turn("polish{rounds=36}", 0.25, ORDERS),
        Turn("local{rounds=4}", 0.2, RULES),
        Turn("cpsat", 0.15, PROOF),
        Turn("refute", 0.2, PROOF),
        Turn("cpsat{near=true}", 0.6, NEAR),
        Turn("local{rounds=30}", 0.3, RULES),
        *ANEW,
        Turn("polish{rounds=60}", 0.8, ORDERS),
        Turn("cpsat", 1.0, PROOF),
    ),
}
"""Who works on which kind of problem, in what turn."""
AFTERWARDS = (
    Turn("local", 0.4, RULES),
    Turn("polish", 0.5, ORDERS),
)
"""Of those that had a turn, who goes on from other seeds while a clock leaves time."""


def kind_of(problem: Problem) -> str:
    """Its kind, a key of `TURNS`."""
    if problem.updates is not None:
        return "steps overlap"
    if order_is_open(problem):
        return "the order of microbatches is open"
    if problem.num_ops > CPSAT_OPS:
        return "too many ops for CP-SAT"
    kind = f"{'one stage' if len(problem.stages) == problem.ranks else 'several stages'} on a rank"
    return f"{kind}, and BW cheaper than B and W" if fusing_saves_time(problem) else kind


def turns_of(problem: Problem) -> tuple[Turn, ...]:
    """The turns for its kind of those that may help with it."""
    is_large = problem.num_ops > CPSAT_OPS
    return tuple(turn for turn in TURNS[kind_of(problem)] if not (is_large and turn.search == "cpsat"))


def afterwards_of(problem: Problem) -> tuple[Turn, ...]:
    """The turns for which a clock may leave time, each for the aim of one that was before."""
    aims = {turn.aim for turn in turns_of(problem)}
    return tuple(turn for turn in AFTERWARDS if turn.aim in aims)
