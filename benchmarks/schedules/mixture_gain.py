"""How much a mixture of fused and split backwards gains over the better of all-fused and all-split, on profiles of real models.

Takes profiles whose backward is known in parts: files with `layers[].forward_ms`, `backward_input_ms` and `backward_weight_ms`; and
the model of `examples/profile_gpt.py`, whose fused backward is measured, too. Where that is not measured, BW is taken as a share of
B + W. Each pipeline is compiled by `auto` three times: fused only, split only (BW = B + W, from which nothing gains), and with both
allowed. Prints a line for each, and the mean gain.

Run it as `python benchmarks/schedules/mixture_gain.py [--time-limit 10] [--shares 0.85,0.9,0.95] [PROFILE ...]`.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.compile.driver import compile_problem
from schedc.ir.network import Link
from schedc.ir.problem import Problem, Stage
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.compile.driver import Compiled

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "profile_gpt_job" / "profile.json"
MS = 1_000_000
BLOCKS = 32
"""A profile of a single block stands for a model of this many."""
LEAST_MS = 0.001
"""What takes less was not measured."""


class Costs(NamedTuple):
    """What a layer costs; `backward_ns` is None where the fused backward was not measured."""

    forward_ns: int
    backward_input_ns: int
    backward_weight_ns: int
    backward_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One pipeline, with both kinds of backward allowed."""

    profile: str
    share: float | None
    """BW as a share of B + W; None: measured."""
    network: str
    problem: Problem


def main() -> None:
    """Compile every case three times and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("profiles", nargs="*", type=Path, help="profiles with the backward in parts")
    parser.add_argument("--time-limit", type=float, default=10.0, help="seconds for each of the three")
    parser.add_argument("--shares", default="0.85,0.9,0.95", help="BW as shares of B + W, where it was not measured")
    options = parser.parse_args()
    shares = [float(share) for share in options.shares.split(",")]
    cases = [case for layers_of in (*map(_foreign, options.profiles), _own(EXAMPLE)) for case in _cases(*layers_of, shares)]
    table = Table(title="makespans in ms, and what the mixture gains over the better of the other two")
    table.add_column("profile")
    for heading in ("ranks", "BW / (B + W)", "slow link", "fused", "split", "both", "gap", "BW of both", "gain"):
        table.add_column(heading, justify="right")
    gains = []
    for case in cases:
        fused, split, both = (_compiled(problem, options.time_limit) for problem in _three(case.problem))
        better_ns = min(fused.plan.certificate.makespan_ns, split.plan.certificate.makespan_ns)
        gains.append(better_ns / both.plan.certificate.makespan_ns - 1)
        table.add_row(
            case.profile,
            str(case.problem.ranks),
            "measured" if case.share is None else f"{case.share:g}",
            case.network,
            *(f"{made.plan.certificate.makespan_ns / MS:.2f}" for made in (fused, split, both)),
            f"{both.plan.certificate.gap:.2%}",
            f"{_fused_share(both):.0%}",
            f"{gains[-1]:.2%}",
        )
    console = Console(width=150)
    console.print(table)
    positive = sum(gain > 0 for gain in gains)
    console.print(
        f"{len(gains)} pipelines: the mixture is better in {positive}, worse in {sum(gain < 0 for gain in gains)};"
        f" mean gain {statistics.mean(gains):.2%}, largest {max(gains):.2%}"
    )


def _foreign(path: Path) -> tuple[str, list[Costs]]:
    """Name and layers of a profile with times in ms. What it has several of are parts of one block; so is all of a single layer."""
    content = json.loads(path.read_bytes())
    keys = ("forward_ms", "backward_input_ms", "backward_weight_ms")
    entries = [entry for entry in content["layers"] if entry["forward_ms"] >= LEAST_MS]
    blocks = BLOCKS if "layer" in content["name"] else max(entry.get("count", 1) for entry in entries)
    parts = [entry for entry in entries if "layer" in content["name"] or entry.get("count", 1) > 1]
    layers: list[Costs] = []
    for entry in entries:
        together, times = ([entry], 1) if entry not in parts else (parts, blocks if entry is parts[0] else 0)
        f, b, w = (round(MS * sum(part.get(key, 0.0) for part in together)) for key in keys)
        layers += [Costs(f, b, w, None)] * times
    return content["name"], layers


def _own(path: Path) -> tuple[str, list[Costs]]:
    """Name and layers of one of our profiles."""
    layers = []
    for entry in json.loads(path.read_bytes())["layers"]:
        f, b, w, bw = (parse_duration_ns(entry[key]) for key in ("forward", "backward_input", "backward_weight", "backward"))
        layers += [Costs(f, b, w, bw)] * entry.get("repeat", 1)
    return path.parent.name, layers


def _cases(name: str, layers: list[Costs], shares: Sequence[float]) -> Iterator[Case]:
    measured = all(layer.backward_ns is not None for layer in layers)
    for ranks in (4, 8):
        if len(layers) < ranks:
            continue
        for share in (None,) if measured else shares:
            stages = [_stage(rank, part, share) for rank, part in enumerate(_even(layers, ranks))]
            forward_ns = max(stage.forward_ns[0] for stage in stages)
            for network, latency_ns in (("none", 0), ("middle, 1 F", forward_ns), ("middle, 4 F", 4 * forward_ns)):
                links = tuple(
                    Link(
                        source=pair[0],
                        destination=pair[1],
                        latency_ns=latency_ns if set(pair) == {ranks // 2 - 1, ranks // 2} else 0,
                    )
                    for forth in pairwise(range(ranks))
                    for pair in (forth, forth[::-1])
                )
                problem = Problem(
                    name=name,
                    ranks=ranks,
                    microbatches=2 * ranks,
                    stages=tuple(stages),
                    paths=(tuple(range(ranks)),),
                    path_of=(0,) * (2 * ranks),
                    links=links,
                    memory_limit_bytes=(2 * ranks,) * ranks,  # as many microbatches as 1F1B holds
                )
                yield Case(profile=name, share=share, network=network, problem=problem)


def _stage(rank: int, layers: list[Costs], share: float | None) -> Stage:
    """A stage whose microbatch holds 2 bytes after F, and 1 after B."""
    forward_ns, b_ns, w_ns = (sum(layer[at] or 0 for layer in layers) for at in range(3))
    backward_ns = sum(layer.backward_ns or 0 for layer in layers) if share is None else round(share * (b_ns + w_ns))
    return Stage(
        rank=rank,
        forward_ns=(forward_ns,),
        backward_input_ns=(b_ns,),
        backward_weight_ns=(w_ns,),
        backward_ns=(backward_ns,),
        activation_bytes=2,
        activation_after_input_bytes=1,
    )


def _even(layers: list[Costs], parts: int) -> Iterator[list[Costs]]:
    for part in range(parts):
        yield layers[len(layers) * part // parts : len(layers) * (part + 1) // parts]


def _three(problem: Problem) -> tuple[Problem, Problem, Problem]:
    """Fused only, split only, and both allowed."""
    apart = tuple(
        replace(stage, backward_ns=(stage.backward_input_ns[0] + stage.backward_weight_ns[0],)) for stage in problem.stages
    )
    return replace(problem, split_backward=False), replace(problem, stages=apart), problem


def _compiled(problem: Problem, time_limit_s: float) -> Compiled:
    return compile_problem(problem, SearchSettings(limits=Limits(time_s=time_limit_s)))


def _fused_share(made: Compiled) -> float:
    """Of the backwards of a plan, how many are BW."""
    kinds = [op.kind.name for rank in made.plan.ranks for op in rank.compute if op.part <= 0]
    return kinds.count("BW") / (kinds.count("BW") + kinds.count("B"))


if __name__ == "__main__":
    main()
