"""What a person would try by hand: even and balanced partitions in the known placements, with the known schedules.

Each is a result with a name, such as `balanced wave 2 hanayo`. `mist-like` is what AdaPtis compares with Mist (its section 3): the
partition alone adapts, to compute and memory; placement and schedule are those of 1F1B.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Layer, Layout, OpenLayout, Placement, Semantics, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place, placement_name
from schedc.lower.split_head import without_head
from schedc.solvers.heuristics.greedy import Greedy
from schedc.solvers.layout.cuts import WORK, named_cuts
from schedc.solvers.layout.layout_arrays import ScheduledLayout, scheduled_layout
from schedc.solvers.templates import TEMPLATES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.solvers.common.base import Construct

METHODS = {
    "unidirectional": ("1f1b", "zb-h1"),
    "loop": ("interleaved",),
    "wave": ("hanayo", "zb-v"),
    "apart": ("1f1b", "zb-h1"),
    "together": ("interleaved",),
}
"""Those that exist for each placement; for one that the job gives: all of them."""
MIST_LIKE = "balanced unidirectional 1f1b"
RECOMPUTED = " recomputed"
"""After the name of a layout all of whose stages recompute."""
HEAD_SPLIT = ", split head"
"""After the name of a layout whose head is split over the ranks."""


class Attempt(NamedTuple):
    """A known method in a named layout."""

    layout_name: str
    method: str
    layout: Layout

    title: str
    """Of the result, for people."""
    construct: Construct


def baselines(workload: Workload, open_layout: OpenLayout) -> tuple[ScheduledLayout, ...]:
    """Every known method in every named layout where it exists and keeps memory; the best first, equal ones in the order tried."""
    tried = (scheduled_layout(workload, each.layout, each.construct, each.title) for each in attempts(workload, open_layout))
    return tuple(sorted((each for each in tried if each is not None), key=lambda each: each.objective_ns))


def attempts(workload: Workload, open_layout: OpenLayout) -> Iterator[Attempt]:
    """The baselines; not every one works. Where stages are a graph, or microbatches in slices, no template exists."""
    for name, layout in named_layouts(workload, open_layout).items():
        if workload.edges or workload.slices or layout.split_head or layout.slices:
            yield Attempt(name, "greedy", layout, f"{name} greedy", Greedy())
            continue
        methods = METHODS.get(name.replace(",", "").split()[1]) or [method for each in METHODS.values() for method in each]
        for method in methods:
            title = f"{name} {method}"
            title = f"mist-like ({title})" if title == MIST_LIKE else title
            yield Attempt(name, method, layout, title, TEMPLATES[method].construct)


def named_layouts(workload: Workload, open_layout: OpenLayout) -> dict[str, Layout]:
    """Layouts by name: even and balanced partitions, or the given one, in the known placements, or the given one; and by modules.

    Where recomputation is open and memory limited, the balanced and given ones are there twice, without and with all stages
    recomputed: where memory is short, layouts with room are far from those without. Some may be unsound: memory need not hold what
    they hold, nor every two ranks be connected. Where cuts into slices are open, each is there whole and with those of equal work.
    """
    if open_layout.heads != (False,):
        heads = {
            head: named_layouts(without_head(workload) if head else workload, replace(open_layout, heads=(False,)))
            for head in open_layout.heads
        }
        return {
            f"{name}{HEAD_SPLIT if head else ''}": replace(layout, split_head=head)
            for head, layouts in heads.items()
            for name, layout in layouts.items()
        }
    found, slices = _by_modules(workload, open_layout), open_layout.slices
    for name, placed in _placements(workload, open_layout).items():
        stages = range(len(placed.rank_of_stage))
        given = frozenset(stage for stage in stages if open_layout.recomputes(stage))
        for again, suffix in ((given, ""), (frozenset(stages), RECOMPUTED))[: 2 if _may_save(workload, open_layout) else 1]:
            partitions = {"given": open_layout.layers_of_stage}
            if open_layout.layers_of_stage is None:
                even = {} if suffix else {"even": _even(len(workload.layers), len(stages))}
                partitions = {**even, "balanced": balanced_partition(workload, placed, again, in_slices=slices is not None)}
            for kind, layers_of_stage in partitions.items():
                found[f"{kind} {name}{suffix}"] = Layout(
                    rank_of_stage=placed.rank_of_stage,
                    paths=placed.paths,
                    layers_of_stage=layers_of_stage or (),
                    recomputed=again,
                    placement=placed.placement,
                )
    if slices is None:
        return found
    cuts = {name: cut for name, cut in named_cuts(workload, slices).items() if not cut or name.endswith(WORK)}
    return {f"{name}, {cut}": replace(layout, slices=cuts[cut]) for cut in cuts for name, layout in found.items()}


def _may_save(workload: Workload, open_layout: OpenLayout) -> bool:
    """Whether stages may recompute, and some rank's memory is limited."""
    limited = any(each != replace(each, limit_bytes=None, in_flight=None, capacity_bytes=None) for each in workload.devices)
    return open_layout.recompute_is_open and workload.semantics is not Semantics.TORCH and limited


def stage_count(workload: Workload, open_layout: OpenLayout) -> int | None:
    """How many stages every layout has, where the job says it: by placement, partition, or values for each stage; else None."""
    parallel = workload.data_parallel
    lists = [workload.static_bytes]
    if parallel is not None:
        lists += [parallel.reduce_scatter_ns, parallel.all_gather_ns]
    return open_layout.stages or next((len(values) for values in lists if len(values) > 1), None)


def _placements(workload: Workload, open_layout: OpenLayout) -> dict[str, Placement]:
    """The given placement, or those with a name that fit the layers and the number of stages."""
    if open_layout.placement is not None:
        given = open_layout.placement.rank_of_stage
        name, chunks = placement_name(given, workload.ranks), len(given) // workload.ranks
        return {f"{name} {chunks}" if name in ("loop", "wave") else name: open_layout.placement}
    ranks, stages = workload.ranks, stage_count(workload, open_layout)
    most = min(open_layout.chunks, len(workload.layers) // ranks)
    found = {"unidirectional": place("unidirectional", ranks)}
    if ranks > 1:
        found |= {f"{name} {chunks}": place(name, ranks, chunks) for chunks in range(2, most + 1) for name in ("loop", "wave")}
    if stages is not None:
        found = {name: placed for name, placed in found.items() if len(placed.rank_of_stage) == stages}
        if not found:
            found["explicit"] = place([stage % ranks for stage in range(stages)], ranks)
    return found


def _by_modules(workload: Workload, open_layout: OpenLayout) -> dict[str, Layout]:
    """Layouts in which no stage has layers of two modules: the last module on other ranks than those before it, or all on all.

    `apart 3`: those before have the first 3 ranks. `together 2`: each module is spread over all ranks, the last one twice. Each
    module is balanced by itself, without recomputation.
    """
    ranks, modules = workload.ranks, workload.modules
    is_open = open_layout.placement is None and stage_count(workload, open_layout) is None
    if len(modules) < 2 or not is_open or ranks < 2 or any(open_layout.recompute):
        return {}
    starts = (0, *accumulate(modules))
    last, work = starts[-2], [_work_ns(layer) for layer in workload.layers]
    share = round(ranks * sum(work[:last]) / max(1, sum(work)))
    found: dict[str, Layout] = {}

    def add(name: str, *parts: tuple[int, int, list[int]]) -> None:
        """With these parts of the model: from which layer, before which, and the ranks of its stages."""
        bounds, of_stage = [], tuple(rank for _, _, own in parts for rank in own)
        for first, end, own in parts:
            placed = Placement(rank_of_stage=tuple(own), paths=(tuple(range(len(own))),))
            part = replace(workload, layers=workload.layers[first:end], edges=(), modules=(), ties=())
            bounds += [(first + a, first + b) for a, b in balanced_partition(part, placed, frozenset())]
        found[f"balanced {name}"] = Layout(
            rank_of_stage=of_stage,
            paths=(tuple(range(len(of_stage))),),
            layers_of_stage=tuple(bounds),
            placement=placement_name(of_stage, ranks),
        )

    for count in range(max(1, share - 1, ranks - modules[-1]), min(ranks - 1, share + 1, last) + 1):
        add(f"apart {count}", (0, last, list(range(count))), (last, starts[-1], list(range(count, ranks))))
    for chunks in range(1, min(open_layout.chunks - len(modules) + 1, modules[-1] // ranks) + 1):
        spread = [(first, end, list(range(min(ranks, end - first)))) for first, end in pairwise(starts[:-1])]
        add(f"together {chunks}", *spread, (last, starts[-1], chunks * list(range(ranks))))
    return found


def _work_ns(layer: Layer) -> int:
    """The mean of a microbatch."""
    return sum(sum(values) // len(values) for values in (layer.forward_ns, layer.backward_ns))


def _even(layers: int, pieces: int) -> tuple[tuple[int, int], ...]:
    """As many layers for each piece, the first ones one more."""
    cuts = (piece * (layers // pieces) + min(piece, layers % pieces) for piece in range(pieces + 1))
    return tuple(pairwise(cuts))
