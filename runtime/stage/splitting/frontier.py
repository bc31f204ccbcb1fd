"""Where the weights' part of an autograd graph joins the path of the activations.

B walks the path from a stage's outputs to its inputs; W does what hangs off it. A *joint* is a node on the path with edges, its
*sides*, that leave it towards weights only: a linear layer, a norm. B captures the gradients that arrive at the joints, W goes on
from them. Asked for a weight that several joints lead to, autograd would follow the path between them; B computes such weights.

Most of autograd's own nodes run twice, for B and for W, and compute each time only what is asked for. A function of the user's own
(a layer with collectives in its backward, a compiled stage) always computes all that it gives: it runs once, in B, and W goes on
from its sides. Takes a graph; gives where it is cut.

Where a graph is cut follows from its shape alone: the kinds of its nodes and how they are joined. Graphs of one shape, as a stage's
microbatches have, are cut once (`_cut_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import torch

    from schedc.runtime.stage.splitting.kept import Place


class Joint(NamedTuple):
    """A node where W begins."""

    node: Node
    edges: tuple[Place, ...]
    """Where W begins: where gradients arrive at the node, or its sides if it runs in B alone."""
    leaves: tuple[torch.Tensor, ...]
    """The weights behind it that are W's."""
    runs_twice: bool
    """Whether it runs in B and again in W."""
    ends: bool
    """Whether the path ends here, so that it runs in W alone."""
    sides: tuple[int, ...]
    """Where the node runs twice, and B runs it for what is behind it: which of its edges are sides that are W's."""

    @property
    def weights(self) -> int:
        """The elements of the weights behind it: the measure of its work."""
        return sum([leaf.numel() for leaf in self.leaves])


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


_At = tuple[int, int]
"""An edge: the number of the node that it leads to, -1 for none, and of the node's gradient."""


_Edges = Sequence[Sequence[_At]]
"""Those of each node."""


class _Shape(NamedTuple):
    """A graph without its nodes, which have numbers."""

    kinds: tuple[type[Node], ...]
    edges: tuple[int, ...]
    """For each node how many edges it has, and these; in one row, as this takes the least time."""
    roots: tuple[_At, ...]
    sources: frozenset[int] | None
    """The nodes of the inputs; None where no input needs a gradient."""


class _Numbers(NamedTuple):
    """A `Cut` in numbers; the fields of joints are in the order of `Joint`'s, the last three together."""

    joints: tuple[tuple[int, tuple[_At, ...], tuple[int, ...], tuple[bool, bool, tuple[int, ...]]], ...]
    shared: tuple[int, ...]
    before: tuple[tuple[_At, tuple[_At, ...]], ...]
    functions: tuple[int, ...]


class _Cluster:
    """Sides that have weights in common."""

    def __init__(self) -> None:
        self.joints: set[int] = set()
        self.members: set[tuple[int, _At]] = set()
        """Each side with its joint's node."""
        self.leaves: set[int] = set()


def find_cut(roots: Sequence[GradientEdge], sources: Sequence[GradientEdge]) -> Cut:
    """Where to cut the graph behind `roots`.

    Args:
        roots: the stage's outputs, or its loss.
        sources: those of its inputs that need a gradient; none where all are the batch (tokens, say). The path then ends at the
            node that used the first weights, so that a first stage is split as well.
    """
    nodes: list[Any] = list(dict.fromkeys(root.node for root in roots))
    numbers: dict[Node | None, int] = {None: -1} | {node: number for number, node in enumerate(nodes)}
    count, number_of, row = len(nodes), numbers.setdefault, list[int]()
    add = row.append  # names of its own: this loop is the larger part of what cutting a graph takes
    for node in nodes:  # to which those behind it are added
        edges = node.next_functions
        add(len(edges))
        for other, at in edges:
            number = number_of(other, count)
            if number == count:
                count += 1
                nodes.append(other)
            add(number)
            add(at)
    ends = frozenset(numbers[source.node] for source in sources if source.node in numbers) if sources else None
    begins = tuple((numbers[root.node], root.output_nr) for root in roots)
    cut = _cut_of(_Shape(tuple(map(type, nodes)), tuple(row), begins, ends))
    joints = [
        Joint(
            nodes[node],
            tuple([(nodes[other], at) for other, at in edges]),
            tuple([nodes[leaf].variable for leaf in leaves]),
            *kind,
        )
        for node, edges, leaves, kind in cut.joints
    ]
    return Cut(
        tuple(joints),
        tuple(GradientEdge(nodes[leaf], 0) for leaf in cut.shared),
        {(nodes[node], at): tuple((nodes[other], number) for other, number in places) for (node, at), places in cut.before},
        tuple(nodes[node] for node in cut.functions),
    )


@lru_cache(maxsize=32)
def _cut_of(shape: _Shape) -> _Numbers:
    """Where to cut graphs of this shape."""
    kinds, after = shape.kinds, _edges_of(shape.edges)
    order = _topological(after, shape.roots)
    begins = {root for root, _ in shape.roots}
    path = _path(after, order, begins | (shape.sources if shape.sources is not None else {_first_work(after, order)}))
    arrivals: dict[int, set[int]] = {}
    for other, at in (*shape.roots, *(edge for node in order if node in path for edge in after[node])):
        arrivals.setdefault(other, set()).add(at)
    cluster_of = _clusters(after, order, path)
    place = {node: number for number, node in enumerate(order)}
    joints = []
    shared: dict[int, None] = {}
    for node in order:
        if node not in path:
            continue
        if not after[node] and node not in (shape.sources or ()):
            shared[node] = None  # an output is a weight
        own = []
        leaves: dict[int, None] = {}
        sides = _sides(after[node], path)
        for side in sides:
            cluster = cluster_of[node, side]
            found = dict.fromkeys(sorted(cluster.leaves, key=place.__getitem__))
            if len(cluster.joints) > 1:
                shared |= found
            else:
                own.append(side)
                leaves |= found
        weights = tuple(leaf for leaf in leaves if _is_weight(kinds[leaf]))
        if weights:
            leads_on = any(other in path for other, _ in after[node])
            ends = len(own) == len(sides) and not leads_on
            once = not ends and issubclass(kinds[node], BackwardCFunction)  # it computes all its gradients, whichever are asked for
            edges = own if once else [(node, at) for at in sorted(arrivals[node])]
            numbers = tuple(number for number, edge in enumerate(after[node]) if edge in own) if leads_on and not once else ()
            joints.append((node, tuple(edges), weights, (not ends and not once, ends, numbers)))
    return _Numbers(
        tuple(joints),
        tuple(leaf for leaf in shared if _is_weight(kinds[leaf])),
        _before(after, joints, [node for node in order if node in path]),
        tuple(node for node in order if issubclass(kinds[node], BackwardCFunction)),
    )


def _before(after: _Edges, joints: Iterable[tuple[Any, ...]], path: Iterable[int]) -> tuple[tuple[_At, tuple[_At, ...]], ...]:
    """`Cut.before`."""
    found: dict[_At, list[_At]] = {edge: [] for _, edges, _, (twice, *_) in joints if not twice for edge in edges}
    if found:
        for node in path:
            for number, edge in enumerate(after[node]):
                if edge in found:
                    found[edge].append((node, number))
    return tuple((edge, tuple(places)) for edge, places in found.items())


def _edges_of(row: Sequence[int]) -> _Edges:
    """The edges of each node, of `_Shape.edges`."""
    found, at = [], 0
    while at < len(row):
        end = at + 1 + 2 * row[at]
        found.append(tuple(zip(row[at + 1 : end : 2], row[at + 2 : end : 2], strict=True)))
        at = end
    return found


def _path(after: _Edges, order: Sequence[int], path: set[int]) -> set[int]:
    """The nodes between the outputs and the ends that are given; an output from which no end can be reached is one itself."""
    for node in reversed(order):
        if any(other in path for other, _ in after[node]):
            path.add(node)
    return path


def _topological(after: _Edges, roots: Iterable[_At]) -> list[int]:
    """All nodes, every one before those that it leads to."""
    order: list[int] = []
    seen: set[int] = {-1}
    for root, _ in roots:
        if root in seen:
            continue
        seen.add(root)
        stack = [(root, iter(after[root]))]
        while stack:
            node, rest = stack[-1]
            for other, _ in rest:
                if other not in seen:
                    seen.add(other)
                    stack.append((other, iter(after[other])))
                    break
            else:
                order.append(node)
                stack.pop()
    order.reverse()
    return order


def _first_work(after: _Edges, order: Sequence[int]) -> int:
    """The node furthest from the outputs that joins several things or is used by several; an output's where there is none.

    Behind it are only weights and what prepares them (a transposition, a cast, the look-up of an embedding).
    """
    depth = dict.fromkeys(order, 0)
    before: dict[int, int] = {}
    users = dict.fromkeys(order, 0)
    for node in order:
        for other in {other for other, _ in after[node] if other >= 0}:
            users[other] += 1
            if depth[node] + 1 > depth[other]:
                depth[other], before[other] = depth[node] + 1, node
    node = max(order, key=depth.__getitem__)
    node = before.get(node, node)  # from the weight itself, however often it is used
    while node in before and len(after[node]) < 2 and users[node] == 1:
        node = before[node]
    return node


def _sides(edges: Sequence[_At], path: set[int]) -> tuple[_At, ...]:
    """Those of a node's edges that leave the path."""
    return tuple(dict.fromkeys(edge for edge in edges if edge[0] >= 0 and edge[0] not in path))


def _clusters(after: _Edges, order: Sequence[int], path: set[int]) -> Mapping[tuple[int, _At], _Cluster]:
    """The cluster of each side, by its joint's node and the side."""
    behind: dict[int, set[int]] = {}  # of each node beside the path, the leaves that it leads to
    for node in reversed(order):
        if node not in path:
            leaves_behind = [behind[other] for other, _ in after[node] if other >= 0]
            behind[node] = set().union(*leaves_behind) if after[node] else {node}
    of_leaf: dict[int, _Cluster] = {}
    of_side: dict[tuple[int, _At], _Cluster] = {}
    for node in order:
        for side in _sides(after[node], path) if node in path else ():
            leaves = behind[side[0]]
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


def _is_weight(kind: type[Node]) -> bool:
    """Whether nodes of this kind accumulate into a weight."""
    return hasattr(kind, "variable")
