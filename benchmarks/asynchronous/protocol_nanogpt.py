"""Protocol NanoGPT (PluralisResearch/ProtocolNanoGPT 0551bc3): its dense record predicted, its bound proven, and what periods take.

The job is examples/protocol-nanogpt. Prints 1F1B beside the record of 100.475 s, the best step that is found with its bound, and
for several numbers of microbatches of the same batch, the period where steps overlap beside the floor that the wire into a rank
sets, with the delay of each stage.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import schedc

JOB = Path(__file__).parents[2] / "examples" / "protocol-nanogpt" / "job.toml"
RECORD_S = 100.475
BATCH_BYTES = 524_288 * 2_048
"""What the messages of one batch take in one direction."""


def compiled(method: str, seconds: float, **values: Any) -> schedc.Compiled:
    """The job with these values, whose paths have two underscores for a dot, compiled."""
    job = schedc.read_job(JOB, set={path.replace("__", "."): value for path, value in values.items()})
    return schedc.compile_job(job, method=method, time_limit_s=seconds)


def main() -> None:
    """Compile and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="of each search")
    seconds = parser.parse_args().seconds
    one = compiled("1f1b", seconds).plan.certificate.makespan_ns / 1e9
    print(f"1F1B: {one:.3f} s, the record {RECORD_S} s: {one / RECORD_S - 1:+.2%}")
    best = compiled("auto", seconds).plan.certificate
    print(f"steps that end: {best.makespan_ns / 1e9:.3f} s, bound {best.lower_bound_ns / 1e9:.3f} s by {best.bound}", flush=True)
    print("steps that overlap: microbatches, versions, period, floor of the wire, gap to the bound, delays")
    for microbatches in (64, 32, 16, 8):
        floor_s = 2 * microbatches * (BATCH_BYTES / microbatches / 25e6 + 0.05)
        each = {
            "pipeline__mode": "asynchronous",
            "pipeline__microbatches": microbatches,
            "profile__message": f"{BATCH_BYTES // microbatches} B",
            "profile__forward": f"{2528 * 64 // microbatches} us",
            "profile__backward": f"{5057 * 64 // microbatches} us",
        }
        for versions in ("stash", "2bw"):
            claims = compiled("auto", seconds, pipeline__versions=versions, **each).plan.certificate
            shown = f"{claims.makespan_ns / 1e9:.3f} s   {floor_s:.3f} s   {claims.gap:.2%}"
            print(f"{microbatches:4}   {versions:5}   {shown}   {', '.join(map(str, claims.delays))}", flush=True)


if __name__ == "__main__":
    main()
