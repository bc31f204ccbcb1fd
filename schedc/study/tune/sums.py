"""Sums that any expert checks, over the whole cluster: the model's bytes against the devices', its FLOPs against their peak.

They rest on the architecture's number of parameters alone, not on layers, stages or schedules, so they check those: a plan that
holds less than the model's state, or computes faster than the devices can, is a defect.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.costs.architecture import expert_parameters, further_token_parameters, matrix_parameters, parameters
from schedc.errors import Defect
from schedc.ir import Certificate
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.request import TuneRequest

ROUNDED = 1e-6
"""The relative part by which whole parameters and bytes on each device may differ from the sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums:
    """Of a plan, over all devices of the cluster."""

    static_bytes: int
    """What the plan says that they hold all the time."""
    peak_bytes: int
    """With activations, each rank at its peak."""
    room_bytes: int
    """What a plan may use."""
    state_bytes: int | None
    """What the model's weights, gradients and optimizer state take at least; None where the model is not known."""
    peak_share: float | None
    """Of the devices' FLOPs within the step, those that the matrices of the model need."""


def state_bytes(request: TuneRequest, candidate: TuneCandidate) -> int | None:
    """Weights, gradients and optimizer state of the model in all devices together: what each weight's replicas hold.

    A weight of an expert has data × context × tensor ÷ (expert × expert tensor parallel) replicas, any other data × context. No
    more is counted for what tensor parallelism or a second copy of a tied matrix adds. None where the model is not known.
    """
    if request.architecture is None:
        return None
    memory, degrees, pipelines = request.file.memory, candidate.degrees, candidate.data_parallel
    devices = degrees.replicas(pipelines), degrees.expert_replicas(pipelines)
    experts = expert_parameters(request.architecture)
    others = parameters(request.architecture) + further_token_parameters(request.architecture) - experts
    held = 0
    for count, copies in zip((others, experts), devices, strict=True):
        of_stage = (memory.optimizer_bytes, memory.gradient_bytes, memory.weight_bytes)
        held += count * (sum(of_stage[: candidate.zero_stage]) + copies * sum(of_stage[candidate.zero_stage :]))
    return held


def sums_of(request: TuneRequest, candidate: TuneCandidate, static_bytes: Sequence[int], certificate: Certificate) -> Sums:
    """The sums of a plan; `static_bytes` is what a device of each rank holds all the time."""
    replicas, sites = (
        candidate.data_parallel * candidate.degrees.group,
        list(zip(request.choices.sites, request.sites, strict=True)),
    )
    share, peaks = None, sum(size * site.device.flops_per_s for size, site in sites if site.device is not None)
    if request.architecture is not None and peaks and request.sequence is not None and certificate.makespan_ns:
        flops = 6 * matrix_parameters(request.architecture) * candidate.sequences * request.sequence
        share = flops / (peaks * certificate.makespan_ns / 1e9)
    return Sums(
        static_bytes=replicas * sum(static_bytes),
        peak_bytes=replicas * (sum(static_bytes) + sum(certificate.peak_activation_bytes)),
        room_bytes=sum(size * site.room_bytes for size, site in sites),
        state_bytes=state_bytes(request, candidate),
        peak_share=share,
    )


def check_sums(sums: Sums, name: str) -> None:
    """Refuse a plan that cannot be.

    Raises:
        Defect: it holds more than the devices have, less than the model's state, or computes faster than the devices can.
    """
    told = ""
    if sums.peak_bytes > sums.room_bytes:
        told = f"holds {format_bytes(sums.peak_bytes, 1)}, more than the {format_bytes(sums.room_bytes, 1)} of all devices"
    elif sums.state_bytes is not None and sums.static_bytes < (1 - ROUNDED) * sums.state_bytes:
        has, needs = format_bytes(sums.static_bytes, 1), format_bytes(sums.state_bytes, 1)
        told = (
            f"holds {has} all the time in all devices, less than the {needs} of the model's weights, gradients and optimizer state"
        )
    elif sums.peak_share is not None and sums.peak_share > 1:
        told = f"would use {sums.peak_share:.0%} of the devices' peak for the model's matrices alone"
    if told:
        raise Defect(f"{name}: the plan {told}")
