"""A real task learned by real pipelines whose steps overlap: loss over updates and over seconds, beside the synchronous pipeline.

The model and the characters of `delays.py`, in four stages on four processes, a batch of 12 sequences in 4 microbatches. Messages
take their time (`inject_links`): 30 ms on a link, and 30 ms more until they arrive, so that seconds are those of such links.

1. For steps that end, 2BW, stashed weights and bounded delays, with AdamW and Muon, and with corrections of the delay: the loss of
   the last updates, the time of an update (of wall clock, begin and drain included), when the last loss of steps that end is
   reached, and beside it the loss that steps that end have when the run is over, with their updates by then (the same optimizer;
   for NAdam AdamW). Losses of the first updates are compared with one process that applies the same delays
   (`tests/support/oracles`), where it can: it does not know bounded delays of this model, nor the reduced rate.
2. What a switch between a run and steps that end costs in a running job (`pipe.swap`).
3. With `--protocol` instead: eight stages by the plans of examples/protocol-nanogpt with 8 microbatches: 1F1B, and the period under
   2BW and stashed weights, without links. Losses over updates; seconds are updates by what the plans take.

Run it as `python benchmarks/asynchronous/learning.py [--updates 160] [--protocol]`; ten minutes, real processes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from bisect import bisect_right
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
sys.path.insert(0, str(Path(__file__).parents[2]))

from oracles.delayed_updates import DelayedTraining
from runs.asynchronous_runs import Joint
from runs.processes import Ranks, rank_processes

import schedc
from benchmarks.asynchronous.delays import RATES, WARM_UP, Task, next_character, optimizers_of, reached, train
from benchmarks.asynchronous.protocol_nanogpt import compiled, overlapping
from schedc.runtime import ReducedRate, StageOptimizers, WeightPrediction, load
from schedc.runtime.emulation.injected import inject_links

if TYPE_CHECKING:
    from collections.abc import Sequence

RANKS, MICROBATCHES = 4, 4
SEQUENCES = {4: 12, 8: 8}
"""In a batch, by the number of ranks."""
LINK = "30 ms"
LAST = 25
"""Losses are means over this many updates."""
COMPARED = 12
"""Updates that one process makes as well."""


class Way(NamedTuple):
    """How a plan trains."""

    optimizer: str
    correction: str = ""

    @property
    def rate(self) -> float:
        """The learning rate."""
        return RATES["adamw" if self.optimizer == "nadam" else self.optimizer]


WAYS = [
    Way("adamw"),
    Way("adamw", "prediction"),
    Way("adamw", "reduced rate"),
    Way("nadam"),
    Way("muon"),
    Way("muon", "prediction"),
]


class Trained(NamedTuple):
    """What one rank brings home; the same losses on all."""

    losses: list[float]
    ends_s: list[float]
    """When each update of the rank had ended, after the begin."""
    error: float | None
    """The largest relative error of the first losses, against one process."""


def plan_of(versions: str | None) -> schedc.Plan:
    """Four stages over slow links: the period with these versions, or a step that ends."""
    pipeline: dict[str, Any] = {"ranks": RANKS, "microbatches": MICROBATCHES, "split_backward": False}
    if versions is not None:
        pipeline |= {"mode": "asynchronous", "versions": versions, "update": "2 ms"}
    if versions == "bounded":
        pipeline["most_delay"] = RANKS - 1
    table = {
        "pipeline": pipeline,
        "profile": {"forward": "3 ms", "backward": "5 ms", "message": "12 KiB"},
        "topology": {"within": {"latency": LINK, "transfer": LINK}},
    }
    return schedc.compile_job(schedc.make_job(table, name=versions or "steps that end"), method="auto", time_limit_s=5).plan


def warmed(optimizers: Sequence[torch.optim.Optimizer]) -> list[torch.optim.lr_scheduler.LambdaLR]:
    """Schedules in which the rate rises in the first updates."""
    return [torch.optim.lr_scheduler.LambdaLR(each, lambda number: min(1.0, (number + 1) / WARM_UP)) for each in optimizers]


def stage_optimizers(stage: torch.nn.Module, way: Way, ends_s: list[float]) -> list[torch.optim.Optimizer]:
    """Those of a stage, which note the time of each update."""
    optimizers = [each for each in optimizers_of(way.optimizer, stage, way.rate) if each.param_groups[0]["params"]]
    for optimizer, schedule in zip(optimizers, warmed(optimizers), strict=True):
        optimizer.register_step_post_hook(lambda *_, schedule=schedule: schedule.step())
    optimizers[-1].register_step_post_hook(lambda *_: ends_s.append(time.perf_counter()))
    return optimizers


def corrected(way: Way, updates: int) -> list[Any]:
    """The correction that it names."""
    known: dict[str, list[Any]] = {"prediction": [WeightPrediction()], "reduced rate": [ReducedRate(updates)]}
    return known.get(way.correction, [])


def batches(task: Task, first: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Those of some updates, one behind the other."""
    inputs, targets = zip(*(task.batch(number) for number in range(first, first + count)), strict=True)
    return torch.cat(inputs), torch.cat(targets)


def expected_losses(task: Task, plan: schedc.Plan, way: Way, updates: int) -> torch.Tensor | None:
    """Of each update, by one process that applies the run's delays; None: it knows no such model or correction."""
    versions = plan.problem.updates
    if versions is None:
        return torch.tensor(train(task, way.optimizer, (0,) * task.blocks, updates))
    if versions.versions == "bounded" or way.correction == "reduced rate":
        return None
    pieces = [*task.stages()]
    oracle = DelayedTraining(
        plan,
        pieces,
        next_character,
        lambda stage, _: Joint(optimizers_of(way.optimizer, pieces[stage], way.rate)),
        predicts=way.correction == "prediction",
    )
    oracle.schedules = [schedule for joint in oracle.optimizers for schedule in warmed(joint.optimizers)]
    found = oracle.run(*(each.chunk(plan.problem.microbatches) for each in batches(task, 0, updates)))
    return found.reshape(updates, -1).mean(1)


def trained(rank: int, plan: schedc.Plan, way: Way, updates: int, *, injected: bool = True) -> Trained:
    """One rank of a pipeline that makes this many updates."""
    task = Task(0, plan.problem.ranks, SEQUENCES[plan.problem.ranks])
    stage, ends_s = task.stages()[rank], list[float]()
    optimizers, synchronous = stage_optimizers(stage, way, ends_s), plan.problem.updates is None
    options: dict[str, Any] = {}
    if not synchronous:
        options = {"optimizers": StageOptimizers({rank: optimizers}, corrections=corrected(way, updates)), "steps": updates}
    wrap = inject_links if injected else None
    with load(plan, stages={rank: stage}, loss_fn=next_character, timeout_s=300, wrap=wrap, **options) as pipe:
        begin_s = time.perf_counter()
        if synchronous:
            losses = []
            for update in range(updates):
                losses.append(pipe.step(*task.batch(update)).item())
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        else:
            losses = pipe.step(*batches(task, 0, updates)).tolist()
    error = None
    if rank == 0:
        run = plan if synchronous else schedc.unroll_plan(plan, COMPARED)
        expected = expected_losses(task, run, way, COMPARED)
        if expected is not None:
            error = max((abs(torch.tensor(losses[:COMPARED]) / expected - 1)).tolist())
    return Trained(losses, [end_s - begin_s for end_s in ends_s], error)


def row(name: str, way: Way, plan: schedc.Plan, found: Trained, ending: Trained) -> str:
    """A line of the table; `ending` has steps that end, with the same optimizer."""
    losses, delays = found.losses, ", ".join(map(str, plan.certificate.delays)) or "none"
    at = reached(losses, fmean(ending.losses[-LAST:]), LAST)
    cells = f"{name:15} {way.optimizer:6} {way.correction:13} {delays:11} {fmean(losses[-LAST:]):6.3f}"
    cells += f" {1e3 * found.ends_s[-1] / len(losses):7.0f} ms {plan.certificate.makespan_ns / 1e6:7.0f} ms"
    reaches = "not reached" if at is None else f"{at:4} {found.ends_s[at - 1]:6.1f} s"
    done = bisect_right(ending.ends_s, found.ends_s[-1])
    beside = f"{fmean(ending.losses[max(0, done - LAST) : done]):6.3f} ({done})" if done < len(losses) else ""
    return f"{cells}  {reaches:18}  {beside:12}  " + ("" if found.error is None else f"{found.error:.1e}")


def learning(ranks: Ranks, updates: int) -> None:
    """The first table."""
    print(f"{'':36}{'delays':11} {'loss':>6} {'an update':>10} {'planned':>10}  {'loss reached after':18}  {'beside':12}  error")
    endings: dict[str, Trained] = {}
    for versions in (None, "2bw", "stash", "bounded"):
        plan = plan_of(versions)
        for way in WAYS if versions is not None else [Way("adamw"), Way("muon")]:
            if way.correction == "reduced rate" and max(plan.certificate.delays) < 2:
                continue  # it is the whole rate
            found = results(ranks.run(trained, plan, way, updates, limit_s=900))[0]
            ending = endings.setdefault("muon" if way.optimizer == "muon" else "adamw", found)
            print(row(versions or "steps that end", way, plan, found, ending), flush=True)


def results(found: list[Any]) -> list[Any]:
    """What ranks have brought home.

    Raises:
        RuntimeError: one has failed.
    """
    if failed := [each for each in found if isinstance(each, str)]:
        raise RuntimeError(failed[0])
    return found


def switched(rank: int, plan: schedc.Plan, other: schedc.Plan, steps: int, times: int) -> list[tuple[str, float]]:
    """A job that moves to the other plan and back, several times: what each call of `step` took, in seconds."""
    task = Task(0, RANKS)
    stage, took = task.stages()[rank], list[tuple[str, float]]()
    optimizers, run = stage_optimizers(stage, Way("adamw"), []), schedc.unroll_plan(plan, steps)
    with load(
        run, stages={rank: stage}, loss_fn=next_character, timeout_s=300, wrap=inject_links, optimizers={rank: optimizers}
    ) as pipe:
        for number in range(12 * times):
            is_run = pipe.plan.problem.updates is not None
            offers = number % 6 == 3
            if offers:
                swap = pipe.swap(other if is_run else run)
            begin_s = time.perf_counter()
            pipe.step(*(batches(task, 0, steps) if is_run else task.batch(0)))
            end_s = time.perf_counter()
            took.append((f"{'a run' if is_run else 'a step that ends'}{', with the offer' if offers else ''}", end_s - begin_s))
            if not is_run:
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
        assert swap.state == "done", swap.reason
    return took


def switching(ranks: Ranks, steps: int = 6, times: int = 3) -> None:
    """What a switch costs."""
    run, ends = plan_of("2bw"), plan_of(None)
    found = results(ranks.run(switched, run, ends, steps, times, limit_s=300))[0]
    print(
        f"switching between runs of {steps} steps under 2BW and steps that end, {2 * times - 1} times; medians of seconds of a call"
    )
    for name in dict.fromkeys(name for name, _ in found):
        each = [took_s for number, (one, took_s) in enumerate(found) if one == name and number]
        print(f"  {name:35} {median(each):6.3f} ({len(each)} calls)")
    planned_s = [each.certificate.makespan_ns / 1e9 for each in (schedc.unroll_plan(run, steps), ends)]
    print(f"  planned: {planned_s[0]:.3f} and {planned_s[1]:.3f}; {steps} periods {steps * run.certificate.makespan_ns / 1e9:.3f}")


def protocol(ranks: Ranks, updates: int) -> None:
    """The stand-in for Protocol NanoGPT."""
    values = {"pipeline__microbatches": 8, "profile__message": "128 MiB", "profile__forward": "20224 us"}
    plans = {"1F1B": compiled("1f1b", 10, profile__backward="40456 us", **values).plan}
    plans |= {versions: overlapping(8, versions, 10) for versions in ("2bw", "stash")}
    every = max(1, updates // 8)
    ends = range(every, updates + 1, every)
    print(
        f"mean losses of {every} updates, by the last of them\n{'':25}{'a step':>9}"
        + "".join(f"{end:7}" for end in ends)
        + "   error"
    )
    for name, plan in plans.items():
        for way in (Way("adamw"), Way("muon"), Way("muon", "prediction")):
            if name == "1F1B" and way.correction:
                continue
            found = results(ranks.run(trained, plan, way, updates, injected=False, limit_s=900))[0]
            said = f"{name:6} {way.optimizer:6} {way.correction:11} {plan.certificate.makespan_ns / 1e9:7.2f} s"
            said += "".join(f"{fmean(found.losses[end - every : end]):7.3f}" for end in ends)
            print(f"{said}   {found.error:.1e}   {', '.join(map(str, plan.certificate.delays))}", flush=True)


def main() -> None:
    """Train and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=160)
    parser.add_argument("--protocol", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, rank_processes(8 if options.protocol else RANKS, Path(directory)) as ranks:
        if options.protocol:
            protocol(ranks, options.updates)
        else:
            learning(ranks, options.updates)
            switching(ranks)


if __name__ == "__main__":
    main()
