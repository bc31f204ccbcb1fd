"""Emulating a plan whose ranks adapt while links change: steps of several plans, what each took, and why the plan changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import parse_plan, plan_sha256
from schedc.runtime.emulation.emulate import emulated
from schedc.runtime.emulation.rank import RankRequest
from schedc.runtime.session.swap import Swap

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.conditions import Conditions, LinkTrace
    from schedc.ir.plan import Plan

WARM_UP = 40
"""Eight steps that the monitor does not look at, and as many as it learns from twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMove:
    """One plan that was published, and why."""

    run: int | None
    """The first recorded run of it, from 0; below 0: before them. None: it was refused, or not taken up before the end."""
    refusal: str | None
    plan: int
    """Its place in `AdaptingRuns.plans`."""
    conditions: Conditions
    """What was measured."""
    before_ns: int
    """What a step of the plan that ran takes under these conditions, by the simulator."""
    after_ns: int
    """What a step of the new plan takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptingRuns:
    """What came of it, the scale taken out."""

    runs_ns: tuple[int, ...]
    """What each run took: from the begin of all ranks to the end of the last op."""
    begun_ns: tuple[int, ...]
    """When each began, on the clock of the link trace."""
    plan_of_run: tuple[int, ...]
    """Of each run, the place of its plan in `plans`."""
    plans: tuple[Plan, ...]
    """The first is the one that was given; the same bytes are one plan. The costs of the others are those they were made for."""
    sha256: tuple[str, ...]
    """Of each plan's bytes."""
    moves: tuple[PlanMove, ...]
    ended: str | None
    """Why the ranks adapted no more, before the end; None: they did until then."""
    before_others: bool
    """As of `Emulation`."""


def emulate_adapting(
    plan: Plan,
    *,
    scale: float = 1.0,
    runs: int = 60,
    warm_up: int = WARM_UP,
    choose: bool = False,
    links: LinkTrace | None = None,
    report: Callable[[int], None] = lambda _: None,
) -> AdaptingRuns:
    """Run the plan as `emulate` does, with ranks that adapt (`schedc.runtime.adapt`); all of it but the compute is what a job runs.

    Args:
        plan: what is run first.
        scale: what all of its times are multiplied by.
        runs: how many runs are recorded; the link trace's clock starts with the first.
        warm_up: how many go before them, with links as the plan has them: the monitor learns from these.
        choose: whether each rank chooses its next op by what has come.
        links: how the links change while the runs go on; its times, too, are multiplied by the scale.
        report: called with how many of the recorded runs have ended.

    Raises:
        InvalidInput: the scale makes an op shorter than can be waited for, or a number is out of range.
        Unsupported: the plan has collectives, and ranks would choose.
        CheckFailed: the plan breaks a rule, or a rank has failed.
    """
    if warm_up < 1:
        raise InvalidInput(f"warm_up: found {warm_up}, expected at least 1")
    request = RankRequest(plan=plan, scale=scale, runs=runs, links=links, choose=choose, warm_up=warm_up, adapt=True)
    emulation = emulated(request, report)
    of_ranks = [result.adapted for result in emulation.results if result.adapted is not None]
    first = of_ranks[0]
    plans, sha256, places = [plan], [plan_sha256(plan)], [0]
    for number, answer in enumerate(first.published, start=1):
        if answer.sha256 not in sha256:
            plans.append(parse_plan(answer.content, f"plan {number} of the proposer"))
            sha256.append(answer.sha256)
        places.append(sha256.index(answer.sha256))
    moves = []
    for number, answer in enumerate(first.published):
        swap = first.swaps[number] if number < len(first.swaps) else Swap()  # it came after the last step
        moves.append(
            PlanMove(
                run=swap.step - warm_up if swap.state == "done" and swap.step is not None else None,
                refusal=swap.reason,
                plan=places[number + 1],
                conditions=answer.conditions,
                before_ns=answer.running_ns,
                after_ns=answer.proposed_ns,
            )
        )
    return AdaptingRuns(
        runs_ns=emulation.runs_ns,
        begun_ns=emulation.begun_ns,
        plan_of_run=tuple(places[number] for number in first.ran),
        plans=tuple(plans),
        sha256=tuple(sha256),
        moves=tuple(moves),
        ended=next((adapted.ended for adapted in of_ranks if adapted.ended is not None), None),
        before_others=emulation.before_others,
    )
