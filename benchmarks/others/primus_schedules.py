"""Six schedules that AMD measured in one framework, ranked by the model: Llama 2 on 8 MI300X, 8 ranks.

github.com/AMD-AGI/Primus fd1eeab (MIT), docs_deprecated/tech_blogs/primus_pipeline: tokens/s and the memory of the fullest rank,
here against 1F1B. Nothing of them is used. What the page does not say is taken elsewhere:

- The model has 16 of Llama 2 7B's 32 layers: 235.7 TFLOPS for 10,057 tokens/s are 23.44 GFLOP for each token, which Megatron-LM's
  formula gives for 16 layers and 4,096 tokens, 20.22 of matrices and 3.22 of attention; for 32 it gives 46.1.
- 32 microbatches, of one sequence: primus/core/projection/configs/pp_simulation.yaml has 32.
- Costs are those of `schedc costs` on MI300X, of which no products were measured here: ratios are compared, and no times.
- A message takes one of the seven links of 64 GB/s that a device has; the blocks overlap it.
- 18 bytes for each parameter, as there is one pipeline, and what Megatron-LM's blocks hold besides. 1F1B and interleaved run B and
  W as one; V-Half and V-Min are rebuilt (tests/support/benches/peers_v.py).
- *By two*: memory from two numbers alone, bytes for a parameter and for a layer and microbatch between F and W. They are those of
  1F1B and interleaved; the other four schedules test them.

Run it as `python benchmarks/others/primus_schedules.py`. Exit status 1: two of the six in another order.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from itertools import accumulate, pairwise, permutations
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.simulate import simulate
from schedc.costs.layers import Part, parts_of
from schedc.costs.memory import besides
from schedc.costs.predicted import predicted
from schedc.frontend.profile import layers_of_entries
from schedc.io.location import Location
from schedc.ir import Kind, Layout, Network, Op, Workload
from schedc.ir.costs import MessageCost
from schedc.ir.workload import Device
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.templates import TEMPLATES

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.peers_v import Costs, peer_schedules

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS, MICROBATCHES, LAYERS, BYTES_PER_PARAMETER = 8, 32, 16, 18
LINK_BYTES_PER_S, HIDDEN = 64_000_000_000, 4096
TIE = 0.02
"""What measured speeds differ by and may still be in any order: V schedules and zero bubble are within 1 % of each other."""
CONFIG = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": 11008,
    "num_attention_heads": 32,
    "num_hidden_layers": LAYERS,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
MEASURED = {
    "1f1b": (10057.0, 16.26),
    "interleaved": (10974.0, 21.40),
    "zb-h1": (11411.0, 16.59),
    "zb-v": (11347.0, 18.11),
    "v-half": (10894.0, 14.06),
    "v-min": (8897.2, 11.90),
}
"""tokens/s/device and GiB; zb-h1 is their zbb, zb-v their ZBV, which torch has, too."""
PLACED = {"1f1b": ("unidirectional", 1), "zb-h1": ("unidirectional", 1), "interleaved": ("loop", 2)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a schedule."""

    took_ms: float
    held_gib: float
    """Of the fullest rank, as counted."""
    ranks: tuple[tuple[int, int], ...]
    """Parameters of each rank, and the most layers × microbatches between F and W."""

    def by_two(self, state_bytes: float, layer_gib: float) -> float:
        """GiB of the fullest rank with these bytes for each parameter and this much for each layer and microbatch."""
        return max(parameters * state_bytes / 2**30 + layers * layer_gib for parameters, layers in self.ranks)


def outcomes() -> dict[str, Outcome]:
    """Of each schedule."""
    found = {}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "config.json"
        path.write_text(json.dumps(CONFIG), encoding="utf-8")
        made = {split: predicted(str(path), "mi300x", framework="megatron-te", split_backward=split) for split in (True, False)}
    for name in MEASURED:
        split = name not in ("1f1b", "interleaved")
        layers = layers_of_entries(made[split].layers, Location("layers"), split_backward=split)
        placement, chunks = PLACED.get(name, ("wave", 2))
        placed, count = place(placement, RANKS, chunks), RANKS * chunks
        counts = [LAYERS // count + (stage in (0, count - 1)) for stage in range(count)]
        bounds = tuple(pairwise(accumulate(counts, initial=0)))
        workload = Workload(
            name=name,
            microbatches=MICROBATCHES,
            layers=layers,
            devices=(Device(),) * RANKS,
            network=Network(site_of_rank=(0,) * RANKS, within=MessageCost(latency_ns=10_000, bytes_per_second=LINK_BYTES_PER_S)),
            split_backward=split,
        )
        layout = Layout(layers_of_stage=bounds, rank_of_stage=placed.rank_of_stage, paths=placed.paths, placement=placement)
        problem = problem_of(workload, layout)
        if name in TEMPLATES:
            schedule = TEMPLATES[name](problem)
        else:
            middle = problem.stages[1]
            message = 10_000 + middle.message_bytes * 1_000_000_000 // LINK_BYTES_PER_S
            times = middle.forward_ns[0], middle.backward_input_ns[0], middle.backward_weight_ns[0]
            schedule = dict(peer_schedules(Costs(RANKS, MICROBATCHES, *times, message)))[name]
        parts = parts_of(made[split].architecture, made[split].setting)
        blocks = [sum(0 < at < LAYERS + 1 for at in range(*each)) for each in bounds]
        held, ranks = [], []
        for rank, order in enumerate(schedule.orders):
            own = [at for stage in problem.stages_on(rank) for at in range(*bounds[stage])]
            parameters = sum(layers[at].parameters for at in own)
            most = besides([parts[at] for at in own], made[split].setting, HIDDEN, split_backward=split)
            kept = most_kept(order, [[parts[at] for at in range(*each)] for each in bounds])
            held.append(parameters * BYTES_PER_PARAMETER + most.total_bytes + kept)
            changes = ({Kind.F: 1, Kind.B: 0}.get(op.kind, -1) * blocks[op.stage] for op in order)
            ranks.append((parameters, max(accumulate(changes))))
        found[name] = Outcome(simulate(problem, schedule).makespan_ns / 1e6, max(held) / 2**30, tuple(ranks))
    return found


def most_kept(order: Sequence[Op], parts_of_stage: Sequence[Sequence[Part]]) -> float:
    """Bytes at a rank's peak: what F keeps until B, and what W needs from then on, gradients of outputs among it.

    The cost model has these from F on where they are more, as nothing grows there in a B; here they count when they are made.
    """
    operators = [[each for part in parts for each in part.operators] for parts in parts_of_stage]
    kept = [sum(each.kept_for_input_bytes + each.kept_for_weight_bytes for each in own) for own in operators]
    after = [sum(each.kept_for_weight_bytes + each.gradient_bytes for each in own) for own in operators]
    held = most = 0.0
    for op in order:
        if op.kind is Kind.F:
            most = max(most, held := held + kept[op.stage])
        elif op.kind is Kind.B:
            most = max(most, held + after[op.stage] - kept[op.stage])
            held += after[op.stage] - kept[op.stage]
        else:
            held -= after[op.stage] if op.kind is Kind.W else kept[op.stage]
    return most


def main() -> int:
    """Print the table."""
    found, console = outcomes(), Console(width=120)
    base, (base_speed, base_gib) = found["1f1b"], MEASURED["1f1b"]
    (parameters, few), (_, many) = base.ranks[0], found["interleaved"].ranks[0]
    layer_gib = (MEASURED["interleaved"][1] - base_gib) / (many - few)
    state_bytes = (base_gib - few * layer_gib) * 2**30 / parameters
    table = Table(box=None, pad_edge=False)
    for column in ("schedule", "speed", "measured", "memory", "by two", "measured", "GiB", "by two", "measured"):
        table.add_column(column, justify="left" if column == "schedule" else "right")
    errors: list[tuple[float, ...]] = []
    for name, each in sorted(found.items(), key=lambda item: item[1].took_ms):
        speed, measured_gib = MEASURED[name]
        gib = each.held_gib, each.by_two(state_bytes, layer_gib), measured_gib
        ratios = gib[0] / base.held_gib, gib[1] / base_gib, gib[2] / base_gib
        speeds = base.took_ms / each.took_ms, speed / base_speed
        if name != "1f1b":
            errors.append((abs(speeds[0] / speeds[1] - 1), *(abs(ratio / ratios[2] - 1) for ratio in ratios[:2])))
        table.add_row(name, *(f"{ratio:.2f}" for ratio in (*speeds, *ratios)), *(f"{size:.1f}" for size in gib))
    console.print(table)
    means = [sum(each) / len(errors) for each in zip(*errors, strict=True)]
    console.print("mean error of the ratios to 1f1b: speed {:.1%}, memory {:.1%}, by two {:.1%}".format(*means))
    console.print(f"by two: {state_bytes:.1f} bytes for each parameter, {layer_gib * 1024:.0f} MiB for each layer and microbatch")
    apart = [(a, b) for a, b in permutations(MEASURED, 2) if MEASURED[a][0] > (1 + TIE) * MEASURED[b][0]]
    wrong = [f"{a} before {b}" for a, b in apart if found[a].took_ms > found[b].took_ms]
    console.print(f"in order: {len(apart) - len(wrong)} of the {len(apart)} pairs that are measured more than {TIE:.0%} apart")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
