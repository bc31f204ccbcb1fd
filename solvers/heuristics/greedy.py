"""Greedy sub-block scheduling (CrossPipe, section 4.2, CrossUDSub), for any placement, and on the problem changed in some way.

The list scheduler picks ranks by earliest possible start and ops by priority; W blocks are cut into sub-blocks, which fill gaps and
run when memory keeps F out. How far F may run ahead of B, and the like, is chosen by trying a few rules (`GreedyRule`) and keeping
the one whose schedule ends first.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta

from schedc.errors import Unsupported
from schedc.ir import Kind, Link, Problem, Schedule
from schedc.solvers.common.method import FUSED, SMALL_OPS, Constructive, fusing_frees, fusing_saves_time
from schedc.solvers.common.microbatch_order import known_orders, order_is_open, permuted, renamed
from schedc.solvers.heuristics.greedy_rule import BY_TIME, SPLIT_ENDS, GreedyRule
from schedc.solvers.heuristics.memory import exceeds, within_memory
from schedc.solvers.kernel.joints import NO_ROOM, Room
from schedc.solvers.kernel.list_scheduler import ListSchedule, ListScheduler

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


LARGE_OPS = 50_000
"""From this many compute ops on, one way to cut W is tried."""
ONE_RULE = "greedy{n_sub=1,in_flight=0,weight_lag=0}"
"""Of a large problem it makes one schedule, not one for each of several rules."""
CHOOSING_BLOCKS = 25_000
"""On larger problems, rules are compared on the first microbatches, up to this many blocks, in the options that decide most."""
LONG = 4
"""Microbatches for each rank from which on `by_time` is tried: of fewer, what begins better ends worse behind `polish`."""
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How much busier `spread` makes links."""
PartsOfW = Annotated[int, Meta(ge=1, le=256)]
"""Into how many equal parts a W may be cut; 1: blocks stay whole."""
Share = Annotated[float, Meta(ge=0, le=1_000)]


class Greedy(Constructive, frozen=True):
    """The greedy sub-block schedule of the problem. It never exceeds a memory limit, and never strands itself.

    What is "auto" is chosen: a few values are tried, one option after the other, each time keeping the best; on large problems with
    fewer microbatches and options.
    """

    name, place, graphs, slices = "greedy", 110, True, True
    n_sub: PartsOfW = 4
    in_flight: Annotated[int, Meta(ge=0, le=2**20)] | Literal["auto", "memory"] = "auto"
    """Cap on each stage's activations in flight: this many above what the stage's round trip needs; "memory": no cap."""
    alternate: bool | Literal["auto"] = "auto"
    """Whether a rank runs F before B after a B."""
    weight_lag: Share | Literal["auto"] = "auto"
    """How many W stages leave waiting (`GreedyRule.weight_lag`); ZB-H1 is 1, W as soon as possible 0."""
    weights_first: Annotated[int, Meta(ge=0, le=2**20)] | Literal["auto"] = "auto"
    """On how many of the first stages F and W go before B (`GreedyRule.weights_first`)."""
    look_ahead: Share | Literal["auto"] = "auto"
    """How long a rank may wait for an op of higher priority, in units of the longest F."""
    fused: Literal["none", "first", "steady", "all"] = "none"
    """Which backwards are fused, where the problem splits them (`GreedyRule.fused`)."""
    by_time: bool = False
    """Whether ops go in the order of their times in a steady state (`GreedyRule.trip_shares`). Blocks then stay whole, whatever
    `n_sub`, and `weights_first` counts for nothing."""

    @classmethod
    def candidates(cls, problem: Problem) -> Iterator[str]:
        """Blocks cut or not; where that saves time, some backwards fused; where it may, all."""
        is_small = problem.num_ops <= SMALL_OPS
        if not is_small:
            yield ONE_RULE  # a clock may end what comes after it
        yield "greedy"
        if problem.num_ops < LARGE_OPS:
            yield from ("greedy{n_sub=1}", "greedy{n_sub=2}", "greedy{n_sub=8}")
            if not is_small:
                yield from ("greedy{n_sub=32}", "greedy{n_sub=32,weights_first=2}")  # no search has the time to do better
        saves_time = fusing_saves_time(problem)
        if saves_time:
            yield "greedy{fused=all,n_sub=1}"  # where all are fused, there is nothing to cut
            for which in ("first", "steady"):
                yield from (f"greedy{{fused={which},n_sub={cut}}}" for cut in ((1, 4) if is_small else (1,)))
        if problem.microbatches >= LONG * problem.ranks and (saves_time or len(problem.stages) > problem.ranks):
            yield "greedy{fused=steady,by_time=true}" if saves_time else "greedy{by_time=true}"
        if saves_time or fusing_frees(problem):
            yield f"greedy{{n_sub=1}}{FUSED}"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule; any placement, links and memory limits.

        Raises:
            Unsupported: a rank's memory limit does not hold one microbatch.
        """
        names = "in_flight", "alternate", "weight_lag", "weights_first", "look_ahead", "fused"
        chosen = {name: getattr(self, name) for name in names}
        given = {name: None if value == "memory" else value for name, value in chosen.items() if value != "auto"}
        n_sub, by_time = 1 if self.by_time else self.n_sub, self.by_time
        return within_memory(problem, lambda room: choose_rule(problem, n_sub, room=room, by_time=by_time, **given)[1].schedule)


class Sorted(Constructive, frozen=True):
    """Greedy with the microbatches sorted by their work, in a few ways.

    It needs no compiled code, and is most of what the order in which microbatches enter can give: see `known_orders`.
    """

    name, place, graphs, slices = "sorted", 100, True, True

    @classmethod
    def candidates(cls, problem: Problem) -> Iterator[str]:
        """Where the order is open."""
        if order_is_open(problem):
            yield from _and_fused(problem, cls.name)

    def construct(self, problem: Problem) -> Schedule:
        """The best of greedy's schedules for the known orders.

        Raises:
            Unsupported: the order is not open, or a rank's memory limit does not hold one microbatch.
        """
        if not order_is_open(problem):
            raise Unsupported("sorted needs microbatches that differ and may enter in any order (microbatch_order = auto)")
        return _best(problem, (renamed(Greedy()(permuted(problem, order)), order) for order in known_orders(problem)))


class GreedySpread(Constructive, frozen=True):
    """Greedy on links made busier than they are: part of a link's latency counts as occupancy while the order is chosen.

    A link with occupancy o' ≥ o and latency l' = l − (o' − o) delivers nothing earlier than the link with o and l, so an order's
    makespan on the busier links is an upper bound of its true one. But messages then leave such a link evenly spread, not in
    bursts, and so do the ops that wait for them; greedy's orders are often better for it.
    """

    name, place, graphs, slices = "spread", 120, True, True
    n_sub: PartsOfW = 4

    @classmethod
    def candidates(cls, problem: Problem) -> Iterator[str]:
        """Blocks cut or not."""
        yield cls.name
        yield from _and_fused(problem, "spread{n_sub=1}")

    def construct(self, problem: Problem) -> Schedule:
        """The best of greedy's schedules on the problem's links and on links made busier by shares of the busiest rank's work.

        Raises:
            Unsupported: a rank's memory limit does not hold one microbatch.
        """
        variants = dict.fromkeys(spread_problem(problem, share) for share in SHARES)
        return _best(problem, map(Greedy(n_sub=self.n_sub), variants))


def spread_problem(problem: Problem, share: float) -> Problem:
    """The problem with each link's occupancy raised, out of its latency, to this share of the busiest rank's mean work."""
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    work_ns = [0] * problem.ranks
    for stage, microbatch in problem.blocks():
        work_ns[problem.stages[stage].rank] += sum(problem.duration_ns(kind, stage, microbatch) for kind in kinds)
    interval_ns = int(share * max(work_ns) / problem.microbatches)
    largest_bytes = max(max(each.message_bytes, each.gradient_message_bytes or 0) for each in problem.edges or problem.stages)
    largest_bytes = max(problem.share_bytes(largest_bytes, at) for at in range(len(problem.slices) or 1))
    return replace(problem, links=tuple(_spread_link(link, interval_ns, largest_bytes) for link in problem.links))


def _spread_link(link: Link, interval_ns: int, largest_bytes: int) -> Link:
    occupancy_ns = link.occupancy_ns(largest_bytes)
    if link.latency_ns == 0 or occupancy_ns >= interval_ns:
        return link
    spread_ns = min(interval_ns, occupancy_ns + link.latency_ns)
    return replace(link, transfer_ns=spread_ns, latency_ns=link.latency_ns - (spread_ns - occupancy_ns))


def _and_fused(problem: Problem, *texts: str) -> Iterator[str]:
    """These, and where fusing may pay, the same with every backward fused: as of a problem in which all must fuse."""
    yield from texts
    if fusing_saves_time(problem) or fusing_frees(problem):
        yield from (text + FUSED for text in texts)


def _best(problem: Problem, schedules: Iterable[Schedule]) -> Schedule:
    """The best of the schedules; of equals the first."""
    from schedc.analysis.simulation.simulate import simulate  # imports numpy, which greedy alone does not need

    return min(schedules, key=lambda each: (exceeds(problem, each), simulate(problem, each).objective_ns(problem.objective)))


def choose_rule(
    problem: Problem, n_sub: int, *, room: Room = NO_ROOM, by_time: bool = False, **given: Any
) -> tuple[GreedyRule, ListSchedule]:
    """The best of a few rules and what it makes of the problem; `greedy` without checks.

    A W may be cut into `n_sub` equal parts; `room` is as of `scheduler_of`; `given` are fields of `GreedyRule` that are not to be
    chosen; with `by_time` the rule has one, and `n_sub` is 1.

    Raises:
        Unsupported: a rank's memory limit does not hold one microbatch.
    """
    trial, options = _first_microbatches(problem), _options(problem, by_time=by_time)
    made: dict[GreedyRule, ListSchedule] = {}
    list_schedule = ListScheduler(trial, n_sub=n_sub, rules=sum(map(len, options)), room=room)

    def reached_ns(rule: GreedyRule) -> int:
        if rule not in made:
            made[rule] = list_schedule(rule.rule(trial, n_sub))
        return made[rule].objective_ns(trial.objective)

    best = GreedyRule(**given)
    if by_time or best.fused == "steady":
        ends = SPLIT_ENDS if best.fused == "steady" else SPLIT_ENDS[:1]
        orders = BY_TIME[:1] if by_time else ({"deep_backward": False}, {"deep_backward": True})
        ways = product(ends, (False, True), orders)
        best = min(
            (replace(best, **{"split_ends": end, "alternate": turn, **order, **given}) for end, turn, order in ways), key=reached_ns
        )
    for option in options if trial is problem else options[:2]:
        if option and next(iter(option[0])) not in given:
            best = min((best, *(replace(best, **values | given) for values in option)), key=reached_ns)
    if trial is problem and best in made:
        return best, made[best]
    scheduler = list_schedule if trial is problem else ListScheduler(problem, n_sub=n_sub, room=room)
    return best, scheduler(best.rule(problem, n_sub))


def _options(problem: Problem, *, by_time: bool = False) -> list[tuple[dict[str, Any], ...]]:
    """What is tried beside the defaults of `GreedyRule`, option by option; what decides most comes first."""
    several, splits = len(problem.stages) > problem.ranks, problem.split_backward
    chunks = tuple({"shallow_forward": f, "deep_backward": b} for f, b in ((False, True), (True, False), (True, True)))
    return [BY_TIME] * by_time + [
        tuple({"in_flight": extra, "whole_period": whole} for whole in (False, True) for extra in (0, 1, 2)),
        ({"weight_lag": 0.5}, {"weight_lag": 1.0}) if splits else (),
        ({"alternate": True},),
        tuple({"weights_first": count} for count in (1, 2, 4)) if splits and not by_time else (),
        chunks if several and not by_time else (),
        ({"look_ahead": 0.25}, {"look_ahead": 0.5}),
    ]


def _first_microbatches(problem: Problem) -> Problem:
    """The problem with only as many microbatches as rules are compared on."""
    per_microbatch = 3 * max(map(len, problem.paths))
    count = max(2 * len(problem.paths), CHOOSING_BLOCKS // per_microbatch)
    count = -(-count // (len(problem.slices) or 1)) * (len(problem.slices) or 1)
    if count >= problem.microbatches:
        return problem
    names = "forward_ns", "backward_input_ns", "backward_weight_ns", "backward_ns"
    stages = tuple(replace(stage, **{name: getattr(stage, name)[:count] for name in names}) for stage in problem.stages)
    return replace(problem, microbatches=count, path_of=problem.path_of[:count], stages=stages)
