"""AdaPtis's grid: three families of models in three sizes on 4, 8 and 16 ranks, against the schedules that people run today.

The models are those of the paper's table 5: layers, width and vocabulary from there, the rest in the proportions of the nearest
published model (Gemma 2 2B, DeepSeek-V2-Lite, Nemotron-H 8B). Costs are `schedc costs`'s on H800, the paper's device; no time is
measured, and the paper prints none. The paper says neither how many microbatches figure 8 has nor its tensor parallelism. Here
they are 4 times the ranks, as in its figure 1 (figure 9 has 8 times: `--per-rank 8`), and 2, with 4 for the large models (figures 1
and 9). DeepSeek's experts are divided among the rest of a node of 8.

Baselines, as in its section 5.1, with the embedding on the first stage and the head on the last one, beside an even share of the
blocks: S-1F1B; I-1F1B with two chunks, "-" where a chunk would have no block; ZB, the better of ZB-H1 and ZB-H2 within memory;
Mist-like, 1F1B on the partition with the least busy stage. Ours chooses partition, placement (at most two stages on a rank) and
schedule. The speed-ups are the baselines' makespans over ours; the gap is to the bound over all layouts. No partition cuts the
head: with 128K to 1024K tokens it costs as much as 1 to 22 blocks, and on 16 ranks often bounds every layout. With `--head split`
or `auto` ours may also split it over the ranks (docs/graphs.md), where that bound does not hold.

The ablation is that of figure 10: what S-1F1B gains on Large, 8 ranks, 4K, by each of placement, schedule and partition alone, and
by all three.

Run it as `python benchmarks/layouts/adaptis_grid.py ROWS.csv [--time-limit 10] [--per-rank 4] [--head auto] [--only table|bounds]`.
Cells that are finished are rows of the CSV and are not run again; `--only bounds` bounds what has a row anew, without a limit. Exit
status 1: a mean is below the paper's.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.compile.driver import OpenLayouts, compile_problem, compile_question
from schedc.costs.architecture import Setting
from schedc.costs.devices import device_named
from schedc.costs.hugging_face import architecture_of_config
from schedc.costs.layers import layers_of
from schedc.errors import Unsupported
from schedc.formats.profile_file import profile_json
from schedc.frontend.job import load_job
from schedc.io.location import Location
from schedc.ir.layout import Layout, OpenLayout
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place, placement_name
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.layout.layout_arrays import lay_out
from schedc.solvers.templates import TEMPLATES

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.kept_rows import append_row, rows_of

if TYPE_CHECKING:
    from schedc.ir.layout import Placement
    from schedc.ir.workload import Workload

SIZES = ("small", "medium", "large")
RANKS, SEQUENCES = (4, 8, 16), (2048, 4096)
TENSOR_PARALLEL = {"small": 2, "medium": 2, "large": 4}
NODE = 8
CHUNKS = 2
BYTES_PER_PARAMETER = 16
KEYS = ("family", "size", "ranks", "sequence", "microbatches")
PAPER = {"s-1f1b": 1.34, "i-1f1b": 1.42, "zb": 1.34, "mist-like": 1.20}
"""Mean speed-ups, section 5.2."""
ABLATION = {"gemma": 1.32, "deepseek": 1.37, "nemotron-h": 1.33}
"""All three phases over S-1F1B, section 5.4."""
NEMOTRON_PATTERN = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
HEADS = {"whole": (False,), "split": (True,), "auto": (False, True)}
MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """A model on some ranks."""

    family: str
    size: str
    ranks: int
    sequence: int
    microbatches: int

    @property
    def key(self) -> dict[str, str]:
        """What names its row."""
        return {name: str(getattr(self, name)) for name in KEYS}

    def workload(self) -> Workload:
        """Costs by `schedc costs`, on H800 in nodes of 8."""
        config = CONFIGS[self.family](SIZES.index(self.size))
        architecture = architecture_of_config(config, self.family, Location(self.family))
        experts = NODE // TENSOR_PARALLEL[self.size] if self.family == "deepseek" else 1
        setting = Setting(sequence_length=self.sequence, tensor_parallel=TENSOR_PARALLEL[self.size], expert_parallel=experts)
        device = device_named("h800")
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "profile.json").write_text(profile_json(layers_of(architecture, device, setting), exact=True))
            Path(folder, "job.toml").write_text(JOB.format(ranks=self.ranks, microbatches=self.microbatches))
            return load_job(str(Path(folder, "job.toml"))).workload


JOB = f"""
[pipeline]
ranks = {{ranks}}
microbatches = {{microbatches}}
partition = "auto"
placement = "auto"
[profile]
path = "profile.json"
[memory]
capacity = "80 GB"
bytes_per_parameter = {BYTES_PER_PARAMETER}
[topology.within]
latency = "10 us"
bandwidth = "50 GB/s"
"""


def _gemma(size: int) -> dict[str, Any]:
    """Gemma 2 2B: an FFN of 4 times the width, 8 heads of 256 with 4 for keys and values; its width is 2304."""
    return {
        "model_type": "gemma2",
        "num_hidden_layers": 32 << size,
        "hidden_size": 1536,
        "intermediate_size": 6144,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 1 << (18 + size),
    }


def _deepseek(size: int) -> dict[str, Any]:
    """DeepSeek-V2-Lite, whose width is that of the table."""
    return {
        "model_type": "deepseek_v2",
        "num_hidden_layers": 16 << size,
        "hidden_size": 2048,
        "num_attention_heads": 16,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 10944,
        "first_k_dense_replace": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1408,
        "vocab_size": 1 << (17 + size),
    }


def _nemotron_h(size: int) -> dict[str, Any]:
    """Nemotron-H 8B at a quarter of its width; its pattern of layers, cut or repeated."""
    layers = 28 << size
    return {
        "model_type": "nemotron_h",
        "num_hidden_layers": layers,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "attention_head_dim": 128,
        "intermediate_size": 5376,
        "hybrid_override_pattern": (NEMOTRON_PATTERN * 3)[:layers],
        "mamba_num_heads": 32,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "vocab_size": 1 << (17 + size),
    }


CONFIGS = {"gemma": _gemma, "deepseek": _deepseek, "nemotron-h": _nemotron_h}


def main() -> int:
    """Do the cells that have no row yet, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("rows", type=Path, help="a CSV that keeps what is done")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each cell")
    parser.add_argument("--per-rank", type=int, default=4, help="microbatches for each rank")
    parser.add_argument("--only", choices=("table", "bounds"), help="run nothing; bounds: bound the rows anew, the head whole")
    parser.add_argument("--head", choices=tuple(HEADS), default="whole", help="of ours: whole, split over the ranks, or open")
    options = parser.parse_args()
    limits = Limits(time_s=options.time_limit)
    done = [{name: row[name] for name in KEYS} for row in rows_of(options.rows)]
    anew: dict[str, tuple[int, float]] = {}
    for ranks, sequence, size, family in product(RANKS, SEQUENCES, SIZES, CONFIGS):
        cell = Cell(family=family, size=size, ranks=ranks, sequence=sequence, microbatches=options.per_rank * ranks)
        if options.only is None and cell.key not in done:
            append_row(options.rows, cell.key | _measured(cell, limits, HEADS[options.head]))
        elif options.only == "bounds" and cell.key in done:
            begun = time.process_time()
            bound_ns = layout_bound(cell.workload(), OpenLayout(chunks=CHUNKS)).value_ns
            anew[str(cell.key)] = bound_ns, time.process_time() - begun
    if anew:
        print(f"a bound over all layouts takes at most {max(seconds for _, seconds in anew.values()):.1f} s of a core")
    rows = rows_of(options.rows)
    keys = [str({name: row[name] for name in KEYS}) for row in rows]
    return _report([row | ({"bound": str(anew[key][0])} if key in anew else {}) for row, key in zip(rows, keys, strict=True)])


def _measured(cell: Cell, limits: Limits, heads: tuple[bool, ...]) -> dict[str, object]:
    """The makespans in nanoseconds; None where there is no schedule."""
    workload = cell.workload()
    flat, looped, wave = place("unidirectional", cell.ranks), *(place(name, cell.ranks, CHUNKS) for name in ("loop", "wave"))
    even = _even(workload, flat)
    row: dict[str, object] = {
        "s-1f1b": _taken(workload, even, "1f1b"),
        "i-1f1b": _taken(workload, _even(workload, looped), "interleaved"),
        "zb": _least(_taken(workload, even, method) for method in ("zb-h1", "zb-h2")),
        "mist-like": _taken(workload, _of(flat, balanced_partition(workload, flat, frozenset())), "1f1b"),
        "placement": None,
        "schedule": None,
    }
    if even is not None and (cell.size, cell.ranks, cell.sequence) == ("large", 8, 4096):
        row["placement"] = _least([row["i-1f1b"], _taken(workload, _even(workload, wave), "hanayo")])
        row["schedule"] = compile_problem(problem_of(workload, even), SearchSettings(limits=limits)).plan.certificate.makespan_ns
    made = compile_question(OpenLayouts(workload, OpenLayout(chunks=CHUNKS, heads=heads)), SearchSettings(limits=limits))
    certificate = made.plan.certificate
    head = max(workload.layers, key=lambda layer: layer.forward_ns)
    whole_ns = sum(layer.forward_ns[0] for layer in workload.layers)
    return row | {
        "ours": certificate.makespan_ns,
        "bound": certificate.lower_bound_ns,
        "layouts": made.layouts,
        "seconds": f"{made.seconds:.1f}",
        "head_share": f"{head.forward_ns[0] / whole_ns:.4f}",
    }


def _even(workload: Workload, placed: Placement) -> Layout | None:
    """An even share of the blocks for each stage, the first ones one more; None: a stage would have none."""
    stages, blocks = len(placed.rank_of_stage), len(workload.layers) - 2
    if blocks < stages:
        return None
    counts = [blocks // stages + (stage < blocks % stages) for stage in range(stages)]
    counts[0] += 1
    counts[-1] += 1
    return _of(placed, tuple(pairwise((0, *accumulate(counts)))))


def _of(placed: Placement, layers_of_stage: Any) -> Layout:
    name = placement_name(placed.rank_of_stage, max(placed.rank_of_stage) + 1)
    return Layout(rank_of_stage=placed.rank_of_stage, paths=placed.paths, layers_of_stage=layers_of_stage, placement=name)


def _taken(workload: Workload, layout: Layout | None, method: str) -> int | None:
    """The makespan of a published schedule; None: it does not exist there, or has no room."""
    if layout is None:
        return None
    try:
        return lay_out(workload, layout, TEMPLATES[method].construct, method).makespan_ns
    except Unsupported:
        return None


def _least(values: Any) -> int | None:
    return min((each for each in values if each is not None), default=None)


def _report(rows: list[dict[str, str]]) -> int:
    """Print the tables."""
    table = Table(title="Speed-ups over the baselines, in the same model; the gap to the bound over layouts")
    for heading in ("model", "ranks", "tokens", "microbatches", *PAPER, "gap", "head's share", "ms"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    gains: dict[str, list[float]] = {name: [] for name in PAPER}
    most: dict[str, list[float]] = {name: [] for name in PAPER}
    gaps = []
    for row in rows:
        ours = int(row["ours"])
        cells = []
        for name in PAPER:
            if row[name]:
                gains[name].append(int(row[name]) / ours)
                most[name].append(int(row[name]) / int(row["bound"]))
            cells.append(f"{gains[name][-1]:.2f}" if row[name] else "-")
        gaps.append(1 - int(row["bound"]) / ours)
        shown = (*cells, f"{gaps[-1]:.1%}", f"{float(row['head_share']):.0%}", f"{ours / MS:.1f}")
        table.add_row(f"{row['family']} {row['size']}", row["ranks"], row["sequence"], row["microbatches"], *shown)
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [int(row["mist-like"]) / int(row["ours"]) for row in rows if row["family"] == family and row["mist-like"]]
        table.add_row(f"{family}, mean over Mist-like", "", "", "", "", "", "", f"{statistics.mean(own):.2f}" if own else "-")
    means = {name: statistics.mean(each) for name, each in gains.items() if each}
    table.add_section()
    table.add_row(
        "mean", "", "", "", *(f"{means[name]:.2f}" if name in means else "-" for name in PAPER), f"{statistics.mean(gaps):.1%}"
    )
    table.add_row("largest", "", "", "", *(f"{max(gains[name]):.2f}" if gains[name] else "-" for name in PAPER), f"{max(gaps):.1%}")
    proven = (f"{statistics.mean(each):.2f}" if each else "-" for each in most.values())
    table.add_row("no layout's mean is above", "", "", "", *proven)
    table.add_row("the paper's mean", "", "", "", *(f"{each:.2f}" for each in PAPER.values()))
    console = Console(width=140)
    console.print(table)
    ablation = Table(title="What each phase alone gains over S-1F1B: Large, 8 ranks, 4K tokens")
    for heading in ("model", "placement", "schedule", "partition", "all three", "the paper's, all three"):
        ablation.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        if row["schedule"]:
            base = int(row["s-1f1b"])
            parts = [f"{base / int(row[name]):.2f}" for name in ("placement", "schedule", "mist-like", "ours")]
            ablation.add_row(row["family"], *parts, f"{ABLATION[row['family']]:.2f}")
    console.print(ablation)
    return int(any(mean < PAPER[name] for name, mean in means.items()))


if __name__ == "__main__":
    sys.exit(main())
