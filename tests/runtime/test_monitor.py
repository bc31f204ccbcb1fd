"""The monitor: what it makes of transit times and durations, and of links that change under real processes."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from inputs.plans import plan_of
from inputs.problems import MS, make_problem
from oracles.link_pairs import SimulatedLink
from runs import watched_runs
from runs.processes import rank_processes

from schedc.errors import InvalidInput
from schedc.ir.conditions import LinkState, LinkTrace
from schedc.ir.ops import Kind, Op
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.adapt.monitoring.change import ChangeTest, Rate, most_likely_share
from schedc.runtime.adapt.monitoring.link_state import LinkWatch
from schedc.runtime.adapt.monitoring.speeds import SpeedWatch
from schedc.runtime.measure.clocks import PairClock
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan

RATE = Rate(50)
HEAVY: dict[str, Callable[[random.Random], float]] = {
    "pareto": lambda draw: draw.paretovariate(2.0),
    "lognormal": lambda draw: draw.lognormvariate(0.0, 1.0),
    "normal": lambda draw: draw.gauss(10.0, 1.0),
    "rare stalls": lambda draw: draw.gauss(10.0, 0.1) + (100.0 if draw.random() < 0.02 else 0.0),
}


def test_the_share_is_a_betas_quantile() -> None:
    """For the largest there is a formula; for others, draws say so."""
    for known in (16, 128, 1024):
        assert most_likely_share(1, known, 1e-5) == pytest.approx(1 - 1e-5 ** (1 / known))
    draws = np.random.default_rng(0).beta(3, 98, 400_000)
    assert most_likely_share(3, 100, 1e-3) == pytest.approx(float(np.quantile(draws, 1 - 1e-3)), rel=0.03)


@pytest.mark.parametrize("noise", HEAVY)
def test_false_alarms_keep_to_the_rate(noise: str) -> None:
    """With a rate that allows one in two series: far fewer give one, however heavy the tails."""
    rate = Rate(1, probability=0.5, steps=400)
    alarms = 0
    for seed in range(100):
        draw, test = random.Random(seed), ChangeTest(rate, least=0.0)
        alarms += any(test.add(HEAVY[noise](draw)) for _ in range(400))
    assert alarms <= 15


@given(calm=st.integers(64, 400), ratio=st.sampled_from([0.4, 0.7, 1.2, 1.5, 2.0, 10.0]), seed=st.integers(0, 10**6))
@settings(max_examples=40)
def test_changes_are_found(calm: int, ratio: float, seed: int) -> None:
    """Either way, in a few steps, the sooner the more is known; and what is learned is not what has changed."""
    draw, test = random.Random(seed), ChangeTest(RATE, least=0.0)
    assert not any(test.add(draw.gauss(10, 0.2)) for _ in range(calm))
    alarms = [test.add(ratio * draw.gauss(10, 0.2)) for _ in range(20)]
    assert next(alarm for alarm in alarms if alarm) == (1 if ratio > 1 else -1)
    assert test.level == pytest.approx(10, rel=0.05)


def test_small_changes_do_not_count() -> None:
    draw, test = random.Random(1), ChangeTest(RATE, least=2.0)
    assert not any(test.add(draw.gauss(10, 0.2)) for _ in range(200))
    assert not any(test.add(draw.gauss(11.2, 0.2)) for _ in range(2000))


class Link:
    """A link with noise, and what watches it."""

    def __init__(self, seed: int = 0) -> None:
        self.draw = random.Random(seed)
        self.watch = LinkWatch(RATE)
        self.latency_ns, self.occupancy_ns = 5.0 * MS, 1.0 * MS

    def _transit_ns(self, at: int = 0) -> float:
        return self.latency_ns + (1 + at) * self.occupancy_ns + self.draw.expovariate(1 / 50_000)

    def steps(self, count: int, *, answers: bool = True, calm_ping: bool = False) -> int:
        """How many steps it took until the link was known to have changed, or not any more; the count: it did not change."""
        before = bool(self.watch.excess_ns)
        for step in range(count):
            self.watch.step([self._transit_ns() for _ in range(8)])
            if self.watch.wants_ping and answers:
                now_ns = self.latency_ns
                self.latency_ns = 5.0 * MS if calm_ping else now_ns
                self.watch.pinged([self._transit_ns(at) for at in range(3)])
                self.latency_ns = now_ns
            if bool(self.watch.excess_ns) != before:
                return step + 1
        return count


def test_a_link_slows_down_and_recovers() -> None:
    link = Link()
    assert link.steps(200) == 200
    link.latency_ns = 30.0 * MS
    assert link.steps(20) <= 6
    assert link.watch.excess_ns == pytest.approx(25 * MS, rel=0.02)
    assert link.watch.occupancy_excess_ns == 0
    assert link.steps(100) == 100
    link.latency_ns = 5.0 * MS
    assert link.steps(20) <= 8
    assert (link.watch.excess_ns, link.watch.alarms, link.watch.confirmed, link.watch.rejected) == (0, 2, 2, 0)


@pytest.mark.parametrize("to_ms", [20, 60])
def test_a_plain_change_is_known_when_its_first_step_has_ended(to_ms: int) -> None:
    """In the middle of that step there is doubt, at its end come pings; and as soon when it has passed."""
    draw, link = random.Random(to_ms), SimulatedLink(RATE)
    for latency_ms, steps in ((1, 600), (to_ms, 1), (to_ms, 40), (1, 1), (1, 40)):
        for _ in range(steps):
            link.step(lambda latency_ms=latency_ms: lambda: latency_ms * MS + draw.expovariate(1 / 20_000))  # type: ignore[misc]
        assert link.watch.excess_ns == pytest.approx((latency_ms - 1) * MS, rel=0.05)
    assert (link.watch.alarms, link.watch.confirmed) == (2, 2)


def test_a_link_that_carries_fewer_messages() -> None:
    """Pings one right behind the other tell occupancy from latency."""
    link = Link()
    link.steps(100)
    link.occupancy_ns = 9.0 * MS
    assert link.steps(20) <= 9
    assert link.watch.excess_ns == pytest.approx(8 * MS, rel=0.05)
    assert link.watch.occupancy_excess_ns == pytest.approx(8 * MS, rel=0.05)


def test_only_pings_confirm_a_change() -> None:
    """Calm pings reject it; without an answer nothing is believed, and another alarm asks again."""
    for answers in (True, False):
        link = Link()
        link.steps(100)
        link.latency_ns = 30.0 * MS
        assert link.steps(60, answers=answers, calm_ping=True) == 60
        assert link.watch.confirmed == 0
        assert link.watch.rejected >= 1 if answers else link.watch.unanswered >= 2


@given(
    offset_ns=st.integers(-(10**15), 10**15),
    drift=st.floats(-1e-4, 1e-4),
    unequal_ns=st.integers(-5 * MS, 5 * MS),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40)
def test_clocks_that_drift(offset_ns: int, drift: float, unequal_ns: int, seed: int) -> None:
    """The offset is known to within the jitter; a way that slows down does not move it, a clock that is set does."""
    draw, clock, jitter_ns = random.Random(seed), PairClock(unequal_ns), 20_000

    def ahead_ns(now_ns: int) -> float:
        return offset_ns + drift * now_ns

    def add(step: int, slower_ns: int = 0) -> None:
        now_ns = step * 500 * MS
        here_ns, there_ns = (10 * MS + draw.uniform(0, jitter_ns) for _ in range(2))
        clock.add(now_ns, round(here_ns + unequal_ns + slower_ns + ahead_ns(now_ns)), round(there_ns - ahead_ns(now_ns)))

    assert not clock.known
    for step in range(100):
        add(step)
    for step in range(100, 130):
        add(step, slower_ns=30 * MS)
        now_ns = step * 500 * MS
        assert abs(clock.offset_ns(now_ns) - ahead_ns(now_ns)) <= 2 * jitter_ns
    offset_ns += 10**12
    for step in range(130, 130 + 600):
        add(step)
    now_ns = 729 * 500 * MS
    assert abs(clock.offset_ns(now_ns) - ahead_ns(now_ns)) <= 2 * jitter_ns


def test_a_way_that_stays_slow_is_no_clock() -> None:
    """However long it is slow: the other way is not taken to be faster, and the drift is still followed."""
    draw, clock, offset_ns, drift = random.Random(2), PairClock(), 10**12, 3e-5
    for step in range(3000):
        now_ns, slower_ns = step * 500 * MS, 30 * MS if 100 <= step < 2000 else 0
        drift = 3e-5 if step < 1000 else 3.5e-5
        offset_ns += round(drift * 500 * MS)
        here_ns, there_ns = (10 * MS + draw.randrange(20_000) for _ in range(2))
        clock.add(now_ns, here_ns + slower_ns + offset_ns, there_ns - offset_ns)
        if step > 10:
            assert abs(clock.offset_ns(now_ns) - offset_ns) <= 700_000, step


def test_a_rank_slows_down_and_recovers() -> None:
    """Kinds apart; a fused backward counts for B and for W; single slow ops count for nothing."""
    draw, watch = random.Random(3), SpeedWatch(RATE)

    def steps(count: int, factors: dict[Kind, float]) -> None:
        for _ in range(count):
            ops = [Op(kind, stage, at) for kind in (Kind.F, Kind.BW) for stage in (0, 4) for at in range(6)]
            stalls = {draw.randrange(len(ops)) for _ in range(2)}
            watch.step(
                (op, round((1 + op.stage) * MS * factors.get(op.kind, 1.0) * draw.gauss(1, 0.01) * (9 if at in stalls else 1)))
                for at, op in enumerate(ops)
            )

    steps(100, {})
    assert watch.known
    assert watch.slowdown() == {}
    steps(12, {Kind.BW: 1.5})
    assert watch.slowdown() == pytest.approx({Kind.B: 1.5, Kind.W: 1.5}, rel=0.05)
    steps(100, {Kind.BW: 1.5, Kind.F: 2.0})
    assert watch.slowdown() == pytest.approx({Kind.F: 2.0, Kind.B: 1.5, Kind.W: 1.5}, rel=0.05)
    steps(40, {})
    assert watch.slowdown() == {}


@pytest.mark.parametrize(("factor", "slow_steps"), [(1.2, 3), (1.5, 2)])
def test_the_first_ops_of_a_step_are_evidence_while_there_is_doubt(factor: float, slow_steps: int) -> None:
    """A rank that is slower is known early in its second step, or in its third, in all kinds at once."""
    draw, watch = random.Random(5), SpeedWatch(RATE)

    def ops(factor: float) -> list[tuple[Op, int]]:
        kinds = Kind.F, Kind.B, Kind.W
        return [(Op(kind, 0, at), round(10 * MS * factor * draw.gauss(1, 0.002))) for at in range(12) for kind in kinds]

    for _ in range(600):
        watch.step(ops(1.0))
    for _ in range(slow_steps - 1):
        assert watch.slowdown() == {}
        watch.step(ops(factor))
    assert watch.doubtful
    watch.early(ops(factor)[:9])
    assert watch.slowdown() == pytest.approx({Kind.F: factor, Kind.B: factor, Kind.W: factor}, rel=0.02)


def test_a_plan_with_other_kinds_takes_over_what_is_known() -> None:
    """A rank that is slow in B and W is as slow in BW; and what has no ops any more says nothing."""
    watch, draw = SpeedWatch(RATE), random.Random(4)
    took = {Kind.F: 2.0, Kind.B: 2.0, Kind.W: 1.0, Kind.BW: 3.0}

    def steps(count: int, kinds: tuple[Kind, ...], factor: float) -> None:
        for _ in range(count):
            watch.step(
                (Op(kind, 0, at), round(took[kind] * MS * (1.0 if kind is Kind.F else factor) * draw.gauss(1, 0.01)))
                for kind in kinds
                for at in range(4)
            )

    apart, fused = (Kind.F, Kind.B, Kind.W), (Kind.F, Kind.BW)
    steps(100, apart, 1.0)
    steps(20, apart, 1.5)
    slow = pytest.approx({Kind.B: 1.5, Kind.W: 1.5}, rel=0.05)
    assert watch.slowdown() == slow
    steps(60, fused, 1.5)
    assert watch.slowdown() == slow
    steps(30, fused, 1.0)
    assert watch.slowdown() == {}
    steps(60, fused, 1.5)
    assert watch.slowdown() == slow
    steps(60, apart, 1.5)
    assert watch.slowdown() == slow
    steps(30, apart, 1.0)
    assert watch.slowdown() == {}


def small_plan(latency_ns: int) -> Plan:
    """Three ranks."""
    pairs = [pair for a, b in pairwise(range(3)) for pair in ((a, b), (b, a))]
    problem = make_problem(3, 3, links=dict.fromkeys(pairs, (latency_ns, 0)))
    return plan_of(problem, constructive("zb-h1")(problem))


@pytest.mark.slow
def test_real_processes_find_a_slow_link(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is the one that is slow, as slow as it is, and it is found to be well again; other ranks say that they see no change."""
    latency_ns = 150 * MS
    trace = LinkTrace.of(
        [(0, (0, 1), LinkState()), (10**12, (0, 1), LinkState(latency_ns=latency_ns)), (10**15, (0, 1), LinkState())]
    )
    plan = small_plan(2 * MS)
    with rank_processes(3, tmp_path_factory.mktemp("monitored")) as ranks:
        found = ranks.run(watched_runs.monitor_steps, plan, 200, trace, {0: 0, 50: 10**12, 90: 10**15}, limit_s=200)
    said: list[list[Any]] = [each["found"] for each in found]
    assert said[0][0] is None
    sound = LinkState(latency_ns=2 * MS)  # a machine whose load changes makes it a little slower or faster than at first

    def is_sound(link: tuple[int, int], conditions: Any) -> bool:
        return conditions is None or (conditions.links.get(link, sound).latency_ns or 0) < 0.1 * latency_ns

    assert all(is_sound((0, 1), conditions) for conditions in (*said[0], *said[2], *said[1][:50]))
    assert all(is_sound((1, 0), conditions) for conditions in said[0])
    slow = said[1][89].links[0, 1]
    assert slow.latency_ns == pytest.approx(latency_ns, rel=0.1)
    assert is_sound((0, 1), said[1][-1])
    assert found[1]["watches"][0][1] >= 2


@pytest.mark.slow
@pytest.mark.parametrize("channels", ["gloo", "delegate"])
def test_gradients_are_what_they_are_without(channels: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Bit by bit, whether all steps are measured, or every n-th, the same ones on all ranks."""
    plan = small_plan(0)
    with rank_processes(3, tmp_path_factory.mktemp("beside")) as ranks:
        without, monitored, seldom = (
            ranks.run(watched_runs.monitor_steps, plan, 30, monitored=watched, channels=channels, least_gap_s=gap_s)
            for watched, gap_s in ((False, 0.0), (True, 0.0), (True, 20.0))
        )
    assert [each["gradients"] for each in monitored] == [each["gradients"] for each in without]
    assert [each["gradients"] for each in seldom] == [each["gradients"] for each in without]
    assert len({each["every"] for each in seldom}) == 1
    assert seldom[0]["every"] > 1
    for each in monitored:
        assert each["found"][7] is None
        assert each["found"][-1] is not None
        assert each["watches"]


def test_a_monitor_that_only_observes_says_what_is_missing() -> None:
    with pytest.raises(InvalidInput, match=r"^monitor: found it as observe= of load alone, expected wrap=monitor\.wrap beside it$"):
        Monitor().end_step(0, 0)


@pytest.mark.slow
def test_a_plan_that_takes_over_is_monitored(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Its wires lie over the same ends; an evaluation between the two has stamps as well. And a second pipe is monitored anew."""
    problem = make_problem(2, 3, links={(0, 1): (0, 0), (1, 0): (0, 0)})
    plans = [plan_of(problem, constructive(name)(problem)) for name in ("1f1b", "zb-h1")]
    with rank_processes(2, tmp_path_factory.mktemp("moving")) as ranks:
        moved = ranks.run(watched_runs.move, plans, 12)
        alone = ranks.run(watched_runs.move, plans[1:], 12)
    for rank, (gradients, links, ran, first, again, same) in enumerate(moved):
        assert links == again == [1 - rank]
        assert ran
        assert gradients == alone[rank][0]
        assert first is None
        assert same
