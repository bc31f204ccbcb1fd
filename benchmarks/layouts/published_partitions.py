"""Published partitions beside ours, in the model of those who published them; and NVIDIA's layouts beside ours, in our own.

Takes the folder of the public data as it was extracted, with `partition-optima.json`, `models.json` and `profiles/`; what it takes
from there says its source. Prints three tables:

1. The least load of the busiest stage of real chains, computed by a dynamic program of another hand, beside `balanced_partition`.
2. What planners published or print (loads in ms): PipeDream's for its own profiles, where compute is the bottleneck; Tarnawski's
   for BERT-24, where a stage's load has its transfers in and out, forth and back, besides, and its human expert's.
3. The layouts of NVIDIA's recipes (github.com/NVIDIA-NeMo/Megatron-Bridge, Apache-2.0) for DeepSeek-V3 and Llama 3 70B: their
   makespan under interleaved 1F1B and compiled by `auto`, beside the balanced partition in the same placement, and the best layout
   found, with at most as many stages on a rank. No rank may hold more layers' activations than the recipe's fullest one under
   interleaved 1F1B.

The costs of table 3: Llama's layers and head by their floating-point operations, at 400 TFLOP/s for each GPU; DeepSeek's by its
published profile, the head at the rate of the experts. A message has the size of the hidden states, in 16 bits, cut by tensor
parallelism, on links with 50 GB/s and 10 µs. An embedding takes no time.

Run it as `python benchmarks/layouts/published_partitions.py FOLDER [--only partitions|recipes] [--recipe NAME] [--time-limit 20]`;
recipes are those with NAME in their names. Exit status 1: one of ours is worse.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_problem
from schedc.ir.costs import MessageCost
from schedc.ir.layout import Layout, OpenLayout
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.partition import balanced_partition
from schedc.lower.placement import place
from schedc.lower.problem import problem_of
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.templates import TEMPLATES

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.real_chains import chain_of, chosen_layout, workload_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MS = 1_000_000
FLOPS = 400e12
LATENCY_NS, BYTES_PER_SECOND = 10_000, 50_000_000_000
PIPEDREAM_MS = (
    ("pipedream-vgg16", 4, 216.45),
    ("pipedream-vgg16", 16, 159.531),
    ("pipedream-gnmt", 4, 25.868),
    ("pipedream-gnmt", 8, 19.032),
    ("pipedream-resnet50", 4, 111.497),
)
"""Profile, stages, and the load of the busiest one: its planner's output for a straight pipeline at 1.25 GB/s. On other numbers of
stages the planner cuts through parallel branches of ResNet-50 (8: 56.684) and GNMT, which no chain has."""
BERT = "tarnawski-bert24-training"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A recipe of NVIDIA's."""

    model: str
    name: str
    layout: str
    """E: embedding, t: layer, m: module that predicts one more token, L: head; |: the next stage."""
    ranks: int
    microbatches: int
    sequence: int
    tensor_parallel: int


RECIPES = (
    Recipe(
        model="llama3-70b",
        name="llama3_70b_pretrain_64gpu_h100_fp8cs",
        layout="Et*2|(t*2|)*34,t*3|(t*2|)*3,tL",
        ranks=8,
        microbatches=128,
        sequence=8192,
        tensor_parallel=4,
    ),
    Recipe(
        model="deepseek-v3-671b",
        name="deepseek_v3_pretrain_1024gpu_h100_bf16",
        layout="Et|(tt|)*30mL",
        ranks=8,
        microbatches=256,
        sequence=4096,
        tensor_parallel=2,
    ),
    Recipe(
        model="deepseek-v3-671b",
        name="deepseek_v3_pretrain_256gpu_gb300_bf16",
        layout="Et*4|(t*4|)*14tmL",
        ranks=4,
        microbatches=64,
        sequence=4096,
        tensor_parallel=1,
    ),
)


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds of the search for each layout of table 3")
    parser.add_argument("--only", choices=("partitions", "recipes"))
    parser.add_argument("--recipe", default="", help="take recipes with this in their names")
    options = parser.parse_args()
    if not options.folder.is_dir():
        print(f"{options.folder}: there is no such folder; it is not part of this repository")
        return 0
    console = Console(width=150)
    good = True
    if options.only != "recipes":
        good &= _optima(options.folder, console)
        good &= _published(options.folder, console)
    if options.only != "partitions":
        recipes = [recipe for recipe in RECIPES if options.recipe in recipe.name]
        good &= _recipes(options.folder, recipes, options.time_limit, console)
    return 0 if good else 1


def _optima(folder: Path, console: Console) -> bool:
    """Table 1; whether all are equal."""
    table = Table("profile", title="load of the busiest stage of the balanced partition, ms; = : the least possible")
    stages = (2, 4, 8, 16)
    for count in stages:
        table.add_column(f"{count} stages", justify="right")
    least: dict[str, dict[int, float]] = {}
    for row in json.loads((folder / "partition-optima.json").read_bytes())["optima"]:
        least.setdefault(row["profile"], {})[row["stages"]] = row["max_load_ms"]
    equal = 0
    for profile, of_stages in least.items():
        cells = []
        for count in stages:
            load_ms = max(_loads_ms(folder, profile, _balanced(folder, profile, count)))
            same = abs(load_ms - of_stages[count]) < 1e-3
            equal += same
            cells.append(f"{load_ms:.3f} " + ("=" if same else f"({of_stages[count]:.3f})"))
        table.add_row(profile, *cells)
    console.print(table)
    console.print(f"{equal} of {len(least) * len(stages)} are the least possible")
    return equal == len(least) * len(stages)


def _published(folder: Path, console: Console) -> bool:
    """Table 2; whether none of ours is worse."""
    table = Table("chain", title="load of the busiest stage, ms, in the model of the planner")
    for heading in ("stages", "planner", "published", "ours", "our cuts"):
        table.add_column(heading, justify="left" if heading == "our cuts" else "right")
    good = True
    for profile, stages, published_ms in PIPEDREAM_MS:
        bounds = _balanced(folder, profile, stages)
        ours_ms = max(_loads_ms(folder, profile, bounds))
        good &= ours_ms <= published_ms + 1e-3
        table.add_row(profile, str(stages), "PipeDream", f"{published_ms:.3f}", f"{ours_ms:.3f}", _cuts(bounds))
    content = json.loads((folder / "profiles" / f"{BERT}.json").read_bytes())
    reference = content["reference"]
    bounds = _balanced(folder, BERT, content["accelerators"])
    ours_ms = max(_tarnawski_loads_ms(content, bounds))
    theirs = [(first - 1, last) for first, last in reference["dp_stages_by_source_id"]]
    if any(abs(a - b) > 1e-3 for a, b in zip(_tarnawski_loads_ms(content, theirs), reference["dp_stage_loads"], strict=True)):
        raise RuntimeError(f"the loads of Tarnawski's stages are not {reference['dp_stage_loads']}")
    for planner, key in (("Tarnawski", "dp_optimum"), ("its expert", "human_expert"), ("PipeDream there", "pipedream_baseline")):
        published_ms = reference[f"{key}_max_load"]
        good &= ours_ms <= published_ms + 1e-6
        table.add_row(BERT, str(len(bounds)), planner, f"{published_ms:.4f}", f"{ours_ms:.4f}", _cuts(bounds))
    console.print(table)
    return good


def _balanced(folder: Path, profile: str, stages: int) -> tuple[tuple[int, int], ...]:
    chain = chain_of(folder / "profiles" / f"{profile}.json")
    if chain is None:
        raise RuntimeError(f"{profile} has no layers")
    workload = workload_of(chain, ranks=stages, microbatches=8, is_limited=False, sites=1)
    return balanced_partition(workload, place("unidirectional", stages), frozenset())


def _loads_ms(folder: Path, profile: str, bounds: Sequence[tuple[int, int]]) -> list[float]:
    chain = chain_of(folder / "profiles" / f"{profile}.json")
    assert chain is not None
    return [sum(chain.work_ns[first:last]) / MS for first, last in bounds]


def _tarnawski_loads_ms(content: dict[str, Any], bounds: Sequence[tuple[int, int]]) -> Iterator[float]:
    """Of each stage, with what it receives and sends, forth and back; what goes to several later stages is sent once."""
    layers = content["layers"]
    ids = [layer["source_id"] for layer in layers]
    cost = {layer["source_id"]: layer["transfer_cost"] for layer in layers}
    edges = {*pairwise(ids), *map(tuple, content["edges_beyond_the_chain"])}
    for first, last in bounds:
        own = set(ids[first:last])
        crossing = [{source for source, to in edges if (source in own, to in own) == way} for way in ((False, True), (True, False))]
        compute_ms = sum(layer["forward_ms"] + layer["backward_ms"] for layer in layers[first:last])
        yield compute_ms + 2 * sum(cost[source] for sources in crossing for source in sources)


def _cuts(bounds: Sequence[tuple[int, int]]) -> str:
    return ", ".join(str(first) for first, _ in bounds[1:])


def _recipes(folder: Path, recipes: Sequence[Recipe], time_limit_s: float, console: Console) -> bool:
    """Table 3; whether none of ours is worse."""
    models = {model["name"]: model for model in json.loads((folder / "models.json").read_bytes())["models"]}
    moe = chain_of(folder / "profiles" / "deepseek-v3-moe-layer-h800.json")
    assert moe is not None
    table = Table("recipe", title=f"makespans in ms; {time_limit_s:g} s for each layout")
    headings = ("ranks x stages", "microbatches", "interleaved", "auto", "balanced, auto", "best layout", "saved", "bound", "gap")
    for heading in headings:
        table.add_column(heading, justify="right")
    good, layouts = True, []
    limits = Limits(time_s=time_limit_s)
    for recipe in recipes:
        model = models[recipe.model]
        layers = _llama_layers(model, recipe) if recipe.model.startswith("llama") else _deepseek_layers(model, moe.layers[:2])
        workload, layout = _of_recipe(recipe, model, layers)
        interleaved = TEMPLATES["interleaved"].construct(problem_of(workload, layout))
        problem = problem_of(workload, layout)
        held = max(peak_bytes(problem, interleaved))
        interleaved_ns = simulate(problem, interleaved).makespan_ns
        workload = replace(workload, devices=(Device(limit_bytes=held),) * recipe.ranks)
        chunks = len(layout.rank_of_stage) // recipe.ranks
        balanced = replace(layout, layers_of_stage=balanced_partition(workload, layout, frozenset()))
        own_ns, balanced_ns = (
            compile_problem(problem_of(workload, each), SearchSettings(limits=limits)).plan.certificate.makespan_ns
            for each in (layout, balanced)
        )
        open_layout = OpenLayout(chunks=chunks)
        chosen = chosen_layout(workload, open_layout, limits)
        best_ns = min(chosen.makespan_ns, balanced_ns)
        good &= best_ns <= min(own_ns, interleaved_ns)
        table.add_row(
            recipe.name,
            f"{recipe.ranks} x {chunks}",
            str(recipe.microbatches),
            *(f"{each / MS:.1f}" for each in (interleaved_ns, own_ns, balanced_ns, chosen.makespan_ns)),
            f"{1 - best_ns / own_ns:.2%}",
            f"{chosen.lower_bound_ns / MS:.1f}",
            f"{1 - chosen.lower_bound_ns / best_ns:.2%}",
        )
        layouts.append((recipe.name, chosen.layout))
    console.print(table)
    for name, found in layouts:
        counts = [last - first for first, last in found.layers_of_stage]
        console.print(f"{name}: layers {counts} on ranks {list(found.rank_of_stage)}")
    return good


def _of_recipe(recipe: Recipe, model: dict[str, Any], layer_of: dict[str, Layer]) -> tuple[Workload, Layout]:
    """The recipe's workload and its layout."""
    text = recipe.layout.replace(",", "")
    while "(" in text:
        text = re.sub(r"\(([^()]*)\)\*(\d+)", lambda found: found[1] * int(found[2]), text)
    stages = re.sub(r"(\w)\*(\d+)", lambda found: found[1] * int(found[2]), text).split("|")
    names = "".join(stages)
    dense = model.get("dense_layers_first", 0)
    names = names.replace("t", "d", dense)
    layers = tuple(replace(layer_of[name], position=(at, at + 1)) for at, name in enumerate(names))
    message = 2 * recipe.sequence * model["hidden"] // recipe.tensor_parallel
    layers = tuple(replace(layer, message_bytes=message, gradient_message_bytes=message) for layer in layers)
    cost = MessageCost(latency_ns=LATENCY_NS, bytes_per_second=BYTES_PER_SECOND)
    placed = place("loop", recipe.ranks, len(stages) // recipe.ranks)
    workload = Workload(
        name=recipe.name,
        microbatches=recipe.microbatches,
        layers=layers,
        devices=(Device(),) * recipe.ranks,
        network=Network(site_of_rank=(0,) * recipe.ranks, within=cost),
    )
    bounds = tuple(pairwise((0, *accumulate(map(len, stages)))))
    return workload, Layout(rank_of_stage=placed.rank_of_stage, paths=placed.paths, layers_of_stage=bounds, placement="loop")


def _llama_layers(model: dict[str, Any], recipe: Recipe) -> dict[str, Layer]:
    """By their operations for each token: 2 for each weight and attended position, forth; causal attention sees half of them."""
    hidden, width = model["hidden"], model["heads"] * model["head_dim"]
    projections = hidden * (2 * width + 2 * model["kv_heads"] * model["head_dim"])
    weights = 2 * (projections + 3 * hidden * model["ffn"])
    attention = 2 * recipe.sequence * width
    head = 2 * hidden * model["vocab"]

    def layer(with_weights: float, without: float, activation: int) -> Layer:
        ns = 1e9 * recipe.sequence / (FLOPS * recipe.tensor_parallel)
        return _layer([(with_weights + without) * ns, (with_weights + 2 * without) * ns, with_weights * ns], activation)

    return {"E": layer(0, 0, 0), "t": layer(weights, attention, 1), "L": layer(head, 0, 1)}


def _deepseek_layers(model: dict[str, Any], block: Sequence[Layer]) -> dict[str, Layer]:
    """By the profile of a block, attention and experts with their messages; the experts alone do what a dense layer does."""
    attention, moe = ([layer.forward_ns[0], layer.backward_input_ns[0], layer.backward_weight_ns[0]] for layer in block)
    experts = (4.60375 * MS, 5.306 * MS, 3.5395 * MS)
    of_experts = 3 * model["hidden"] * model["ffn"]
    head = [each * model["hidden"] * model["vocab"] / of_experts for each in experts]
    projection = [each * 2 * model["hidden"] ** 2 / of_experts for each in experts]
    whole, dense = ([a + b for a, b in zip(attention, each, strict=True)] for each in (moe, experts))
    return {
        "E": _layer([0, 0, 0], 0),
        "d": _layer(dense, 1),
        "t": _layer(whole, 1),
        "m": _layer([a + b for a, b in zip(whole, projection, strict=True)], 1),
        "L": _layer([2 * each for each in head], 1),  # of the model, and of the module
    }


def _layer(times_ns: Sequence[float], activation: int) -> Layer:
    """A layer of F, B and W whose microbatch holds two units of memory, and one between B and W; or nothing."""
    forward_ns, input_ns, weight_ns = map(round, times_ns)
    return Layer(
        forward_ns=(forward_ns,),
        backward_input_ns=(input_ns,),
        backward_weight_ns=(weight_ns,),
        backward_ns=(input_ns + weight_ns,),
        activation_bytes=2 * activation,
        activation_after_input_bytes=activation,
    )


if __name__ == "__main__":
    sys.exit(main())
