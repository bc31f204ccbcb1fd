"""Candidates use every device and the whole batch; collectives take what a ring takes."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, strategies as st

from schedc.ir.costs import MessageCost
from schedc.study.tune.candidates import Choices, candidates, divisors
from schedc.study.tune.degrees import Degrees
from schedc.study.tune.replicas import one_way_ns, ring_ns


@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=3),
    st.integers(1, 48),
    st.integers(1, 12),
    st.integers(1, 2),
    st.lists(st.integers(0, 1), min_size=3, max_size=3),
)
def test_every_candidate_uses_all_devices_and_the_whole_batch(
    sites: list[int], batch: int, layers: int, experts: int, kinds: list[int]
) -> None:
    choices = Choices(
        sites=tuple(sites),
        batch=batch,
        layers=layers,
        ranks=divisors(sum(sites)),
        microbatch_sizes=(1, 2, 3),
        placements=("unidirectional", "loop", "wave"),
        chunks=(2, 3),
        zero_stages=(0, 1),
        forms=(("none", "split"),),
        across_sites=("pipeline", "data-parallel"),
        degrees=(Degrees(expert=experts),),
        kinds=tuple(kinds[: len(sites)]),
    )
    found = candidates(choices)
    assert len(set(found)) == len(found)
    for each in found:
        assert each.ranks * each.data_parallel == sum(sites)
        assert each.data_parallel * each.microbatches * each.microbatch_size == batch
        assert each.ranks * each.chunks <= layers
        assert each.data_parallel % experts == 0
        assert each.zero_stage == 0 or each.data_parallel > 1
        assert sum(each.ranks_of_site) == each.ranks
        assert sum(each.replicas_of_site) == each.data_parallel
        if each.across == "pipeline":
            assert [ranks * each.data_parallel for ranks in each.ranks_of_site] == [sites[site] for site in each.site_order]
        elif each.across == "data-parallel":
            assert [replicas * each.ranks for replicas in each.replicas_of_site] == sites
        else:
            assert len(sites) == 1
    crossed = {each.site_order for each in found if each.across == "pipeline"}
    if crossed:  # every order, of equal sites one
        said = {tuple((sites[site], kinds[site]) for site in order) for order in crossed}
        assert said == set(permutations(zip(sites, kinds, strict=False))) and len(said) == len(crossed)
    if len(sites) == 1 and experts == 1:  # by hand
        divided = {
            (ranks, sites[0] // ranks, size)
            for ranks in range(1, min(sites[0], layers) + 1)
            for size in (1, 2, 3)
            if sites[0] % ranks == 0 and batch % (sites[0] // ranks * size) == 0
        }
        assert {(each.ranks, each.data_parallel, each.microbatch_size) for each in found} == divided


def link_of(latency_ns: int, bytes_per_second: int | None) -> MessageCost:
    return MessageCost(latency_ns=latency_ns, bytes_per_second=bytes_per_second)


def test_a_ring_sends_what_it_must() -> None:
    link = link_of(1_000, 10**9)
    assert one_way_ns((4,), link, None, 8_000) == 3 * 1_000 + 6_000  # three messages of a quarter
    assert one_way_ns((1,), link, None, 8_000) == 0
    assert ring_ns(link_of(5, None), 3, 10**12) == 10


def test_two_sites_exchange_half_of_the_bytes_each_way() -> None:
    """CrossPipe, appendix E: reduce-scatter and all-gather of N parameters of 2 bytes together take 2α + 2Nβ."""
    parameters, latency_ns, bytes_per_second = 405 * 10**9, 4_000_000, 64 * 10**9
    between = link_of(latency_ns, bytes_per_second)
    expected_ns = 2 * latency_ns + 2 * parameters * 10**9 // bytes_per_second
    assert 2 * one_way_ns((1, 1), link_of(0, None), between, 2 * parameters) == expected_ns


def test_across_sites_each_site_reduces_its_own_first() -> None:
    within, between = link_of(10, 10**9), link_of(1_000, 10**8)
    assert one_way_ns((2, 2), within, between, 1_000_000) == (10 + 500_000) + (1_000 + 5_000_000)
    # Where the sites' connection is fast, each device's own link is what its part waits for.
    assert one_way_ns((2, 2), within, link_of(1_000, 10**12), 1_000_000) == (10 + 500_000) + (1_000 + 250_000)
