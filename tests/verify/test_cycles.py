"""The shortest cycle of small and random graphs, against plain enumeration."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, strategies as st

from schedc.verify.cycles import shortest_cycle


def test_no_cycle() -> None:
    assert shortest_cycle(0, []) is None
    assert shortest_cycle(4, [[1, 2], [3], [3], []]) is None


def test_edge_to_itself() -> None:
    assert shortest_cycle(3, [[1], [2, 1], [0]]) == [1]


def test_the_shorter_of_two_cycles() -> None:
    assert shortest_cycle(6, [[1], [2], [0, 3], [4], [3], [0]]) == [3, 4]


def test_one_long_cycle() -> None:
    size = 20_000
    successors = [[(node + 1) % size] for node in range(size)]
    assert shortest_cycle(size, successors) == list(range(size))


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.sets(st.integers(0, n - 1)), min_size=n, max_size=n)))
def test_equals_enumeration(edges: list[set[int]]) -> None:
    successors = [sorted(each) for each in edges]
    size = len(successors)
    cycles = [
        cycle
        for length in range(1, size + 1)
        for cycle in permutations(range(size), length)
        if all(b in edges[a] for a, b in zip(cycle, (*cycle[1:], cycle[0]), strict=True))
    ]
    found = shortest_cycle(size, successors)
    if not cycles:
        assert found is None
    else:
        assert found is not None
        assert len(found) == len(cycles[0])
        assert tuple(found) in cycles
