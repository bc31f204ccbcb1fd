"""What a checkpoint costs: steps beside which one is written, the copy before them, and a checkpoint that training waits for.

Ranks over gloo train linear layers with AdamW. In one run, in turn: steps alone; a checkpoint written beside steps, as many as it
takes; one that is waited for. A step beside is one at whose begin a checkpoint was being written. Shown is rank 0: the median step
of each kind; and what a checkpoint costs training: the copy, and what all steps beside it take longer than as many alone.

Run it as `python benchmarks/adapting/checkpoints.py [--ranks 2] [--layers 16] [--width 1024] [--rounds 8]`; a few minutes.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

SAMPLES, ALONE = 8, 12
Times = dict[str, list[float]]
"""In seconds: of steps `alone` and `beside`, the `copy`, the `cost` of a checkpoint beside; of one that is `waited for`."""


def timed(rank: int, plan: Plan, width: int, layers: int, rounds: int, folder: str) -> Times:
    """All times of a rank, and the bytes of what it saves."""
    import torch
    from torch import nn

    import schedc.runtime
    from schedc.runtime.training.checkpoint import save_checkpoint

    torch.set_num_threads(1)
    torch.manual_seed(rank)
    whole = [nn.Linear(width, width) for _ in range(layers)]
    stages = {rank: nn.Sequential(*whole)}
    optimizer = torch.optim.AdamW(stages[rank].parameters(), lr=1e-4)
    batch = torch.randn(SAMPLES * plan.problem.microbatches, width)
    found: Times = {"bytes": [3.0 * sum(weight.nbytes for weight in stages[rank].parameters())]}

    with schedc.runtime.load(plan, stages=stages, loss_fn=nn.functional.mse_loss, timeout_s=60) as pipe:

        def step() -> float:
            begun_s = time.perf_counter()
            optimizer.zero_grad()
            pipe.step(batch, batch)
            optimizer.step()
            return time.perf_counter() - begun_s

        for number in range(rounds + 1):
            alone = [step() for _ in range(ALONE)]
            begun_s = time.perf_counter()
            writing = save_checkpoint(pipe, f"{folder}/beside-{number}", optimizer, model=stages[rank], beside=True)
            copied_s, steps = time.perf_counter() - begun_s, list[float]()
            while not all(pipe.groups.exchange(writing.done)):
                steps.append(step())
            writing.wait()
            alone += [step() for _ in range(ALONE)]
            begun_s = time.perf_counter()
            save_checkpoint(pipe, f"{folder}/waited-for-{number}", optimizer, model=stages[rank])
            waited_s = time.perf_counter() - begun_s
            if number == 0:  # the first allocates, connects and imports
                continue
            for name, seconds in (("alone", alone), ("beside", steps), ("waited for", [waited_s]), ("copy", [copied_s])):
                found.setdefault(name, []).extend(seconds)
            found.setdefault("cost", []).append(copied_s + sum(each - median(alone) for each in steps))
            pipe.groups.exchange(None)
            if rank == 0:
                for each_folder in Path(folder).iterdir():
                    shutil.rmtree(each_folder)
    return found


def main() -> None:
    """Measure, print."""
    from inputs.few_plans import made_by
    from runs.processes import rank_processes

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--layers", type=int, default=16, help="of each rank")
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=8)
    arguments = parser.parse_args()
    plan = made_by("1f1b", arguments.ranks, arguments.microbatches)
    with tempfile.TemporaryDirectory() as directory, rank_processes(arguments.ranks, Path(directory)) as ranks:
        folder = str(Path(directory) / "checkpoints")
        given: tuple[Any, ...] = (plan, arguments.width, arguments.layers, arguments.rounds, folder)
        times, *others = ranks.run(timed, *given, limit_s=3600)
    assert isinstance(times, dict), (times, others)
    alone_s = median(times["alone"])
    print(f"{arguments.ranks} ranks, {times['bytes'][0] / 1e6:.0f} MB of weights and AdamW's state each")
    print(f"a step alone: {1e3 * alone_s:.1f} ms, the median of {len(times['alone'])}")
    waited_s = median(times["waited for"])
    print(f"a checkpoint that is waited for: {1e3 * waited_s:.0f} ms, {waited_s / alone_s:.2f} steps")
    steps, copied_s, cost_s = times["beside"], median(times["copy"]), median(times["cost"])
    print(
        f"one written beside: {len(steps) / arguments.rounds:.1f} steps of {1e3 * median(steps):.1f} ms, a ratio of"
        f" {median(steps) / alone_s:.2f}, after a copy of {1e3 * copied_s:.0f} ms; it costs {1e3 * cost_s:.0f} ms,"
        f" {cost_s / alone_s:.2f} steps"
    )


if __name__ == "__main__":
    main()
