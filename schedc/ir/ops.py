"""Compute ops and their tokens, the one vocabulary of schedules, plans and messages.

An op is a block of one stage for one microbatch, or one part of such a block. Its token is its name in the plan file
(formats: `F0.5`, `BW3.12`, `W3.12/0`). The update of a stage's weights is an op where steps overlap: `U3.7`, of step 7.
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
_TOKEN = re.compile(r"(F|BW|B|W|U)(0|[1-9]\d*)\.(0|[1-9]\d*)(?:/(0|[1-9]\d*))?", re.ASCII)


class Op(NamedTuple):
    """One compute op: the block `kind` of `stage` for `microbatch`; `part` is `WHOLE` or the index of one part of it."""

    kind: Kind
    stage: int
    microbatch: int
    part: int = WHOLE


def token(op: Op) -> str:
    """The op's name in plans and messages, `W3.12` or `W3.12/0`."""
    name = f"{KIND_NAMES[op.kind]}{op.stage}.{op.microbatch}"
    return name if op.part == WHOLE else f"{name}/{op.part}"


def parse_op(text: str) -> Op:
    """The op that `text` names; the inverse of `token`.

    Raises:
        ValueError: `text` is not a token.
    """
    match = _TOKEN.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an op; expected F, B, W, BW or U, then stage.microbatch, as in W3.12 or W3.12/0")
    kind, stage, microbatch, part = match.groups()
    return Op(_KIND_OF_NAME[kind], int(stage), int(microbatch), WHOLE if part is None else int(part))
