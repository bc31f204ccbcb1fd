"""CrossPipe's figure 9: Llama 3 405B over two sites, a pipeline or data parallelism across them, latency and bandwidth swept.

The setup is that of CrossPipe 5.2 and appendix E: 8,192 GPUs in two sites, tensor parallelism 8, 16 pipeline ranks, 64 pipelines,
32 microbatches of one sequence of 8,192 tokens on each, 500 TFLOP/s on a GPU, and nothing else takes time. Embedding and head
count as transformer layers (section 6.1), so there are 128 equal ones. Activations as 1F1B and ZB-V hold them. Each step with a
pipeline across sites is the better of `unidirectional` (UD) and `wave`, by `auto`.

- Data parallelism across sites, in the paper's terms: ZB-V in one site, then 2α + 2Nβ that overlap nothing. `schedc`: the same
  with the collectives of `schedc tune`, each rank's as soon as its last backward is done, with its share of the bandwidth.
- A message has s × d × 64 pipelines × 2 bytes (BF16), as in the paper's section 7.1: 17.2 GB.

The paper prints two numbers of the figure in its text; they are beside ours. Its slow-down is reproduced. Its speed-up is not
with the formula that it prints: 2α + 2Nβ at 4 GB/s is 203 s, and 32 messages take at least 137 s. `4N` is the speed-up if reduce-
scatter and all-gather each carried all N parameters in 2 bytes, which comes near.
Run it as `python benchmarks/tune/two_sites.py [--time-limit 5] [--latency 4,128] [--bandwidth 4,64,1024] [--csv FILE]`; of the file
`schedc plot FILE -o FIGURE --x bandwidth --by across_sites --by latency` draws the figure.
"""

from __future__ import annotations

import argparse
import csv
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from msgspec.structs import replace as replace_field
from rich.console import Console
from rich.table import Table

from schedc.compile.driver import compile_problem
from schedc.costs.architecture import Setting
from schedc.costs.devices import device_named
from schedc.costs.efficiency import sustained
from schedc.costs.layers import architecture_named, layers_of
from schedc.formats.profile_file import profile_json
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.layer_costs import PROFILE
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.request import read_request

if TYPE_CHECKING:
    from schedc.frontend.tune_file import Across
    from schedc.ir.network import Link
    from schedc.ir.problem import Problem

MODEL, DEVICE = "llama3-405b", "h100"
RANKS, PIPELINES, TENSOR, SEQUENCE, LAYERS = 16, 64, 8, 8192, 128
SUSTAINED = 500 / 989.4
"""Of an H100's dense peak: 500 TFLOP/s."""
PARAMETERS = 405e9
PUBLISHED_SPEEDUP = {4: 3.05}
"""At this bandwidth in GB/s: "up to 3.05x"."""
PUBLISHED_SLOWDOWN = {64: 1.3}
PAPER_FORWARD_MS = 109


@dataclass(frozen=True, slots=True)
class Best:
    """The better placement."""

    step_ns: int
    bound_ns: int
    placement: str


def problems(across: Across, latency_ms: float, gigabytes_per_s: float, *, reduces: bool) -> dict[str, Problem]:
    """The problem of each placement, activations limited to those of 16 microbatches on each rank.

    Args:
        across: what crosses from site to site.
        latency_ms: between sites.
        gigabytes_per_s: between sites, of all devices together.
        reduces: whether collectives count.
    """
    setting = Setting(sequence_length=SEQUENCE, tensor_parallel=TENSOR)
    layers = layers_of(architecture_named(MODEL), device_named(DEVICE), setting, sustained(SUSTAINED))
    table = {
        "model": {"tp": TENSOR, "sequence": SEQUENCE},
        "tune": {
            "profiles": {"1": PROFILE},
            "zero_stages": [1],
            "batch": 2 * RANKS * PIPELINES,
            "ranks": [RANKS],
            "microbatch_sizes": [1],
            "placements": ["unidirectional", "wave"],
            "recompute": ["none"],
            "across_sites": [across],
        },
        "topology": {
            "sites": [RANKS * PIPELINES * TENSOR // 2] * 2,
            "within": {"bandwidth": "1000000 GB/s"},  # the paper has no costs within a site
            "between": {"latency": f"{latency_ms} ms", "bandwidth": f"{gigabytes_per_s} GB/s"},
        },
        # The limit is set below; the paper's collectives are of 2 bytes both ways.
        "memory": {"capacity": "8000 GB", "gradient": "2 B"},
    }
    found: dict[str, Problem] = {}
    with TemporaryDirectory() as name:
        (Path(name) / PROFILE).write_text(profile_json([replace_field(layers[1], repeat=LAYERS)], exact=True), encoding="utf-8")
        request = read_request(source_of_table(table, directory=Path(name), name=MODEL))
        for candidate in candidates(request.choices):
            problem = candidate_problem(request, candidate).problem
            held = [sum(problem.stages[stage].activation_bytes for stage in problem.stages_on(rank)) for rank in range(RANKS)]
            found[candidate.placement] = replace(
                problem,
                memory_limit_bytes=tuple(RANKS * each for each in held),
                data_parallel=problem.data_parallel if reduces else None,
            )
    return found


def best_of(found: dict[str, Problem], limit_s: float, methods: tuple[str, ...] = ("auto",)) -> Best:
    """The better placement; its step, and the lesser bound."""
    made = []
    for placement, problem in found.items():
        for method in methods:
            if method == "zb-v" and placement != "wave":
                continue
            compiled = compile_problem(problem, SearchSettings(method=method, limits=Limits(time_s=limit_s, gap=0.001)))
            certificate = compiled.plan.certificate
            made.append((certificate.makespan_ns, placement, certificate.lower_bound_ns))
    step_ns, placement, _ = min(made)
    return Best(step_ns, min(bound_ns for _, _, bound_ns in made), "UD" if placement == "unidirectional" else placement)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=5.0, help="seconds of the search for each placement and cell")
    parser.add_argument("--latency", default="4,32,128", help="ms")
    parser.add_argument("--bandwidth", default="4,16,64,256,1024", help="GB/s")
    parser.add_argument("--csv", type=Path, help="a table for `schedc plot`")
    arguments = parser.parse_args()
    rows: list[dict[str, object]] = []
    latencies = [float(each) for each in arguments.latency.split(",")]
    bandwidths = [int(each) for each in arguments.bandwidth.split(",")]
    out = Console(width=160, highlight=False)
    limit_s: float = arguments.time_limit

    ideal_problems = {name: replace(each, links=_free(each)) for name, each in problems("pipeline", 0, 1, reduces=False).items()}
    forward_ns = max(stage.forward_ns[0] for stage in ideal_problems["unidirectional"].stages)
    ideal = best_of(ideal_problems, limit_s)
    zb_v = compile_problem(ideal_problems["wave"], SearchSettings(method="zb-v")).plan.certificate.makespan_ns
    out.print(
        f"forward of a stage {forward_ns / 1e6:.1f} ms, the paper's {PAPER_FORWARD_MS} ms:"
        f" ratio {forward_ns / 1e6 / PAPER_FORWARD_MS:.3f}"
    )
    out.print(
        f"one site: ZB-V {zb_v / 1e9:.3f} s; the best {ideal.step_ns / 1e9:.3f} s ({ideal.placement}),"
        f" bound {ideal.bound_ns / 1e9:.3f} s"
    )
    table = Table(
        box=None,
        title="steps in s; speed-up: data parallelism / pipeline across sites; slow-down: pipeline across sites / best in one site",
        title_justify="left",
    )
    for header in (
        "GB/s",
        "ms",
        "DP paper",
        "DP schedc",
        "PP",
        "by",
        "bound",
        "speed-up",
        "4N",
        "schedc",
        "paper",
        "slow-down",
        "paper",
    ):
        table.add_column(header, justify="left" if header == "by" else "right")
    for bandwidth in bandwidths:
        for latency in latencies:
            alone_ns, collective_ns = zb_v + 2 * latency * 1e6, 2 * PARAMETERS / bandwidth
            paper_ns = alone_ns + collective_ns
            own = best_of(problems("data-parallel", latency, bandwidth, reduces=True), limit_s, ("zb-v", "greedy{n_sub=1}"))
            across = best_of(problems("pipeline", latency, bandwidth, reduces=False), limit_s)
            table.add_row(
                f"{bandwidth}",
                f"{latency:g}",
                f"{paper_ns / 1e9:.2f}",
                f"{own.step_ns / 1e9:.2f}",
                f"{across.step_ns / 1e9:.2f}",
                across.placement,
                f"{across.bound_ns / 1e9:.2f}",
                f"{paper_ns / across.step_ns:.2f}",
                f"{(paper_ns + collective_ns) / across.step_ns:.2f}",
                f"{own.step_ns / across.step_ns:.2f}",
                f"{PUBLISHED_SPEEDUP[bandwidth]:.2f}" if bandwidth in PUBLISHED_SPEEDUP else "",
                f"{across.step_ns / ideal.step_ns:.2f}",
                f"{PUBLISHED_SLOWDOWN[bandwidth]:.1f}" if bandwidth in PUBLISHED_SLOWDOWN else "",
            )
            for who, best in (("data parallelism", own), ("pipeline", across)):
                rows.append({"bandwidth": f"{bandwidth} GB/s", "latency": f"{latency:g} ms", "across_sites": who, **_columns(best)})
            print(f"{bandwidth} GB/s, {latency:g} ms: done", file=sys.stderr)
    out.print(table)
    if arguments.csv is not None:
        with arguments.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return 0


def _columns(best: Best) -> dict[str, object]:
    return {"objective_ns": best.step_ns, "bound_ns": best.bound_ns, "placement": best.placement}


def _free(problem: Problem) -> tuple[Link, ...]:
    return tuple(replace(link, latency_ns=0, bytes_per_second=None, trunk=None) for link in problem.links)


if __name__ == "__main__":
    sys.exit(main())
