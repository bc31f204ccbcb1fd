"""Megatron-LM's `--pipeline-model-parallel-layout`: the layers of each stage, which are on the ranks in a loop.

The text has a letter for each layer (`E` embedding, `t` decoder layer, `m` module for further tokens, `L` head and loss) and `|`
between stages. `x*n` is a letter n times, `(…)*n` what is in the parentheses n times; commas mean nothing. Stage i is on rank
i modulo the number of ranks. Megatron decides the order of ops itself.
"""

from __future__ import annotations

import re
from itertools import groupby
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, Unsupported
from schedc.interop.layouts.model_layers import ModelLayer, layers_of_stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan

__all__ = ["format_layout", "megatron_options", "parse_layout", "partition_of"]

_NAMES = {
    ModelLayer.EMBEDDING: "embedding",
    ModelLayer.BLOCK: "decoder",
    ModelLayer.FURTHER_TOKEN: "mtp",
    ModelLayer.HEAD: "loss",
}
"""What layers are called in the list form."""
_REPEATED = re.compile(r"(?:\(([EtmL|*0-9]+)\)|([EtmL|]))(?:\*(\d+))?")
_LETTER = re.compile(r"([EtmL|])(?:\*(\d+))?")
_MOST = 100_000
"""Layers and stages of a layout: more than any model has, so that a wrong number takes no memory."""


def megatron_options(plan: Plan, layers: Sequence[ModelLayer]) -> str:
    """The options of Megatron-LM for a plan's layout, one for each line, then the layout as a list in a comment.

    Args:
        plan: the plan.
        layers: what each of its model's layers is.

    Raises:
        Unsupported: Megatron cannot express the layout; says why.
    """
    problem = plan.problem
    stages = layers_of_stages(plan, layers)
    if [stage.rank for stage in problem.stages] != [index % problem.ranks for index in range(len(stages))]:
        why = f"the placement is {problem.placement}, and Megatron's stages are on the ranks in a loop"
        raise Unsupported(f"{plan.name}: Megatron cannot express this layout: {why}; compile with placement unidirectional or loop")
    if len(stages) % problem.ranks:
        raise Unsupported(f"{plan.name}: {len(stages)} stages are not a multiple of {problem.ranks} ranks, as Megatron needs them")
    if sum(ModelLayer.FURTHER_TOKEN in stage for stage in stages) > 1:
        why = "its modules for further tokens are in several stages, and Megatron has all of them in one"
        raise Unsupported(f"{plan.name}: Megatron cannot express this layout: {why}")
    named = [[_NAMES[layer] for layer in stage] for stage in stages]
    return (
        f"--pipeline-model-parallel-size {problem.ranks}\n"
        f"--pipeline-model-parallel-layout '{format_layout(stages)}'\n"
        f"# as a list: pipeline_model_parallel_layout = {named}\n"
    )


def format_layout(stages: Sequence[Sequence[ModelLayer]]) -> str:
    """The layout's text, equal neighbours written once."""
    texts = ["".join(_repeated(letter, len(list(run))) for letter, run in groupby(stage)) for stage in stages]
    *before, last = texts
    runs = [(text, len(list(run))) for text, run in groupby(before)]
    return "".join(f"({text}|)*{count}" if count > 1 else f"{text}|" for text, count in runs) + last


def parse_layout(text: str) -> tuple[tuple[ModelLayer, ...], ...]:
    """The layers of each stage that a layout's text has.

    Raises:
        InvalidInput: it is no layout.
    """
    plain = _unrolled(text.replace(",", ""), _REPEATED, text)
    stages = tuple(tuple(ModelLayer(letter) for letter in stage) for stage in _unrolled(plain, _LETTER, text).split("|"))
    letters = "".join(letter for stage in stages for letter in stage)
    if not re.fullmatch("Et*m*L", letters):
        raise InvalidInput(f"layout: found {text!r}, expected one E first, then t, then m, and one L last")
    return stages


def partition_of(stages: Sequence[Sequence[ModelLayer]]) -> list[int]:
    """The `partition` of a job's `[pipeline]`: how many layers each stage has, the embedding and the head among them."""
    return [len(stage) for stage in stages]


def _repeated(letter: str, count: int) -> str:
    return letter * count if count < 3 else f"{letter}*{count}"


def _unrolled(text: str, pattern: re.Pattern[str], whole: str) -> str:
    """The text with every `…*n` of the pattern written out; letters stay as they are."""
    made, at = "", 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise InvalidInput(f"layout: found {text[at]!r} in {whole!r}, expected E, t, m, L, | and (…)*n or x*n")
        *contents, count = match.groups()
        content = next(part for part in contents if part is not None)
        if len(made) + len(content) * int((count or "1")[:9]) > _MOST:
            raise InvalidInput(f"layout: found more than {_MOST} layers and stages in {whole!r}, expected fewer")
        in_parentheses = len(contents) > 1 and contents[0] is not None
        made += content * int(count or "1") if pattern is _LETTER or in_parentheses else match[0]
        at = match.end()
    return made
