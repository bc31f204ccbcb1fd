"""The cells of a schedule CSV of PyTorch's, read as torch 2.13 reads them, and what torch lets pass in them.

Takes the file's text; gives each row's actions and the findings about single rows and cells. Torch matches the beginning of a cell
only, so that `0F0junk` is `0F0`; takes any row as a rank, a blank one too; and looks at a missing or wrong number when it runs, if
at all. Everything after this module sees actions whose numbers are in range.
"""

from __future__ import annotations

import csv
import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import InvalidInput
from schedc.ir import Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


COMPUTE = ("F", "I", "B", "W")
TRANSFERS = ("SEND_F", "RECV_F", "SEND_B", "RECV_B")
WHOLE_STAGE = ("UNSHARD", "RESHARD", "REDUCE_GRAD")
OVERLAP = "OVERLAP_F_B"

_MOST_DIGITS = 18
_ACTION = re.compile(rf"(\d+)({'|'.join((*COMPUTE, *WHOLE_STAGE, *TRANSFERS))})(\d*)")


Key = tuple[str, int, int | None]
"""Kind, stage and microbatch of an action."""


class Finding(NamedTuple):
    """One thing that is wrong. `str()` of it is the line that a person reads."""

    rule: str
    """Its name in kebab-case: `pair-order`."""
    row: int | None
    """The line of the file, from 1; rank r is in row r + 1. None: it is about the file as a whole."""
    cell: int | None
    """The cell of that row, from 1; None: it is about the row."""
    text: str
    """The text of the cell, or the action that is missing."""
    message: str

    def __str__(self) -> str:
        """`row 2, cell 5 (1RECV_F0): pair-order: …`."""
        places = [f"row {self.row}"] * (self.row is not None) + [f"cell {self.cell}"] * (self.cell is not None)
        place = ", ".join(places) or "the file"
        return f"{place}{f' ({self.text})' if self.text else ''}: {self.rule}: {self.message}"


class Action(NamedTuple):
    """One action; an OVERLAP_F_B cell gives one for each of its actions, in their order."""

    kind: str
    stage: int
    microbatch: int | None
    row: int
    """From 0: the rank."""
    cell: int
    """From 0."""
    position: int
    """From 0, among the actions of its row."""

    @property
    def key(self) -> Key:
        """What identifies it."""
        return (self.kind, self.stage, self.microbatch)

    @property
    def name(self) -> str:
        """As torch writes it, `1RECV_F0`."""
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"

    @property
    def place(self) -> str:
        """Its row and cell, for messages about another action."""
        return f"row {self.row + 1}, cell {self.cell + 1}"

    def finding(self, rule: str, message: str) -> Finding:
        """A finding about this action."""
        return Finding(rule, self.row + 1, self.cell + 1, self.name, message)


def read_rows(content: bytes, name: str) -> list[list[str]]:
    """The cells of the file's rows.

    Raises:
        InvalidInput: it is no text in UTF-8, or no CSV; `name` is what the message calls the file.
    """
    try:
        return list(csv.reader(io.StringIO(content.decode("utf-8-sig"), newline="")))
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{name}: found a byte that is not UTF-8 at {error.start}, expected a CSV in UTF-8") from error
    except csv.Error as error:
        raise InvalidInput(f"{name}: found text that is no CSV ({error}), expected one row of actions for each rank") from error


def layout_of(rows: Sequence[Sequence[str]]) -> str:
    """`compute_comms` if the rows have anything but compute, else `compute_only`."""
    words = (*TRANSFERS, *WHOLE_STAGE)
    return "compute_comms" if any(word in cell for row in rows for cell in row for word in words) else "compute_only"


def check_rows(rows: Sequence[Sequence[str]], problem: Problem) -> Iterator[Finding]:
    """There is one row for each rank, and no blank line, which torch takes for one more."""
    for index, row in enumerate(rows):
        if not row:
            yield Finding("rows", index + 1, None, "", "a blank line, which torch counts as the row of one more rank; remove it")
    count = sum(map(bool, rows))
    if count != problem.ranks:
        yield Finding("rows", None, None, "", f"found {count} rows, expected {problem.ranks}, one for each rank of the job")


def check_cells(rows: Sequence[Sequence[str]], problem: Problem, layout: str) -> Iterator[Finding]:
    """Each cell is an action, spelled as torch spells it and with numbers that exist; none is empty in `compute_comms`."""
    for row, cells in enumerate(rows):
        for cell, text in enumerate(cells):
            for rule, message in _of_cell(text.strip(), problem, layout):
                yield Finding(rule, row + 1, cell + 1, text, message)


def read_actions(rows: Sequence[Sequence[str]], problem: Problem) -> tuple[tuple[Action, ...], ...]:
    """The actions of each row as torch reads them, without those whose numbers do not exist."""
    read = []
    for row, cells in enumerate(rows):
        actions: list[Action] = []
        for cell, text in enumerate(cells):
            for part in _parts(text.strip()):
                match = _ACTION.match(part)
                if match is None or any(True for _ in _wrong_numbers(match, problem)):
                    continue
                stage, kind, microbatch = match.groups()
                number = None if kind in WHOLE_STAGE else int(microbatch)
                actions.append(Action(kind, int(stage), number, row, cell, len(actions)))
        read.append(tuple(actions))
    return tuple(read)


def _parts(text: str) -> list[str]:
    """The actions of an OVERLAP_F_B cell, or the one that the cell is."""
    if text.startswith("(") and ")" in text:
        return [part.strip() for part in text[1 : text.find(")")].split(";") if part.strip()]
    return [text] if text else []


def _of_cell(text: str, problem: Problem, layout: str) -> Iterator[tuple[str, str]]:
    """What is wrong with one cell: rule and message."""
    if not text:
        if layout == "compute_comms":
            yield "empty-cell", "torch refuses empty cells in compute_comms; they mean idle in compute_only only"
        return
    parts = _parts(text)
    if text.startswith("("):
        ending = text[text.find(")") + 1 :] if ")" in text else ""
        if ending != OVERLAP:
            yield "action", f"found {ending!r} behind the parentheses, expected {OVERLAP} as in (0F3;3B1){OVERLAP}"
        if len(parts) < 2:
            yield "action", "expected two actions or more in the parentheses, as in (0F3;3B1)OVERLAP_F_B"
    for part in parts:
        yield from _of_action(part, problem, layout)


def _of_action(text: str, problem: Problem, layout: str) -> Iterator[tuple[str, str]]:
    match = _ACTION.match(text)
    if match is None:
        yield "action", f"found {text!r}, which torch refuses; expected an action as in 2F0, 1RECV_F3 or 0REDUCE_GRAD"
        return
    stage, kind, microbatch = match.groups()
    if match.end() < len(text):
        yield "junk", f"torch reads {match[0]} and ignores the {text[match.end() :]!r} after it"
    elif (plain := f"{_number(stage)}{kind}{_number(microbatch) if microbatch else ''}") != text:
        yield "spelling", f"torch reads {plain}; write it so"
    if layout == "compute_only" and kind not in COMPUTE:
        yield "format", f"torch refuses {kind} in compute_only, which has only F, I, B, W and {OVERLAP}"
    if kind in WHOLE_STAGE and microbatch:
        yield "microbatch", f"{kind} is of a whole stage; torch ignores its microbatch number"
    yield from _wrong_numbers(match, problem)


def _wrong_numbers(match: re.Match[str], problem: Problem) -> Iterator[tuple[str, str]]:
    stage, kind, microbatch = match.groups()
    if _number(stage) >= len(problem.stages):
        yield "stage", f"there is no stage {_number(stage)}; the job's stages are 0 to {len(problem.stages) - 1}"
    if kind in WHOLE_STAGE:
        return
    if not microbatch:
        yield "microbatch", "it has no microbatch number; torch fails at this action"
    elif _number(microbatch) >= problem.microbatches:
        yield "microbatch", f"there is no microbatch {_number(microbatch)}; the job's are 0 to {problem.microbatches - 1}"


def _number(digits: str) -> int:
    """The number; one of absurdly many digits is cut, as nothing counts that far and Python refuses to."""
    return int(digits[:_MOST_DIGITS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lists:
    """One list of actions for each rank, and what the rules look up in it."""

    rows: tuple[tuple[Action, ...], ...]
    stages: int
    microbatches: int
    at: dict[Key, Action]
    """Of each action, its first occurrence."""
    rank_of: dict[int, int]
    """The row that has a stage's first compute action."""

    @classmethod
    def of(cls, rows: tuple[tuple[Action, ...], ...], stages: int, microbatches: int) -> Lists:
        """The lists with their lookups."""
        last_first = [action for row in reversed(rows) for action in reversed(row)]
        rank_of = {action.stage: action.row for action in last_first if action.kind in COMPUTE}
        at = {action.key: action for action in last_first}
        in_order = {action.key: at[action.key] for row in rows for action in row}
        return cls(rows=rows, stages=stages, microbatches=microbatches, at=in_order, rank_of=rank_of)

    def backward(self, stage: int, microbatch: int) -> Action | None:
        """The action that computes the gradient of the stage's input: B or I."""
        return self.at.get(("B", stage, microbatch)) or self.at.get(("I", stage, microbatch))

    def crosses(self, stage: int, other: int) -> bool:
        """Whether what goes from one stage to the other leaves the rank; False where one of them does not exist."""
        here, there = self.rank_of.get(stage), self.rank_of.get(other)
        return here is not None and there is not None and here != there

    def missing(self, kind: str, stage: int, microbatch: int | None, message: str, rule: str = "missing") -> Finding:
        """A finding about a missing action; its place is the row of its stage."""
        row = self.rank_of.get(stage)
        name = f"{stage}{kind}{'' if microbatch is None else microbatch}"
        return Finding(rule, None if row is None else row + 1, None, name, message)
