"""What the linter of torch's CSVs finds, rule by rule, and that it agrees with an acting out of torch's runtime."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st
from inputs.few_plans import made_by
from inputs.problems import make_problem
from inputs.torch_plans import torch_plans
from oracles.torch_oracle import Wrong, act_out
from oracles.torch_stock import STOCK, dump
from suite.example_counts import examples

from schedc.errors import InvalidInput, Unsupported
from schedc.formats.torch_csv.exporter import torch_csv
from schedc.formats.torch_csv.lint.actions import Finding, layout_of, read_rows
from schedc.formats.torch_csv.lint.linter import schedule_of_rows, verify_torch_csv
from schedc.ir.ops import Kind, Op

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

CHAIN = """\
0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0I0,0W0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD
1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1I1,1SEND_B1,1W1,1REDUCE_GRAD,1RESHARD
"""
"""Torch's own lowering of a schedule of 2 ranks and 2 microbatches."""
CROSSED = """\
0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1,0REDUCE_GRAD
1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD
"""
TWO = make_problem(2, 2)
V = make_problem(2, 1, placement="wave", chunks=2)
V_CSV = """\
0F0,0SEND_F0,3RECV_F0,3B0,3SEND_B0,0RECV_B0,0B0,3REDUCE_GRAD,0REDUCE_GRAD
1RECV_F0,1F0,2F0,2SEND_F0,2RECV_B0,2B0,1B0,1SEND_B0,2REDUCE_GRAD,1REDUCE_GRAD
""".replace("3RECV_F0,3B0", "3RECV_F0,3F0,3B0")


def lint(text: str, problem: Problem, layout: str | None = None) -> tuple[Finding, ...]:
    rows = read_rows(text.encode(), "x.csv")
    return verify_torch_csv(rows, problem, layout or layout_of(rows))


def test_what_torch_writes_itself_is_sound() -> None:
    assert lint(CHAIN, TWO) == ()
    assert lint("0F0,0F1,,0I0,0W0,0B1\n,1F0,1B0,1F1,1I1,1W1\n", TWO) == ()
    assert lint(V_CSV, V) == ()


@pytest.mark.parametrize("name", STOCK)
@pytest.mark.parametrize("layout", ["compute_comms", "compute_only"])
def test_torchs_stock_schedules_are_sound(name: str, layout: str, tmp_path: Path) -> None:
    placement, all_chunks = STOCK[name]
    for chunks in all_chunks:
        for ranks in (2, 3, 4):
            problem = make_problem(ranks, 4 * ranks, placement=placement if chunks > 1 else "unidirectional", chunks=chunks)
            rows = read_rows(dump(name, ranks, 4 * ranks, chunks, layout, tmp_path).read_bytes(), name)
            assert layout_of(rows) == layout
            assert verify_torch_csv(rows, problem, layout) == ()


def test_torchs_deferred_receives_are_not(tmp_path: Path) -> None:
    """With `defer_pp_recv=True` torch 2.13 itself swaps receives of one rank pair (`test_torch_runtime` trains with it)."""
    path = dump("ScheduleZBVZeroBubble", 2, 8, 2, "compute_comms", tmp_path, defer_recv=True)
    (finding,) = verify_torch_csv(
        read_rows(path.read_bytes(), "x"), make_problem(2, 8, placement="wave", chunks=2), "compute_comms"
    )
    assert finding.rule == "pair-order" and "wrong data" in finding.message


# one rule after the other

CHANGES: dict[str, tuple[str, str, str, list[tuple[str, int | None, int | None, str]]]] = {
    # name: CSV, what is replaced, by what, and what is found: rule, row, cell, part of the message
    "junk": (CHAIN, "0F0,", "0F0junk,", [("junk", 1, 2, "torch reads 0F0 and ignores the 'junk'")]),
    "leading zero": (CHAIN, "0F1,", "0F01,", [("spelling", 1, 4, "torch reads 0F1")]),
    "other digits": (CHAIN, "0F1,", "0F١,", [("spelling", 1, 4, "torch reads 0F1")]),
    "no action": (CHAIN, "0UNSHARD,", "0UNSHARD,hello,", [("action", 1, 2, "torch refuses")]),
    "comment": ("# made by hand\n" + CHAIN, "", "", [("action", 1, 1, "torch refuses"), ("rows", None, None, "found 3 rows")]),
    "empty cell": (CHAIN, "0F1,", ",0F1,", [("empty-cell", 1, 4, "torch refuses empty cells")]),
    "trailing blank line": (CHAIN, "1RESHARD\n", "1RESHARD\n\n", [("rows", 3, None, "a blank line, which torch counts")]),
    "row missing": (CHAIN, CHAIN.splitlines()[1] + "\n", "", [("rows", None, None, "found 1 rows, expected 2")]),
    "row too many": (CHAIN, "1RESHARD\n", "1RESHARD\n2F0\n", [("stage", 3, 1, "no stage 2"), ("rows", None, None, "found 3 rows")]),
    "no number": (CHAIN, "0F0,", "0F,", [("microbatch", 1, 2, "has no microbatch number"), ("missing", 1, None, "it is missing")]),
    "number of a stage's action": (CHAIN, "0RESHARD", "0RESHARD1", [("microbatch", 1, 12, "ignores its microbatch number")]),
    "microbatch that is not": (CHAIN, "1W1", "1W7", [("missing", 2, None, "1I1 has no W"), ("microbatch", 2, 10, "no micro")]),
    "stage that is not": (CHAIN, "0RESHARD", "0RESHARD,9RESHARD", [("stage", 1, 13, "no stage 9; the job's stages are 0 to 1")]),
    "forward twice": (CHAIN, "0F1,", "0F1,0F1,", [("duplicate", 1, 5, "duplicate, first in row 1, cell 4")]),
    "backward twice": (CHAIN, "0B1,", "0B1,0I1,0W1,", [("duplicate", 1, 11, "beside 0B1"), ("duplicate", 1, 12, "beside 0B1")]),
    "send twice": (CHAIN, "0SEND_F0,", "0SEND_F0,0SEND_F0,", [("duplicate", 1, 4, "is a duplicate")]),
    "reduced twice": (CHAIN, "0REDUCE_GRAD", "0REDUCE_GRAD,0REDUCE_GRAD", [("duplicate", 1, 12, "is a duplicate")]),
    "forward missing": (CHAIN, "0F1,", "", [("missing", 1, None, "it is missing")]),
    "backward missing": (CHAIN, "0B1,", "", [("missing", 1, None, "microbatch 1 has no backward on stage 0")]),
    "W missing": (CHAIN, "1W1,", "", [("missing", 2, None, "1I1 has no W")]),
    "I missing": (CHAIN, "0I0,", "", [("missing", 1, None, "0W0 has no I")]),
    "send missing": (CHAIN, "0SEND_F1,", "", [("missing", 1, None, "rank 1 waits for it indefinitely")]),
    "receive missing": (CHAIN, "1RECV_F1,", "", [("missing", 2, None, "1F1 (row 2, cell 6) has nothing to compute on")]),
    "stage on another rank": (V_CSV, "3F0,", "1F0,3F0,", [("placement", 1, 4, "is on rank 1 in the job"), ("duplicate", 2, 2, "")]),
    "order of needs": (V_CSV, "1F0,2F0", "2F0,1F0", [("order", 2, 2, "it needs 1F0, which is after it, in cell 3")]),
    "W before I": (CHAIN, "0I0,0W0", "0W0,0I0", [("order", 1, 7, "it needs 0I0")]),
    "B before F": (CHAIN, "1F1,1I1", "1I1,1F1", [("order", 2, 7, "it needs 1F1")]),
    "receive too late": (CHAIN, "1RECV_F0,1F0", "1F0,1RECV_F0", [("receive-order", 2, 2, "it needs 1RECV_F0")]),
    "send too early": (CHAIN, "1B0,1SEND_B0", "1SEND_B0,1B0", [("send-order", 2, 5, "it sends what 1B0 makes")]),
    "same rank": (V_CSV, "1F0,2F0", "1F0,1SEND_F0,2RECV_F0,2F0", [("same-rank", 2, 3, ""), ("same-rank", 2, 4, "")]),
    "to nobody": (CHAIN, "0F0,", "0RECV_F0,0F0,", [("no-neighbour", 1, 2, "the first stage has no neighbour there")]),
    "to nobody, last": (CHAIN, "1F1,", "1F1,1SEND_F1,", [("no-neighbour", 2, 8, "the last stage has no neighbour there")]),
    "not reduced": (CHAIN, "0REDUCE_GRAD,", "", [("reduce-grad", 1, None, "stay 2 times too large")]),
    "reduced too early": (CHAIN, "0B1,0REDUCE_GRAD", "0REDUCE_GRAD,0B1", [("reduce-grad", 1, 10, "0B1 in cell 11 comes after it")]),
    "not gathered": (CHAIN, "0UNSHARD,", "", [("unshard", 1, 1, "not gathered here"), ("unshard", 1, 11, "not gathered")]),
    "gathered twice": (CHAIN, "0F1,", "0UNSHARD,0F1,", [("unshard", 1, 4, "gathered already")]),
    "not released": (CHAIN, ",0RESHARD", "", [("unshard", 1, 1, "not released at the end")]),
    "released unused": (CHAIN, "0RESHARD", "0RESHARD,0UNSHARD,0RESHARD", [("unshard", 1, 14, "has not computed since")]),
    "swapped receives": (
        CHAIN.replace("1RECV_F1,", "").replace("1RECV_F0,", "1RECV_F0,1RECV_F1,"),
        "1RECV_F0,1RECV_F1,",
        "1RECV_F1,1RECV_F0,",
        [("pair-order", 2, 2, "it takes what rank 0 sends next, which is 0SEND_F0 (row 1, cell 3)")],
    ),
    "crossed directions": (CROSSED, "", "", [("pair-order", 1, 4, "NCCL's one queue for the pair hangs")]),
    "losses": (
        CHAIN,
        "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,",
        "1RECV_F0,1RECV_F1,1F1,1F0,1B0,1SEND_B0,",
        [("loss-order", 2, 4, "forward number 0 of the last stage")],
    ),
    "overlap of one": (CHAIN, "0F1,", "(0F1)OVERLAP_F_B,", [("action", 1, 4, "expected two actions or more")]),
    "overlap misspelled": (CHAIN, "0F1,0SEND_F1", "(0F1;0SEND_F1)OVERLAP", [("action", 1, 4, "expected OVERLAP_F_B")]),
    "junk in an overlap": (CHAIN, "0F1,0SEND_F1", "(0F1x;0SEND_F1)OVERLAP_F_B", [("junk", 1, 4, "torch reads 0F1")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_rule(name: str) -> None:
    text, old, new, expected = CHANGES[name]
    assert old in text
    found = lint(text.replace(old, new, 1) if old else text, V if text is V_CSV else TWO, "compute_comms")
    assert Counter((one.rule, one.row, one.cell) for one in found) == Counter(entry[:3] for entry in expected)
    for rule, row, cell, says in expected:
        assert any((one.rule, one.row, one.cell) == (rule, row, cell) and says in one.message for one in found), found
    assert all("\n" not in str(one) for one in found)


def test_places_read_as_a_person_counts() -> None:
    (finding,) = lint(CHAIN.replace("0F0,", "0F0junk,"), TWO)
    assert str(finding).startswith("row 1, cell 2 (0F0junk): junk: ")


def test_transfers_have_no_place_in_compute_only() -> None:
    found = lint(CHAIN, TWO, "compute_only")
    assert {finding.rule for finding in found} == {"format"}
    assert len(found) == sum(re.fullmatch(r"\d[FIWB]\d", cell) is None for cell in re.split("[,\n]", CHAIN.strip()))


# deadlocks


def test_deadlock_on_every_backend() -> None:
    """Rank 0 wants B0 before it sends F1, rank 1 wants F1 before it sends B0."""
    text = (
        "0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1,0REDUCE_GRAD\n"
        "1RECV_F0,1F0,1RECV_F1,1F1,1B0,1SEND_B0,1B1,1SEND_B1,1REDUCE_GRAD\n"
    )
    (finding,) = [one for one in lint(text, TWO) if one.rule == "deadlock"]
    assert (finding.row, finding.cell, finding.text) == (1, 4, "0B0") and "on every backend" in finding.message
    assert finding.message.endswith(
        "0B0 (row 1, cell 4) -> 0F1 (row 1, cell 5) -> 0SEND_F1/1RECV_F1 (row 1, cell 6) -> 1F1 (row 2, cell 4)"
        " -> 1B0 (row 2, cell 5) -> 1SEND_B0/0RECV_B0 (row 2, cell 6) -> 0B0 (row 1, cell 4)"
    )


def test_deadlock_of_one_queue_for_all_peers(tmp_path: Path) -> None:
    """Three ranks that send round the ring before they receive: fine with a queue for each pair, not with one for each rank."""
    rows = read_rows(dump("ScheduleLoopedBFS", 3, 6, 2, "compute_comms", tmp_path, defer_recv=True).read_bytes(), "x")
    problem = make_problem(3, 6, placement="loop", chunks=2)
    (finding,) = verify_torch_csv(rows, problem, "compute_comms")
    assert finding.rule == "deadlock" and "where a rank has one queue for all peers" in finding.message
    assert _verdict(rows, problem, (1, 2)) == "" != _verdict(rows, problem, (3,))


def test_compute_only_that_no_lowering_can_take() -> None:
    (finding,) = lint("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", TWO)
    assert finding.rule == "deadlock" and "refuses it as malformed" in finding.message
    assert [name.split(" ")[0] for name in finding.message.split(": ")[-1].split(" -> ")] in (
        ["0B0", "0F1", "1F1", "1B0", "0B0"],
        ["0F1", "1F1", "1B0", "0B0", "0F1"],
        ["1F1", "1B0", "0B0", "0F1", "1F1"],
    )


def test_cells_of_compute_only_begin_whole() -> None:
    """An OVERLAP_F_B whose second action needs its first can run, but torch's lowering waits for both before it takes the cell."""
    problem = make_problem(1, 1, placement=[0, 0])
    assert lint("0F0,1F0,1B0,0B0\n", problem) == ()
    (finding,) = lint("(0F0;1F0)OVERLAP_F_B,1B0,0B0\n", problem)
    assert finding.rule == "deadlock"
    with_transfers = "(0F0;1F0)OVERLAP_F_B,1B0,0B0,0REDUCE_GRAD,1REDUCE_GRAD\n"
    assert lint(with_transfers, problem) == ()


def test_a_large_deadlock_is_found_in_time() -> None:
    """More actions wait than the search for the smallest cycle takes; what is shown is still a cycle."""
    count = 1200
    forwards = ",".join(f"1F{microbatch}" for microbatch in range(count))
    backwards = ",".join(f"{{}}B{microbatch}" for microbatch in range(count))
    first = ",".join(f"0F{microbatch}" for microbatch in range(1, count))
    text = f"0F0,0B0,{first},{backwards.format(*[0] * count).removeprefix('0B0,')}\n{forwards},{backwards.format(*[1] * count)}\n"
    (finding,) = lint(text, make_problem(2, count))
    names = [name.split(" ")[0] for name in finding.message.split(": ")[-1].split(" -> ")]
    assert finding.rule == "deadlock" and names[0] == names[-1] and {"0B0", "0F1", "1B0"} <= set(names)


# against an acting out of torch's runtime


def _verdict(rows: Sequence[Sequence[str]], problem: Problem, levels: Sequence[int] = (1, 2, 3)) -> str:
    for level in levels:
        try:
            act_out(rows, [stage.rank for stage in problem.stages], problem.microbatches, level)
        except Wrong as error:
            return f"{level}: {error}"
    return ""


def mutate(data: st.DataObject, rows: list[list[str]], plan: Plan) -> None:
    """One change to one row: cells swapped, moved, dropped, doubled, or with another number."""
    row = rows[data.draw(st.integers(0, len(rows) - 1))]
    at = data.draw(st.integers(0, len(row) - 1))
    to = data.draw(st.integers(max(0, at - 4), min(len(row) - 1, at + 4)))
    way = data.draw(st.sampled_from(["swap", "move", "drop", "double", "microbatch", "stage"]))
    if way == "swap":
        row[at], row[to] = row[to], row[at]
    elif way == "move":
        row.insert(to, row.pop(at))
    elif way == "drop" and len(row) > 1:
        row.pop(at)
    elif way == "double":
        row.insert(to, row[at])
    elif way == "microbatch":
        row[at] = re.sub(r"(?<=[A-Z])\d+$", lambda m: str((int(m[0]) + 1) % plan.problem.microbatches), row[at])
    elif way == "stage":
        row[at] = re.sub(r"^\d+", lambda m: str((int(m[0]) + 1) % len(plan.problem.stages)), row[at])


@pytest.mark.slow
@examples(100)
@given(data=st.data(), plan=torch_plans(max_microbatches=3))
def test_a_changed_csv_is_refused_exactly_where_torch_would_go_wrong(data: st.DataObject, plan: Plan) -> None:
    rows: list[list[str]] = [line.split(",") for line in torch_csv(plan).splitlines()]
    for _ in range(data.draw(st.integers(1, 3))):
        mutate(data, rows, plan)
    found, verdict = verify_torch_csv(rows, plan.problem, "compute_comms"), _verdict(rows, plan.problem)
    assert bool(found) == bool(verdict), (found, verdict)


@examples(60)
@given(data=st.data(), plan=torch_plans(max_microbatches=3))
def test_dropped_and_doubled_cells_are_always_found(data: st.DataObject, plan: Plan) -> None:
    rows: list[list[str]] = [line.split(",") for line in torch_csv(plan).splitlines()]
    row = rows[data.draw(st.integers(0, len(rows) - 1))]
    at = data.draw(st.integers(0, len(row) - 1))
    if data.draw(st.booleans()):
        row.insert(at, row[at])
    else:
        row.pop(at)
    assert verify_torch_csv(rows, plan.problem, "compute_comms") != ()


@given(text=st.text(st.sampled_from('0123FIWBSENDRCV_();,\n"x '), max_size=80))
def test_any_text_is_read(text: str) -> None:
    """Whatever the file has, it is found or refused in one line, never a crash."""
    try:
        found = lint(text, TWO)
    except InvalidInput as error:
        assert "\n" not in str(error)
    else:
        assert found


def test_numbers_of_any_length_are_read() -> None:
    (finding, *_) = lint(CHAIN.replace("0F0,", f"0F{'1' * 5000},"), TWO)
    assert finding.rule in ("microbatch", "missing")


@pytest.mark.parametrize("content", [b"\xff\xfe0F0", b'0F0\x00,"', b'0F0,"0F1\n' * 2 + b"\x80"])
def test_what_is_no_text_is_refused(content: bytes) -> None:
    try:
        rows = read_rows(content, "x.csv")
    except InvalidInput as error:
        assert str(error).startswith("x.csv: ")
    else:
        assert verify_torch_csv(rows, TWO, "compute_comms") != ()


# what a sound CSV is worth


def test_what_a_csv_computes() -> None:
    rows = read_rows(CHAIN.encode(), "x")
    order = schedule_of_rows(rows, TWO).orders[0]
    assert order == (Op(Kind.F, 0, 0), Op(Kind.F, 0, 1), Op(Kind.B, 0, 0), Op(Kind.W, 0, 0), Op(Kind.BW, 0, 1))


def test_overlap_cells_are_computed_one_after_the_other(tmp_path: Path) -> None:
    rows = read_rows(dump("ScheduleDualPipeV", 2, 8, 2, "compute_only", tmp_path).read_bytes(), "x")
    assert any(cell.startswith("(") for row in rows for cell in row)
    problem = make_problem(2, 8, placement="wave", chunks=2)
    assert schedule_of_rows(rows, problem) == made_by("dualpipe-v", 2, 8, placement="wave", chunks=2).schedule()


def test_memory_and_backwards_are_the_jobs_to_allow() -> None:
    """A sound order that holds more than the job's limit, or splits where the job does not."""
    plan: Any = made_by("gpipe", 2, 4)
    tight = make_problem(2, 4, in_flight=2)
    found = lint(torch_csv(plan), tight)
    assert [(one.rule, one.row, one.text) for one in found] == [("memory-limit", 1, "0F2"), ("memory-limit", 2, "1F2")]
    found = lint(torch_csv(made_by("zb-h1", 2, 2)), make_problem(2, 2, split_backward=False))
    assert {one.rule for one in found} == {"split-backward"} and all(one.cell for one in found)


def test_a_job_with_two_paths_is_refused() -> None:
    with pytest.raises(Unsupported, match="its stages are not one chain"):
        lint(CHAIN, make_problem(2, 2, placement="bidirectional"))
