"""What a method is: one class with a name and typed options, which parse themselves from text, `greedy{n_sub=2}`.

A constructive method makes a Schedule of a Problem, a search improves an incumbent. A class with a name is known from when its
module is imported (`METHODS`); `methods_in` imports all modules of a folder. Nobody trusts what a method thinks of its own result:
the simulator times it and the verifier accepts it.
"""

from __future__ import annotations

import re
from importlib import import_module
from math import ceil
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from msgspec import Meta, Struct

from schedc.errors import Unsupported
from schedc.io.conform import conform
from schedc.ir import Kind, Problem, Schedule, Stage
from schedc.solvers.common.base import Climbing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from schedc.io.location import Location
    from schedc.solvers.common.base import Limits
    from schedc.solvers.common.incumbent import Incumbent

Ops = Annotated[int, Meta(ge=0, le=10**9)]
"""How many ops, or evaluations, may be spent."""
FUSED = " + fused"
"""After a constructive method's name: the schedule that it makes where every backward must fuse."""
SMALL_OPS = 5_000
"""Up to this many compute ops the methods that make a schedule at once take about a second together."""
METHODS: dict[str, type[Method]] = {}
"""The methods of the modules that are imported, by name."""


class Method(Struct, frozen=True, forbid_unknown_fields=True):
    """A method. Its fields are its options; their types say what is allowed."""

    name: ClassVar[str] = ""
    """What `--method` calls it."""
    place: ClassVar[int] = 0
    """Its place in lists, and in what `auto` tries: of equal schedules the first is kept."""
    steps_overlap: ClassVar[bool] = False
    """Whether it makes periods, for problems whose steps overlap, and for no others; else it is for others alone."""
    graphs: ClassVar[bool] = False
    """Whether it plans stages that are a graph; a chain is no graph here."""
    slices: ClassVar[bool] = False
    """Whether it plans microbatches in slices."""

    def __init_subclass__(cls, **config: Any) -> None:
        """Keep a class that has a name."""
        super().__init_subclass__(**config)
        if cls.name:
            METHODS[cls.name] = cls

    @classmethod
    def misfit(cls, problem: Problem) -> str:
        """Why it is not for this problem, whatever its numbers: what it needs, in one line; empty: it is."""
        if problem.edges and not cls.graphs:
            return f"{cls.name} needs stages that are a chain; this job has edges"
        if problem.slices and not cls.slices:
            return f"{cls.name} needs whole microbatches; this job has slices"
        return ""

    @classmethod
    def parse(cls, text: str, location: Location) -> Self:
        """The method with the options in the text, `n_sub=2,in_flight=memory`; what it does not name has its default.

        Raises:
            InvalidInput: an option is unknown or given twice, or its value is of the wrong type or out of range.
        """
        table: dict[str, Any] = {}
        for option in filter(None, map(str.strip, re.split(r",(?=\s*\w+=)", text))):  # a value may be a list with commas
            name, equals, value = option.partition("=")
            if not equals:
                raise location.refuse(f"the option {option!r}", "name=value")
            if name in table:
                raise (location / name).refuse("the option twice", "it once")
            table[name] = _value(value)
        return conform(table, cls, location)


class Constructive(Method, frozen=True):
    """A method that makes a schedule at once; a pure function of the problem, called as one."""

    @classmethod
    def candidates(cls, problem: Problem) -> Iterable[str]:
        """Which of its forms `auto` and the searches start from on this problem, as text; by default none."""
        return ()

    def construct(self, problem: Problem) -> Schedule:
        """The schedule; it may break a memory limit, and nothing else.

        Raises:
            Unsupported: the method does not exist for the problem's numbers.
        """
        raise NotImplementedError

    def __call__(self, problem: Problem) -> Schedule:
        """As `construct`; also refuses a graph, or slices, that it does not plan."""
        if why_not := self.misfit(problem):
            raise Unsupported(why_not)
        return self.construct(problem)


class Template(Constructive, frozen=True):
    """A known schedule.

    It looks at the placement and the number of microbatches, never at durations, links or (but for `interleaved` where p does not
    divide m) memory limits: what it takes and holds on a job, the simulator and the verifier say.
    """

    summary: ClassVar[str]
    """Its order and the most that a rank holds, for p ranks, m microbatches and v chunks."""
    placements: ClassVar[str]
    """The placements that it exists for."""
    source: ClassVar[str]
    """Where it was published."""

    @classmethod
    def candidates(cls, problem: Problem) -> Iterable[str]:
        """Always."""
        return (cls.name,)


class Search(Method, frozen=True):
    """A method that improves what is known about a problem."""

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer schedules and bounds until the gap, the limit, or a proof.

        Raises:
            Unsupported: there is nothing to search for on this problem, or nothing to start from.
        """
        raise NotImplementedError


class LocalSearch(Search, frozen=True):
    """A search that climbs in rounds."""

    rounds: Annotated[int, Meta(ge=1, le=10**6)] = 40
    """Rounds of climbing at most."""
    evaluations: Ops = 0
    """For each climb and round; 0: as many as suit the problem's size."""

    def climbing(self, incumbent: Incumbent, limits: Limits) -> Climbing:
        """What the options and limits say. Of a limit of work a unit admits one round, which takes a second or two on one core."""
        work = limits.deterministic
        return Climbing(
            evaluations=self.evaluations,
            rounds=self.rounds if work is None else min(self.rounds, max(1, ceil(work))),
            seed=limits.seed,
            time_s=limits.clock_s,
            good_enough_ns=incumbent.bound_ns,
        )


def fusing_saves_time(problem: Problem) -> bool:
    """Whether some BW takes less time than its B and W together, and may be split.

    Elsewhere B followed by W at once does all that BW does, no later; or there is no choice.
    """

    def saves(stage: Stage) -> bool:
        times = [stage.durations_ns(kind) for kind in (Kind.BW, Kind.B, Kind.W)]  # one for all microbatches, or one each
        count = max(map(len, times))
        spread = (each * (count // len(each)) for each in times)
        return any(both_ns < b_ns + w_ns for both_ns, b_ns, w_ns in zip(*spread, strict=True))

    return problem.split_backward and any(map(saves, problem.stages))


def fusing_frees(problem: Problem) -> bool:
    """Whether some B leaves more held than it found, where memory is limited: W's, until W has run, where BW leaves nothing.

    W right behind B holds no more than BW does; but a method that leaves W for later, as most do, may find no more room.
    """
    return problem.split_backward and any(
        stage.activation_after_input_bytes > stage.activation_bytes and problem.memory_limit_bytes[stage.rank] is not None
        for stage in problem.stages
    )


def methods_in(folder: str) -> Iterator[type[Method]]:
    """Import the modules of a folder of `schedc.solvers` one by one, and give the methods of each."""
    package = import_module(f"schedc.solvers.{folder}")
    for each in iter_modules(package.__path__, f"{package.__name__}."):
        import_module(each.name)
        yield from [method for method in METHODS.values() if method.__module__ == each.name]


def _value(text: str) -> object:
    """A number, a truth value or a list of them where the text reads as one, else the text."""
    if "," in text:
        return [_value(entry) for entry in text.split(",")]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.strip().lower(), text)
