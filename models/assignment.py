"""The CP-SAT model of an assignment: which node takes which place, a rank of a replica, so that the step is short.

Variables: for each node and place, whether it takes it; for each replica and pair of ranks that exchange messages, whether the link
between them is of a kind; for each rank, whether its ring has a link of a kind; when each rank's pipelines end, and how long its
ring takes. Objective: the step, and among equal steps what the moves weigh.

When a rank's pipelines end is bounded from below by what is known: `KnownEnds` says that with links of these kinds at these pairs,
ranks end no earlier than this, whatever the other links are. So the model is a relaxation, and exact where enough `KnownEnds` are
known.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from ortools.sat.python import cp_model

if TYPE_CHECKING:
    from collections.abc import Sequence


class Kinds(NamedTuple):
    """What is between nodes, by number; -1: a link that costs the least of all, which the model leaves out."""

    of_pair: Sequence[Sequence[int]]
    """Of each ordered pair of nodes: the kind of what is between them, both ways."""
    ring: Sequence[Sequence[int]]
    """Of each unordered pair of nodes, given in both orders: a level of what the ring takes with it; -1: the least."""
    ring_ns: Sequence[Sequence[int]]
    """Of each level, what the ring of each rank takes if that is its slowest."""
    least_ring_ns: Sequence[int]
    """What the ring of each rank takes at least."""


class KnownEnds(NamedTuple):
    """Something that is known of when ranks end."""

    where: tuple[tuple[tuple[int, int], int], ...]
    """Pairs of ranks, each with the kind of what is between them."""
    ends_ns: tuple[int, ...]
    """Per rank, when its last op ends at the earliest in a replica with these."""


class AssignmentModel:
    """A model that grows as more is known."""

    def __init__(
        self,
        ranks: int,
        replicas: int,
        pairs: Sequence[tuple[int, int]],
        kinds: Kinds,
        weights: Sequence[int],
        least: KnownEnds,
        most_ns: int,
    ) -> None:
        """All constraints but those of `learn`.

        Args:
            ranks: of a pipeline.
            replicas: this many pipelines; nodes and places are 0 to ranks × replicas - 1, place = replica × ranks + rank.
            pairs: the pairs of ranks that exchange messages.
            kinds: what is between nodes.
            weights: of each node, what it weighs if it leaves the place of its own number.
            least: when ranks end if every link costs the least.
            most_ns: an upper bound of the step.
        """
        self.model = model = cp_model.CpModel()
        self._ranks, self._replicas = ranks, replicas
        nodes = range(ranks * replicas)
        self.takes = [[model.new_bool_var(f"{node} at {place}") for place in nodes] for node in nodes]
        """Of each node and place, whether it takes it."""
        for node in nodes:
            model.add_exactly_one(self.takes[node])
            model.add_exactly_one(self.takes[other][node] for other in nodes)
        self._is: list[dict[tuple[tuple[int, int], int], cp_model.IntVar]] = [{} for _ in range(replicas)]
        self._add_links(pairs, kinds)
        self._end = [model.new_int_var(least.ends_ns[rank], most_ns, f"end {rank}") for rank in range(ranks)]
        self._add_rings(kinds, most_ns)
        self.scale = 1 + sum(weights)
        """The objective is the step times this, and what the moves weigh."""
        moves = sum(weight * (1 - self.takes[node][node]) for node, weight in enumerate(weights))
        model.minimize(self.scale * self._step + moves)

    def learn(self, known: KnownEnds) -> None:
        """Add what is known of any replica."""
        for present in self._is:
            if all(where in present for where in known.where):
                literals = [present[where] for where in known.where]
                for rank, end_ns in enumerate(known.ends_ns):
                    self.model.add(self._end[rank] >= end_ns).only_enforce_if(literals)

    def hint(self, node_of: Sequence[int]) -> None:
        """Start from an assignment: the node of each place."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for place, taker in enumerate(node_of):
            for node, places in enumerate(self.takes):
                self.model.add_hint(places[place], node == taker)

    def _add_links(self, pairs: Sequence[tuple[int, int]], kinds: Kinds) -> None:
        """Where two nodes take the ranks of a pair, the link between these is of their kind."""
        nodes = range(len(self.takes))
        for replica, (a, b) in product(range(self._replicas), pairs):
            present = self._is[replica]
            first, second = replica * self._ranks + a, replica * self._ranks + b
            for one, other in product(nodes, nodes):
                kind = kinds.of_pair[one][other] if one != other else -1
                if kind >= 0:
                    if ((a, b), kind) not in present:
                        present[(a, b), kind] = self.model.new_bool_var("")
                    self.model.add_implication(self.takes[one][first], present[(a, b), kind]).only_enforce_if(
                        self.takes[other][second]
                    )

    def _add_rings(self, kinds: Kinds, most_ns: int) -> None:
        """A ring takes what its slowest link makes it take; the step ends with the last ring."""
        model, nodes = self.model, range(len(self.takes))
        self._step = model.new_int_var(0, most_ns, "step")
        for rank in range(self._ranks):
            among = [sum(self.takes[node][replica * self._ranks + rank] for replica in range(self._replicas)) for node in nodes]
            slowest = [model.new_bool_var("") for _ in kinds.ring_ns]
            ring = model.new_int_var(kinds.least_ring_ns[rank], most_ns, f"ring {rank}")
            for one in nodes:
                for other in range(one):
                    level = kinds.ring[one][other]
                    if level >= 0:
                        model.add(among[one] + among[other] <= 1 + slowest[level])
            for level, has in enumerate(slowest):
                model.add(ring >= kinds.ring_ns[level][rank]).only_enforce_if(has)
            model.add(self._step >= self._end[rank] + ring)
