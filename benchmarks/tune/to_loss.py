"""What `schedc tune` chooses by wall-clock time to a loss, how much its bounds save, and the number of stages that DynPipe picks.

1. Llama 3 8B on 16 H100 (tensor parallelism 2, so 8 groups), 32 sequences of 8,192 tokens a step, 10 billion tokens without
   delay, by the shipped table of what delays cost: in one site, and over two sites that a slow network connects. For each optimizer
   of the table the verdict, and the search with its bounds beside the search of all candidates, one after the other: how many plans
   each made, the seconds of this process, and whether both chose the same.
2. The same groups in one site, a batch of 8, by DynPipe's theory: Algorithm 1's number of stages (stashed weights, replicas of
   stages; as it stands, and as printed), of any number and of those that divide the groups, beside `tune` that tries the latter
   with all microbatches and modes. What the picked number takes is the time of the best plan found with that many stages and
   stashed weights.

First passes alone: known schedules and list scheduling. Run it as `python benchmarks/tune/to_loss.py [--tokens 10000000000]`.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.dynpipe import stages_to_loss

from schedc.formats.convergence_file import MeasuredUpdate, write_convergence
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.interruption import Interruption
from schedc.study.loss.time_to_loss import Theory
from schedc.study.tune.candidates import CandidateState, candidates
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.request import read_request
from schedc.study.tune.search import tune

if TYPE_CHECKING:
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.tuned import Tuned

CLUSTERS: dict[str, dict[str, Any]] = {
    "one site": {"sites": [16]},
    "two sites, 20 ms, 10 GB/s": {"sites": [8, 8], "between": {"latency": "20 ms", "bandwidth": "10 GB/s"}},
    "two sites, 60 ms, 2 GB/s": {"sites": [8, 8], "between": {"latency": "60 ms", "bandwidth": "2 GB/s"}},
}
OPTIMIZERS = ("muon+prediction", "muon", "adamh")
RATES = (0.001, 0.01, 0.02)
ERROR = 0.1
GROUPS = 8
METHOD = "greedy{n_sub=1}"


def request_of(directory: Path, topology: dict[str, Any], loss: dict[str, Any], **keys: Any) -> TuneRequest:
    """The question."""
    table = {
        "model": {"name": "llama3-8b", "device": "h100", "tp": 2, "cp": 1, "sequence": 8192},
        "tune": {
            "batch": 32,
            "microbatch_sizes": [1],
            "placements": ["unidirectional"],
            "recompute": ["none"],
            "zero_stages": [1],
            **keys,
        },
        "topology": topology,
        "loss": loss,
    }
    return read_request(source_of_table(table, directory=directory, name="8B"))


def timed(request: TuneRequest, *, prune: bool) -> tuple[Tuned, float, int]:
    """What is found, the seconds of this process, and how many candidates have a plan."""
    interruption, begun = Interruption(), time.process_time()
    with interruption.listening():
        settings = SearchSettings(method=METHOD, limits=Limits(), interruption=interruption)
        found = tune(request, settings, candidate_s=0.0, prune=prune)
    return found, time.process_time() - begun, sum(row.step_ns is not None for row in found.rows)


def by_table(directory: Path, tokens: int) -> None:
    """The first part."""
    for name, topology in CLUSTERS.items():
        for optimizer in OPTIMIZERS:
            request = request_of(directory, topology, {"optimizer": optimizer, "tokens": tokens})
            (found, seconds, plans), (every, all_seconds, all_plans) = (timed(request, prune=prune) for prune in (True, False))
            assert found.times is not None and every.times is not None
            same = found.best.candidate == every.best.candidate and found.best.time_to_loss_ns == every.best.time_to_loss_ns
            unknown = sum(row.state is CandidateState.UNKNOWN for row in found.rows)
            print(f"{name}, {optimizer}: {found.times.verdict}")
            print(
                f"  {len(found.rows)} candidates, {unknown} of unknown delays; {plans} plans in {seconds:.1f} s with bounds,"
                f" {all_plans} in {all_seconds:.1f} s without; {'the same' if same else 'NOT the same'} choice",
                flush=True,
            )


def by_theory(directory: Path) -> None:
    """The second part."""
    measured = MeasuredUpdate(step=0, loss=4.0, gradient_sq=1.0)
    later = MeasuredUpdate(step=1, loss=4.0, gradient_sq=1.0, gradient_change_sq=4e-4, weight_change_sq=1e-4)  # L = 2
    write_convergence("made up", None, (measured, later), directory / "convergence.json")
    print(f"DynPipe's Algorithm 1 beside all: f(w0) 4, L 2, second moment 1, error {ERROR}")
    print("    rate   any  that divides  as printed              it takes  best of all")
    for rate in RATES:
        loss = {"convergence": "convergence.json", "error": ERROR, "learning_rate": rate}
        request = request_of(directory, CLUSTERS["one site"], loss, batch=8, microbatch_sizes=[1, 2, 4, 8])
        found, _, _ = timed(request, prune=False)
        straight = next(each for each in candidates(request.choices) if each.ranks == GROUPS and each.microbatch_size == 8)
        workload = candidate_problem(request, straight).workload
        assert isinstance(request.loss, Theory)
        own, printed = (
            [
                len(row.stages.layers)
                for row in stages_to_loss(
                    workload, request.loss.constants, learning_rate=rate, error=ERROR, as_printed=as_printed, gradient_bytes=4
                )
                if row.time_ns is not None
            ]
            for as_printed in (False, True)
        )
        picked = next((stages for stages in own if GROUPS % stages == 0), 0)
        times = [
            row.time_to_loss_ns
            for row in found.rows
            if row.candidate.ranks == picked and row.time_to_loss_ns and (picked == 1 or row.candidate.versions == "stash")
        ]
        best_ns = found.best.time_to_loss_ns
        assert best_ns is not None
        took = f"{min(times) / 1e9:,.0f} s, {min(times) / best_ns:.2f} times" if times else "no plan"
        cells = (own[0] if own else "none", picked or "none", printed[0] if printed else "none", took)
        best = f"{best_ns / 1e9:,.0f} s: {found.best.candidate.title}"
        print(f"{rate:8g}{cells[0]:>6}{cells[1]:>14}{cells[2]:>12}{cells[3]:>22}  {best}")


def main() -> int:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=10**10)
    parser.add_argument("--only", choices=("table", "theory"))
    arguments = parser.parse_args()
    with TemporaryDirectory() as name:
        if arguments.only != "theory":
            by_table(Path(name), arguments.tokens)
        if arguments.only != "table":
            by_theory(Path(name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
