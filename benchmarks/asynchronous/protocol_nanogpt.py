"""Protocol NanoGPT (PluralisResearch/ProtocolNanoGPT 0551bc3): its dense record predicted, its bound proven, and what periods take.

The job is examples/protocol-nanogpt. Prints 1F1B beside the record of 100.475 s, the best step that is found with its bound, and
for several numbers of microbatches of the same batch, the period where steps overlap beside the floor that the wire into a rank
sets, with the delay of each stage.

With `--emulate`, three of these plans as real processes instead (`schedc emulate`), times scaled down: 1F1B, the best step that is
found, and the run of a period of 8 microbatches, whose steady state is how far apart the updates of the first stage are.
Minutes, in which the machine does hardly anything but wait; keep it free.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import schedc
from schedc.ir import Kind
from schedc.runtime.emulation.emulate import emulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir import Op

JOB = Path(__file__).parents[2] / "examples" / "protocol-nanogpt" / "job.toml"
RECORD_S = 100.475
BATCH_BYTES = 524_288 * 2_048
"""What the messages of one batch take in one direction."""
EMULATED = 0.4
"""What times of 64 microbatches are multiplied by: their shortest op takes a millisecond then."""
STEPS = 24
"""Of an emulated run whose steps overlap."""
STEADY = (3, 12)
"""Steps of it between which it neither begins nor drains."""


def compiled(method: str, seconds: float, **values: Any) -> schedc.Compiled:
    """The job with these values, whose paths have two underscores for a dot, compiled."""
    job = schedc.read_job(JOB, set={path.replace("__", "."): value for path, value in values.items()})
    return schedc.compile_job(job, method=method, time_limit_s=seconds)


def overlapping(microbatches: int, versions: str, seconds: float) -> schedc.Plan:
    """The period of the same batch in this many microbatches."""
    values = {
        "pipeline__mode": "asynchronous",
        "pipeline__microbatches": microbatches,
        "pipeline__versions": versions,
        "profile__message": f"{BATCH_BYTES // microbatches} B",
        "profile__forward": f"{2528 * 64 // microbatches} us",
        "profile__backward": f"{5057 * 64 // microbatches} us",
    }
    return compiled("auto", seconds, **values).plan


def update_ends_s(order: Sequence[Op], ended_ns: Sequence[int]) -> dict[int, float]:
    """By step, when the rank's update of it ended."""
    return {op.microbatch: ended / 1e9 for op, ended in zip(order, ended_ns, strict=True) if op.kind is Kind.U}


def emulation(name: str, plan: schedc.Plan, scale: float, period: schedc.Plan | None = None) -> None:
    """Run the plan once as real processes; print what it took beside what was predicted, in seconds of the plan."""
    timeline = schedc.simulate_plan(plan)
    predicted_s = timeline.makespan_ns / 1e9
    found = emulate(plan, scale=scale, runs=1)
    took_s = found.runs_ns[0] / 1e9
    print(f"{name}, times {scale:g}: {took_s:.3f} s, predicted {predicted_s:.3f} s: {took_s / predicted_s - 1:+.2%}", flush=True)
    if period is not None:
        order, period_s = plan.ranks[0].compute, period.certificate.makespan_ns / 1e9
        ends = update_ends_s(order, found.trace.ranks[0].steps[0].ended_ns)
        slope_s = (ends[STEADY[1]] - ends[STEADY[0]]) / (STEADY[1] - STEADY[0])
        said = f"{slope_s:.3f} s, predicted {period_s:.3f} s: {slope_s / period_s - 1:+.2%}"
        print(f"  {period.problem.updates.versions}, from update to update: {said}", flush=True)  # type: ignore[union-attr]
        simulated = update_ends_s(order, timeline.end_ns(0))
        for name, of in (("emulated", ends), ("simulated", simulated)):
            print(f"  {name:10}" + " ".join(f"{after - before:7.2f}" for before, after in pairwise(of.values())))


def emulations(seconds: float) -> None:
    """Print the emulated step of each plan, or the period of its run."""
    emulation("1F1B", compiled("1f1b", seconds).plan, EMULATED)
    emulation("steps that end", compiled("auto", seconds).plan, EMULATED)
    for versions in ("2bw", "stash"):
        period = overlapping(8, versions, seconds)
        emulation(f"a run of {STEPS} steps, 8 microbatches each", schedc.unroll_plan(period, STEPS), EMULATED / 8, period)


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each search")
    parser.add_argument("--emulate", action="store_true")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    if arguments.emulate:
        emulations(seconds)
        return
    one = compiled("1f1b", seconds).plan.certificate.makespan_ns / 1e9
    print(f"1F1B: {one:.3f} s, the record {RECORD_S} s: {one / RECORD_S - 1:+.2%}")
    best = compiled("auto", seconds).plan.certificate
    print(f"steps that end: {best.makespan_ns / 1e9:.3f} s, bound {best.lower_bound_ns / 1e9:.3f} s by {best.bound}", flush=True)
    print("steps that overlap: microbatches, versions, period, floor of the wire, gap to the bound, delays")
    for microbatches in (64, 32, 16, 8):
        floor_s = 2 * microbatches * (BATCH_BYTES / microbatches / 25e6 + 0.05)
        for versions in ("stash", "2bw"):
            claims = overlapping(microbatches, versions, seconds).certificate
            shown = f"{claims.makespan_ns / 1e9:.3f} s   {floor_s:.3f} s   {claims.gap:.2%}"
            print(f"{microbatches:4}   {versions:5}   {shown}   {', '.join(map(str, claims.delays))}", flush=True)


if __name__ == "__main__":
    main()
