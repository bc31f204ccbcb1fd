"""What `schedc tune` shows: its progress and the table of candidates."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.spelling import counted
from schedc.study.tune.candidates import CandidateState, TuneRow
from schedc.study.tune.folder import JOB, PLAN, TABLE
from schedc.units import format_bytes, format_duration_ns
from schedc.view.document import Block, Column, Line, Table
from schedc.view.terminal.results import failures_json
from schedc.view.terminal.show import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.search import Progress, Tuned

DEFAULT_TIME_S = 300.0
"""How long `tune` searches unless the job or an option says otherwise."""
SHOWN = 12
"""At most this many candidates are shown besides the best; the table in the folder has all."""
PIPED_WIDTH = 160


def shown_tuned(tuned: Tuned, folder: Path, *, interrupted: bool) -> Iterator[Block]:
    """The best candidates, how many became what, and where the files are."""
    columns = [column for column in _COLUMNS if column.always or len({column.text(row) for row in tuned.rows}) > 1]
    rows = tuned.rows[: SHOWN + 1]
    yield Table(
        columns=[Column(column.header, right=column.is_number, wrap="never") for column in columns],
        rows=[[column.text(row) for column in columns] for row in rows],
        bold=[number for number, row in enumerate(rows) if row.state is CandidateState.BEST],
        may_go=("collectives", "memory", "tokens/s", "bound", "ZeRO", "size", "across sites", "gap"),
    )
    counts = {state: sum(row.state is state for row in tuned.rows) for state in CandidateState}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    yield Line(f"{len(tuned.rows)} candidates: {said}", soft=True)
    best_ns = tuned.best.step_ns or 0
    gap = 1 - tuned.bound_ns / best_ns if best_ns else 0.0
    worth = "no candidate can be better" if gap <= 0 else f"no candidate can be better by more than {gap:.2%}"
    yield Line(f"best: {_says(tuned.best.candidate)}, step {_duration(tuned.best.step_ns)}; {worth}", soft=True)
    sums = tuned.sums
    share = "" if sums.peak_share is None else f", and {sums.peak_share:.1%} of their peak FLOPs for the model's matrices"
    used = f"{sums.peak_bytes / sums.room_bytes:.1%} of the {format_bytes(sums.room_bytes, 1)} that a plan may use"
    yield Line(f"all devices: {used}{share}", soft=True)
    yield Line(f"{folder}: {TABLE}, {JOB} with its profile, {PLAN}{'; interrupted' if interrupted else ''}", soft=True)


def tuned_json(tuned: Tuned) -> dict[str, Any]:
    """The object of `tune --json`."""
    return {
        "best": _row_json(tuned.best),
        "lower_bound_ns": tuned.bound_ns,
        "sums": tuned.sums,
        "candidates": [_row_json(row) for row in tuned.rows],
        "failures": failures_json(tuned.failures),
    }


def _row_json(row: TuneRow) -> dict[str, Any]:
    values: dict[str, Any] = plain(row)
    candidate: dict[str, Any] = values.pop("candidate")
    return candidate | values


class _Column(NamedTuple):
    header: str
    text: Callable[[TuneRow], str]
    is_number: bool = True
    always: bool = True
    """False: left out where all rows have the same."""


_COLUMNS = (
    _Column("ranks", lambda row: str(row.candidate.ranks)),
    _Column("dp", lambda row: str(row.candidate.data_parallel)),
    _Column("size", lambda row: str(row.candidate.microbatch_size)),
    _Column("n", lambda row: str(row.candidate.microbatches)),
    _Column("placement", lambda row: row.candidate.placement, is_number=False, always=False),
    _Column("chunks", lambda row: str(row.candidate.chunks), always=False),
    _Column("recompute", lambda row: row.candidate.recompute, is_number=False, always=False),
    _Column("ZeRO", lambda row: str(row.candidate.zero_stage), always=False),
    _Column("across sites", lambda row: row.candidate.across or "–", is_number=False, always=False),
    _Column("state", lambda row: row.state, is_number=False),
    _Column("step", lambda row: _duration(row.step_ns)),
    _Column("bound", lambda row: _duration(row.bound_ns)),
    _Column("gap", lambda row: "–" if row.gap is None else f"{row.gap:.2%}"),
    _Column("tokens/s", lambda row: "–" if row.tokens_per_s is None else f"{row.tokens_per_s:,.0f}", always=False),
    _Column("memory", lambda row: "–" if row.peak_bytes is None else format_bytes(row.peak_bytes, 1)),
    _Column("collectives", lambda row: _duration(row.collectives_ns), always=False),
)


def _says(each: TuneCandidate) -> str:
    across = "" if each.across is None else f", {each.across} across sites"
    placed = each.placement if each.chunks == 1 else f"{each.placement} with {each.chunks} chunks"
    recompute = "" if each.recompute == "none" else ", recomputing all stages"
    shape = f"{counted(each.ranks, 'rank')} × {counted(each.data_parallel, 'pipeline')}"
    return f"{shape}, {counted(each.microbatches, 'microbatch')} of {each.microbatch_size}, {placed}{recompute}{across}"


def progress_line(known: Progress) -> str:
    """How far the work is, and the best so far."""
    row = known.best
    best = "no plan yet" if row is None else f"best {_duration(row.step_ns)}: {_says(row.candidate)}"
    return f"{known.doing}, {known.done} of {known.total}; {best}"


def _duration(duration_ns: int | None) -> str:
    return "–" if duration_ns is None else format_duration_ns(duration_ns, 1 if duration_ns < 10**9 else 3)
