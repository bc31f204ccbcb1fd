"""Megatron-LM's `--pipeline-model-parallel-layout`: the layers of each stage, as text.

It has a letter for each layer and `|` between stages. `x*n` is a letter n times, `(…)*n` what is in the parentheses n times; commas
mean nothing. Stage i is on rank i modulo the number of ranks.
"""

from __future__ import annotations

import re
from enum import StrEnum
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LAYOUT_PATTERN = r"^(auto|E[tmL|()*0-9,]*)$"
"""Of texts that may be layouts, or "auto", for a schema."""
_REPEATED = re.compile(r"\((?P<content>[EtmL|*0-9]+)\)\*(?P<count>\d+)|[EtmL|](?:\*\d+)?")
_LETTER = re.compile(r"(?P<content>[EtmL|])(?:\*(?P<count>\d+))?")
_MOST = 100_000
"""Layers and stages of a layout: more than any model has, so that a wrong number takes no memory."""


class ModelLayer(StrEnum):
    """What a layer is, by Megatron's letter for it."""

    EMBEDDING = "E"
    BLOCK = "t"
    FURTHER_TOKEN = "m"
    HEAD = "L"


def format_layout(stages: Sequence[Sequence[ModelLayer]]) -> str:
    """The layout's text, equal neighbours written once."""
    counts = [[(letter, len(list(run))) for letter, run in groupby(stage)] for stage in stages]
    texts = ["".join(letter * count if count < 3 else f"{letter}*{count}" for letter, count in stage) for stage in counts]
    *before, last = texts
    runs = [(text, len(list(run))) for text, run in groupby(before)]
    return "".join(f"({text}|)*{count}" if count > 1 else f"{text}|" for text, count in runs) + last


def parse_layout(text: str) -> tuple[tuple[ModelLayer, ...], ...]:
    """The layers of each stage that a layout's text has.

    Raises:
        ValueError: it is no layout; says what is expected.
    """
    plain = _unrolled(text.replace(",", ""), _REPEATED)
    stages = tuple(tuple(ModelLayer(letter) for letter in stage) for stage in _unrolled(plain, _LETTER).split("|"))
    letters = "".join(letter for stage in stages for letter in stage)
    if not re.fullmatch("Et*m*L", letters):
        raise ValueError("expected a layout with one E first, then t, then m, and one L last")
    return stages


def partition_of(text: str) -> tuple[int, ...]:
    """How many layers each stage of a layout's text has, the embedding and the head among them.

    Raises:
        ValueError: it is no layout, or a stage has no layers.
    """
    counts = tuple(map(len, parse_layout(text)))
    if 0 in counts:
        raise ValueError(f"expected a layer in each stage, and stage {counts.index(0)} has none")
    return counts


def _unrolled(text: str, pattern: re.Pattern[str]) -> str:
    """The text with every `…*n` of the pattern written out; letters stay as they are."""
    made, at = "", 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise ValueError(f"expected a layout of Megatron-LM, of E, t, m, L and |, with (…)*n or x*n, and not {text[at]!r}")
        content, count = match["content"], match["count"] or "1"
        if content is not None and len(made) + len(content) * int(count[:9]) > _MOST:
            raise ValueError(f"expected a layout of at most {_MOST} layers and stages")
        made += match[0] if content is None else content * int(count)
        at = match.end()
    return made
