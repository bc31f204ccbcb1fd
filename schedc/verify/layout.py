"""What must hold of a Layout with its Workload, which is sound by itself, and whether it is one that a job leaves open.

Gives every violation, none if the two make a problem.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from schedc.ir import BLOCKS, Layout, OpenLayout, Semantics, Workload
from schedc.verify.violation import Checks, Found, Violation, absent, path_faults, slice_faults

SHAPE: Checks[[Workload, Layout]] = Checks()
MEANING: Checks[[Workload, Layout]] = Checks()
"""These rely on the former, and are checked where those find nothing."""
OPEN: Checks[[OpenLayout, Layout]] = Checks()
HEAD: Checks[[Workload, Layout]] = Checks()
"""Of a head that is split; the others are then about the layers before it."""


def verify_layout(workload: Workload, layout: Layout) -> tuple[Violation, ...]:
    """Every rule of the layout that is broken, with its place; empty if it is sound."""
    if layout.split_head:
        if broken := HEAD.broken(workload, layout):
            return broken
        last = len(workload.layers) - 1
        edges = tuple(edge for edge in workload.edges if edge.destination < last)
        workload = replace(workload, layers=workload.layers[:last], edges=edges)
    return SHAPE.broken(workload, layout) or MEANING.broken(workload, layout)


def verify_open_layout(workload: Workload, open_layout: OpenLayout, layout: Layout) -> tuple[Violation, ...]:
    """Every rule that is broken: those of a layout of the workload, then what a job gives where it leaves the rest open."""
    return verify_layout(workload, layout) or OPEN.broken(open_layout, layout)


@HEAD
def check_split_head(workload: Workload, layout: Layout) -> Found:
    """A head that is split is the last of several layers, what stages hold is given for all alike, and every rank is connected."""
    if len(workload.layers) < 2:
        yield "split_head", "expected a layer before the head, which is the last one; found no other"
    if workload.semantics is Semantics.TORCH or workload.updates is not None or len(layout.paths) > 1:
        yield "split_head", "expected one path, steps that end before the next begins, and no torch semantics"
    for name, values in _stage_values(workload):
        if len(values) > 1:
            yield name, f"expected 1 value where the head has stages of its own, found {len(values)}"
    last, ranks = len(workload.layers) - 1, layout.rank_of_stage
    ends = {stage for stage, layers in enumerate(layout.layers_of_stage) for layer in range(*layers) if layer == last - 1}
    for edge in workload.edges:
        if edge.destination == last:
            ends |= {stage for stage, layers in enumerate(layout.layers_of_stage) if edge.source in range(*layers)}
    for end in sorted(ends):
        for rank in range(workload.ranks):
            for pair in ((ranks[end], rank), (rank, ranks[end])):
                if rank != ranks[end] and not workload.network.connects(*pair):
                    yield "split_head", f"nothing connects rank {pair[0]} to rank {pair[1]}, as the head's parts need"


@SHAPE
def check_stage_count(_: Workload, layout: Layout) -> Found:
    """There is a stage, and each has a rank and layers; there is a path."""
    ranks, layers = len(layout.rank_of_stage), len(layout.layers_of_stage)
    if ranks != layers or not ranks:
        message = f"expected one or more stages, each with a rank and layers; found {ranks} with a rank, {layers} with layers"
        yield "layers_of_stage", message
    if not layout.paths:
        yield "paths", "expected one or more, found none"


@SHAPE
def check_rank_range(workload: Workload, layout: Layout) -> Found:
    """Every stage is on a rank that exists."""
    yield from absent("rank", workload.ranks, ((f"rank_of_stage[{at}]", rank) for at, rank in enumerate(layout.rank_of_stage)))


@SHAPE
def check_rank_has_stage(workload: Workload, layout: Layout) -> Found:
    """Every rank has a stage."""
    for rank in sorted(set(range(workload.ranks)) - set(layout.rank_of_stage)):
        yield "rank_of_stage", f"rank {rank} has no stage"


@SHAPE
def check_path_stages(_: Workload, layout: Layout) -> Found:
    """A path visits one or more stages that exist, each at most once."""
    yield from path_faults(len(layout.rank_of_stage), layout.paths)


@SHAPE
def check_stage_on_path(_: Workload, layout: Layout) -> Found:
    """Every stage is on some path."""
    for stage in sorted(set(range(len(layout.rank_of_stage))) - {stage for path in layout.paths for stage in path}):
        yield "paths", f"stage {stage} is on no path, so no microbatch would ever visit it"


@SHAPE
def check_layer_range(workload: Workload, layout: Layout) -> Found:
    """Every stage has one or more layers that exist."""
    for stage, (first, last) in enumerate(layout.layers_of_stage):
        if not 0 <= first < last <= len(workload.layers):
            yield f"layers_of_stage[{stage}]", f"found {first} to {last}, expected one or more of the {len(workload.layers)} layers"


@MEANING
def check_contiguous(workload: Workload, layout: Layout) -> Found:
    """Along a path, each stage begins where the one before ends, and so does each layer in the model."""
    for path in layout.paths:
        for previous, stage in pairwise(path):
            end, first = layout.layers_of_stage[previous][1], layout.layers_of_stage[stage][0]
            if first != end:
                yield f"layers_of_stage[{stage}]", f"begins with layer {first}, expected {end}, where stage {previous} ends"
        for stage in path:
            for layer in range(layout.layers_of_stage[stage][0] + 1, layout.layers_of_stage[stage][1]):
                before, own = workload.layers[layer - 1].position, workload.layers[layer].position
                if before and own and before[1] != own[0]:
                    message = f"layer {layer} begins with layer {own[0]} of the model, expected {before[1]}"
                    yield f"layers_of_stage[{stage}]", message


@MEANING
def check_whole_model(workload: Workload, layout: Layout) -> Found:
    """Every path has the whole model, and every layer is on a path."""
    bounds = [(layout.layers_of_stage[path[0]][0], layout.layers_of_stage[path[-1]][1]) for path in layout.paths]
    unused = set(range(len(workload.layers))).difference(*(range(*own) for own in bounds))
    if unused:
        yield "paths", f"layer {min(unused)} is on no path"
    model = [layer.position for layer in workload.layers if layer.position is not None]
    whole = (0, max((last for _, last in model), default=len(workload.layers)))
    for index, (first, last) in enumerate(bounds):
        begin, end = workload.layers[first].position, workload.layers[last - 1].position
        own = (first, last) if begin is None or end is None else (begin[0], end[1])
        if own != whole:
            yield f"paths[{index}]", f"has layers {own[0]} to {own[1]} of the model, expected all, {whole[0]} to {whole[1]}"


@SHAPE
def check_stage_values(workload: Workload, layout: Layout) -> Found:
    """What the workload gives for stages is one value for every stage, or one for each."""
    stages = len(layout.rank_of_stage)
    for name, values in _stage_values(workload):
        if len(values) not in (1, stages):
            yield name, f"expected 1 value, or {stages}, one per stage; found {len(values)}"


def _stage_values(workload: Workload) -> list[tuple[str, tuple[int, ...]]]:
    """The lists that are of stages, by name; not those that are empty as there is nothing of the kind."""
    parallel = workload.data_parallel
    names = ("reduce_scatter_ns", "all_gather_ns", "gathered_bytes", "gradient_bytes")
    own = [] if parallel is None else [(f"data_parallel.{name}", getattr(parallel, name)) for name in names]
    return [("static_bytes", workload.static_bytes), *((name, values) for name, values in own if values)]


@MEANING
def check_connected(workload: Workload, layout: Layout) -> Found:
    """Ranks are connected whose stages take from each other: neighbours on a path, both ways; of a graph, along its edges."""
    rank = layout.rank_of_stage
    needed = [(f"paths[{index}]", *pair, True) for index, path in enumerate(layout.paths) for pair in pairwise(path)]
    if workload.edges:
        stage_of = {layer: stage for stage, layers in enumerate(layout.layers_of_stage) for layer in range(*layers)}
        known = ((at, edge) for at, edge in enumerate(workload.edges) if {edge.source, edge.destination} <= stage_of.keys())
        ends = ((f"edges[{at}]", stage_of[e.source], stage_of[e.destination], e.has_gradient) for at, e in known)
        needed = list({(rank[a], rank[b], back): (place, a, b, back) for place, a, b, back in ends}.values())
    for place, before, after, comes_back in needed:
        for source, destination in ((rank[before], rank[after]), (rank[after], rank[before]))[: 1 + comes_back]:
            if source != destination and not workload.network.connects(source, destination):
                yield place, f"nothing connects rank {source} to rank {destination}, of the stages {before} and {after}"


@MEANING
def check_one_path(workload: Workload, layout: Layout) -> Found:
    """Torch's stages form one chain, those of a graph one path in the order of their layers."""
    if workload.semantics is Semantics.TORCH and len(layout.paths) > 1:
        yield "paths", f"expected one, which is all that torch executes, found {len(layout.paths)}"
    if workload.edges and len(layout.paths) > 1:
        yield "paths", f"expected one, which has all stages of a graph, found {len(layout.paths)}"


@SHAPE
def check_slices(workload: Workload, layout: Layout) -> Found:
    """Slices are the workload's, or cut whole microbatches that are alike, of a run whose steps end, in no torch semantics."""
    if not layout.slices or layout.slices == workload.slices:
        return
    if workload.slices:
        yield "slices", f"found {list(layout.slices)}, the workload has {list(workload.slices)}"
    yield from slice_faults(layout.slices, len(layout.slices))
    if any(len(layer.durations_ns(kind)) > 1 for layer in workload.layers for kind in BLOCKS):
        yield "slices", "expected durations that are one for all microbatches, as these are cut"
    if workload.semantics is Semantics.TORCH or workload.updates is not None or len(layout.paths) > 1:
        yield "slices", "expected one path, steps that end before the next begins, and no torch semantics"


@SHAPE
def check_recomputed(workload: Workload, layout: Layout) -> Found:
    """The stages that recompute exist. Torch's runtime has none."""
    for stage in sorted(layout.recomputed):
        if not 0 <= stage < len(layout.rank_of_stage):
            yield "recomputed", f"stage {stage} does not exist"
    if layout.recomputed and workload.semantics is Semantics.TORCH:
        yield "recomputed", f"expected none, as torch recomputes no stages; found {sorted(layout.recomputed)}"


@MEANING
def check_capacity(workload: Workload, layout: Layout) -> Found:
    """A device has room for what its stages hold all the time."""
    held = [0] * workload.ranks
    if all(device.capacity_bytes is None for device in workload.devices):
        return
    for stage, rank in enumerate(layout.rank_of_stage):
        own = workload.static_bytes[stage if len(workload.static_bytes) > 1 else 0]
        held[rank] += own + sum(workload.layers[layer].static_bytes for layer in range(*layout.layers_of_stage[stage]))
    for rank, device in enumerate(workload.devices):
        if device.capacity_bytes is not None and held[rank] > device.capacity_bytes:
            message = f"its stages need {held[rank]} bytes besides activations, expected at most its {device.capacity_bytes}"
            yield f"devices[{rank}]", message


@OPEN
def check_open_layout(open_layout: OpenLayout, layout: Layout) -> Found:
    """The layout keeps what the job gives: one path, the placement or its `chunks`, the partition, which stages recompute."""
    stages = len(layout.rank_of_stage)
    if layout.paths != (tuple(range(stages)),):
        yield "paths", f"expected one, the stages 0 to {stages - 1} in order; found {layout.paths}"
    if open_layout.placement is not None:
        given = open_layout.placement.rank_of_stage
        if layout.rank_of_stage != given:
            yield "rank_of_stage", f"found {list(layout.rank_of_stage)}, the job gives {list(given)}"
    else:
        for rank, count in sorted(Counter(layout.rank_of_stage).items()):
            if count > open_layout.chunks:
                message = f"rank {rank} has {count} stages, expected at most {open_layout.chunks}, the job's chunks"
                yield "rank_of_stage", message
    slices = open_layout.slices
    if slices is not None and not slices.has(layout.slices):
        each = f"cut at multiples of {slices.granularity} of {slices.tokens} tokens"
        yield "slices", f"found {list(layout.slices)}, the job gives {slices.least} to {slices.most}, {each}"
    if layout.split_head not in open_layout.heads:
        yield "split_head", f"found {layout.split_head}, the job gives {' or '.join(map(str, open_layout.heads))}"
    bounds = open_layout.layers_of_stage
    if bounds is not None and layout.layers_of_stage != bounds:
        yield "layers_of_stage", f"found {list(layout.layers_of_stage)}, the job gives {list(bounds)}"
    if not open_layout.recompute_is_open:
        if len(open_layout.recompute) not in (1, stages):
            message = f"found {stages} stages, the job gives {len(open_layout.recompute)} values of recompute"
            yield "recomputed", message
        elif layout.recomputed != {stage for stage in range(stages) if open_layout.recomputes(stage)}:
            message = f"found {sorted(layout.recomputed)}, which are not the stages that the job gives"
            yield "recomputed", message
