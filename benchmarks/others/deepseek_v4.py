"""DeepSeek-V4 on AMD's GPUs: Flash's measured step on 64, predicted from profiles of single layers; other layouts; Pro on 512.

AMD publishes kernel times of single layers of each kind on MI355X (github.com/AMD-AGI/Primus fd1eeab, MIT,
examples/deepseek-v4/projection) and one step of Flash on 64 GPUs: 4,076 ms with 8 ranks, 8 pipelines, 16 microbatches in each, full
recomputation, and the layout of `PUBLISHED`. FOLDER has in `profiles` the files `primus-deepseek-v4-{flash,pro}.json`.

- **Bias of single layers.** Kernels of a layer alone add up to more than the layer takes in a model: AMD (design/06) has 7,177 ms
  for 6,665 measured, in another run, 16 layers on one node without a pipeline. `BIAS` is theirs; nothing is fitted to the step.
- A layer runs its forward twice, as all of them recompute. The head's backward, which was not captured, takes two products like
  its forward's. The module for a further token is a layer with ratio 4, its projection at the head's speed, and a second head.
- W is half of the matrix products of a backward (`PRODUCTS_MS`, of the same files): one of each two is for the weights.
- Transfers are free, as AMD assumes: what the links are is not said. `--bandwidth` tries one; a message has 4 hidden streams.
- Memory: 18 bytes for each parameter, 6 + 12 ÷ replicas with the optimizer divided: pipelines, of experts pipelines ÷ 8. A layer
  keeps its input; where B and W run apart, inputs and gradients of its matrices instead (counted, from the F on). What one
  recomputed layer holds for a moment is not counted.

Run it as `python benchmarks/others/deepseek_v4.py FOLDER [--pro] [--work 5 | --time-limit 50] [--bandwidth "50 GB/s"]`: within two
minutes for Flash. Exit status 1: the prediction is more than 5 % off, or a layout found is worse than the published one.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from rich.console import Console
from rich.table import Table

import schedc

MEASURED_MS, PUBLISHED, BIAS, MOST_ERROR = 4076.0, "Et*4|t*5|(t*6|)*5,t*4mL", 0.93, 0.05
TOKENS, EXPERT_PARALLEL, STREAMS, CHOSEN, HEADS_WIDTH = 4096, 8, 4, 6, 512
CAPACITY = "288 GB"
OPTIMIZER_BYTES, MEMORY_BYTES_PER_S, MEMORY_SHARE = 30, 8e12, 0.7
"""Of a parameter's step, of MI355X, and the share that AMD assumes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """What the profile does not say of a model (its configuration in the same files)."""

    experts: int
    width: int
    heads: int
    further_projection: float
    """Its FLOPs, in those of the head."""
    products_ms: dict[str, tuple[float, float]]
    """Of a backward, by ratio: projections of attention, and products of experts."""


MODELS = {
    "flash": Model(
        experts=256,
        width=2048,
        heads=64,
        further_projection=824633720832 / 13013750906880,
        products_ms={"0": (5.292, 1.917), "4": (5.357, 1.896), "128": (5.346, 1.889)},
    ),
    "pro": Model(
        experts=384,
        width=3072,
        heads=128,
        further_projection=2525440770048 / 22774064087040,
        products_ms={"0": (10.066, 5.934), "4": (10.271, 5.908), "128": (10.204, 5.906)},
    ),
}


def profile_of(read: dict[str, Any], model: Model, *, split: bool) -> dict[str, Any]:
    """The layers as a profile.json has them; `split`: B and W may run apart."""
    hidden, vocabulary, blocks = read["hidden"], read["vocabulary"], read["compress_ratios"]
    experts = model.experts * 3 * hidden * model.width
    others = (read["total_params"] - (len(blocks) + 1) * experts - 2 * vocabulary * hidden) // (len(blocks) + 1)
    message = TOKENS * hidden * STREAMS * 2
    attention = 2 * hidden + 2 * model.heads * HEADS_WIDTH
    kept = 2 * TOKENS * (attention + CHOSEN * (2 * hidden + 3 * model.width)) if split else message
    (embedding_f, embedding_b), (output_f, _), (loss_f, loss_b) = (
        read["non_layer_ms"][key] for key in ("embedding", "output", "loss")
    )

    def layer(
        kind: str, forward: float, inner: float, weights: float, held: int, parameters: int, expert: int = 0
    ) -> dict[str, Any]:
        times = {"forward": forward, "backward_input": inner, "backward_weight": weights}
        sizes = {"activation": held, "activation_after_input": held, "message": message if kind != "head" else 0}
        counts = {"parameters": parameters + expert, "expert_parameters": expert}
        return {"kind": kind, **{k: f"{v:.6f} ms" for k, v in times.items()}, **{k: f"{v} B" for k, v in sizes.items()}, **counts}

    def block(ratio: str, kind: str = "block", more_f: float = 0.0, more_b: float = 0.0) -> dict[str, Any]:
        """`more_f`, `more_b`: a further head's forward, and its backward, half of it for the weights."""
        times, weights = read["layers_by_compress_ratio"][ratio], sum(model.products_ms[ratio]) / 2
        again, inner = times["forward_ms"], times["backward_ms"] - weights
        forward = times["forward_ms"] + more_f
        return layer(kind, forward, again + inner + more_b / 2, weights + more_b / 2, kept, others, experts // EXPERT_PARALLEL)

    head_b = 2 * output_f + loss_b
    further = model.further_projection * output_f
    ends = vocabulary * hidden
    layers = [
        layer("embedding", embedding_f, 0.0, embedding_b, 0, ends),
        *(block(str(ratio)) for ratio in blocks),
        block("4", "further token", output_f + loss_f + further, head_b + 2 * further),
        layer("head", output_f + loss_f, output_f + loss_b, output_f, TOKENS * (2 * hidden + 2 * vocabulary), ends),
    ]
    return {"format": "schedc.profile", "version": 1, "layers": layers}


class Found:
    """A compiled layout."""

    def __init__(
        self, read: dict[str, Any], model: Model, options: argparse.Namespace, ranks: int, size: int, pipeline: dict[str, Any]
    ):
        pipelines = options.devices // ranks
        microbatches = options.batch // pipelines
        split = pipeline.get("split_backward", True)
        memory = {
            "capacity": CAPACITY,
            "reserve": "12 GB",
            "bytes_per_parameter": 6 + 12 / pipelines,
            "bytes_per_expert_parameter": 6 + 12 / (pipelines // EXPERT_PARALLEL),
        }
        job: dict[str, Any] = {
            "pipeline": {"ranks": ranks, "microbatches": microbatches, **pipeline},
            "profile": {"path": "profile.json"},
            "memory": memory,
        }
        if options.bandwidth:
            job["topology"] = {"within": {"latency": "10 us", "bandwidth": options.bandwidth}}
        begin, fixed = monotonic(), "partition" in pipeline and pipeline["partition"] != "auto"
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "profile.json").write_text(json.dumps(profile_of(read, model, split=split)), encoding="utf-8")
            self.compiled = schedc.compile_job(
                schedc.make_job(job, directory=name, name="v4"),
                method="1f1b" if fixed else None,
                time_limit_s=options.time_limit,
                deterministic_limit=options.work,
                workers=1 if options.work is not None else 2,
                gap=0.001,
            )
        self.took_s = monotonic() - begin
        problem, found = self.compiled.plan.problem, self.compiled.plan.certificate
        optimizer_s = size / ranks / pipelines * OPTIMIZER_BYTES / MEMORY_BYTES_PER_S / MEMORY_SHARE
        self.profiled_ms = found.makespan_ns / 1e6 + optimizer_s * 1e3
        self.step_ms = BIAS * found.makespan_ns / 1e6 + optimizer_s * 1e3
        self.gap, self.scope, self.stages = found.gap, found.scope, problem.stages
        self.held_gb = [
            (kept + sum(problem.stages[stage].static_bytes or 0 for stage in problem.stages_on(rank))) / 1e9
            for rank, kept in enumerate(found.peak_activation_bytes)
        ]
        self.tokens_per_s = options.batch * TOKENS / self.step_ms * 1e3 / options.devices


def row_of(name: str, found: Found) -> tuple[str, ...]:
    """Its cells."""
    counts = [stage.layers[1] - stage.layers[0] for stage in found.stages if stage.layers is not None]
    partition = " ".join(map(str, counts))
    known = f"{found.gap:.1%}" + (" over layouts" if found.scope.value == "layout" else "")
    times = f"{found.profiled_ms:,.0f}", f"{found.step_ms:,.0f}", f"{found.tokens_per_s:,.0f}"
    method = found.compiled.plan.made_by.method
    return name, *times, known, f"{min(found.held_gb):.0f} to {max(found.held_gb):.0f}", partition, f"{found.took_s:.0f}", method


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description="DeepSeek-V4 on AMD's GPUs.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pro", action="store_true", help="Pro on 512 GPUs instead")
    parser.add_argument("--time-limit", type=float, default=50.0, help="seconds for each search")
    parser.add_argument("--work", type=float, help="this much work for each search, instead of time")
    parser.add_argument("--bandwidth", default="", help="of each link, as '50 GB/s'; default: transfers are free")
    options = parser.parse_args()
    name = "pro" if options.pro else "flash"
    options.devices, options.batch = (512, 2048) if options.pro else (64, 128)
    path = options.folder / "profiles" / f"primus-deepseek-v4-{name}.json"
    if not path.is_file():
        print(f"{path}: there is no such file; it is not part of this repository")
        return 0
    read, model, console = json.loads(path.read_text(encoding="utf-8")), MODELS[name], Console(width=190)
    table = Table(box=None, pad_edge=False)
    for column in ("layout", "profile's ms", "step ms", "tokens/s/GPU", "gap", "GB by rank", "layers of each stage", "s", "method"):
        table.add_column(column, justify="left" if column in ("layout", "layers of each stage", "method") else "right")
    best = {"placement": "unidirectional", "partition": "auto", "split_backward": False}
    apart = {"placement": "auto", "partition": "auto", "chunks": 2}
    kinds = {"best partition, backwards fused": best, "two chunks, B and W apart": apart}
    made = {}
    if not options.pro:
        kinds = {"published, 1F1B": {"partition": PUBLISHED, "split_backward": False}, **kinds}
    for ranks in (8, 16, 32) if options.pro else (8,):
        for kind, pipeline in kinds.items():
            made[ranks, kind] = found = Found(read, model, options, ranks, read["total_params"], pipeline)
            table.add_row(*row_of(f"{ranks} ranks, {kind}" if options.pro else kind, found))
    console.print(
        f"DeepSeek-V4 {name}, {options.devices} MI355X, {options.batch} sequences of {TOKENS}; single layers read 1 ÷ {BIAS} high"
    )
    console.print(table)
    if options.pro:
        return 0
    published, *others = made.values()
    error = published.step_ms / MEASURED_MS - 1
    console.print(f"published layout: measured {MEASURED_MS:,.0f} ms, predicted {published.step_ms:,.0f} ({error:+.1%})")
    for found, kind in zip(others, list(kinds)[1:], strict=True):
        console.print(f"{kind}: {1 - found.step_ms / published.step_ms:.1%} less than the published layout")
    return int(abs(error) > MOST_ERROR or any(found.step_ms > published.step_ms for found in others))


if __name__ == "__main__":
    sys.exit(main())
