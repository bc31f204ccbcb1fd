"""Which node takes which replica and rank: against every assignment there is, on tiny jobs."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, permutations
from random import Random

import pytest
from inputs.problems import make_problem

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.ir.costs import MessageCost
from schedc.ir.network import Link, Network
from schedc.solvers.common.base import Limits
from schedc.solvers.driver.registry import constructive
from schedc.solvers.node_mapping.exact import assign
from schedc.solvers.node_mapping.nodes import assign_and_plan, assign_nodes, slowest_problem
from schedc.solvers.node_mapping.value import Replicated, Timer, ring_ns
from schedc.verify.schedule.checks import verify_schedule

LIMITS = Limits(deterministic=10.0, workers=1)


def job(seed: int, replicas: int, ranks: int) -> Replicated:
    """Nodes of which some pairs have slow links, both ways or one."""
    random = Random(seed)
    placement = random.choice(("unidirectional", "wave") if ranks > 1 else ("unidirectional",))
    stages = ranks * (2 if placement == "wave" else 1)
    costs = [(random.randint(5, 15), random.randint(5, 15), random.randint(3, 9)) for _ in range(stages)]
    problem = make_problem(ranks, 3, placement=placement, chunks=stages // ranks, costs_ns=costs)
    problem = replace(problem, stages=tuple(replace(stage, message_bytes=4, gradient_message_bytes=4) for stage in problem.stages))
    links = []
    for one, other in permutations(range(replicas * ranks), 2):
        if random.random() < 0.3:
            latency_ns, bytes_per_second = random.choice((0, 5, 30, 80)), random.choice((10**9, 10**8))
            links.append(Link(source=one, destination=other, latency_ns=latency_ns, bytes_per_second=bytes_per_second))
    usual = MessageCost(latency_ns=random.choice((0, 2)), bytes_per_second=random.choice((None, 10**9)))
    return Replicated(
        problem=problem,
        schedule=constructive(random.choice(("1f1b", "zb-h1", "greedy")) if placement != "wave" else "greedy")(problem),
        replicas=replicas,
        network=Network(site_of_rank=(0,) * (replicas * ranks), within=usual, links=tuple(links)),
        gradient_bytes=tuple(random.randint(0, 60) for _ in range(ranks)),
        buckets=random.randint(1, 2),
    )


class Slowly:
    """What assignments take, as the page of adapting says, written anew."""

    def __init__(self, given: Replicated) -> None:
        self.given = given
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def ends_ns(self, nodes: tuple[int, ...]) -> list[int]:
        """Of each rank of a pipeline on these nodes."""
        if nodes not in self._ends:
            given, links = self.given, []
            for link in given.problem.links:
                between = given.network.link(nodes[link.source], nodes[link.destination])
                assert between is not None
                links.append(replace(between, source=link.source, destination=link.destination))
            timeline = simulate(replace(given.problem, links=tuple(links)), given.schedule)
            each = range(given.problem.ranks)
            self._ends[nodes] = [int(max(timeline.ends_ns[timeline.begin[rank] : timeline.begin[rank + 1]])) for rank in each]
        return self._ends[nodes]

    def step_ns(self, node_of: tuple[int, ...]) -> int:
        """Of an assignment."""
        given, ranks, longest = self.given, self.given.problem.ranks, 0
        ends = [self.ends_ns(node_of[first : first + ranks]) for first in range(0, len(node_of), ranks)]
        for rank in range(ranks):
            slowest = 0
            for one, other in permutations(node_of[rank::ranks], 2):
                between = given.network.link(one, other)
                assert between is not None
                part = -(-given.gradient_bytes[rank] // (given.replicas * given.buckets))
                sending = 0 if between.bytes_per_second is None else -(-part * 10**9 // between.bytes_per_second)
                slowest = max(slowest, between.latency_ns + sending)
            ring = 2 * (given.replicas - 1) * given.buckets * slowest
            longest = max(longest, max(end[rank] for end in ends) + ring)
        return longest


@pytest.mark.parametrize(("replicas", "ranks", "jobs"), [(2, 2, 20), (1, 3, 6), (3, 1, 6), (4, 1, 4), (2, 3, 2), (3, 2, 2)])
def test_no_assignment_is_better(replicas: int, ranks: int, jobs: int) -> None:
    for seed in range(jobs):
        given = job(seed, replicas, ranks)
        found = assign(given, LIMITS)
        assert found.proven
        assert sorted(found.node_of) == list(range(given.nodes))
        slowly = Slowly(given)
        assert found.after.step_ns == found.bound_ns == slowly.step_ns(found.node_of)
        assert found.before.step_ns == slowly.step_ns(tuple(range(given.nodes)))
        every = {node_of: slowly.step_ns(node_of) for node_of in permutations(range(given.nodes))}
        assert found.after.step_ns == min(every.values())
        moves = min(sum(a != b for a, b in enumerate(each)) for each, value in every.items() if value == found.bound_ns)
        assert len(found.moved) == moves


def figure_19(latency_ns: int) -> Replicated:
    """Two pipelines of four ranks whose first ranks share a slow link."""
    problem = make_problem(4, 12, costs_ns=(9, 10, 5))
    slow = [Link(source=a, destination=b, latency_ns=latency_ns) for a, b in ((0, 4), (4, 0))]
    return Replicated(
        problem=problem,
        schedule=constructive("zb-h1")(problem),
        replicas=2,
        network=Network(site_of_rank=(0,) * 8, links=tuple(slow)),
        gradient_bytes=(100,) * 4,
        buckets=40,
    )


def test_a_slow_link_of_a_ring_goes_into_a_pipeline_or_nowhere() -> None:
    given = figure_19(30)
    found = assign(given, LIMITS)
    assert found.proven
    # One exchange of two nodes is enough: a link that neither a ring nor a pipeline uses costs nothing.
    assert len(found.moved) == 2
    assert found.before.rings_ns[0] == 2 * 40 * 30
    assert found.after.rings_ns == (0,) * 4
    assert found.after.step_ns == assign(replace(given, network=Network(site_of_rank=(0,) * 8)), LIMITS).before.step_ns
    for a, b in combinations(range(8), 2):
        if {found.node_of[a], found.node_of[b]} == {0, 4}:
            assert abs(a - b) != 4


def test_moves_are_weighed() -> None:
    """The two nodes with the slow link weigh much, so that others leave the ring instead, if they can: here they cannot."""
    given = figure_19(30)
    found = assign(given, LIMITS, weights=(9, 1, 1, 1, 9, 1, 1, 1))
    assert found.proven
    assert sum((9, 1, 1, 1, 9, 1, 1, 1)[node] for node in found.moved) == 10


def test_what_is_fast_stays() -> None:
    given = replace(figure_19(0), network=Network(site_of_rank=(0,) * 8))
    found = assign(given, LIMITS)
    assert (found.proven, found.moved, found.before) == (True, (), found.after)


def test_a_ring_of_one_takes_nothing() -> None:
    assert ring_ns(MessageCost(latency_ns=5), job(0, 1, 1), 100) == 0


def test_gradients_take_longer_than_a_message_in_proportion() -> None:
    """Where a link has the time of a message of 4 bytes, as where it has the bandwidth that follows from that."""
    given = job(5, 2, 2)
    steps = []
    for cost in (MessageCost(latency_ns=5, transfer_ns=40), MessageCost(latency_ns=5, bytes_per_second=10**8)):
        network = Network(site_of_rank=(0,) * 4, within=cost)
        steps.append(Timer(replace(given, network=network, gradient_bytes=(10**6, 10**12))).step(range(4)))
    assert steps[0] == steps[1]
    assert steps[0].rings_ns[1] > 900_000 * steps[0].rings_ns[0]


@pytest.mark.parametrize("sizes", [(0, 0), (4, 5)])
def test_a_message_of_no_known_size_says_nothing_of_gradients(sizes: tuple[int, int]) -> None:
    given = job(5, 2, 2)
    stages = tuple(replace(each, message_bytes=sizes[0], gradient_message_bytes=sizes[1]) for each in given.problem.stages)
    cost = MessageCost(latency_ns=5, transfer_ns=40)
    given = replace(
        given,
        problem=replace(given.problem, stages=stages),
        network=Network(site_of_rank=(0,) * 4, within=cost),
        gradient_bytes=(9, 9),
    )
    for search in (assign, assign_nodes):
        with pytest.raises(InvalidInput, match=r"^links: found a transfer of 40 ns between nodes 0 and 1, expected a bandwidth"):
            search(given, LIMITS)
    assert assign_nodes(replace(given, gradient_bytes=(0, 0)), LIMITS).node_of == (0, 1, 2, 3)


def test_refusals() -> None:
    given = figure_19(30)
    for wrong, said in (
        (replace(given, gradient_bytes=(1,)), "gradients: found [1], expected 4 sizes, one for each rank, of at least 0"),
        (replace(given, buckets=0), "buckets: found 0, expected at least 1"),
        (replace(given, replicas=0), "replicas: found 0, expected at least 1"),
        (
            replace(given, network=Network(site_of_rank=(0,) * 4 + (1,) * 4)),
            "links: found nothing between nodes 0 and 4, expected what connects any two nodes",
        ),
    ):
        with pytest.raises(InvalidInput) as caught:
            assign(wrong, LIMITS)
        assert str(caught.value) == said
    with pytest.raises(InvalidInput, match="weights: found"):
        assign(given, LIMITS, weights=(1, -1))


def test_orders_are_made_for_the_links() -> None:
    """Two sites, a pipeline in each: the rings cross. Assigned anew, the pipelines do, with orders made for that."""
    problem = make_problem(2, 6, costs_ns=(9, 10, 5))
    slow = [Link(source=a, destination=b, latency_ns=30) for a, b in permutations(range(4), 2) if a // 2 != b // 2]
    given = Replicated(
        problem=problem,
        schedule=constructive("1f1b")(problem),
        replicas=2,
        network=Network(site_of_rank=(0,) * 4, links=tuple(slow)),
        gradient_bytes=(100, 100),
        buckets=10,
    )
    found, schedule = assign_and_plan(given, LIMITS)
    alone = assign(given, LIMITS)
    assert alone.proven
    timer = Timer(replace(given, schedule=schedule))
    assert timer.step(found.node_of).step_ns < alone.after.step_ns < alone.before.step_ns
    assert {*found.node_of[::2]} in ({0, 1}, {2, 3})
    assert verify_schedule(slowest_problem(timer, found.node_of), schedule) == ()


def test_links_that_are_nearly_alike_do_not_scatter_the_nodes() -> None:
    """Measured links all differ: the search has few kinds of them, and the nodes that need not move stay."""
    random, ms = Random(3), 1_000_000
    problem = make_problem(4, 8, costs_ns=(9 * ms, 10 * ms, 5 * ms))
    links = []
    for a, b in permutations(range(8), 2):
        latency_ns = 30 * ms if {a, b} == {0, 4} else random.randint(8_000, 12_000)
        links.append(Link(source=a, destination=b, latency_ns=latency_ns, bytes_per_second=random.randint(47, 52) * 10**9))
    given = Replicated(
        problem=problem,
        schedule=constructive("zb-h1")(problem),
        replicas=2,
        network=Network(site_of_rank=(0,) * 8, links=tuple(links)),
        gradient_bytes=(10**9,) * 4,
        buckets=25,
    )
    found = assign_nodes(given, LIMITS, keep_orders=True)
    assert (found.sought.proven, len(found.moved)) == (True, 2)
    assert found.after == Timer(given).step(found.node_of)
    assert found.after.step_ns < found.before.step_ns - 1000 * ms
    fast = replace(given, network=replace(given.network, links=tuple(link for link in links if link.latency_ns < ms)))
    stays = assign_nodes(fast, LIMITS, keep_orders=True)
    assert (stays.moved, stays.after) == ((), stays.before)


def test_orders_made_for_equal_links_are_not_taken_where_they_are_worse() -> None:
    given = job(2, 2, 2)
    found = assign_nodes(given, LIMITS)
    assert found.after.step_ns <= found.before.step_ns
    assert found.after == Timer(replace(given, schedule=found.schedule)).step(found.node_of)


def test_no_replica_takes_longer_than_the_plan_that_all_run_where_links_are_given_in_different_ways() -> None:
    random, mixed = Random(3), 0
    for seed in range(20):
        given = job(seed, 2, 2)
        links = []
        for one, other in permutations(range(given.nodes), 2):
            latency_ns = random.choice((0, 20))
            cost = random.choice(
                (
                    MessageCost(latency_ns=latency_ns),
                    MessageCost(latency_ns=latency_ns, transfer_ns=random.choice((0, 30))),
                    MessageCost(latency_ns=latency_ns, bytes_per_second=random.choice((10**9, 10**8))),
                )
            )
            links.append(Link.of(one, other, cost, None))
        mixed += len({(link.transfer_ns is None, link.bytes_per_second is None) for link in links}) == 3
        given = replace(given, network=replace(given.network, links=tuple(links)))
        found = assign_nodes(given, LIMITS, keep_orders=True)
        assert simulate(found.problem, found.schedule).makespan_ns >= max(found.after.pipelines_ns)
    assert mixed > 10


def test_one_node_stays() -> None:
    assert assign_nodes(job(0, 1, 1), LIMITS).node_of == (0,)
