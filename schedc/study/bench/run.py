"""The runner: instances and methods in, one row for each pair out, one pair after the other, each in a process of its own.

A method that cannot, crashes, or has to be killed is a row that says so, not the end of the run.
"""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.child import Child, ChildDied, TookTooLong
from schedc.study.bench.cell import CellAnswer, CellRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.solvers.common.base import Limits
    from schedc.study.bench.instances import Instance

GRACE_S = 60.0
"""How long a cell may take beyond twice its time limit: methods look at the clock between their steps only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """What one method made of one instance."""

    instance: Instance
    method: str
    answer: CellAnswer

    @property
    def ratio(self) -> float | None:
        """The objective over the best comparable published value; None where one of the two is missing."""
        published = self.instance.published_best()
        if published is None or self.answer.objective_ns is None:
            return None
        return self.answer.objective_ns / published[1]


def run(instances: Sequence[Instance], methods: Sequence[str], *, limits: Limits) -> Iterator[BenchRow]:
    """A row for each instance and method, instance by instance, as soon as it is known.

    Args:
        instances: what to compile.
        methods: `auto` or methods' names, with options in braces.
        limits: of each cell.

    Raises:
        InvalidInput: a method's name or options are wrong.
    """
    for instance in instances:
        for method in methods:
            answer = _ask(CellRequest(problem=instance.problem, method=method, limits=limits))
            if answer.usage_error:
                raise InvalidInput(answer.why_not)
            yield BenchRow(instance=instance, method=method, answer=answer)


def split_methods(text: str) -> tuple[str, ...]:
    """The methods of a comma-separated list; commas inside braces belong to a method's options.

    Raises:
        InvalidInput: one of them is empty, or is a duplicate.
    """
    methods = tuple(part.strip() for part in re.split(r",(?![^{]*\})", text))
    if "" in methods:
        raise InvalidInput(f"methods {text!r}: found an empty name; expected names separated by commas, as in 1f1b,auto")
    twice = [method for index, method in enumerate(methods) if method in methods[:index]]
    if twice:
        raise InvalidInput(f"methods {text!r}: {twice[0]} is a duplicate; name each method once")
    return methods


def _ask(request: CellRequest) -> CellAnswer:
    """The answer of a fresh process, or how it failed to give one."""
    limit_s = request.limits.time_s
    kill_after_s = None if limit_s is None else 2 * limit_s + GRACE_S
    with Child(["-m", "schedc.study.bench.cell"]) as child:
        try:
            return CellAnswer(**json.loads(child.ask(pickle.dumps(request), kill_after_s)))
        except TookTooLong:
            return CellAnswer(why_not=f"killed after {kill_after_s:g} s, its time limit being {limit_s:g} s")
        except ChildDied as end:
            return CellAnswer(why_not=f"crashed, {end}")
