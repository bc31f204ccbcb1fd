"""States of links: what is drawn from a distribution, what a trace has, their means, and a few that stand for all."""

from __future__ import annotations

from statistics import fmean, stdev

import pytest
from inputs.problems import MS, make_problem

from schedc.errors import InvalidInput
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState, LinkTrace
from schedc.study.robust.requests import drawn_states, grid_of, is_drawn, is_grid, pairs_of, parse_distribution, states_named
from schedc.study.robust.scenarios import MEAN, Criterion, Scenarios, clustered, percentile_of, shifted, states_of_trace

PROBLEM = make_problem(3, 2)
SLOW, SLOWER = (Conditions(links={(0, 1): LinkState(latency_ns=ns)}) for ns in (30, 60))


def test_drawn_states_have_the_mean_and_spread_of_their_distribution_and_are_the_same_both_ways() -> None:
    normal, uniform = parse_distribution("normal(30 ms, 10 ms)"), parse_distribution(" uniform( 10ms , 20 ms ) ")
    states = drawn_states(PROBLEM, {(0, 1): normal, (1, 2): uniform}, 64, seed=3)
    assert states == drawn_states(PROBLEM, {(0, 1): normal, (1, 2): uniform}, 64, seed=3)
    assert states != drawn_states(PROBLEM, {(0, 1): normal, (1, 2): uniform}, 64, seed=4)
    for (low, high), mean_ns, spread_ns in (((0, 1), 30 * MS, 10 * MS), ((1, 2), 15 * MS, 10 * MS / 12**0.5)):
        found = [each.links[low, high].latency_ns or 0 for each in states.conditions]
        assert found == [each.links[high, low].latency_ns for each in states.conditions]
        assert fmean(found) == pytest.approx(mean_ns, rel=0.01)
        assert stdev(found) == pytest.approx(spread_ns, rel=0.05)
    assert min(parse_distribution("normal(1 ns, 10 ms)").quantile_ns(share / 100) for share in range(1, 100)) == 0
    assert parse_distribution("normal(5 ms, 0 ms)").quantile_ns(0.9) == 5 * MS
    assert set(pairs_of(PROBLEM)) == {(0, 1), (1, 2)}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("gamma(1 ms, 2 ms)", 'found "gamma(1 ms, 2 ms)", expected "normal(MEAN, DEVIATION)" or'),
        ("normal(1 ms)", 'found "normal(1 ms)", expected'),
        ("normal(1, 2 ms)", 'found "1" in "normal(1, 2 ms)", expected a duration such as'),
        ("uniform(3 ms, 2 ms)", "expected the least before the most"),
    ],
)
def test_a_distribution_that_is_none_is_refused(text: str, says: str) -> None:
    assert is_drawn(text)
    with pytest.raises(InvalidInput) as refused:
        parse_distribution(text)
    assert says in str(refused.value)


def test_states_of_a_trace_weigh_what_they_last() -> None:
    """As planned for 10, slow for 20, slower for 30, slow for as long as the mean of these, which is 20."""
    trace = LinkTrace(((10, SLOW), (30, SLOWER), (60, SLOW)))
    assert states_of_trace(trace, 9) == Scenarios((AS_PLANNED, SLOW, SLOWER), (10.0, 40.0, 30.0))
    # Of more states than asked for: those at 20 and 60 of 80.
    assert states_of_trace(trace, 2) == Scenarios((SLOW,), (2.0,))
    assert states_of_trace(LinkTrace(()), 9) == Scenarios((AS_PLANNED,), (1.0,))
    assert states_of_trace(LinkTrace(((0, SLOW),)), 9) == Scenarios((SLOW,), (1.0,))


def test_means_and_deviations_of_links() -> None:
    states = Scenarios((AS_PLANNED, SLOW, SLOWER), (1.0, 2.0, 1.0))  # latencies 0, 30, 60: a variance of 450
    assert shifted(PROBLEM, states, 0.0) == SLOW
    assert shifted(PROBLEM, states, 1.0) == Conditions(links={(0, 1): LinkState(latency_ns=51)})
    rates = [Conditions(links={(0, 1): LinkState(bytes_per_second=rate)}) for rate in (100, 300)]
    assert shifted(PROBLEM, Scenarios(tuple(rates), (1.0, 1.0)), 0.0).links[0, 1] == LinkState(latency_ns=0, bytes_per_second=150)


def test_a_few_states_stand_for_all() -> None:
    states = Scenarios((SLOW, AS_PLANNED, SLOWER, Conditions(links={(0, 1): LinkState(latency_ns=29)})), (5.0, 1.0, 2.0, 1.0))
    assert clustered(PROBLEM, states, 4) is states
    assert clustered(PROBLEM, states, 1) == Scenarios((SLOW,), (9.0,))
    assert clustered(PROBLEM, states, 3) == Scenarios((SLOW, SLOWER, AS_PLANNED), (6.0, 2.0, 1.0))


def test_percentiles_and_means() -> None:
    assert percentile_of([3, 1, 2], [1, 1, 1], 50) == 2
    assert percentile_of([3, 1, 2], [8, 1, 1], 20) == 2
    assert percentile_of([3, 1, 2], [8, 1, 1], 21) == 3
    assert Criterion(100).of([3, 1, 2], [1, 1, 1]) == 3
    assert MEAN.of([3, 1], [3, 1]) == 2.5
    with pytest.raises(ValueError, match="above 0 and at most 100"):
        Criterion(0)


def test_conditions_written_out() -> None:
    slow = LinkState(latency_ns=30 * MS)
    assert grid_of("0-1=30ms", PROBLEM, option="--links") == [("0-1=30ms", Conditions(links={(0, 1): slow, (1, 0): slow}))]
    assert grid_of("1>0=30 ms", PROBLEM, option="--links") == [("1>0=30ms", Conditions(links={(1, 0): slow}))]
    assert [name for name, _ in grid_of("each=1ms,2us", PROBLEM, option="")] == ["0-1=1ms", "1-2=1ms", "0-1=2us", "1-2=2us"]
    ((_, every),) = grid_of("all=1ms", PROBLEM, option="")
    assert set(every.links) == {(0, 1), (1, 0), (1, 2), (2, 1)}
    assert is_grid("each=1ms") and not is_grid("links.csv")
    for text, says in (
        ("0-2=1ms", "expected links of the job: 0>1, 1>0, 1>2, 2>1"),
        ("0-1=1", "expected a duration"),
        ("links", "expected a link trace, or RANKS=LATENCY"),
    ):
        with pytest.raises(InvalidInput) as refused:
            grid_of(text, PROBLEM, option="--links")
        assert str(refused.value).startswith("--links: found") and says in str(refused.value)


def test_distributions_of_single_links() -> None:
    def latencies(text: str) -> dict[tuple[int, int], set[int | None]]:
        states = states_named(text, PROBLEM, samples=4, seed=1, option="--robust")
        links = {ends for each in states.conditions for ends in each.links}
        return {ends: {each.links[ends].latency_ns for each in states.conditions} for ends in links}

    assert latencies("normal(5 ms, 0 ms); 1-2 = uniform(1 ms, 1 ms)") == {
        (0, 1): {5 * MS},
        (1, 0): {5 * MS},
        (1, 2): {MS},
        (2, 1): {MS},
    }
    assert set(latencies("2-1=normal(5 ms, 1 ms)")) == {(1, 2), (2, 1)}
    assert not is_grid("2-1=normal(5 ms, 1 ms)") and is_drawn("2-1=normal(5 ms, 1 ms)")
    for text, says in (
        ("0-2=normal(1 ms, 1 ms)", 'found "0-2=normal(1 ms, 1 ms)", expected each once, of 0-1, 1-2'),
        ("0-1=normal(1 ms, 1 ms);1-0=normal(1 ms, 1 ms)", "expected each once"),
        ("normal(1 ms, 1 ms); normal(1 ms, 1 ms)", "expected one distribution without ranks"),
        ("0-1=gamma(1 ms, 1 ms)", 'found "gamma(1 ms, 1 ms)", expected "normal'),
    ):
        with pytest.raises(InvalidInput) as refused:
            states_named(text, PROBLEM, samples=4, seed=1, option="--robust")
        assert str(refused.value).startswith("--robust: found") and says in str(refused.value)
