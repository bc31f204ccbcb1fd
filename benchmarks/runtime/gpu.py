"""What can be shown on one GPU: two processes with a stage each on it, tensors between them through the delegate.

    python benchmarks/runtime/gpu.py

Gradients against the model without a pipeline, in fp32 (without TF32) and bf16; and from a profiler's trace, that copies run on
streams of their own, beside the compute. NCCL does not connect two ranks on one GPU, so nothing here goes through it. Where there
is no GPU it prints that it was not run, and that is all.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import gpu_runs
from runs.processes import Ranks, rank_processes

from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

LIMITS = {"float32": 1e-4, "bfloat16": 1e-2}
"""The largest relative error of a gradient; the order of additions is the same, so what is left is the choice of kernels."""
WIDTH, DEPTH, SAMPLES = 4096, 4, 2048


def planned(method: str, microbatches: int) -> Plan:
    """A plan for two ranks."""
    problem = make_problem(2, microbatches)
    return plan_of(problem, constructive(method)(problem))


def gradients(ranks: Ranks) -> bool:
    """Print the errors; whether all keep the limit."""
    good = True
    for method in ("1f1b", "zb-h1"):
        for dtype, limit in LIMITS.items():
            results = ranks.run(gpu_runs.equal, planned(method, 4), dtype, 1024, DEPTH, 64, limit_s=300)
            for result in results:
                if not isinstance(result, dict):
                    raise SystemExit(f"a rank failed: {result}")
            error = max(result["error"] for result in results)
            loss, expected = results[0]["loss"], results[0]["expected"]
            close = error < limit and abs(loss - expected) < limit * abs(expected)
            good = good and close
            verdict = "as required" if close else "NOT as required"
            print(
                f"{method:6} {dtype:9} largest relative error {error:.2e}, loss {loss:.6f} and {expected:.6f}: {verdict} ({limit})"
            )
    return good


def streams(ranks: Ranks) -> bool:
    """Print what the trace says; whether copies ran beside kernels."""
    good = True
    for rank, found in enumerate(ranks.run(gpu_runs.overlap, planned("1f1b", 8), WIDTH, DEPTH, SAMPLES, limit_s=300)):
        if not isinstance(found, dict):
            raise SystemExit(f"a rank failed: {found}")
        share = found["beside_ms"] / found["copy_ms"] if found["copy_ms"] else 0.0
        good = good and share > 0
        print(
            f"rank {rank}: {found['copies']} copies on {found['copy_streams']} streams, kernels on {found['kernel_streams']};"
            f" {found['copy_ms']:.2f} ms, of which {found['beside_ms']:.2f} ms ({share:.0%}) while a kernel of the rank ran"
        )
    return good


def main() -> None:
    """Measure and print, where there is a GPU."""
    if not torch.cuda.is_available():
        print("not run: no GPU")
        return
    print(f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}; NCCL between GPUs: not run, it needs two")
    with tempfile.TemporaryDirectory() as directory, rank_processes(2, Path(directory)) as ranks:
        good = gradients(ranks)
        good = streams(ranks) and good
    if not good:
        raise SystemExit("not as required")


if __name__ == "__main__":
    main()
