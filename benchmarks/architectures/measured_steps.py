"""Predicted training steps beside measured ones: time, and peak memory of each rank, of SimuMax's runs of Megatron-LM on 8 B200.

STEPS is a file of measured steps (MooreThreads/SimuMax 4dcaae5, docs/b200, as JSON: rows of model, layers, degrees, microbatches,
milliseconds, MiB by rank). Each row is predicted as `schedc tune` predicts a candidate: from model, degrees, microbatches and
device; nothing of a row's measurement is used. The plan is 1F1B, with as many blocks on each rank.

Without a file it says where to get one. Run it as `python benchmarks/architectures/measured_steps.py STEPS [--terms] [--fit]`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.compile.driver import compile_problem
from schedc.costs.layers import known_models, layer_of
from schedc.frontend.job_source import source_of_table
from schedc.solvers.common.base import SearchSettings
from schedc.study.tune.candidates import candidates
from schedc.study.tune.degrees import Degrees
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.request import TuneRequest, read_request
from schedc.study.tune.sites import OptimizerRates

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.costs.efficiency import Efficiency
    from schedc.costs.operators.operator import Operator
    from schedc.study.tune.layer_costs import LayerCosts

MODELS = {
    "llama3-70b": {},
    "llama3-405b": {"num_key_value_heads": 16},
    "deepseekv2": {},
    "deepseekv3": {"first_k_dense_replace": 1, "num_nextn_predict_layers": 0},
}
"""What the measured models' configurations have besides fewer layers."""
NAMES = {"deepseekv2": "deepseek-v2-236b", "deepseekv3": "deepseek-v3-671b"}
"""Of the models with experts, as they are known here."""
MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Predicted and measured."""

    name: str
    took_ms: float
    measured_ms: float
    held_mib: tuple[float, ...]
    """By pipeline rank."""
    measured_mib: tuple[float, ...]
    moments: tuple[str, ...]
    has_experts: bool

    @property
    def error(self) -> float:
        """Of the time."""
        return self.took_ms / self.measured_ms - 1

    @property
    def memory_error(self) -> float:
        """Of the peaks, in the mean of the ranks, each without its sign."""
        return mean(abs(one / other - 1) for one, other in zip(self.held_mib, self.measured_mib, strict=True))


def request_of(row: dict[str, Any], folder: Path, framework: str = "megatron-te") -> TuneRequest:
    """What a user would write."""
    name = NAMES.get(row["model"], row["model"])
    config = {**known_models()[name]["config"], "num_hidden_layers": row["layers"], **MODELS.get(row["model"], {})}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    table = {
        "model": {
            "config": "config.json",
            "device": "b200",
            "sequence": row["seq"],
            "framework": framework,
            "context_exchange": "all-to-all",
            **{key: row[key] for key in ("tp", "cp", "ep")},
            **({"etp": row.get("etp", 1)} if row["model"] in NAMES else {}),  # a model without experts takes none
        },
        "tune": {
            "batch": row["microbatches"] * row["dp"],
            "ranks": [row["pp"]],
            "microbatch_sizes": [1],
            "placements": ["unidirectional"],
            "recompute": ["none"],
            "zero_stages": [1],
            "split_backward": False,
        },
        "topology": {"sites": [row["tp"] * row["cp"] * row["dp"] * row["pp"]]},
        "memory": {"capacity": "1 TB", "reserve": "0 B"},  # so that no term leaves a row without room
    }
    return read_request(source_of_table(table, directory=folder, name=row["case"]))


def step_of(
    row: dict[str, Any], change: Callable[[TuneRequest], TuneRequest] = lambda request: request, framework: str = "megatron-te"
) -> Step:
    """A row's step, of its request, changed."""
    with tempfile.TemporaryDirectory() as name:
        request = change(request_of(row, Path(name), framework))
    (candidate,) = candidates(request.choices)
    each = row["layers"] // row["pp"]
    partition = [each + (rank == 0) + (rank == row["pp"] - 1) for rank in range(row["pp"])]
    made = candidate_problem(request, candidate, partition)
    plan = compile_problem(made.problem, SearchSettings(method="1f1b" if row["pp"] > 1 else "sequential")).plan
    activations = plan.certificate.peak_activation_bytes
    measured = list(row["measured_peak_mib_by_rank"].values())
    devices = len(measured) // row["pp"]
    return Step(
        name=row["case"],
        took_ms=plan.certificate.makespan_ns / 1e6,
        measured_ms=row["measured_ms"],
        held_mib=tuple((static + kept) / MIB for static, kept in zip(made.static_bytes, activations, strict=True)),
        measured_mib=tuple(mean(measured[rank * devices : (rank + 1) * devices]) for rank in range(row["pp"])),
        moments=tuple(each.moment for each in made.besides),
        has_experts=row["model"] in NAMES,
    )


class Term(NamedTuple):
    """One of the prediction, and how a request is without it."""

    added: str
    without: str
    rates: Callable[[Efficiency], Efficiency] = lambda each: each
    operator: Callable[[Operator], Operator | None] = lambda each: each
    """None: there is none."""
    request: Callable[[TuneRequest], TuneRequest] = lambda each: each
    framework: str = "megatron-te"


def with_site(request: TuneRequest, **changes: Any) -> TuneRequest:
    """The request with other values of its one site."""
    return replace(request, sites=(replace(request.sites[0], **changes),))


def without(*terms: Term) -> Callable[[TuneRequest], TuneRequest]:
    """A request without these terms."""

    def change(before: TuneRequest) -> TuneRequest:
        (site,) = before.sites
        assert site.device is not None
        efficiency = reduce(lambda rates, term: term.rates(rates), terms, site.rates)
        device = site.device

        def left(operator: Operator | None) -> Operator | None:
            for term in terms:
                operator = None if operator is None else term.operator(operator)
            return operator

        def costs(degrees: Degrees, size: int, selective: bool, split: bool) -> LayerCosts:
            known = site.costs(Degrees(**asdict(degrees)), size, selective, split)
            parts = [part._replace(operators=[new for old in part.operators if (new := left(old))]) for part in known.parts]
            entries = [
                layer_of(
                    part.name,
                    part.kind,
                    part.operators,
                    device,
                    efficiency,
                    message_bytes=part.message_bytes,
                    split_backward=False,
                )
                for part in parts
            ]
            return replace(known, entries=tuple(entries), parts=tuple(parts))

        return reduce(lambda request, term: term.request(request), terms, with_site(before, rates=efficiency, costs=costs))

    return change


def without_repeated_gather(operator: Operator) -> Operator:
    """W takes an input that is there."""
    return replace(operator, backward_weight=replace(operator.backward_weight, link_bytes=0.0, collectives=0))


def without_dense_gradient(operator: Operator) -> Operator:
    """The embedding's gradient is that of the tokens."""
    if operator.name != "embedding":
        return operator
    return replace(operator, backward_weight=replace(operator.backward_weight, memory_bytes=5 * operator.forward.memory_bytes / 2))


class OfPipelines(Degrees):
    """The replicas of all weights are the pipelines, those of experts divided by their groups."""

    def replicas(self, pipelines: int) -> int:
        """Without those that share sequences."""
        return pipelines

    def expert_replicas(self, pipelines: int) -> int:
        """The same."""
        return max(1, pipelines // self.expert)


TERMS = (
    Term(
        "products as measured alone, by shape",
        "shares of products by constants (0.7, attention 0.5)",
        rates=lambda each: replace(each, table="", sustained=1.0),
    ),
    Term(
        "the memory's bandwidth as measured",
        "0.8 of the memory's bandwidth",
        rates=lambda each: replace(each, memory=0.8, permute=0.8, loss=0.8),
    ),
    Term(
        "collectives as measured",
        "0.75 of the links, 20 us for each collective",
        rates=lambda each: replace(each, link=0.75, exchange=0.75, collective_s=2e-5),
    ),
    Term(
        "replicas of each weight",
        "replicas are pipelines",
        request=lambda each: replace(
            each, choices=replace(each.choices, degrees=(OfPipelines(**asdict(each.choices.degrees[0])),))
        ),
    ),
    Term(
        "the optimizer's step",
        "no optimizer's step",
        request=lambda each: with_site(each, optimizer=OptimizerRates(Fraction(0), Fraction(0))),
    ),
    Term("W gathers its input again", "W does not gather again", operator=without_repeated_gather),
    Term(
        "experts' tokens in order, and the router",
        "no second order of experts' tokens, no router",
        operator=lambda each: None if each.name in ("sort", "scores", "choice") else each,
    ),
    Term(
        "copies around the all-to-all of attention",
        "no copies around the all-to-all of attention",
        operator=lambda each: None if each.name == "reorder" else each,
    ),
    Term("the embedding's dense gradient", "the embedding's gradient by tokens", operator=without_dense_gradient),
    Term("30 us for each pass over memory", "5 us for each pass over memory", rates=lambda each: replace(each, move_s=5e-6)),
    Term("the framework's habits", "a framework without habits", framework="plain"),
    Term(
        "what a backward works with, and buffers",
        "nothing held besides states and activations",
        request=lambda each: with_site(each, costs=lambda *of: replace(each.sites[0].costs(*of), setting=None)),
    ),
    Term(
        "what products keep in a step (fitted)",
        "shares of products as measured alone",
        rates=lambda each: replace(each, sustained=1.0),
    ),
)
"""In the order in which one is added after another."""


def print_terms(out: Console, rows: Sequence[dict[str, Any]]) -> None:
    """The errors without each term alone; and with those up to each."""
    kinds = [("with, or without", [("all terms", ()), *((term.without, (term,)) for term in TERMS)])]
    up_to = [(term.added, TERMS[number + 1 :]) for number, term in enumerate(TERMS)]
    kinds.append(("term by term", [("none of them", TERMS), *up_to]))
    for header, cases in kinds:
        table = Table(box=None, pad_edge=False)
        for column in (header, "time", "bias", "memory", "its bias"):
            table.add_column(column, justify="right" if column != header else "left")
        for name, left_out in cases:
            framework = "plain" if any(term.framework == "plain" for term in left_out) else "megatron-te"
            steps = [step_of(row, without(*left_out), framework) for row in rows]
            errors = [step.error for step in steps]
            sizes = [one / other - 1 for step in steps for one, other in zip(step.held_mib, step.measured_mib, strict=True)]
            means = [f"{mean(map(abs, errors)):.1%}", f"{mean(errors):+.1%}", f"{mean(map(abs, sizes)):.2%}", f"{mean(sizes):+.2%}"]
            table.add_row(name, *means)
        out.print(table)


def sustaining(share: float) -> Callable[[TuneRequest], TuneRequest]:
    """A request in whose steps products keep this share."""
    return without(Term("", "", rates=partial(replace, sustained=share)))


def fitted(rows: Sequence[dict[str, Any]]) -> float:
    """The `sustained` with which the mean error of the steps' times is 0, by bisection to 0.001."""
    low, high = 0.8, 1.1
    while high - low > 0.001:
        middle = (low + high) / 2
        change = sustaining(middle)
        low, high = (middle, high) if mean(step_of(row, change).error for row in rows) > 0 else (low, middle)
    return round((low + high) / 2, 3)


def summary(steps: Sequence[Step]) -> str:
    """Errors in the mean."""
    errors = [step.error for step in steps]
    text = f"time {mean(map(abs, errors)):.1%}, bias {mean(errors):+.1%}"
    for name, experts in (("dense", False), ("experts", True)):
        of = [step.memory_error for step in steps if step.has_experts is experts]
        text += f", memory ({name}) {mean(of):.2%}" if of else ""
    return text


def main() -> None:
    """Print the rows, and the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("steps", type=Path, nargs="?")
    parser.add_argument("--terms", action="store_true", help="the error without each term, and with one after another")
    parser.add_argument("--fit", action="store_true", help="the one constant that is fitted, on every second step")
    options, out = parser.parse_args(), Console(width=160)
    if options.steps is None:
        out.print("no file of measured steps was given: they are MooreThreads/SimuMax 4dcaae5, docs/b200 (Apache-2.0), as JSON")
        return
    rows = json.loads(options.steps.read_text(encoding="utf-8"))["rows"]
    steps = [step_of(row) for row in rows]
    table = Table(box=None, pad_edge=False)
    for column in ("step", "ms", "measured", "error", "GiB by rank", "measured", "error", "peak of the last rank"):
        table.add_column(column, justify="left" if column.startswith(("step", "peak")) else "right")
    for step in steps:
        held, measured = (" ".join(f"{each / 1024:.2f}" for each in sizes) for sizes in (step.held_mib, step.measured_mib))
        times = f"{step.took_ms:.1f}", f"{step.measured_ms:.1f}", f"{step.error:+.1%}"
        table.add_row(step.name, *times, held, measured, f"{step.memory_error:.2%}", step.moments[-1])
    out.print(table)
    out.print(summary(steps))
    if options.fit:
        for name, half, other in (("first", rows[::2], rows[1::2]), ("second", rows[1::2], rows[::2])):
            sustained = fitted(half)
            change = sustaining(sustained)
            out.print(f"sustained {sustained}, fitted on every second step, beginning with the {name}")
            for whose, of in (("these", half), ("the others", other)):
                out.print(f"  {whose}: {summary([step_of(row, change) for row in of]).partition(', memory')[0]}")
    if options.terms:
        print_terms(out, rows)


if __name__ == "__main__":
    main()
