"""The bound over layouts: no layout that a job leaves open has a schedule with a smaller objective.

Takes a workload and what is open; gives one number. It shares no code with what makes a Problem of a layout, nor with solvers.
"""

from __future__ import annotations

from dataclasses import replace

from schedc.analysis.bounds.clock import Until, never
from schedc.analysis.bounds.layouts.cuts import cuts_bound
from schedc.analysis.bounds.layouts.graphs import head_in_parts, path_bound
from schedc.analysis.bounds.layouts.one_stage import one_stage_bound
from schedc.analysis.bounds.layouts.shared_ranks import graph_bound, shared_ranks_bound
from schedc.analysis.bounds.layouts.two_stages import two_stages_bound
from schedc.analysis.bounds.lower_bounds import Bound
from schedc.errors import Infeasible
from schedc.ir import BoundName, Device, Objective, OpenLayout, OpenSlices, Workload, share_bytes

MOST_EXACT = 2**53


def layout_bound(workload: Workload, open_layout: OpenLayout, until: Until = never) -> Bound:
    """The largest lower bound known on the objective of every schedule of every layout that is open.

    Proofs: `one_stage_bound`, where every rank has one stage; `two_stages_bound`, where none has more than two;
    `shared_ranks_bound`. All count compute and the pipeline's messages.
    All-gathers, the least of which ends before any forward begins, and reduce-scatters, the least of which begins after its stage's
    last backward, come on top for the makespan: some gather precedes all that is counted, and some scatter follows whatever
    compute is the last. Of layers that are a graph, and where the head is split, only work (`graph_bound`) and the path of a
    microbatch (`path_bound`) count. Where cuts into slices are open: work, and what they make ranks wait (`cuts_bound`).

    Args:
        workload: a workload that `schedc.verify.workload` accepts.
        open_layout: what may be chosen; there are at least as many layers as ranks.
        until: whether the time is up; what takes long is left out then.

    Returns:
        The bound; its detail is by what argument.

    Raises:
        Infeasible: no layout has room on its ranks, or links between its neighbours.
    """
    if open_layout.recompute_is_open:
        workload = _without_in_flight(workload)
    around_ns, parallel = 0, workload.data_parallel
    if parallel is not None and workload.objective is Objective.MAKESPAN:
        around_ns = min(parallel.reduce_scatter_ns) + min(parallel.all_gather_ns, default=0)
    if _everything_ns(workload) >= MOST_EXACT:
        return Bound(name=BoundName.LAYOUTS, value_ns=around_ns, detail="too long for exact arithmetic")
    if open_layout.slices is not None:
        value_ns = around_ns + _sliced_bound(workload, open_layout, open_layout.slices)
        return Bound(name=BoundName.LAYOUTS, value_ns=value_ns, detail="all cuts into slices")
    if True in open_layout.heads:
        whole = replace(open_layout, heads=(False,))
        least_ns = around_ns + max(
            graph_bound(*head_in_parts(workload, open_layout)), path_bound(workload, open_layout, head_parts=workload.ranks)
        )
        if False in open_layout.heads:
            least_ns = min(least_ns, layout_bound(workload, whole, until).value_ns)
        return Bound(name=BoundName.LAYOUTS, value_ns=least_ns, detail="work of all ranks together, or a microbatch's path")
    if workload.edges:
        value_ns = around_ns + max(graph_bound(workload, open_layout), path_bound(workload, open_layout))
        return Bound(name=BoundName.LAYOUTS, value_ns=value_ns, detail="work of all ranks together, or a microbatch's path")
    if workload.slices:
        workload = _slices_as_microbatches(workload)
    shared_ns = shared_ranks_bound(workload, open_layout)
    stages = min(open_layout.stages or open_layout.chunks * workload.ranks, len(workload.layers))
    one_ns = one_stage_bound(workload, open_layout) if stages <= workload.ranks else 0
    if one_ns is None:
        raise Infeasible(f"{workload.name}: {_why_none(workload, open_layout)}")
    two_ns = two_stages_bound(workload, open_layout, shared_ns, until) if stages > workload.ranks else 0
    detail = "one stage on each rank" if one_ns >= shared_ns else "all ranks together"
    if two_ns > shared_ns:
        detail = "at most two stages on each rank"
    return Bound(name=BoundName.LAYOUTS, value_ns=around_ns + max(one_ns, shared_ns, two_ns), detail=detail)


def _sliced_bound(workload: Workload, open_layout: OpenLayout, slices: OpenSlices) -> int:
    """No layout with any cut has a smaller objective: all slices take what whole microbatches do, but for rounding, or more."""
    least_ns = graph_bound(workload, open_layout) if False in open_layout.heads else None
    if True in open_layout.heads:
        in_parts_ns = graph_bound(*head_in_parts(workload, open_layout))
        least_ns = in_parts_ns if least_ns is None else min(least_ns, in_parts_ns)
    blocks = 3 * workload.microbatches * (2 * len(workload.layers) + workload.ranks)
    return max((least_ns or 0) - slices.most * blocks, cuts_bound(workload, open_layout, slices))


def _why_none(workload: Workload, open_layout: OpenLayout) -> str:
    """Why no layout with one stage on each rank is possible: with all the memory there is none either if links are missing."""
    unlimited = replace(workload, devices=tuple(Device(speed=device.speed) for device in workload.devices))
    if one_stage_bound(unlimited, open_layout) is None:
        return "no order of the ranks has links both ways between neighbours; more links or chunks may suffice"
    return "no layout has room for its stages on its ranks; more memory may suffice"


def _without_in_flight(workload: Workload) -> Workload:
    """A workload whose bound holds whichever stages recompute.

    Proof: take a schedule in which some stages recompute, and leave out the forwards that run again. No block takes longer then. Of
    memory, a stage counts as what it holds in either way (`pieces`), and ranks with several stages hold nothing. A limit in
    microbatches is one of bytes that recomputation changes, so it does not count.
    """
    return replace(workload, devices=tuple(replace(device, in_flight=None) for device in workload.devices))


def _slices_as_microbatches(workload: Workload) -> Workload:
    """A workload in which each slice is a microbatch, and has the sizes of the smallest one.

    Its bounds hold: needs are fewer there, messages no longer, and no rank holds more. Limits in microbatches do not count.
    """
    lengths, least = workload.slices, workload.slices.index(min(workload.slices))
    layers = tuple(
        replace(
            layer,
            activation_bytes=share_bytes(layer.activation_bytes, lengths, least),
            activation_after_input_bytes=share_bytes(layer.activation_after_input_bytes, lengths, least),
            message_bytes=share_bytes(layer.message_bytes, lengths, least),
            gradient_message_bytes=share_bytes(layer.gradient_message_bytes, lengths, least),
            state_gradient_bytes=0,
        )
        for layer in workload.layers
    )
    return replace(_without_in_flight(workload), slices=(), layers=layers)


def _everything_ns(workload: Workload) -> float:
    """More than any bound: all blocks on the slowest rank, one after another, with every message."""
    blocks_ns = sum(
        max(layer.forward_ns) * 2
        + max(layer.forward_again_ns or (0,))
        + max(layer.backward_input_ns)
        + max(layer.backward_weight_ns)
        + max(layer.backward_ns)
        for layer in workload.layers
    )
    return float(workload.microbatches * blocks_ns / min(device.speed for device in workload.devices))
