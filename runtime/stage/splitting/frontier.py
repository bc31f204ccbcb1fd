"""Where the weights' part of an autograd graph joins the path of the activations.

B walks the path from a stage's outputs to its inputs; W does what hangs off it. A *joint* is a node on the path with edges, its
*sides*, that leave it towards weights only: a linear layer, a norm. B captures the gradients that arrive at the joints, W goes on
from them. Asked for a weight that several joints lead to, autograd would follow the path between them; B computes such weights.

Most of autograd's own nodes run twice, for B and for W, and compute each time only what is asked for. A function of the user's own
(a layer with collectives in its backward, a compiled stage) always computes all that it gives: it runs once, in B, and W goes on
from its sides. Takes a graph; gives where it is cut.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

from schedc.runtime.stage.splitting.kept import Place, place_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch


class Joint(NamedTuple):
    """A node where W begins."""

    node: Node
    edges: tuple[GradientEdge, ...]
    """Where W begins: where gradients arrive at the node, or its sides if it runs in B alone."""
    leaves: tuple[torch.Tensor, ...]
    """The weights behind it that are W's."""
    runs_twice: bool
    """Whether it runs in B and again in W."""
    ends: bool
    """Whether the path ends here, so that it runs in W alone."""

    @property
    def weights(self) -> int:
        """The elements of the weights behind it: the measure of its work."""
        return sum(leaf.numel() for leaf in self.leaves)


class Cut(NamedTuple):
    """What of a graph is W's."""

    joints: tuple[Joint, ...]
    """From output to input."""
    shared: tuple[GradientEdge, ...]
    """The weights whose gradients B computes, because the stage uses them in several places."""
    before: Mapping[Place, tuple[Place, ...]]
    """Of each edge where W begins and whose node does not run in B: the nodes on the path that lead to it, each with the number of
    its edge."""
    functions: tuple[Node, ...]
    """The functions of the user's own."""


class _Cluster:
    """Sides that have weights in common."""

    def __init__(self) -> None:
        self.joints: set[Node] = set()
        self.members: set[tuple[Node, GradientEdge]] = set()
        """Each side with its joint's node."""
        self.leaves: set[Node] = set()


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
    place = {node: number for number, node in enumerate(order)}
    joints: list[Joint] = []
    shared: dict[Node, None] = {}
    for node in order:
        if node not in path:
            continue
        if not node.next_functions and node not in inputs:  # an output is a weight
            shared[node] = None
        own = []
        leaves: dict[Node, None] = {}
        sides = _sides(node, path)
        for side in sides:
            cluster = cluster_of[node, side]
            found = dict.fromkeys(sorted(cluster.leaves, key=place.__getitem__))
            if len(cluster.joints) > 1:
                shared |= found
            else:
                own.append(side)
                leaves |= found
        weights = tuple(leaf.variable for leaf in leaves if _is_weight(leaf))  # type: ignore[attr-defined]
        if weights:
            ends = len(own) == len(sides) and not any(after in path for after, _ in node.next_functions)
            once = not ends and isinstance(node, BackwardCFunction)  # it computes all its gradients, whichever are asked for
            edges = own if once else [GradientEdge(node, number) for number in sorted(arrivals[node])]
            joints.append(Joint(node, tuple(edges), weights, runs_twice=not ends and not once, ends=ends))
    return Cut(
        tuple(joints),
        tuple(GradientEdge(leaf, 0) for leaf in shared if _is_weight(leaf)),
        _before(joints, [node for node in order if node in path]),
        tuple(node for node in order if isinstance(node, BackwardCFunction)),
    )


def _before(joints: Iterable[Joint], path: Iterable[Node]) -> dict[Place, tuple[Place, ...]]:
    """`Cut.before`."""
    found: dict[Place, list[Place]] = {place_of(edge): [] for joint in joints if not joint.runs_twice for edge in joint.edges}
    if found:
        for node in path:
            for number, edge in enumerate(node.next_functions):
                if edge in found:
                    found[edge].append((node, number))
    return {edge: tuple(nodes) for edge, nodes in found.items()}


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

    Behind it are only weights and what prepares them (a transposition, a cast, the look-up of an embedding).
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


def _clusters(order: Sequence[Node], path: set[Node]) -> Mapping[tuple[Node, GradientEdge], _Cluster]:
    """The cluster of each side, by its joint's node and the side."""
    behind: dict[Node, set[Node]] = {}  # of each node beside the path, the leaves that it leads to
    for node in reversed(order):
        if node not in path:
            leaves_behind = [behind[after] for after, _ in node.next_functions if after is not None]
            behind[node] = set().union(*leaves_behind) if node.next_functions else {node}
    of_leaf: dict[Node, _Cluster] = {}
    of_side: dict[tuple[Node, GradientEdge], _Cluster] = {}
    for node in order:
        for side in _sides(node, path) if node in path else ():
            leaves = behind[side.node]
            cluster = _Cluster()
            cluster.joints.add(node)
            cluster.members.add((node, side))
            cluster.leaves |= leaves
            for other in {of_leaf[leaf] for leaf in leaves if leaf in of_leaf}:
                cluster.joints |= other.joints
                cluster.members |= other.members
                cluster.leaves |= other.leaves
            of_leaf.update(dict.fromkeys(cluster.leaves, cluster))
            of_side.update(dict.fromkeys(cluster.members, cluster))
    return of_side


def _is_weight(node: Node) -> bool:
    """Whether the node accumulates into a weight."""
    return getattr(node, "variable", None) is not None
