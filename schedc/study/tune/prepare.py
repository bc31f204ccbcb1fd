"""What is known of candidates before their problems are made: room, bounds, and with a loss what their delays come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import Versions
from schedc.study.loss.time_to_loss import LossCandidate, LossRow
from schedc.study.tune.candidates import CandidateState
from schedc.study.tune.estimates import about_ns, no_room, simple_bound_ns, totals_of, update_bound_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.layer_costs import Totals
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.work import Work

MOST_SEARCHED_OPS = 50_000
"""Candidates of more compute ops get a bound only: bounds and checks alone would take five seconds and more."""


def prepare(request: TuneRequest, works: Sequence[Work]) -> None:
    """What is known of the candidates before their problems are made; those that cannot fit or be planned are known here."""
    known: dict[TuneCandidate, tuple[Totals, str, int, dict[int, int]]] = {}
    for work in works:
        candidate = work.row.candidate
        alike = candidate.alike
        if alike not in known:
            total = totals_of(request, alike)
            known[alike] = total, no_room(request, alike, total), simple_bound_ns(request, alike, total), {}
        total, why_not, bound_ns, about = known[alike]  # the last by chunks
        if why_not:
            work.end(CandidateState.NO_ROOM, why_not)
            continue
        if candidate.chunks not in about:
            about[candidate.chunks] = about_ns(request, candidate, total)
        work.about_ns = about[candidate.chunks]
        if request.loss is not None:
            work.row.update_ns = None if work.overlaps else update_bound_ns(request, candidate, total)
            work.ways = ways(request, work, total.path_ns(candidate))
            updates = min((updates for updates, _ in work.ways.values()), default=0)
            work.about_ns = updates * (work.about_ns + (work.row.update_ns or 0))
        work.raise_bound(bound_ns)
        if request.loss is not None and not work.ways:
            delay = int(candidate.versions is Versions.TWO_BUFFERED)
            work.end(CandidateState.UNKNOWN, reached_by(request, work, 1, (delay,) * candidate.stages).basis)
            continue
        if work.ops > MOST_SEARCHED_OPS:
            work.end(
                CandidateState.TOO_LARGE,
                f"{work.ops} compute ops, more than the {MOST_SEARCHED_OPS} that are searched; larger microbatches have fewer",
            )


def reached_by(request: TuneRequest, work: Work, period_ns: int, delays: tuple[int, ...]) -> LossRow:
    """What such delays and such a period, or step with its update, come to."""
    loss, each = request.loss, work.row.candidate
    assert loss is not None
    tokens = each.sequences * request.tokens_of_sequence
    return loss.row(LossCandidate(name=each.title, period_ns=max(1, period_ns), delays=delays, tokens=tokens))


def ways(request: TuneRequest, work: Work, path_ns: int) -> dict[bool, tuple[int, int]]:
    """The fewest updates and the least period of plans without delay, and with; under 2BW all delays are 1.

    Where no stage has a delay, all of a step is between two updates of the first one: not less than a microbatch's path.
    """
    loss, each = request.loss, work.row.candidate
    assert loss is not None
    delays: tuple[tuple[int, ...], ...] = ((0,) * each.stages,)
    if each.versions is Versions.TWO_BUFFERED:
        delays = ((1,) * each.stages,)
    elif each.versions is not None and each.most_delay != 0:
        delays += loss.least_delays(each.stages)
    found: dict[bool, tuple[int, int]] = {}
    for some in delays:
        updates, late = reached_by(request, work, 1, some).updates, any(some)
        if updates is not None and (late not in found or updates < found[late][0]):
            found[late] = updates, 0 if late else path_ns
    return found
