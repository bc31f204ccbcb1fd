"""The cycles of a directed graph, for verifiers that explain a deadlock with as few ops as possible."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def shortest_cycle(num_nodes: int, successors: Sequence[Sequence[int]]) -> list[int] | None:
    """One cycle with the fewest nodes, each before its successor in it; the same one for the same graph.

    Args:
        num_nodes: nodes are 0 to num_nodes − 1.
        successors: per node, the nodes that its edges lead to; an edge to itself is a cycle of one node.

    Returns:
        The nodes of the cycle in the order of its edges, or None if the graph has no cycle.
    """
    predecessors: list[list[int]] = [[] for _ in range(num_nodes)]
    for node in range(num_nodes):
        for successor in successors[node]:
            predecessors[successor].append(node)
    ins = [len(nodes) for nodes in predecessors]
    outs = [len(successors[node]) for node in range(num_nodes)]
    alive = [True] * num_nodes

    def remove(doomed: list[int]) -> None:
        """Remove nodes, and then every node that is on no cycle any more because nothing leads to it or from it."""
        while doomed:
            node = doomed.pop()
            if not alive[node]:
                continue
            alive[node] = False
            for successor in successors[node]:
                ins[successor] -= 1
                if ins[successor] == 0:
                    doomed.append(successor)
            for predecessor in predecessors[node]:
                outs[predecessor] -= 1
                if outs[predecessor] == 0:
                    doomed.append(predecessor)

    remove([node for node in range(num_nodes) if ins[node] == 0 or outs[node] == 0])
    best: list[int] | None = None
    for start in range(num_nodes):
        if not alive[start]:
            continue
        cycle = _cycle_through(start, successors, alive, num_nodes if best is None else len(best) - 1)
        best = cycle or best
        if best is not None and len(best) == 1:
            break
        remove([start])  # its cycles have been seen; whatever only they kept alive goes too
    return best


def edges_between(nodes: Sequence[int], successors: Sequence[Sequence[int]]) -> list[list[int]]:
    """Per one of these nodes, its successors among them, as their places in `nodes`."""
    place = {node: index for index, node in enumerate(nodes)}
    return [[place[other] for other in successors[node] if other in place] for node in nodes]


def _cycle_through(start: int, successors: Sequence[Sequence[int]], alive: Sequence[bool], most: int) -> list[int] | None:
    """A shortest cycle through `start` among the nodes alive, if it has at most `most` nodes."""
    parent = {start: start}
    reached = deque([(start, 1)])
    while reached:
        node, length = reached.popleft()
        if length > most:
            return None
        for successor in successors[node]:
            if successor == start:
                cycle = [node]
                while cycle[-1] != start:
                    cycle.append(parent[cycle[-1]])
                return cycle[::-1]
            if alive[successor] and successor not in parent:
                parent[successor] = node
                reached.append((successor, length + 1))
    return None


def stuck_nodes(waiting: Sequence[Sequence[int]]) -> list[int]:
    """The nodes that never proceed, ascending: those on a cycle, and those that wait for one of them, over any number of others.

    Args:
        waiting: per node, those that wait for it.
    """
    missing = [0] * len(waiting)
    for others in waiting:
        for node in others:
            missing[node] += 1
    free = [node for node, count in enumerate(missing) if not count]
    while free:
        for node in waiting[free.pop()]:
            missing[node] -= 1
            if not missing[node]:
                free.append(node)
    return [node for node, count in enumerate(missing) if count]
