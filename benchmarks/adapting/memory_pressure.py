"""Memory that becomes little while four real processes train: what a watch of it does, and what that costs.

Stages wait 20 ms forward and 40 ms backward, so that the processes hardly compete for the machine's cores. All is seen on rank 0.

1. Versions: steps overlap, a microbatch each, in PipeDream's order with stashed versions, of which rank 0 holds four. Columns: how
   many have room; the most bytes on the device, the copy that an update is made in included; how many versions went to the host;
   how many ops found theirs there and waited; a step. On the CPU, "on the device" is what `VersionCache` counts.
2. Less room: with update 8, room for four versions becomes room for two. Columns: how long after that the watch warned; how long
   after that the versions kept to what is left, which they do from the next op on; the most above that afterwards; a step of the
   run in which it happens, and of those after it, by a plan made before that runs one microbatch after the other.
3. Another process: steps that end, 8 microbatches, 1F1B. A microbatch holds 16 MiB, really allocated. From step 4 on another
   process takes 2 MiB every 300 ms, 32 MiB in all. There is what rank 0 has had so far, and 16 MiB more; the watch warns below 12,
   and all ranks go on with a plan made for half of the memory. Columns: the most that the rank and the other process have beyond
   what there is, where an allocation fails; microbatches held, and a step, before and after; what the plans say of a step.

Run it as `python benchmarks/adapting/memory_pressure.py`; three minutes. Exit status 1: losses or weights are not bit by bit those
of runs of the same plans that had all memory, a step is lost, no rank moved, or memory did not last with a watch. Bytes of versions
do not depend on what else the machine does; times do.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import nullcontext
from mmap import mmap
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from runs.processes import rank_processes

import schedc
import schedc.runtime
from schedc.runtime.adapt.memory_pressure import MemoryWatch, PressureEvent
from schedc.runtime.asynchronous.cache import VersionCache
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RANKS, WIDTH, BATCH = 4, 256, 16
RUNS, STEPS = 4, 16
"""Of steps that overlap."""
MICROBATCHES, ENDING_STEPS, PRESSED = 8, 20, 4
"""Of steps that end; the first under pressure."""
FORWARD_S, BACKWARD_S = 0.02, 0.04
MIB = 2**20
HELD, PIECE, PIECES, PIECE_S, SPARE, LEAST = 16 * MIB, 2 * MIB, 16, 0.3, 16 * MIB, 12 * MIB
OTHER = (
    f"import time\nheld = []\nfor _ in range({PIECES}):\n    held.append(b'1' * {PIECE})\n    time.sleep({PIECE_S})\ntime.sleep(60)"
)
"""The other process; it ends by itself if nothing ends it."""


class Work(torch.autograd.Function):
    """What a stage does beside its layers: wait, and hold memory from forward to backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, held: int, seen: Callable[[], None]) -> torch.Tensor:
        """Hold this many bytes, and let the caller look."""
        ctx.held = mmap(-1, held or 1)  # given back to the system at once, unlike what an allocator keeps
        ctx.held.write(b"1" * held)
        seen()
        time.sleep(FORWARD_S)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """Let go of them."""
        time.sleep(BACKWARD_S)
        ctx.held.close()
        return gradients[0], None, None


class Stage(nn.Module):
    """Four linear layers, always with the same weights, and `Work`."""

    def __init__(self, rank: int, held: int = 0) -> None:
        """Take how many bytes a microbatch holds."""
        super().__init__()
        torch.manual_seed(rank)
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, dtype=torch.float64) for _ in range(4)))
        self.held = held
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        self.seen: Callable[[], None] = lambda: None

    def values(self) -> list[torch.Tensor]:
        """Copies of its weights."""
        return [weight.detach().clone() for weight in self.parameters()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The output, of the input's shape."""
        return Work.apply(self.layers(x), self.held, self.seen)  # type: ignore[no-any-return, no-untyped-call]


class Counted(VersionCache):
    """A cache that tells of each change of what is on the device."""

    changed: Callable[[], None] = staticmethod(lambda: None)

    def _count(self, size_bytes: int) -> None:
        super()._count(size_bytes)
        self.changed()


class Found(NamedTuple):
    """Of one rank."""

    losses: list[float]
    weights: list[torch.Tensor]
    steps_s: list[float]
    """Of each run or step."""
    plans: list[str]
    """Of each."""
    seen: Mapping[str, float]


def batches(count: int, samples: int) -> list[torch.Tensor]:
    """The same for all ranks and cases."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(samples, WIDTH, dtype=torch.float64, generator=generator) for _ in range(count)]


def overlapping(rank: int, plans: Sequence[schedc.Plan], versions: float, way: str) -> Found:
    """Runs of the first plan with room for this many `versions`; pressed with a `watch`, with `none`, or not at all."""
    stage, updates, kept_ns, above_bytes, room_bytes = Stage(rank), 0, 0, 0, math.inf
    version_bytes, taken_ns = sum(weight.nbytes for weight in stage.parameters()), 0
    given = schedc.runtime.StageOptimizers({rank: stage.optimizer}, device_bytes=math.inf)
    cache = given.cache = Counted(versions * version_bytes)

    def updated(*_: object) -> None:
        nonlocal updates, room_bytes, taken_ns
        updates += 1
        if way and rank == 0 and updates == 8:
            room_bytes, taken_ns = 2 * version_bytes, time.perf_counter_ns()

    def changed() -> None:
        nonlocal kept_ns, above_bytes
        if taken_ns and (kept_ns or way == "none"):
            above_bytes = max(above_bytes, cache.device_bytes - int(room_bytes))
        if taken_ns and not kept_ns and max(cache.pressed_bytes, cache.device_bytes) <= room_bytes:
            kept_ns = time.perf_counter_ns()

    def free_bytes() -> int:
        return int(min(room_bytes, 2**60)) - cache.device_bytes

    def warned(event: PressureEvent) -> None:
        warned_ns.append(event.at_ns - taken_ns)

    stage.optimizer.register_step_post_hook(updated)
    cache.changed = changed
    losses, ran, steps_s, warned_ns = list[float](), list[str](), list[float](), list[int]()
    with loaded(plans[0], rank, stage, optimizers=given) as pipe, warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        watch = MemoryWatch(pipe, least_free_bytes=0, free_bytes=free_bytes, plans=plans[1:], on_warning=warned, look_s=0.002)
        with watch if way == "watch" else nullcontext():
            for batch in batches(RUNS, STEPS * BATCH):
                ran.append(pipe.plan.name)
                begun_s = time.perf_counter()
                losses += pipe.step(batch, batch).tolist()
                steps_s.append((time.perf_counter() - begun_s) / STEPS)
    seen = {"peak": cache.peak_bytes, "version": version_bytes, "evicted": cache.evicted, "waited": cache.waited_for}
    seen |= {
        "above": above_bytes,
        "warned": sum(warned_ns),
        "kept": kept_ns - taken_ns - sum(warned_ns),
        "warnings": len(warned_ns),
    }
    return Found(losses, stage.values(), steps_s, ran, seen)


def replayed(rank: int, plans: Sequence[schedc.Plan], ran: Sequence[str]) -> Found:
    """The same runs by the plans of these names, each loaded, with all memory."""
    stage, losses = Stage(rank), list[float]()
    for name, batch in zip(ran, batches(RUNS, STEPS * BATCH), strict=True):
        plan = next(plan for plan in plans if plan.name == name)
        with loaded(plan, rank, stage, optimizers={rank: stage.optimizer}) as pipe:
            losses += pipe.step(batch, batch).tolist()
    return Found(losses, stage.values(), [], [], {})


def ending(rank: int, plans: Sequence[schedc.Plan], way: str) -> Found:
    """Steps that end, while another process takes memory; with a `watch`, or with `none`; or without that process."""
    stage = Stage(rank, HELD)
    losses, ran, steps_s, most = list[float](), list[str](), list[float](), {"before": 0, "after": 0, "beyond": 0}
    other: subprocess.Popen[bytes] | None = None
    own, card_bytes, when = resident_bytes(), 2**60, "before"

    def taken_bytes() -> int:
        return 0 if other is None else max(0, resident_bytes(other.pid) - 12 * MIB)  # the rest is Python's own

    def free_bytes() -> int:
        return card_bytes - resident_bytes() - taken_bytes()

    def look() -> None:
        most[when] = max(most[when], resident_bytes() - own)
        most["beyond"] = max(most["beyond"], -free_bytes())

    stage.seen = look
    try:
        with loaded(plans[0], rank, stage) as pipe, warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            watch = MemoryWatch(pipe, least_free_bytes=LEAST, free_bytes=free_bytes, plans=plans[1:], look_s=0.01)
            with watch if way == "watch" else nullcontext():
                for step, batch in enumerate(batches(ENDING_STEPS, MICROBATCHES * BATCH)):
                    if step == 1:
                        own = resident_bytes()
                        most = dict.fromkeys(most, -(2**60))
                    if step == PRESSED:
                        card_bytes = own + most["before"] + SPARE if rank == 0 else card_bytes
                        other = subprocess.Popen([sys.executable, "-c", OTHER]) if way and rank == 0 else None
                    if step == PRESSED + (ENDING_STEPS - PRESSED) // 2:
                        when = "after"
                    ran.append(pipe.plan.name)
                    begun_s = time.perf_counter()
                    losses.append(pipe.step(batch, batch).item())
                    steps_s.append(time.perf_counter() - begun_s)
                    stage.optimizer.step()
                    stage.optimizer.zero_grad()
    finally:
        if other is not None:
            other.kill()
            other.wait()
    return Found(losses, stage.values(), steps_s, ran, {**most})


def resident_bytes(process: int | str = "self") -> int:
    """How much memory a process has."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * 4096


def loaded(plan: schedc.Plan, rank: int, stage: Stage, **options: Any) -> schedc.runtime.Pipe:
    """All ranks together."""
    return schedc.runtime.load(plan, stages={rank: stage}, loss_fn=nn.functional.mse_loss, **options)


def made(name: str, method: str, memory_bytes: int, **pipeline: Any) -> schedc.Plan:
    """A plan for stages of this benchmark."""
    times = {"forward": "20 ms", "backward_input": "20 ms", "backward_weight": "20 ms"}
    sizes = {"activation": f"{HELD} B", "activation_after_input": f"{HELD} B"}
    memory = {"limit": f"{memory_bytes} B", **({"version": "2 MiB"} if "mode" in pipeline else {})}
    table = {"pipeline": {"ranks": RANKS, **pipeline}, "profile": {**times, **sizes}, "memory": memory}
    return schedc.compile_job(schedc.make_job(table, name=name), method=method).plan


def same(found: Sequence[Found], other: Sequence[Found]) -> bool:
    """Whether losses and weights of all ranks are equal, bit by bit."""
    return all(
        one.losses == two.losses and all(map(torch.equal, one.weights, two.weights)) for one, two in zip(found, other, strict=True)
    )


def main() -> int:
    """Print the tables."""
    steps = {"mode": "asynchronous", "versions": "stash", "microbatches": 1}
    periods = [made("usual", "pipedream", 2**40, **steps), made("one by one", "one-by-one", 2**40, **steps)]
    runs = [schedc.unroll_plan(plan, STEPS) for plan in periods]
    ends = [
        made(f"{count} under way", "rule-table", count * HELD, microbatches=MICROBATCHES, split_backward=False) for count in (4, 2)
    ]
    with tempfile.TemporaryDirectory() as folder, rank_processes(RANKS, Path(folder)) as ranks:

        def measured(function: Callable[..., Found], *given: object) -> list[Found]:
            found: list[Any] = ranks.run(function, *given)
            if wrong := next((one for one in found if isinstance(one, str)), None):
                sys.exit(wrong)
            return found

        print("| versions with room | the most on the device | gone to the host | ops that waited | step |\n|---|---|---|---|---|")
        every = measured(overlapping, runs[:1], math.inf, "")
        as_one = True
        for room, found in ((4.0, every), *((room, measured(overlapping, runs[:1], room, "")) for room in (3.0, 2.0))):
            as_one &= same(found, every)
            seen = found[0].seen
            most = f"{format_bytes(int(seen['peak']))}, {seen['peak'] / seen['version']:g} versions"
            step = f"{median(found[0].steps_s) * 1e3:.1f} ms"
            print(f"| {room:g} | {most} | {seen['evicted']} of {RUNS * STEPS} | {seen['waited']} | {step} |", flush=True)

        print("\n| room becomes that of two | warned after | kept to it after | most above it then | that run's step | step then |")
        print("|---|---|---|---|---|---|", flush=True)
        without, watched = (measured(overlapping, runs, math.inf, way) for way in ("none", "watch"))
        for name, found in (("without a watch", without), ("with a watch", watched)):
            seen, steps_s = found[0].seen, [f"{each * 1e3:.1f} ms" for each in found[0].steps_s]
            after = [f"{seen[key] / 1e6:.1f} ms" if seen["warnings"] else "–" for key in ("warned", "kept")]
            print(f"| {name} | {' | '.join(after)} | {format_bytes(int(seen['above']))} | {steps_s[0]} | {steps_s[-1]} |")
        as_one &= same(without, every) and same(watched, measured(replayed, runs, watched[0].plans))

        print("\n| another process takes 32 MiB | beyond what there is | held before | then | step before | then | planned |")
        print("|---|---|---|---|---|---|---|", flush=True)
        alone, hit, saved = (measured(ending, ends, way) for way in ("", "none", "watch"))
        for name, found in (("not at all", alone), ("without a watch", hit), ("with a watch", saved)):
            seen, took_s = found[0].seen, found[0].steps_s
            cells = [format_bytes(max(0, int(seen["beyond"]))), *(f"{seen[when] / HELD:.1f}" for when in ("before", "after"))]
            cells += [f"{median(each) * 1e3:.0f} ms" for each in (took_s[1:PRESSED], took_s[ENDING_STEPS // 2 :])]
            last = next(plan for plan in ends if plan.name == found[0].plans[-1])
            planned = [f"{plan.certificate.makespan_ns / 1e6:.0f} ms" for plan in (ends[0], last)]
            print(f"| {name} | {' | '.join(cells)} | {', then '.join(planned)} |", flush=True)
        as_one &= same(hit, alone) and same(saved, alone)
    print(f"\nlosses and weights equal, bit by bit: {as_one}; runs by {', '.join(watched[0].plans)}")
    print(f"a period: {', '.join(f'{plan.name} {plan.certificate.makespan_ns / 1e6:.0f} ms' for plan in periods)}")
    lasted = watched[0].seen["above"] <= 0 and saved[0].seen["beyond"] <= 0
    return int(not as_one or not lasted or len(watched[0].losses) < RUNS * STEPS or watched[0].plans[-1] != periods[1].name)


if __name__ == "__main__":
    sys.exit(main())
