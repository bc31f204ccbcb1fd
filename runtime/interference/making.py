"""Interference that is made to learn from: a small stage runs alone, and beside processes that compete, run after run.

The stage and its competitors are processes of their own (`child`), which end with this one. A quarter of the runs, drawn at random,
have no competitors; what an iteration takes alone is the least of their medians, as others on the machine only make it longer.
"""

from __future__ import annotations

import json
import os
from contextlib import ExitStack
from math import ceil
from random import Random
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import NoPlanFound, Unsupported
from schedc.io.child import Child, ChildDied
from schedc.runtime.interference.fitting import InterferenceSample
from schedc.runtime.interference.predictor import WINDOW_S
from schedc.runtime.interference.seen import PROC

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CALM = 0.25
"""The share of runs without competitors."""
DUTIES = (0.25, 0.5, 0.75, 1.0)
BUSY = (0.5, 0.75, 1.0)
MOST_COMPETITORS = 64
OVER = 1.5
"""Competitors for each CPU, at most."""
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Competition(NamedTuple):
    """What competes in a run."""

    burners: int
    """Processes that compute."""
    streams: int
    """Processes that copy memory."""
    duty: float
    """For which share of the time."""
    busy: float = 1.0
    """For which share of the time the stage itself works, if nothing slows it down."""


CALM_RUN = Competition(0, 0, 0.0)


class MadeInterference(NamedTuple):
    """All runs."""

    samples: tuple[InterferenceSample, ...]
    alone_ns: float
    """What an iteration of the stage takes alone."""


def drawn_competitions(runs: int, most: int, seed: int) -> list[Competition]:
    """One for each run, of at most this many processes; the first is calm, as are a quarter of the others."""
    draw = Random(seed)
    found = [CALM_RUN]
    while len(found) < runs:
        streams = draw.randint(0, most)
        burners = draw.randint(0 if streams else 1, most - streams) if streams < most else 0
        drawn = CALM_RUN if draw.random() < CALM else Competition(burners, streams, draw.choice(DUTIES))
        found.append(drawn._replace(busy=draw.choice(BUSY)))
    return found


def most_competitors(cpus: int) -> int:
    """How many processes compete at most."""
    return min(MOST_COMPETITORS, ceil(OVER * cpus))


def make(
    runs: int,
    run_s: float,
    *,
    most: int | None = None,
    seed: int = 0,
    on_run: Callable[[int, Competition], None] = lambda _run, _competition: None,
) -> MadeInterference:
    """Run the stage alone and beside competitors.

    Args:
        runs: how many.
        run_s: how long each is.
        most: how many processes compete at most; None: 1.5 for each CPU.
        seed: of what competes when.
        on_run: is called before each run.

    Raises:
        NoPlanFound: one of the processes has died.
        Unsupported: this is not Linux.
    """
    if not (PROC / "stat").exists():
        raise Unsupported("interference: found no /proc, expected Linux")
    if most is None:
        most = most_competitors(len(os.sched_getaffinity(0)))
    competitions = drawn_competitions(runs, most, seed)
    found: list[list[tuple[dict[str, float], float]]] = []
    try:
        with ExitStack() as processes:
            child = ["-m", "schedc.runtime.interference.child"]
            stage, *competitors = (processes.enter_context(Child(child, THREADS)) for _ in range(1 + most))
            for run, competition in enumerate(competitions):
                on_run(run, competition)
                kinds = ["burn"] * competition.burners + ["stream"] * competition.streams
                for at, competitor in enumerate(competitors):
                    duty = competition.duty if at < len(kinds) else 0.0
                    competitor.ask(json.dumps({"compete": (*kinds, "burn")[min(at, len(kinds))], "duty": duty}).encode())
                question = {"measure_s": run_s, "window_s": WINDOW_S, "busy": competition.busy}
                found.append(json.loads(stage.ask(json.dumps(question).encode())))
    except ChildDied as error:
        raise NoPlanFound(f"interference: a process of the measurement {error}") from error
    return samples_of(competitions, found)


def samples_of(competitions: Sequence[Competition], found: Sequence[Sequence[tuple[dict[str, float], float]]]) -> MadeInterference:
    """Ratios to the time alone. A run without a window gives no sample; where no calm run has one, nothing does."""
    calm = [run for competition, run in zip(competitions, found, strict=True) if not competition.duty and run]
    if not calm:
        return MadeInterference((), 0.0)
    alone_ns = min(median(iteration_ns for _, iteration_ns in run) for run in calm)
    samples = (
        InterferenceSample(number, seen, iteration_ns / alone_ns) for number, run in enumerate(found) for seen, iteration_ns in run
    )
    return MadeInterference(tuple(samples), alone_ns)
