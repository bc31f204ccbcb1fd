"""Can the action lists of a CSV of PyTorch's run to their end, whatever the times? If not, what waits in the smallest cycle?

Takes complete lists; gives one finding or none. What waits for what is a graph over compute actions and messages. A rank computes
in the order of its list; a message waits for the compute before its send in the one list and before its receive in the other (c10d
lets a transfer begin when the stream has come so far), and the action that needs it waits for the message. That is so on every
backend. On top come the queues, and each level is only looked at if the one before it holds:

1. none: gloo;
2. one queue for each pair of ranks, both directions in it: NCCL, whose pairs have a communicator each;
3. one queue for all that a rank sends and receives: NCCL where `init_process_group` was given a `device_id`.

A graph without a cycle runs to its end: of the nodes not done, one waits for nothing.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.formats.torch_csv.lint.actions import COMPUTE, Action, Finding, Key, Lists
from schedc.formats.torch_csv.lint.rules import LintedMessage, consumer_of, message_of, messages, other_end
from schedc.verify.cycles import edges_between, shortest_cycle, stuck_nodes

if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST_NODES = 4_000
"""The search for the smallest cycle takes time by the square of the nodes; of more, some cycle is shown."""

LEVELS = (
    "on every backend",
    "where a pair of ranks has one queue for both directions, as with NCCL",
    "where a rank has one queue for all peers, as with NCCL after init_process_group(device_id=...)",
)


class _Graph:
    """Nodes with names and places, and who waits for whom."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.actions: list[Action] = []
        self.waiting: list[list[int]] = []

    def add(self, name: str, action: Action) -> int:
        self.names.append(name)
        self.actions.append(action)
        self.waiting.append([])
        return len(self.names) - 1

    def wait(self, before: int, after: int) -> None:
        self.waiting[before].append(after)

    def cycle(self) -> list[int] | None:
        """The nodes of a smallest cycle, each waiting for the one before it."""
        stuck = stuck_nodes(self.waiting)
        if len(stuck) > _MOST_NODES:
            return self._some_cycle(set(stuck))
        cycle = shortest_cycle(len(stuck), edges_between(stuck, self.waiting))
        return None if cycle is None else [stuck[index] for index in cycle]

    def _some_cycle(self, stuck: set[int]) -> list[int]:
        """Go from a stuck node to one that it waits for, over and over, until one comes again."""
        before = {other: node for node in stuck for other in self.waiting[node] if other in stuck}
        way = [min(stuck)]
        seen = {way[0]: 0}
        while (node := before[way[-1]]) not in seen:
            seen[node] = len(way)
            way.append(node)
        return way[seen[node] :][::-1]

    def finding(self, cycle: list[int], where: str) -> Finding:
        """The finding about the cycle, at the first compute action on it, or at a send where queues alone make it."""
        start = next((index for index, node in enumerate(cycle) if self.actions[node].kind in COMPUTE), 0)
        cycle = [*cycle[start:], *cycle[:start]]
        shown = " -> ".join(f"{self.names[node]} ({self.actions[node].place})" for node in [*cycle, cycle[0]])
        message = f"it waits for itself, {where}; each waits for the one before it (messages as send/receive): {shown}"
        return self.actions[cycle[0]].finding("deadlock", message)


def check_deadlock(lists: Lists, *, queues: bool = True) -> Iterator[Finding]:
    """No action of a `compute_comms` CSV waits for itself, over any number of others.

    Of `lists` without duplicates, from which nothing is missing; `queues`: whether to look at levels 2 and 3, too.
    """
    for level, where in enumerate(LEVELS if queues else LEVELS[:1]):
        graph = _with_messages(lists, level)
        cycle = graph.cycle()
        if cycle is not None:
            yield graph.finding(cycle, where)
            return


def _with_messages(lists: Lists, level: int) -> _Graph:
    graph = _Graph()
    node_of: dict[Action, int] = {}
    message_node: dict[LintedMessage, int] = {
        message: graph.add(message.name, lists.at[message.send]) for message in messages(lists)
    }
    queues: dict[tuple[int, ...], list[int]] = {}
    for row in lists.rows:
        latest: int | None = None
        for action in row:
            if action.kind in COMPUTE:
                node = node_of[action] = graph.add(action.name, action)
                if latest is not None:
                    graph.wait(latest, node)
                latest = node
                continue
            message = message_of(action)
            if message is None or message not in message_node:
                continue
            if latest is not None:
                graph.wait(latest, message_node[message])
            queue = (action.row, lists.rank_of[other_end(action, message)]) if level == 1 else (action.row,)
            queues.setdefault(queue, []).append(message_node[message])
    for message, node in message_node.items():
        needs = consumer_of(lists, message)
        assert needs is not None
        graph.wait(node, node_of[needs])
    if level:
        for nodes in queues.values():
            for before, after in pairwise(nodes):
                graph.wait(before, after)
    return graph


def check_compute_deadlock(lists: Lists) -> Iterator[Finding]:
    """The compute of a `compute_only` CSV can be brought into one order; torch's lowering fails if not.

    The actions of an OVERLAP_F_B cell start together there: torch adds it when all of them can run. The lists have no duplicates,
    and nothing is missing.
    """
    graph = _Graph()
    node_of: dict[Key, int] = {}
    for row in lists.rows:
        cells: dict[int, int] = {}
        for action in row:
            if action.cell not in cells:
                cells[action.cell] = graph.add(action.name, action)
            node_of[action.key] = cells[action.cell]
        for before, after in pairwise(cells.values()):
            graph.wait(before, after)
    for stage in range(lists.stages):
        for microbatch in range(lists.microbatches):
            backward = lists.backward(stage, microbatch)
            assert backward is not None
            if stage:
                graph.wait(node_of[("F", stage - 1, microbatch)], node_of[("F", stage, microbatch)])
                previous = lists.backward(stage - 1, microbatch)
                assert previous is not None
                graph.wait(node_of[backward.key], node_of[previous.key])
            graph.wait(node_of[("F", stage, microbatch)], node_of[backward.key])
    cycle = graph.cycle()
    if cycle is not None:
        yield graph.finding(cycle, "and torch refuses it as malformed")
