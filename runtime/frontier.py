"""Where the weights' part of an autograd graph joins the path of the activations.

B walks the path from a stage's outputs to its inputs; W does what hangs off it. A *joint* is a node on the path with edges, its
*sides*, that leave it towards weights only: a linear layer, a norm. B captures the gradients that arrive at the joints, W goes on
from them. Asked for a weight that several joints lead to, autograd would follow the path between them; B computes such weights.
Takes a graph; gives where it is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.autograd.graph import GradientEdge

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch.autograd.graph import Node

__all__ = ["Cut", "Joint", "find_cut"]


class Joint(NamedTuple):
    """A node where W begins."""

    node: Node
    edges: tuple[GradientEdge, ...]
    """Where gradients arrive at it."""
    sides: tuple[GradientEdge, ...]
    """Where it leads to weights that are W's; empty where all that is behind it is W's, because the path ends here."""
    weights: int
    """The elements of the weights behind it: the measure of its work."""


class Cut(NamedTuple):
    """What of a graph is W's."""

    joints: tuple[Joint, ...]
    """From output to input."""
    shared: tuple[GradientEdge, ...]
    """The weights whose gradients B computes, because the stage uses them in several places."""


class _Cluster:
    """Sides that have weights in common."""

    def __init__(self) -> None:
        self.members: dict[tuple[Node, GradientEdge], set[Node]] = {}
        """Each side with its joint's node, and all nodes behind the side."""
        self.leaves: set[Node] = set()

    def shared(self) -> bool:
        """Whether the gradient at a side, asked for from its joint, would hold more than flows through that side."""
        if len({node for node, _ in self.members}) > 1:
            return True
        return any(side.node in behind for _, side in self.members for behind in self.members.values())


def find_cut(roots: Sequence[GradientEdge], sources: Sequence[GradientEdge]) -> Cut:
    """Where to cut the graph behind `roots`.

    Args:
        roots: the stage's outputs, or its loss.
        sources: those of its inputs that need a gradient; none where all are the batch (tokens, say). The path then ends at the
            node that used the first weights, so that a first stage is split as well.
    """
    order = _topological(roots)
    inputs = {source.node for source in sources}
    path = _path(order, {root.node for root in roots}, inputs if sources else {_first_work(order)})
    arrivals: dict[Node, set[int]] = {}
    for root in roots:
        arrivals.setdefault(root.node, set()).add(root.output_nr)
    for node in order:
        if node in path:
            for after, number in node.next_functions:
                if after is not None:
                    arrivals.setdefault(after, set()).add(number)
    cluster_of = _clusters(order, path)
    joints: list[Joint] = []
    shared: dict[Node, None] = {}
    for node in order:
        if node not in path:
            continue
        if not node.next_functions and node not in inputs:  # an output is a weight
            shared[node] = None
        sides = _sides(node, path)
        ends = not any(after in path for after, _ in node.next_functions)
        whole = ends and all(len({at for at, _ in cluster_of[node, side].members}) == 1 for side in sides)
        own = []
        for side in sides:
            cluster = cluster_of[node, side]
            if whole or not cluster.shared():
                own.append(side)
            else:
                shared.update(dict.fromkeys(sorted(cluster.leaves, key=order.index)))
        if own:
            edges = tuple(GradientEdge(node, number) for number in sorted(arrivals[node]))
            leaves = {leaf for side in own for leaf in cluster_of[node, side].leaves}
            joints.append(Joint(node, edges, () if whole else tuple(own), sum(map(_elements, leaves))))
    return Cut(tuple(joints), tuple(GradientEdge(leaf, 0) for leaf in shared if _elements(leaf)))


def _path(order: Sequence[Node], roots: set[Node], ends: set[Node]) -> set[Node]:
    """The nodes between the outputs and these ends; an output from which no end can be reached is one itself."""
    path: set[Node] = set()
    for node in reversed(order):
        if node in ends or node in roots or any(after in path for after, _ in node.next_functions):
            path.add(node)
    return path


def _topological(roots: Sequence[GradientEdge]) -> list[Node]:
    """All nodes behind `roots`, every node before those that it leads to."""
    order: list[Node] = []
    seen: set[Node] = set()
    for root in roots:
        if root.node in seen:
            continue
        seen.add(root.node)
        stack = [(root.node, iter(root.node.next_functions))]
        while stack:
            node, rest = stack[-1]
            for after, _ in rest:
                if after is not None and after not in seen:
                    seen.add(after)
                    stack.append((after, iter(after.next_functions)))
                    break
            else:
                order.append(node)
                stack.pop()
    order.reverse()
    return order


def _first_work(order: list[Node]) -> Node:
    """The node furthest from the outputs that joins several things or is used by several; an output's where there is none.

    Behind it stand only weights and what prepares them (a transposition, a cast, the look-up of an embedding).
    """
    depth = dict.fromkeys(order, 0)
    before: dict[Node, Node] = {}
    users = dict.fromkeys(order, 0)
    for node in order:
        for after in {after for after, _ in node.next_functions if after is not None}:
            users[after] += 1
            if depth[node] + 1 > depth[after]:
                depth[after], before[after] = depth[node] + 1, node
    node = max(order, key=depth.__getitem__)
    node = before.get(node, node)  # from the weight itself, however often it is used
    while node in before and len(node.next_functions) < 2 and users[node] == 1:
        node = before[node]
    return node


def _sides(node: Node, path: set[Node]) -> tuple[GradientEdge, ...]:
    """The edges that leave the path at this node."""
    edges = (GradientEdge(after, at) for after, at in node.next_functions if after is not None and after not in path)
    return tuple(dict.fromkeys(edges))


def _clusters(order: Iterable[Node], path: set[Node]) -> Mapping[tuple[Node, GradientEdge], _Cluster]:
    """The cluster of each side, by its joint's node and the side."""
    of_leaf: dict[Node, _Cluster] = {}
    of_side: dict[tuple[Node, GradientEdge], _Cluster] = {}
    for node in order:
        for side in _sides(node, path) if node in path else ():
            behind = _behind(side.node)
            leaves = {after for after in {side.node, *behind} if not after.next_functions}
            cluster = _Cluster()
            cluster.members[node, side] = behind
            cluster.leaves |= leaves
            for other in {of_leaf[leaf] for leaf in leaves if leaf in of_leaf}:
                cluster.members |= other.members
                cluster.leaves |= other.leaves
            of_leaf.update(dict.fromkeys(cluster.leaves, cluster))
            of_side.update(dict.fromkeys(cluster.members, cluster))
    return of_side


def _behind(node: Node) -> set[Node]:
    """All nodes that this one leads to."""
    seen: set[Node] = set()
    stack = [node]
    while stack:
        for after, _ in stack.pop().next_functions:
            if after is not None and after not in seen:
                seen.add(after)
                stack.append(after)
    return seen


def _elements(node: Node) -> int:
    """How many elements the weight has into which the node accumulates; 0 for other nodes."""
    variable = getattr(node, "variable", None)
    return 0 if variable is None else variable.numel()
