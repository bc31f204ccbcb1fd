"""What commands about many problems show: `bench`, `tune`, and `compile --robust` and `family`, with states of the links."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from schedc.formats.family_file import FAMILY
from schedc.ir import Objective
from schedc.spelling import counted
from schedc.study.loss.time_to_loss import long_duration
from schedc.study.robust.scenarios import MEAN, percentile_of
from schedc.study.tune.candidates import OF_LOSS, CandidateState, TuneRow
from schedc.study.tune.folder import JOB, PLAN, TABLE
from schedc.study.tune.planner import KEPT
from schedc.view.document import Block, Column, Line, Table, duration, left, number, picked, plain, right, size
from schedc.view.terminal.results import certificate_lines, written_to

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from schedc.study.bench.run import BenchRow
    from schedc.study.robust.family import Made
    from schedc.study.robust.robust import OrderOutcome, Robust
    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.tuned import Tuned
    from schedc.study.tune.work import Progress

PIPED_WIDTH = 160
"""Columns where standard output is no terminal: as many as the widest table needs."""
DEFAULT_TIME_S = 300.0
"""How long `tune` searches unless the job or an option says otherwise."""
SHOWN = 12
"""At most this many candidates are shown besides the best; the table in the folder has all."""
PERCENTILES = (5, 25, 50, 75, 95, 100)
_NAMES = {100.0: "the worst state", 50.0: "median"}


def shown_bench(set_name: str, rows: Sequence[BenchRow]) -> Iterator[Block]:
    """All of it."""
    yield _rows_table(set_name, rows)
    unsolved: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        if row.answer.objective_ns is None:
            unsolved.setdefault((row.method, row.answer.error), []).append(row.instance.name)
    for (method, why_not), names in unsolved.items():
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        yield Line(f"{method} on {names[0]}{more}: {why_not}", "dim")
    for row in rows:
        if row.answer.objective_ns is not None and row.answer.error:
            yield f"{row.instance.name} by {row.method}: a defect of schedc, please report it: {row.answer.error}"
    yield ""
    yield _methods_table(rows)


def _rows_table(set_name: str, rows: Sequence[BenchRow]) -> Table:
    """One row for each cell; the best of an instance is highlighted."""
    spans = any(row.instance.problem.objective is Objective.STAGE_SPAN for row in rows)
    best_ns: dict[str, int] = {}
    shown: list[tuple[str, ...]] = []
    for row in rows:
        answer, name, published = row.answer, row.instance.name, row.instance.published_best()
        shown.append(
            (
                "" if shown and rows[len(shown) - 1].instance.name == name else name,
                row.method + (f" → {answer.won_by}" if answer.won_by not in ("", row.method) else ""),
                _ms(answer.makespan_ns),
                *((_ms(answer.objective_ns),) if spans else ()),
                _ms(answer.bound_ns),
                number(answer.gap),
                number(answer.seconds, ".2f"),
                size(answer.peak_memory_bytes, 0),
                "–" if published is None else f"{_ms(published[1])} {published[0]}",
                number(row.ratio, ".3f"),
            )
        )
        if answer.objective_ns is not None:
            best_ns[name] = min(answer.objective_ns, best_ns.get(name, answer.objective_ns))
    numbers = ("makespan", *(("stage span",) if spans else ()), "bound", "gap", "seconds", "memory", "published best", "ratio")
    return Table(
        title=f"{set_name}: times in ms" + (", bound, gap and ratio of the stage span" if spans else ""),
        columns=[Column("instance", wrap="fold"), Column("method", wrap="fold"), *right(*numbers)],
        rows=shown,
        bold=[at for at, row in enumerate(rows) if row.answer.objective_ns == best_ns.get(row.instance.name, -1)],
        may_go=("memory", "seconds", "published best"),
    )


def _methods_table(rows: Sequence[BenchRow]) -> Table:
    """One row for each method: how often it solved and proved, its mean gap, its geometric mean ratio to the published best."""
    shown = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = [row for row in rows if row.method == method]
        gaps = [row.answer.gap for row in mine if row.answer.gap is not None]
        ratios = [row.ratio for row in mine if row.ratio is not None]
        mean = number(math.fsum(gaps) / len(gaps) if gaps else None)
        ratio = number(math.exp(math.fsum(map(math.log, ratios)) / len(ratios)) if ratios else None, ".3f")
        seconds = f"{math.fsum(row.answer.seconds or 0 for row in mine):.2f}"
        shown.append((method, f"{len(gaps)} of {len(mine)}", str(sum(gap <= 0 for gap in gaps)), mean, ratio, seconds))
    numbers = right("solved", "proven optimal", "mean gap", "mean ratio", "seconds")
    return Table(title="by method", columns=[*left("method"), *numbers], rows=shown)


def _ms(duration_ns: int | None) -> str:
    return number(None if duration_ns is None else duration_ns / 1e6, ".1f")


def shown_tuned(tuned: Tuned, folder: Path, *, interrupted: bool) -> Iterator[Block]:
    """The best candidates, how many became what, and where the files are."""
    texts = {header: [text(row) for row in tuned.rows] for header, text in _TEXTS.items()}
    headers = [header for header in _TEXTS if header not in _MAY_BE_ALIKE or len(set(texts[header])) > 1]
    yield Table(
        columns=[Column(header, right=header not in _WORDS, wrap="never") for header in headers],
        rows=list(zip(*(texts[header][: SHOWN + 1] for header in headers), strict=True)),
        bold=[at for at, row in enumerate(tuned.rows) if row.state is CandidateState.BEST],
        may_go=("collectives", "memory", "tokens/s", "bound", "updates", "ZeRO", "size", "across sites", "gap"),
    )
    counts = {state: sum(row.state is state for row in tuned.rows) for state in CandidateState}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    yield Line(f"{len(tuned.rows)} candidates: {said}", soft=True)
    best_ns = (tuned.best.step_ns if tuned.times is None else tuned.best.time_to_loss_ns) or 0
    gap = 1 - tuned.bound_ns / best_ns if best_ns else 0.0
    worth = "no candidate can be better" if gap <= 0 else f"no candidate can be better by more than {gap:.2%}"
    timed = f"step {_duration(tuned.best.step_ns)}" if tuned.times is None else f"time to loss {_long(tuned.best)}"
    yield Line(f"best: {tuned.best.candidate.title}, {timed}; {worth}", soft=True)
    if tuned.pipelines:
        yield Line(tuned.pipelines, soft=True)
    yield from _shown_causes(tuned)
    if tuned.times is not None:
        yield Line(tuned.times.verdict, soft=True)
        yield Line(f"updates: {tuned.times.source}", soft=True)
    sums = tuned.sums
    share = "" if sums.peak_share is None else f", and {sums.peak_share:.1%} of their peak FLOPs for the model's matrices"
    used = f"{sums.peak_bytes / sums.room_bytes:.1%} of the {size(sums.room_bytes, 1)} that a plan may use"
    yield Line(f"all devices: {used}{share}", soft=True)
    if held := held_by_ranks(tuned):
        most = max(held, key=lambda each: each.bytes)
        states, activations, besides = (size(each, 1) for each in (most.states, most.activations, most.besides))
        what = f"{states} of states, {activations} of activations, {besides} besides"
        moment = f"; most in the {most.moment}" if most.moment else ""
        yield Line(f"fullest rank: {most.rank}, with {size(most.bytes, 1)} on a device: {what}{moment}", soft=True)
    rest = f"; the same command goes on from {KEPT}" if not tuned.is_done and (folder / KEPT).exists() else ""
    yield Line(f"{folder}: {TABLE}, {JOB} with its profile, {PLAN}{'; interrupted' if interrupted else ''}{rest}", soft=True)


def _shown_causes(tuned: Tuned) -> Iterator[Block]:
    """Where the time of two candidates goes."""
    compared = tuned.compared
    if compared is None:
        return
    rows = [
        (cause, *(_duration(round(of[cause])) for of in (compared.best_ns, compared.other_ns)), f"{more / 1e6:+,.1f} ms")
        for cause, more in compared.differences_ns.items()
        if compared.best_ns[cause] or compared.other_ns[cause]
    ]
    total = (_duration(tuned.best.step_ns), _duration(compared.row.step_ns))
    more = f"{((compared.row.step_ns or 0) - (tuned.best.step_ns or 0)) / 1e6:+,.1f} ms"
    yield Table(
        title=f"the best beside {compared.row.candidate.title}: per device, in the mean",
        columns=[*left("cause"), *right("best", "other", "more")],
        rows=[*rows, ("step", *total, more)],
    )


@dataclass(frozen=True, slots=True)
class HeldOnDevice:
    """What a device of a rank holds at most, in bytes, by the names of `tune --json`."""

    rank: int
    bytes: int
    """All of it."""
    states: int
    activations: int
    besides: int
    moment: str
    """The operator whose backward runs then; empty: nothing comes on top of the activations."""


def held_by_ranks(tuned: Tuned) -> list[HeldOnDevice]:
    """Of each rank; nothing of layers that were measured."""
    made, activations = tuned.problem, tuned.plan.certificate.peak_activation_bytes
    return [
        HeldOnDevice(rank, static + kept, static - besides.total_bytes, kept, besides.total_bytes, besides.moment)
        for rank, (static, kept, besides) in enumerate(zip(made.static_bytes, activations, made.besides, strict=False))
    ]


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """The object of `tune --json`."""
    by_loss = tuned.times is not None
    return {
        "best": _row_json(tuned.best, by_loss=by_loss),
        "lower_bound_ns": tuned.bound_ns,
        "pipelines": tuned.pipelines,
        "sums": tuned.sums,
        "held": held_by_ranks(tuned),
        "candidates": [_row_json(row, by_loss=by_loss) for row in tuned.rows],
        "failures": tuned.failures,
        "compared": tuned.compared and {"best_ns": tuned.compared.best_ns, "other_ns": tuned.compared.other_ns},
    } | ({} if tuned.times is None else {"verdict": tuned.times.verdict, "source": tuned.times.source})


def _row_json(row: TuneRow, *, by_loss: bool) -> dict[str, Any]:
    values: dict[str, Any] = plain(row)
    del values["candidate"]
    return {key: value for key, value in (plain(row.candidate.columns) | values).items() if by_loss or key not in OF_LOSS}


_TEXTS: dict[str, Callable[[TuneRow], str]] = {
    "ranks": lambda row: str(row.candidate.ranks),
    "dp": lambda row: str(row.candidate.data_parallel),
    "tp": lambda row: str(row.candidate.degrees.tensor),
    "cp": lambda row: str(row.candidate.degrees.context),
    "ep": lambda row: str(row.candidate.degrees.expert),
    "etp": lambda row: str(row.candidate.degrees.expert_tensor) if row.candidate.degrees.expert > 1 else "–",
    "size": lambda row: str(row.candidate.microbatch_size),
    "n": lambda row: str(row.candidate.microbatches),
    "placement": lambda row: row.candidate.placement,
    "chunks": lambda row: str(row.candidate.chunks),
    "recompute": lambda row: _form(row.candidate),
    "ZeRO": lambda row: f"{row.candidate.zero_stage}{' by plan' if row.candidate.gathers == 'plan' else ''}",
    "across sites": lambda row: row.candidate.crossing or "–",
    "mode": lambda row: _mode(row.candidate),
    "state": lambda row: row.state,
    "time to loss": lambda row: _long(row),
    "updates": lambda row: "–" if row.updates is None else f"{row.updates:,}",
    "× no delay": lambda row: number(row.factor, ".2f"),
    "step": lambda row: _duration(row.step_ns),
    "bound": lambda row: _duration(row.bound_ns),
    "gap": lambda row: number(row.gap),
    "tokens/s": lambda row: number(row.tokens_per_s, ",.0f"),
    "memory": lambda row: size(row.peak_bytes, 1),
    "collectives": lambda row: _duration(row.collectives_ns),
}
"""By header, what a row has there."""
_WORDS = ("placement", "recompute", "across sites", "mode", "state")
_MAY_BE_ALIKE = (
    *("tp", "cp", "ep", "etp", "placement", "chunks", "recompute", "ZeRO", "across sites", "mode"),
    *("time to loss", "updates", "× no delay", "tokens/s", "collectives"),
)
"""The columns that are left out where all rows have the same."""


def _form(each: TuneCandidate) -> str:
    """What backwards compute again; those that are fused without it, too."""
    return f"{each.recompute}, fused" if each.backward == "fused" and each.recompute != "selective" else each.recompute


def _mode(each: TuneCandidate) -> str:
    most = "" if each.most_delay is None else f" by {each.most_delay}"
    return "synchronous" if each.versions is None else f"{each.versions}{most}"


def _long(row: TuneRow) -> str:
    return "–" if row.time_to_loss_ns is None else long_duration(row.time_to_loss_ns)


def progress_line(known: Progress) -> str:
    """How far the work is, and the best so far."""
    row = known.best
    best = "no plan yet" if row is None else f"best {_duration(row.step_ns)}: {row.candidate.title}"
    return f"{known.doing}, {known.done} of {known.total}; {best}"


def _duration(duration_ns: int | None) -> str:
    return duration(duration_ns, 1 if (duration_ns or 0) < 10**9 else 3)


def shown_robust(robust: Robust, output: Path) -> Iterator[Block]:
    """The table of three orders in the states, and the certificate."""
    plan = robust.compiled.plan
    objective, states = plan.problem.objective, counted(len(robust.states.conditions), "state")
    columns = [_values(robust, outcome) for outcome in (robust.robust, robust.for_mean, robust.as_planned)]
    yield Table(
        title=f"{plan.name}: {objective} of one order in {states} of its links, each for a whole step",
        columns=[Column("", wrap="never"), *right("robust plan", "plan for the mean", "plan for the job's costs")],
        rows=[(row, *(duration(round(column[row])) for column in columns)) for row in columns[0]],
    )
    value, bound = (duration(round(ns)) for ns in (robust.value_ns, robust.bound_ns))
    yield f"{robust.aim.text} {value}; no single order has less than {bound}: gap {robust.gap:.2%}"
    for line in certificate_lines(plan):
        yield f"under the mean conditions, whose costs the plan has: {line}" if line.startswith(objective) else line
    yield f"{written_to(output)} in {robust.compiled.seconds:.2f} s: {robust.compiled.ended}"


def _values(robust: Robust, outcome: OrderOutcome) -> dict[str, float]:
    """By the name of the row."""
    ends, weights = outcome.ends_ns, robust.states.weights
    rows: dict[str, float] = {"at the job's costs": outcome.as_planned_ns, "at the mean of the states": outcome.mean_ns}
    rows["mean over the states"] = MEAN.of(ends, weights)
    shown = sorted({*PERCENTILES, robust.aim.percentile or 50})
    return rows | {_NAMES.get(each, f"percentile {each:g}"): percentile_of(ends, weights, each) for each in shown}


def robust_json(robust: Robust) -> dict[str, Any]:
    """The object `robust` of `compile --json`."""
    weights = robust.states.weights

    def outcome_json(outcome: OrderOutcome) -> dict[str, Any]:
        return {
            "as_planned_ns": outcome.as_planned_ns,
            "at_mean_ns": outcome.mean_ns,
            "mean_ns": MEAN.of(outcome.ends_ns, weights),
            "percentiles_ns": {str(each): percentile_of(outcome.ends_ns, weights, each) for each in PERCENTILES},
            "states_ns": outcome.ends_ns,
        }

    plans = {"plan": robust.robust, "plan_for_mean": robust.for_mean, "plan_as_planned": robust.as_planned}
    return {
        "aim": robust.aim.text,
        "lower_bound_ns": robust.bound_ns,
        **picked(robust, "value_ns gap"),
        "states": len(robust.states.conditions),
        "weights": weights,
        **{name: outcome_json(outcome) for name, outcome in plans.items()},
    }


def shown_family(made: Made, folder: Path) -> Iterator[Block]:
    """A row for each of the conditions."""
    rows = []
    for each in _conditions(made):
        least_ns = max(1, each["objective_ns"])
        gap, longer = 1 - each["lower_bound_ns"] / least_ns, each["as_planned_ns"] / least_ns - 1
        rows.append((each["name"], duration(each["objective_ns"]), f"{gap:.2%}", f"{longer:+.2%}", each["path"]))
    title = f"{made.family.name}: {counted(len(made.family.plans), 'plan')}, each timed under all conditions"
    numbers = right(made.family.objective, "gap", "as planned takes", "best plan")
    yield Table(title=title, columns=[Column("conditions", wrap="never"), *numbers], rows=rows)
    yield written_to(folder / FAMILY) + (f", {counted(made.kept, 'plan')} kept" if made.kept else "")


def family_json(made: Made) -> dict[str, Any]:
    """The object of `family --json`."""
    return {"kept": made.kept, "conditions": _conditions(made), "failures": made.failures}


def _conditions(made: Made) -> list[dict[str, Any]]:
    """Of each of the conditions, the best plan."""
    found, plans = [], made.family.plans
    for at, (name, _) in enumerate(made.family.conditions):
        best = made.family.best(at)
        found.append(
            {
                "name": name,
                "best": best,
                "path": plans[best].path,
                "objective_ns": plans[best].objective_ns[at],
                "lower_bound_ns": made.plans[at].certificate.lower_bound_ns,
                "as_planned_ns": plans[0].objective_ns[at],
            }
        )
    return found
