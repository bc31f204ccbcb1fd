"""What must hold of a Layout with its Workload, which is sound by itself. Gives every violation, none if the two make a problem."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from schedc.ir.workload import Semantics, Workload
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.layout import Layout


def verify_layout(workload: Workload, layout: Layout) -> tuple[Violation, ...]:
    """Every rule of the layout that is broken, with its place; empty if it is sound.

    The rules are in two groups; the second relies on the first, and is checked where the first finds nothing.
    """
    for checks in (_SHAPE, _MEANING):
        found = tuple(violation for check in checks for violation in check(workload, layout))
        if found:
            return found
    return ()


def check_stage_count(_: Workload, layout: Layout) -> Iterator[Violation]:
    """There is a stage, and each has a rank and layers; there is a path."""
    ranks, layers = len(layout.rank_of_stage), len(layout.layers_of_stage)
    if ranks != layers or not ranks:
        message = f"expected one or more stages, each with a rank and layers; found {ranks} with a rank, {layers} with layers"
        yield Violation("stage-count", "layers_of_stage", message)
    if not layout.paths:
        yield Violation("stage-count", "paths", "expected one or more, found none")


def check_rank_range(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """Every stage is on a rank that exists."""
    for stage, rank in enumerate(layout.rank_of_stage):
        if not 0 <= rank < workload.ranks:
            message = f"rank {rank} does not exist; the ranks are 0 to {workload.ranks - 1}"
            yield Violation("rank-range", f"rank_of_stage[{stage}]", message)


def check_rank_has_stage(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """Every rank has a stage."""
    for rank in sorted(set(range(workload.ranks)) - set(layout.rank_of_stage)):
        yield Violation("rank-has-stage", "rank_of_stage", f"rank {rank} has no stage")


def check_path_stages(_: Workload, layout: Layout) -> Iterator[Violation]:
    """A path visits one or more stages that exist, each at most once."""
    for index, path in enumerate(layout.paths):
        if not path:
            yield Violation("path-stages", f"paths[{index}]", "visits no stage")
        seen: set[int] = set()
        for position, stage in enumerate(path):
            place = f"paths[{index}][{position}]"
            if not 0 <= stage < len(layout.rank_of_stage):
                yield Violation("path-stages", place, f"stage {stage} does not exist")
            elif stage in seen:
                yield Violation("path-stages", place, f"stage {stage} is a duplicate")
            seen.add(stage)


def check_stage_on_path(_: Workload, layout: Layout) -> Iterator[Violation]:
    """Every stage is on some path."""
    for stage in sorted(set(range(len(layout.rank_of_stage))) - {stage for path in layout.paths for stage in path}):
        yield Violation("stage-on-path", "paths", f"stage {stage} is on no path, so no microbatch would ever visit it")


def check_layer_range(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """Every stage has one or more layers that exist."""
    for stage, (first, last) in enumerate(layout.layers_of_stage):
        if not 0 <= first < last <= len(workload.layers):
            message = f"found {first} to {last}, expected one or more of the {len(workload.layers)} layers"
            yield Violation("layer-range", f"layers_of_stage[{stage}]", message)


def check_contiguous(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """Along a path, each stage begins where the one before ends, and so does each layer in the model."""
    for path in layout.paths:
        for previous, stage in pairwise(path):
            end, first = layout.layers_of_stage[previous][1], layout.layers_of_stage[stage][0]
            if first != end:
                message = f"begins with layer {first}, expected {end}, where stage {previous} ends"
                yield Violation("contiguous", f"layers_of_stage[{stage}]", message)
        for stage in path:
            for layer in range(layout.layers_of_stage[stage][0] + 1, layout.layers_of_stage[stage][1]):
                before, own = workload.layers[layer - 1].position, workload.layers[layer].position
                if before and own and before[1] != own[0]:
                    message = f"layer {layer} begins with layer {own[0]} of the model, expected {before[1]}"
                    yield Violation("contiguous", f"layers_of_stage[{stage}]", message)


def check_whole_model(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """Every path has the whole model, and every layer is on a path."""
    bounds = [(layout.layers_of_stage[path[0]][0], layout.layers_of_stage[path[-1]][1]) for path in layout.paths]
    unused = set(range(len(workload.layers))).difference(*(range(*own) for own in bounds))
    if unused:
        yield Violation("whole-model", "paths", f"layer {min(unused)} is on no path")
    model = [layer.position for layer in workload.layers if layer.position is not None]
    whole = (0, max((last for _, last in model), default=len(workload.layers)))
    for index, (first, last) in enumerate(bounds):
        begin, end = workload.layers[first].position, workload.layers[last - 1].position
        own = (first, last) if begin is None or end is None else (begin[0], end[1])
        if own != whole:
            message = f"has layers {own[0]} to {own[1]} of the model, expected all, {whole[0]} to {whole[1]}"
            yield Violation("whole-model", f"paths[{index}]", message)


def check_stage_values(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """What the workload gives for stages is one value for every stage, or one for each."""
    given = {"static_bytes": workload.static_bytes}
    if workload.data_parallel is not None:
        given["data_parallel.reduce_scatter_ns"] = workload.data_parallel.reduce_scatter_ns
        given["data_parallel.all_gather_ns"] = workload.data_parallel.all_gather_ns or (0,)
    stages = len(layout.rank_of_stage)
    for name, values in given.items():
        if len(values) not in (1, stages):
            yield Violation("stage-values", name, f"expected 1 value, or {stages}, one per stage; found {len(values)}")


def check_connected(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """Ranks that neighbouring stages of a path are on are connected, both ways."""
    rank = layout.rank_of_stage
    for index, path in enumerate(layout.paths):
        for before, after in pairwise(path):
            for source, destination in ((rank[before], rank[after]), (rank[after], rank[before])):
                if source != destination and not workload.network.connects(source, destination):
                    message = f"nothing connects rank {source} to rank {destination}, of the stages {before} and {after}"
                    yield Violation("connected", f"paths[{index}]", message)


def check_one_path(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """Torch's stages form one chain."""
    if workload.semantics is Semantics.TORCH and len(layout.paths) > 1:
        yield Violation("one-path", "paths", f"expected one, which is all that torch executes, found {len(layout.paths)}")


def check_recomputed(workload: Workload, layout: Layout) -> Iterator[Violation]:
    """The stages that recompute exist. Torch's runtime has none."""
    for stage in sorted(layout.recomputed):
        if not 0 <= stage < len(layout.rank_of_stage):
            yield Violation("recomputed", "recomputed", f"stage {stage} does not exist")
    if layout.recomputed and workload.semantics is Semantics.TORCH:
        yield Violation(
            "recomputed", "recomputed", f"expected none, as torch recomputes no stages; found {sorted(layout.recomputed)}"
        )


def check_capacity(workload: Workload, layout: Layout) -> Iterator[Violation]:
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
            yield Violation("capacity", f"devices[{rank}]", message)


_SHAPE = (
    check_stage_count,
    check_rank_range,
    check_rank_has_stage,
    check_path_stages,
    check_stage_on_path,
    check_layer_range,
    check_stage_values,
    check_recomputed,
)
_MEANING = (
    check_contiguous,
    check_whole_model,
    check_connected,
    check_one_path,
    check_capacity,
)
