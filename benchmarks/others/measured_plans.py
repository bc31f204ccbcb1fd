"""Plans that others have run and timed, predicted from their own costs: engines whose transfers hold up compute, with real clocks.

Sailor (github.com/eth-easl/sailor, commit cf2c8e3, MIT): plans of Megatron-DeepSpeed's 1F1B with fused backwards, with the
measured time of an iteration and the most memory of a GPU. A stage takes the sum of its layers' measured times. An iteration
contains the measured step of the optimizer and the measured reduction of gradients, too. A message is the output of a stage's last
layer, and takes what the fit of one send and receive says; between unlike GPUs, the slower fit.

- free: transfers that take nothing; decoupled, blocking: `simulate --transfers`.
- in turn: blocking, and the two directions of a pair take turns. This is the prediction: DeepSpeed's schedule has a rank receive a
  gradient, then send an activation, and its engine calls `dist.recv` and `dist.send`, where Megatron has one batch for both.
- in parts: in turn, and each GPU of a tensor parallel group sends a part over a link of its own (the fit of this many GPUs), then
  gathers the other parts over the links in its node. So the engine's code has it.
- memory: 16 bytes per parameter (fp32 weights, gradients, Adam's moments) and the activations. Whole: in addition what Sailor's
  simulator counts (`runtime_simulator.py`), 8 bytes per parameter for copies and 5.06 GB for what CUDA and its kernels take.

Left out of the mean are pipelines of one rank, of fewer than 4 microbatches, and what is known to be wrong upstream.

Run it as `python benchmarks/others/measured_plans.py FOLDER [--sailor CHECKOUT]`. FOLDER has in `profiles` the files
`sailor-validation-plans.json` and `sailor-*.json` with layers, in `traces` the file `sailor-network-fits.json`. CHECKOUT is a copy
of Sailor's repository, whose plans and profiles are then used instead. Exit status 1: the mean error of the iterations of the GH200
plans is 3 % or more.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from math import log2
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.analysis.simulation.engines import Transfers, simulate_engine
from schedc.analysis.simulation.memory import peak_bytes
from schedc.ir.problem import Problem, Stage
from schedc.lower.placement import place
from schedc.solvers.driver.registry import constructive
from schedc.study.bench.pipelines import FREE, LinkTimes, both_ways, links_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from schedc.ir.schedule import Schedule

MS, SECOND = 1_000_000, 1_000_000_000
MOST_ERROR = 0.03
BYTES_PER_PARAMETER_BYTE = 4
"""Of fp32 weights: the weights, their gradients and two moments."""
COPIES_BYTES_PER_PARAMETER_BYTE, LOADED_BYTES = 2, 5_060_000_000
"""Sailor's numbers for DeepSpeed's copies of the model, and for kernels on its machines."""
LEAST_MICROBATCHES = 4
WRONG_UPSTREAM = {
    "GPT-NEO/N4/plan_config_N4_D4.json": "reduction of gradients of another run",
    "OPT-350/N4/plan_config_N4_D4.json": "reduction of gradients of another run",
    "mit/N6/plan_config_N6_D2.json": "measurements of another plan",
}
"""By the end of the path."""


class LayerCosts(NamedTuple):
    """What one layer was measured to take on a GPU, for one microbatch."""

    forward_ns: int
    backward_ns: int
    update_ns: int
    parameter_bytes: int
    activation_bytes: int
    output_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A plan that was run, and what was measured."""

    path: str
    model: str
    gpus: tuple[str, ...]
    """Per stage."""
    layers: tuple[tuple[int, int], ...]
    """Per stage, its first and last layer."""
    tensor_parallel: int
    data_parallel: int
    microbatch: int
    microbatches: int
    iteration_s: float
    reduction_s: float
    peak_bytes: int

    @property
    def left_out(self) -> str:
        """Why it does not count in the mean; empty: it does."""
        wrong = next((why for end, why in WRONG_UPSTREAM.items() if self.path.endswith(end)), "")
        few = f"{self.microbatches} microbatch" if self.microbatches < LEAST_MICROBATCHES else ""
        return wrong or ("one rank" if len(self.layers) == 1 else few)


Profiles = dict[tuple[str, str, int, int], list[LayerCosts]]
"""By model, GPU, tensor parallel size and microbatch size."""


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measured plans of others.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sailor", type=Path, metavar="CHECKOUT", help="a copy of Sailor's repository")
    options = parser.parse_args()
    console = Console()
    console = console if console.is_terminal else Console(width=200)
    folder: Path = options.folder
    fits = read(folder / "traces" / "sailor-network-fits.json")["fits"]
    runs, profiles = folder_runs(folder), folder_profiles(folder)
    if options.sailor is not None:
        runs, profiles = checkout_runs(options.sailor), checkout_profiles(options.sailor)
    return int(not print_plans(console, runs, profiles, fits))


def read(path: Path) -> Any:
    """The JSON of a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def folder_runs(folder: Path) -> list[Run]:
    """The measured plans of the folder."""
    return [
        Run(
            path=plan["path"],
            model=plan["model"],
            gpus=tuple(gpus[0] for gpus in plan["gpu_of_stage"]),
            layers=tuple((first, last) for first, last in plan["layers_per_stage"]),
            tensor_parallel=plan["tensor_parallel"][0],
            data_parallel=plan["data_parallel"][0],
            microbatch=plan["microbatch"],
            microbatches=round(plan["microbatches_per_pipeline"]),
            iteration_s=plan["measured_iteration_s"],
            reduction_s=plan["measured_grad_reduce_s"] or 0.0,
            peak_bytes=plan["measured_peak_memory_bytes"],
        )
        for plan in read(folder / "profiles" / "sailor-validation-plans.json")["plans"]
    ]


def folder_profiles(folder: Path) -> Profiles:
    """The profiles of the folder."""
    found: Profiles = {}
    for path in sorted((folder / "profiles").glob("sailor-*.json")):
        profile = read(path)
        if "layers" in profile:
            key = profile["model"], profile["hardware"], profile["tensor_parallel"], profile["microbatch_size"]
            found[key] = [
                LayerCosts(
                    round(layer["forward_ms"] * MS),
                    round(layer["backward_ms"] * MS),
                    round(layer["update_ms"] * MS),
                    layer["param_bytes"],
                    layer["activation_bytes"],
                    layer["output_bytes"],
                )
                for layer in profile["layers"]
            ]
    return found


def checkout_runs(checkout: Path) -> list[Run]:
    """The measured plans of Sailor's repository; those of one kind of GPU in each stage."""
    runs = []
    validation = checkout / "sailor" / "Planner" / "simulations" / "validation"
    for path in sorted(validation.glob("*/**/plan_config_*.json")):
        plan = read(path)
        (pipeline,) = plan["pipeline_list"]
        name = path.relative_to(validation).as_posix()
        groups = [stage[0] for stage in pipeline["tmp_per_stage"]]
        data_parallel = pipeline["dp"][0]
        runs.append(
            Run(
                path=name,
                model="GPT-Neo-2.7" if "GPT-NEO" in name else "OPT-350",
                gpus=tuple(machines[0][0] for machines, _ in groups),
                layers=tuple((layers[0], layers[-1]) for layers in pipeline["layers_per_stage"]),
                tensor_parallel=groups[0][1],
                data_parallel=data_parallel,
                microbatch=plan["mbs"],
                microbatches=max(1, plan["gbs"] // (plan["mbs"] * data_parallel)),
                iteration_s=plan["real"],
                reduction_s=plan.get("red_grads") or 0.0,
                peak_bytes=plan["max_mem"],
            )
        )
    return runs


def checkout_profiles(checkout: Path) -> Profiles:
    """The profiles of Sailor's repository: seconds by layer, and bytes for a microbatch of one."""
    planner = checkout / "sailor" / "Planner"
    sizes = read(planner / "llm_info.json")
    found: Profiles = {}
    for model, by_gpu in read(planner / "simulations" / "profiles_tmp.json").items():
        for gpu, by_microbatch in by_gpu.items():
            for microbatch, by_size in by_microbatch.items():
                for tensor_parallel, layers in by_size.items():
                    held = sizes[model].get(tensor_parallel)
                    if held is None:
                        continue
                    found[model, gpu, int(tensor_parallel), int(microbatch)] = [
                        LayerCosts(
                            round(times[0] * SECOND),
                            round(times[1] * SECOND),
                            round(times[2] * SECOND),
                            held[layer]["params_bytes"],
                            held[layer]["act_mem_bytes"] * int(microbatch),
                            held[layer]["act_output_bytes"] * int(microbatch),
                        )
                        for layer, times in sorted(layers.items(), key=lambda item: int(item[0]))
                    ]
    return found


def bandwidth(fits: Mapping[str, Any], gpus: int, message_bytes: float) -> float:
    """Bytes per second of this many pairs of GPUs together, each with such a message."""
    (square, linear, constant), _ = fits[str(gpus)]
    doublings = log2(message_bytes / 1e6)
    return float(square * doublings**2 + linear * doublings + constant) * 1e9


def pipeline_of(name: str, stages: Sequence[Stage], microbatches: int, links: Mapping[tuple[int, int], LinkTimes]) -> Problem:
    """One stage on each rank, no memory limit; links that are not named are free."""
    placed = place("unidirectional", len(stages))
    free = dict.fromkeys(placed.crossed(), FREE)
    return Problem(
        name=name,
        ranks=len(stages),
        microbatches=microbatches,
        stages=tuple(stages),
        paths=placed.paths,
        path_of=placed.path_of(microbatches),
        links=links_of(placed, {**free, **links}),
        memory_limit_bytes=(None,) * len(stages),
        placement="unidirectional",
    )


def seconds(problem: Problem, schedule: Schedule, transfers: Transfers = Transfers.DECOUPLED) -> float:
    """The makespan."""
    return simulate_engine(problem, schedule, transfers).makespan_ns / SECOND


class Prediction(NamedTuple):
    """Of one run, seconds by the column's name, and the most bytes of a GPU: as a plan counts them, and the whole."""

    iteration_s: dict[str, float]
    peak_bytes: int
    whole_bytes: int


def prediction_of(run: Run, profiles: Profiles, fits: Mapping[str, Any]) -> Prediction | None:
    """What the run takes, or None where a stage's GPU has no profile or no fit."""
    tensor_parallel = run.tensor_parallel
    costs = [profiles.get((run.model, gpu, tensor_parallel, run.microbatch)) for gpu in run.gpus]
    inter = [fits["inter"].get(gpu, {}) for gpu in run.gpus]
    intra = [fits["intra"].get(gpu, {}) for gpu in run.gpus]
    if None in costs or any(str(tensor_parallel) not in each for each in inter):
        return None
    layers = [each[first : last + 1] for each, (first, last) in zip(costs, run.layers, strict=True) if each is not None]
    stages = [
        Stage(
            rank=rank,
            forward_ns=(sum(layer.forward_ns for layer in own),),
            backward_input_ns=(0,),
            backward_weight_ns=(sum(layer.backward_ns for layer in own),),
            backward_ns=(sum(layer.backward_ns for layer in own),),
            activation_bytes=sum(layer.activation_bytes for layer in own),
            activation_after_input_bytes=0,
        )
        for rank, own in enumerate(layers)
    ]
    whole: dict[tuple[int, int], LinkTimes] = {}
    turns: dict[tuple[int, int], LinkTimes] = {}
    parts: dict[tuple[int, int], LinkTimes] = {}
    for rank, own in enumerate(layers[:-1]):
        size, part = own[-1].output_bytes, own[-1].output_bytes / tensor_parallel
        pair = (rank, rank + 1)
        whole_s = size / min(bandwidth(inter[each], 1, size) for each in pair)
        part_s = size / min(bandwidth(inter[each], tensor_parallel, part) for each in pair)
        gather_s = 0.0
        if tensor_parallel > 1:
            gather_s = (tensor_parallel - 1) * part / min(bandwidth(intra[each], 2, part) for each in pair)
        whole |= both_ways((rank,), LinkTimes(0, round(whole_s * SECOND)))
        turns |= both_ways((rank,), LinkTimes(0, round(whole_s * SECOND), f"pair {rank}"))
        parts |= both_ways((rank,), LinkTimes(round(gather_s * SECOND), round(part_s * SECOND), f"pair {rank}"))
    free = pipeline_of(run.path, stages, run.microbatches, {})
    schedule = constructive("1f1b")(free)
    with_whole = pipeline_of(run.path, stages, run.microbatches, whole)
    besides_s = max(layer.update_ns for own in layers for layer in own) / SECOND + run.reduction_s
    taken = {
        "free": seconds(free, schedule),
        "decoupled": seconds(with_whole, schedule),
        "blocking": seconds(with_whole, schedule, Transfers.BLOCKING),
        "in turn": seconds(pipeline_of(run.path, stages, run.microbatches, turns), schedule, Transfers.BLOCKING),
        "in parts": seconds(pipeline_of(run.path, stages, run.microbatches, parts), schedule, Transfers.BLOCKING),
    }
    parameters_bytes = [sum(layer.parameter_bytes for layer in own) for own in layers]

    def most_bytes(copies: int) -> int:
        return max(peak + copies * own for peak, own in zip(peak_bytes(free, schedule), parameters_bytes, strict=True))

    return Prediction(
        iteration_s={name: makespan_s + besides_s for name, makespan_s in taken.items()},
        peak_bytes=most_bytes(BYTES_PER_PARAMETER_BYTE),
        whole_bytes=most_bytes(BYTES_PER_PARAMETER_BYTE + COPIES_BYTES_PER_PARAMETER_BYTE) + LOADED_BYTES,
    )


def print_plans(console: Console, runs: Iterable[Run], profiles: Profiles, fits: Mapping[str, Any]) -> bool:
    """Each plan; whether the mean error is small enough."""
    table = Table(title="Sailor: an iteration in seconds, predicted to measured", title_justify="left", box=None)
    table.add_column("plan", no_wrap=True)
    columns = ("free", "decoupled", "blocking", "in turn", "in parts")
    for header in ("ranks", "n", "measured", "predicted", *columns, "GB", "predicted", "memory", "whole"):
        table.add_column(header, justify="right", no_wrap=True)
    table.add_column("not in the mean", no_wrap=True)
    errors: dict[str, list[float]] = {name: [] for name in columns}
    of_ranks: dict[int, list[float]] = {}
    for run in runs:
        short = run.path.split("validation/")[-1].replace("plan_config_", "").removesuffix(".json")
        cells = [short, str(len(run.layers)), str(run.microbatches), f"{run.iteration_s:.3f}"]
        found = prediction_of(run, profiles, fits)
        memory = f"{run.peak_bytes / 1e9:.1f}"
        if found is None:
            table.add_row(*cells, *["–"] * 6, memory, *["–"] * 3, "no profile or fit here")
            continue
        ratios = {name: taken_s / run.iteration_s for name, taken_s in found.iteration_s.items()}
        table.add_row(
            *cells,
            f"{found.iteration_s['in turn']:.3f}",
            *(f"{ratios[name]:.3f}" for name in columns),
            memory,
            f"{found.peak_bytes / 1e9:.1f}",
            f"{found.peak_bytes / run.peak_bytes:.2f}",
            f"{found.whole_bytes / run.peak_bytes:.2f}",
            run.left_out,
        )
        if not run.left_out and set(run.gpus) == {"GH-96"}:
            for name, ratio in ratios.items():
                errors[name].append(abs(ratio - 1))
            of_ranks.setdefault(len(run.layers), []).append(ratios["in turn"] - 1)
    console.print(table)
    if not errors["in turn"]:
        console.print("no GH200 plan of two ranks or more has a profile here")
        return False
    means = ", ".join(f"{name} {mean(values):.1%}" for name, values in errors.items())
    console.print(f"mean error of {len(errors['in turn'])} GH200 plans of two ranks or more: {means}")
    biases = ", ".join(f"{mean(values):+.1%} with {ranks} ranks ({len(values)})" for ranks, values in sorted(of_ranks.items()))
    console.print(f"in turn, its bias: {biases}")
    return mean(errors["in turn"]) < MOST_ERROR


if __name__ == "__main__":
    sys.exit(main())
