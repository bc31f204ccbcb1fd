"""CrossPipe's figure 12 (section 7.4): pipeline ranks or data parallelism, for fixed devices and a fixed batch, over two sites.

The setup is the paper's: M70 (Llama 3 70B's layers, 62 of them, with embedding and head), 16 nodes of 4 GH200 in two sites, tensor
parallelism 4, sequences of 4,096 tokens, a batch of 64, so 4 microbatches for each pipeline rank; 4, 8 or 16 ranks, and 4, 2 or 1
pipelines. Costs are predicted (`schedc costs`), collectives and memory are those of `schedc tune`.

1. The four panels of the figure: latency and transfer time of a message between the sites, in forwards of a stage at 4 ranks, and
   what is static at 4 ranks as a share of a device's memory. The pipeline crosses. The paper prints no times; it says that the step
   is largely the same for 4, 8 and 16 ranks. `spread` is the longest of the three over the shortest. Each panel is computed twice:
   with collectives over the devices' own network (25 GB/s), and with a network within the sites that takes no time, as the paper
   takes collectives within a site for overlapped (section 7.1).
2. What `schedc tune` chooses where everything is open, data parallelism across sites and microbatches of 1, 2 and 4 included, for
   more latencies and bandwidths.

Run it as `python benchmarks/tune/trade_off.py [--time-limit 60] [--candidate-time 4] [--only panels|choice]`: seconds
for each cell of the tables, and for the search of each candidate.
"""

from __future__ import annotations

import argparse
import json
import sys
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from schedc.errors import NoPlanFound
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.request import read_request
from schedc.study.tune.search import tune

if TYPE_CHECKING:
    from schedc.study.tune.candidates import TuneRow
    from schedc.study.tune.request import TuneRequest

M70 = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "intermediate_size": 28672,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "num_hidden_layers": 62,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "torch_dtype": "bfloat16",
}
RANKS, FEWEST, TENSOR, GROUPS = (4, 8, 16), 4, 4, 16
FREE = "1000000 GB/s"
PANELS = ((1, 0.25, 0.25), (0.125, 2, 0.25), (1, 0.25, 0.5), (0.125, 2, 0.5))
"""Latency and transfer time in forwards, and the static share."""
GRID = tuple((latency, transfer) for transfer in (0.25, 2, 8) for latency in (0.125, 1, 8))


def request_of(
    directory: Path, *, between: dict[str, str], capacity_bytes: int | None, within: str | None = None, **tune_keys: Any
) -> TuneRequest:
    """The question; None: a device's whole memory, or its own network."""
    (directory / "config.json").write_text(json.dumps(M70), encoding="utf-8")
    table: dict[str, Any] = {
        "model": {"config": "config.json", "device": "gh200", "tp": TENSOR, "sequence": 4096},
        "tune": {"batch": 64, "zero_stages": [1], **tune_keys},
        "topology": {"sites": [GROUPS * TENSOR // 2] * 2, "between": between},
    }
    if within is not None:
        table["topology"]["within"] = {"bandwidth": within}
    table["memory"] = {"reserve": "0 B"}
    if capacity_bytes is not None:
        table["memory"]["capacity"] = f"{capacity_bytes} B"
    return read_request(source_of_table(table, directory=directory, name="M70"))


def measures(directory: Path) -> tuple[int, int, int]:
    """At 4 ranks: the longest forward of a stage in ns, what is static on the fullest rank, and a message, both in bytes.

    The message is that of a microbatch, of all tensor-parallel devices of all pipelines together.
    """
    request = request_of(
        directory,
        between={"bandwidth": "1 TB/s"},
        capacity_bytes=10**15,
        ranks=[FEWEST],
        microbatch_sizes=[1],
        placements=["unidirectional"],
        recompute=["none"],
        across_sites=["pipeline"],
    )
    (candidate,) = candidates(request.choices)
    made = candidate_problem(request, candidate)
    stages = made.problem.stages
    message_bytes = stages[0].message_bytes * TENSOR * candidate.data_parallel
    return max(stage.forward_ns[0] for stage in stages), max(made.static_bytes), message_bytes


def between_of(latency: float, transfer: float, forward_ns: int, message_bytes: int) -> dict[str, str]:
    """The sites' connection in forwards at 4 ranks."""
    bytes_per_s = round(message_bytes / (transfer * forward_ns / 1e9))
    return {"latency": f"{round(latency * forward_ns)} ns", "bandwidth": f"{bytes_per_s} B/s"}


def best_row(request: TuneRequest, time_s: float, candidate_s: float) -> TuneRow | None:
    """The best candidate; None: none has a plan."""
    try:
        return tune(request, SearchSettings(limits=Limits(time_s=time_s, gap=0.002)), candidate_s=candidate_s).best
    except NoPlanFound as error:
        print(error, file=sys.stderr)
        return None


def main() -> int:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--candidate-time", type=float, default=4.0)
    parser.add_argument("--only", choices=("panels", "choice"))
    arguments = parser.parse_args()
    out = Console(width=150, highlight=False)
    with TemporaryDirectory() as name:
        directory = Path(name)
        forward_ns, static_bytes, message_bytes = measures(directory)
        out.print(
            f"at {FEWEST} ranks: forward of a stage {forward_ns / 1e6:.1f} ms (measured at 8 ranks: at most 38 ms, so 76 ms at 4);"
            f" static {static_bytes / 1e9:.1f} GB; message of a microbatch of all pipelines {message_bytes / 1e9:.3f} GB",
            soft_wrap=True,
        )
        if arguments.only != "choice":
            out.print(panels(directory, forward_ns, static_bytes, message_bytes, arguments.time_limit, arguments.candidate_time))
        if arguments.only != "panels":
            out.print(choice(directory, forward_ns, message_bytes, arguments.time_limit, arguments.candidate_time))
    return 0


def panels(directory: Path, forward_ns: int, static_bytes: int, message_bytes: int, time_s: float, candidate_s: float) -> Table:
    """Figure 12."""
    table = Table(box=None, title="figure 12: steps in s by pipeline ranks", title_justify="left")
    for header in ("latency/F", "transfer/F", "static", "collectives", *(f"{ranks} ranks" for ranks in RANKS), "spread", "paper"):
        table.add_column(header, justify="right")
    for (latency, transfer, share), within in product(PANELS, (None, FREE)):
        steps, cells = [], []
        for ranks in RANKS:
            request = request_of(
                directory,
                between=between_of(latency, transfer, forward_ns, message_bytes),
                capacity_bytes=round(static_bytes / share),
                within=within,
                ranks=[ranks],
                microbatch_sizes=[1],
                placements=["unidirectional", "wave"],
                recompute=["none"],
                across_sites=["pipeline"],
            )
            row = best_row(request, time_s, candidate_s)
            if row is None or row.step_ns is None:
                cells.append("no plan")
                continue
            steps.append(row.step_ns)
            placement = "UD" if row.candidate.placement == "unidirectional" else row.candidate.placement
            cells.append(f"{row.step_ns / 1e9:.3f} {placement} gap {row.gap:.1%}")
        spread = f"{max(steps) / min(steps):.3f}" if len(steps) == len(RANKS) else "–"
        counted = "25 GB/s" if within is None else "none"
        table.add_row(f"{latency:g}", f"{transfer:g}", f"{share:.0%}", counted, *cells, spread, "largely invariant")
        print(f"panel {latency:g}, {transfer:g}, {share:.0%}: done", file=sys.stderr)
    return table


def choice(directory: Path, forward_ns: int, message_bytes: int, time_s: float, candidate_s: float) -> Table:
    """What is best as latency and bandwidth vary."""
    table = Table(box=None, title="what schedc tune chooses, 96 GB a device", title_justify="left")
    for header in ("latency", "GB/s", "step", "ranks", "dp", "size", "placement", "recompute", "across sites", "gap"):
        table.add_column(header, justify="left" if header in ("placement", "recompute", "across sites") else "right")
    for latency, transfer in GRID:
        between = between_of(latency, transfer, forward_ns, message_bytes)
        request = request_of(directory, between=between, capacity_bytes=None, ranks=list(RANKS), microbatch_sizes=[1, 2, 4])
        row = best_row(request, time_s, candidate_s)
        seen = [f"{latency * forward_ns / 1e6:.0f} ms", f"{message_bytes / (transfer * forward_ns):.2f}"]
        if row is None or row.step_ns is None:
            table.add_row(*seen, "no plan")
            continue
        each = row.candidate
        table.add_row(
            *seen,
            f"{row.step_ns / 1e9:.3f} s",
            str(each.ranks),
            str(each.data_parallel),
            str(each.microbatch_size),
            each.placement,
            each.recompute,
            each.across or "–",
            f"{row.gap:.1%}",
        )
        print(f"choice {latency:g}, {transfer:g}: done", file=sys.stderr)
    return table


if __name__ == "__main__":
    sys.exit(main())
