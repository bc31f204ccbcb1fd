"""A layer that moves while training goes on: in how many iterations, and how slow steps are meanwhile (DynPipe's table III).

Four processes, 16 layers, 1F1B with 8 microbatches, gloo over loopback, AdamW. A layer has 1 MiB of weights, computes little, and
waits 15 ms forward and 30 ms backward, so that the processes do not compete for the machine's cores. Each process has a network
card for all that it sends: `--mbytes` a second, shared evenly between the connections that send, as TCP does on the whole. A
message of training has 64 KiB. From rank 1, which has 5 layers, one goes to rank 2, which has 3.

Rows: with and without priority (a chunk waits until no message of training is under way from its rank) and chunks of 64 KiB (else
all of a step's is one); and beside them `move`, for which training stops. Columns: iterations from the begin until the new layout
runs; the mean iteration meanwhile by the median before; by how much all of them together are longer than as many before; of that,
what the calls take on the rank where they take longest, at the begin and in the boundary at which the layout changes; and whether
the losses of all steps are those of a run that has had the new layout from the start, bit by bit.

Run it as `python benchmarks/adapting/migration.py`, where nothing else runs; seven minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan

RANKS, MICROBATCHES, STEPS, BEFORE, SKIPPED = 4, 8, 26, 6, 1
OLD, NEW = (4, 5, 3, 4), (4, 4, 4, 4)
FORWARD_S, BACKWARD_S = 0.015, 0.03
WIDTH, ROWS, SEEN, CHUNK_BYTES, PACKET_BYTES, SMALL_BYTES = 256, 64, 4, 64 << 10, 16 << 10, 1 << 10


class Found(NamedTuple):
    """Of one rank."""

    losses: list[float]
    intervals_s: list[float]
    """From the begin of a step to that of the next."""
    iterations: int
    """0: the steps have not been enough."""
    calls_s: tuple[float, float]
    """At the begin, and in the boundary at which the layout changes."""


class Card:
    """A network card: packets of all connections that send, in turn; a message is handed on when its last packet is through."""

    def __init__(self, bytes_per_s: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._queues: dict[int, deque[list[Any]]] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def send(self, connection: int, size: int, start: Callable[[], Any]) -> Future[Any]:
        """What `start` gives, once this many bytes are through."""
        future: Future[Any] = Future()
        with self._changed:
            self._queues.setdefault(connection, deque()).append([size, start, future])
            self._changed.notify()
        return future

    def _run(self) -> None:
        free_s = time.perf_counter()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: any(self._queues.values()))
                busy = [queue for queue in self._queues.values() if queue]
            for queue in busy:
                message = queue[0]
                size = min(message[0], PACKET_BYTES)
                free_s = max(free_s, time.perf_counter()) + size / self._bytes_per_s
                time.sleep(max(0.0, free_s - time.perf_counter()))
                message[0] -= size
                if not message[0]:
                    queue.popleft()
                    message[2].set_result(message[1]())


def use_card(mbytes_per_s: float) -> None:
    """Let all tensors that this process sends go through a card."""
    from schedc.runtime.transports.gloo import GlooTransport

    card, send = Card(mbytes_per_s * 1e6), GlooTransport.send

    class Sent:
        def __init__(self, future: Future[Any]) -> None:
            self._future = future

        def wait(self, timeout_s: float) -> object:
            return self._future.result(timeout_s).wait(timeout_s)

    def through_card(transport: Any, tensor: Any, tag: int) -> Any:
        if tensor.nbytes <= SMALL_BYTES:
            return send(transport, tensor, tag)
        return Sent(card.send(id(transport), tensor.nbytes, lambda: send(transport, tensor, tag)))

    GlooTransport.send = through_card  # type: ignore[method-assign,assignment]


def train(rank: int, plan: Plan, other: Plan | None, way: str, mbytes_per_s: float) -> Found:
    """Train; after `BEFORE` steps a layer moves, in some way."""
    import torch
    from torch import nn

    import schedc.runtime
    from schedc.runtime.adapt.migration import begin_migration
    from schedc.runtime.adapt.places import Places
    from schedc.runtime.adapt.state_transfer.exchange import move
    from schedc.runtime.transports.gloo import GlooTransport

    if GlooTransport.send.__name__ == "send":
        use_card(mbytes_per_s)

    class Work(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            time.sleep(FORWARD_S)
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            time.sleep(BACKWARD_S)
            return gradients[0]

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = x[:SEEN] + self.down(torch.tanh(self.up(x[:SEEN])))
            return Work.apply(torch.cat([seen, x[SEEN:]]))  # type: ignore[no-any-return, no-untyped-call]

    def build(plan: Plan, rank: int) -> Any:
        torch.manual_seed(0)
        return schedc.runtime.build_stages([Layer() for _ in range(sum(OLD))], plan, rank)

    def optimizer_of(stages: Any) -> Any:
        return torch.optim.AdamW([weight for module in stages.values() for weight in module.parameters()])

    def loaded(plan: Plan, stages: Any, **options: Any) -> Any:
        return schedc.runtime.load(plan, stages=stages, loss_fn=nn.functional.mse_loss, **options)

    stages = build(plan, rank)
    optimizer = optimizer_of(stages)
    pipe, migration = loaded(plan, stages), None
    losses, begun_s, iterations, begin_s, end_s = list[float](), list[float](), 0, 0.0, 0.0
    generator = torch.Generator().manual_seed(1)
    for step in range(STEPS):
        batch = torch.randn(2, MICROBATCHES * ROWS, WIDTH, generator=generator)
        begun_s.append(time.perf_counter())
        losses.append(pipe.step(*batch).item())
        optimizer.step()
        optimizer.zero_grad()
        called_s = time.perf_counter()
        if other is not None and step == BEFORE - 1 and way == "move":
            places = Places.in_order(RANKS, RANKS)
            moved = move(pipe, optimizer, places, places, build=build, optimizer_of=optimizer_of, plan=other)
            stages, optimizer, iterations = moved.stages, moved.optimizer, 1
            pipe = loaded(other, stages, pipeline_group=moved.pipeline_group)
            end_s = time.perf_counter() - called_s
        elif other is not None and step == BEFORE - 1:
            chunk_bytes = CHUNK_BYTES if "chunks" in way else None
            migration = begin_migration(pipe, optimizer, other, build=build, chunk_bytes=chunk_bytes, priority="priority" in way)
            begin_s = time.perf_counter() - called_s
        elif migration is not None and migration.state == "running":
            migration.between_steps()
            end_s, iterations = time.perf_counter() - called_s, migration.boundaries
    begun_s.append(time.perf_counter())
    pipe.close()
    if migration is not None and migration.state != "done":
        iterations = 0
    return Found(losses, [b - a for a, b in pairwise(begun_s)], iterations, (begin_s, end_s))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mbytes", type=float, default=1.0, help="MB a second of each process's card; default: %(default)s")
    options = parser.parse_args()

    from inputs.few_plans import made_by
    from runs.processes import rank_processes

    new, old = (made_by("1f1b", RANKS, MICROBATCHES, counts=counts) for counts in (NEW, OLD))
    with tempfile.TemporaryDirectory() as folder, rank_processes(RANKS, Path(folder)) as processes:

        def run(plan: Plan, other: Plan | None, way: str) -> list[Found]:
            found = processes.run(train, plan, other, way, options.mbytes, limit_s=500)
            for rank, one in enumerate(found):
                if not isinstance(one, Found):
                    raise SystemExit(f"rank {rank} failed: {one}")
            return found

        usual = run(new, None, "")
        after_ms = median(usual[0].intervals_s[SKIPPED:]) * 1e3
        print(f"{options.mbytes:g} MB/s; a step of the new layout takes {after_ms:.0f} ms from the start")
        print(f"{'':28}{'before':>8}{'iterations':>12}{'mean of them':>14}{'longer':>10}{'begin':>9}{'change':>9}  losses")
        for way in ("neither", "chunks", "priority", "priority and chunks", "move"):
            found = run(old, new, way)
            first = found[0]
            before_s = median(first.intervals_s[SKIPPED : BEFORE - 1])
            taken = first.intervals_s[BEFORE - 1 : BEFORE + first.iterations] if way != "move" else [first.intervals_s[BEFORE - 1]]
            longer_ms = (sum(taken) - before_s * len(taken)) * 1e3
            begin_ms, change_ms = (max(one.calls_s[at] for one in found) * 1e3 for at in range(2))
            same = "the same" if all(one.losses == usual[0].losses for one in found) else "DIFFER"
            print(
                f"{way:28}{before_s * 1e3:5.0f} ms{first.iterations:12}{mean(taken) / before_s:13.2f}x{longer_ms:7.0f} ms"
                f"{begin_ms:6.0f} ms{change_ms:6.0f} ms  {same}"
            )


if __name__ == "__main__":
    main()
