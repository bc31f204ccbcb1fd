"""Compute ops and their tokens, the one vocabulary of schedules, plans and messages.

An op is a block of one stage for one microbatch, or one part of such a block. Its token is its name in the plan file
(formats: `F0.5`, `BW3.12`, `W3.12/0`). The update of a stage's weights is an op where steps overlap: `U3.7`, of step 7. A
transfer has the name of the whole op that sends it; where stages are a graph, with the stage that it goes to: `F0.5>3` (`sent_to`).
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import NamedTuple

WHOLE = -1
"""The `part` of an op that is its whole block."""


class Kind(IntEnum):
    """The kinds of compute blocks; the values index tables."""

    F = 0
    """Forward."""
    B = 1
    """Backward of the input (CrossPipe's D, PyTorch's I)."""
    W = 2
    """Backward of the weights."""
    BW = 3
    """Both backwards fused in one block; sends its gradient when all of it has ended."""
    U = 4
    """Update of the stage's weights; its `microbatch` is the number of the step. Only where steps overlap (`Problem.updates`)."""


BLOCKS = (Kind.F, Kind.B, Kind.W, Kind.BW)
"""The kinds of blocks of a microbatch."""


KIND_NAMES: tuple[str, ...] = tuple(kind.name for kind in Kind)
_KIND_OF_NAME = {kind.name: kind for kind in Kind}
_TOKEN = re.compile(r"(F|BW|B|W|U)(0|[1-9]\d*)\.(0|[1-9]\d*)(?:/(0|[1-9]\d*)|>(0|[1-9]\d*))?", re.ASCII)


class Op(NamedTuple):
    """One compute op: the block `kind` of `stage` for `microbatch`; `part` is `WHOLE` or the index of one part of it.

    Below `WHOLE`, where stages are a graph, it is no op but the name of a transfer (`sent_to`).
    """

    kind: Kind
    stage: int
    microbatch: int
    part: int = WHOLE


def sent_to(op: Op, stage: int) -> Op:
    """The name of what the op sends to a stage, where stages are a graph: `F0.5>3`."""
    return op._replace(part=WHOLE - 1 - stage)


def goes_to(transfer: Op) -> int:
    """The stage that such a name says; the inverse of `sent_to`. Below 0: it is the name of an op."""
    return WHOLE - 1 - transfer.part


def token(op: Op, slices: int = 0) -> str:
    """The op's name in plans and messages, `W3.12` or `W3.12/0`; a transfer's, where stages are a graph, `F0.5>3`.

    Args:
        op: it or the transfer.
        slices: for people, how many slices a microbatch has: `W3.4:0` is of slice 0 of microbatch 4 (`Problem.token`).
    """
    name = f"{KIND_NAMES[op.kind]}{op.stage}.{unit(op.microbatch, slices)}"
    if op.part == WHOLE:
        return name
    return f"{name}/{op.part}" if op.part > WHOLE else f"{name}>{goes_to(op)}"


def unit(microbatch: int, slices: int) -> str:
    """The microbatch for people; where each has `slices` of them, `4:0` is slice 0 of microbatch 4."""
    return f"{microbatch // slices}:{microbatch % slices}" if slices else str(microbatch)


def parse_op(text: str) -> Op:
    """The op or transfer that `text` names; the inverse of `token`.

    Raises:
        ValueError: `text` is not a token.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an op; expected F, B, W, BW or U, then stage.microbatch, as in W3.12 or W3.12/0")
    kind, stage, microbatch, part, to = match.groups()
    op = Op(_KIND_OF_NAME[kind], int(stage), int(microbatch), WHOLE if part is None else int(part))
    return op if to is None else sent_to(op, int(to))
