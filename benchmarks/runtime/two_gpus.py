"""What has to be seen on two GPUs before channels over NCCL are relied on: a stage on each, one process each.

    CUDA_DEVICE_MAX_CONNECTIONS=32 CUDA_MODULE_LOADING=EAGER python benchmarks/runtime/two_gpus.py

In the order of docs/gpu.md, which says what each step shows; it stops at the first that does not. Where there are not two GPUs it
prints that it was not run, and that is all.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import gpu_runs
from runs.processes import Ranks, rank_processes

from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan

LIMITS = {"float32": 1e-4, "bfloat16": 1e-2}
"""As in benchmarks/runtime/gpu.py."""
DEVICE = "cuda:{rank}"
TIMEOUT_S = 5.0


def planned(method: str, microbatches: int) -> Plan:
    """A plan for two ranks."""
    problem = make_problem(2, microbatches)
    return plan_of(problem, constructive(method)(problem))


def require(good: bool, shown: str) -> None:
    """Print what has been found; end where it is not as required."""
    print(f"  {shown}: {'as required' if good else 'NOT as required'}", flush=True)
    if not good:
        raise SystemExit(1)


def gradients(ranks: Ranks, channels: str, *, breaks: bool = False) -> None:
    """Those of the model without a pipeline."""
    for method in ("1f1b", "zb-h1"):
        for dtype, limit in LIMITS.items():
            found: list[Any] = ranks.run(
                gpu_runs.equal, planned(method, 8), dtype, 1024, 4, 64, DEVICE, channels, breaks, limit_s=300
            )
            require(all(isinstance(result, dict) for result in found), f"{method} {dtype}: both ranks end their steps")
            error = max(result["error"] for result in found)
            require(error < limit, f"{method} {dtype}: largest relative error of a gradient {error:.2e}, limit {limit}")
            changes = [sum("NCCL has failed (" in told for told in result["told"]) for result in found]
            require(changes == [int(breaks)] * 2, f"{method} {dtype}: warnings of a channel that failed, by rank {changes}")


def lost(channels: str, way: str) -> Callable[[Ranks], None]:
    """A peer that ends, or that sleeps while this rank's host waits in CUDA."""

    def run(ranks: Ranks) -> None:
        limit_s = 6 * TIMEOUT_S
        (found,) = ranks.run(gpu_runs.lose_peer, planned("1f1b", 4), channels, TIMEOUT_S, DEVICE, way, limit_s=300, of=[1])
        require(isinstance(found, tuple), f"rank 1 goes on: {found}")
        said, waited_s, computed = found
        require(said != "nothing" and waited_s < limit_s, f"rank 1 says after {waited_s:.1f} s, limit {limit_s:g} s: {said}")
        require(computed == 64, "rank 1 computes on its GPU afterwards")

    return run


STEPS: list[tuple[str, Callable[[Ranks], None]]] = [
    ("1. the delegate between two GPUs", lambda ranks: gradients(ranks, "delegate")),
    ("2. NCCL alone", lambda ranks: gradients(ranks, "nccl")),
    ("3. NCCL with the delegate behind it", lambda ranks: gradients(ranks, "auto")),
    ("4. the delegate takes over", lambda ranks: gradients(ranks, "auto", breaks=True)),
    ("5. NCCL alone, a peer that ends", lost("nccl", "ends")),
    ("6. NCCL with the delegate, a peer that ends", lost("auto", "ends")),
    ("7. NCCL alone, a host that waits in CUDA for a peer that sleeps", lost("nccl", "sleeps")),
]


def main() -> None:
    """Try one step after the other, each in new processes."""
    if torch.cuda.device_count() < 2:
        print(f"not run: it needs two GPUs, this host has {torch.cuda.device_count()}")
        return
    print(f"{torch.cuda.get_device_name(0)} and {torch.cuda.get_device_name(1)}, torch {torch.__version__}")
    for title, run in STEPS:
        print(title, flush=True)
        with tempfile.TemporaryDirectory() as directory, rank_processes(2, Path(directory)) as ranks:
            run(ranks)


if __name__ == "__main__":
    main()
