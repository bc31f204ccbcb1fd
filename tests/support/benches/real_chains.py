"""Chains of layers from public profiles of real models, as workloads, and the layout that the compiler chooses for one.

Takes profiles in the form in which their collectors extracted them: JSON with `layers[]`, times in ms, sizes in bytes. What a file
does not say is assumed here, the same for all:

- A fused backward divides evenly into B and W; a time of forward and backward together is one third forward.
- A layer without a measured activation holds its output; without an output, 1 MiB for each ms of its forward. W needs half of it.
- Weights take four times their bytes all the time: gradient and two moments besides.
- A profile of one block, or of its parts, stands for a model of 32 of them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from schedc.compile.driver import OpenLayouts, compile_question
from schedc.ir.costs import MessageCost
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.partition import balanced_partition, in_flight_of_1f1b
from schedc.lower.placement import place
from schedc.solvers.common.base import SearchSettings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schedc.ir.layout import Layout, OpenLayout
    from schedc.solvers.common.base import Limits

MS = 1_000_000
MIB = 2**20
BLOCKS = 32
STATES = 4
"""Bytes held all the time for each byte of weights."""
MOE_BLOCK = "deepseek_deepep_tp1ep8_bf16"
"""Of the variants of one block that Megatron measured, the one taken."""
LATENCY, OCCUPANCY = 1.0, 0.5
"""Between sites: latency of a message and occupancy by a mean one, in forwards of a mean stage."""
OF_1F1B, OVER_LEAST = 0.6, 1.05
"""A memory limit is this much of what 1F1B needs in the balanced partition, and at least this much of what one microbatch needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A model's layers."""

    name: str
    layers: tuple[Layer, ...]

    @property
    def work_ns(self) -> tuple[int, ...]:
        """Forward and fused backward of each layer."""
        return tuple(layer.forward_ns[0] + layer.backward_ns[0] for layer in self.layers)


def chain_of(path: Path) -> Chain | None:
    """The chain of a profile; None: the file has no layers."""
    content = json.loads(path.read_bytes())
    name = content.get("name")
    if name == "galvatron-llama2-7b":
        return Chain(name=name, layers=tuple(_llama2(content)))
    entries = [entry for entry in content.get("layers", ()) if not _is_communication(entry)]
    if not entries:
        return None
    if name == "megatron-moe-layer-h100-ep8":
        entries = [entry for entry in entries if entry["name"] == MOE_BLOCK] * BLOCKS
    elif name == "deepseek-v3-moe-layer-h800":
        attention, mlp, dispatch, combine = entries
        entries = [attention, _together([dispatch, mlp, combine])] * BLOCKS
    elif "count" in entries[0]:
        entries = _repeated(entries)
    return Chain(name=name, layers=tuple(map(_layer, entries)))


def workload_of(chain: Chain, *, ranks: int, microbatches: int, is_limited: bool, sites: int) -> Workload:
    """The chain on this many ranks in sites of equal size, with a memory limit or none.

    Within a site messages are free. The limit is less than 1F1B needs in the balanced partition; it is the same for all ranks.
    """
    forward_ns = sum(layer.forward_ns[0] for layer in chain.layers) / ranks
    outputs = [layer.message_bytes for layer in chain.layers[:-1]]
    mean_bytes = sum(outputs) / len(outputs)
    between = MessageCost(
        latency_ns=round(LATENCY * forward_ns), bytes_per_second=max(1, round(mean_bytes / (OCCUPANCY * forward_ns) * 1e9))
    )
    workload = Workload(
        name=chain.name,
        microbatches=microbatches,
        layers=chain.layers,
        devices=(Device(),) * ranks,
        network=Network(site_of_rank=tuple(rank * sites // ranks for rank in range(ranks)), between=between),
    )
    return replace(workload, devices=(Device(capacity_bytes=_limit_bytes(workload)),) * ranks) if is_limited else workload


def _limit_bytes(workload: Workload) -> int:
    placed = place("unidirectional", workload.ranks)
    least = most = 0
    counts = in_flight_of_1f1b(placed, workload.microbatches)
    for (first, last), count in zip(balanced_partition(workload, placed, frozenset()), counts, strict=True):
        layers = workload.layers[first:last]
        static, held = sum(layer.static_bytes for layer in layers), sum(layer.activation_bytes for layer in layers)
        least, most = max(least, static + held), max(most, static + count * held)
    return round(max(OF_1F1B * most, OVER_LEAST * least))


def _layer(entry: dict[str, Any]) -> Layer:
    if "tp1" in entry:
        entry = entry | entry["tp1"]
    together_ms = entry.get("forward_backward_ms", 0.0)
    forward_ms = entry.get("forward_ms", together_ms / 3)
    backward_ms = entry.get("backward_ms", together_ms * 2 / 3)
    halves = (entry.get("backward_input_ms", backward_ms / 2), entry.get("backward_weight_ms", backward_ms / 2))
    forward_ns, input_ns, weight_ns = (round(MS * each) for each in (forward_ms, *halves))
    output = entry.get("output_bytes", MIB)
    held = entry.get("memory_per_in_flight_bytes", entry.get("activation_bytes", entry.get("output_bytes", forward_ms * MIB)))
    static = entry.get("memory_fixed_bytes", entry.get("memory_bytes", STATES * entry.get("param_bytes", 0)))
    return Layer(
        forward_ns=(forward_ns,),
        backward_input_ns=(input_ns,),
        backward_weight_ns=(weight_ns,),
        backward_ns=(input_ns + weight_ns,),
        activation_bytes=round(held),
        activation_after_input_bytes=round(held) // 2,
        message_bytes=output,
        gradient_message_bytes=output,
        static_bytes=static,
    )


def _is_communication(entry: dict[str, Any]) -> bool:
    """Whether it is no layer: something of the step that takes no time in the forward, though there is a count of such."""
    return "count" in entry and entry["forward_ms"] < 1e-3


def _repeated(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of a block, which have a count, in turn; what comes once in its place. Their output is what they all-reduce."""
    entries = [entry | {"output_bytes": entry["forward_comm"][1]} for entry in entries]
    parts = [entry for entry in entries if entry["count"] > 1]
    first = entries.index(parts[0])
    return [*entries[:first], *parts * parts[0]["count"], *entries[first + len(parts) :]]


def _together(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Parts of a block as one layer."""
    keys = ("forward_ms", "backward_input_ms", "backward_weight_ms")
    return {key: sum(entry.get(key, 0.0) for entry in entries) for key in keys}


def _llama2(content: dict[str, Any]) -> Iterator[Layer]:
    """Embedding, blocks and head of Galvatron's: forward times alone; the backward takes twice as long, as it assumes."""
    times, memory = content["computation"], content["memory_keys"]
    block_ms, other_ms = (times[f"layertype_{kind}_bsz8_seq2048"] for kind in ("0", "other"))
    block = memory["layertype_0_sp"]["2048"]
    sides = [memory[f"other_memory_pp_on_{side}_sp"]["2048"] for side in ("first", "last")]
    ends = [
        {"memory_fixed_bytes": round(MIB * side["model_states"]["1"]), "activation_bytes": MIB * side["activation"]["1"]}
        for side in sides
    ]
    body = {
        "param_bytes": round(MIB * block["parameter_size"]),
        "activation_bytes": MIB * block["tp_activation_per_bsz_dict"]["1"],
        "forward_ms": block_ms,
    }
    entries = [{"forward_ms": 0.0} | ends[0], *[body] * BLOCKS, {"forward_ms": other_ms} | ends[1]]
    output = round(MIB * block["tp_activation_per_bsz_dict"]["checkpoint"])
    for entry in entries:
        yield _layer(entry | {"backward_ms": 2 * entry["forward_ms"], "output_bytes": output})


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A layout, what its best schedule takes, and a bound over all layouts."""

    layout: Layout
    makespan_ns: int
    lower_bound_ns: int


def chosen_layout(workload: Workload, open_layout: OpenLayout, limits: Limits) -> Chosen:
    """The layout that `auto` chooses within the limits."""
    compiled = compile_question(OpenLayouts(workload, open_layout), SearchSettings(limits=limits))
    assert compiled.layout is not None
    certificate = compiled.plan.certificate
    return Chosen(layout=compiled.layout, makespan_ns=certificate.makespan_ns, lower_bound_ns=certificate.lower_bound_ns)
