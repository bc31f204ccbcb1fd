"""Zero bubble, ZB-H1, ZB-H2 and ZB-V, and DualPipe-V: they run B and W apart."""

from __future__ import annotations

from collections import deque
from itertools import count
from typing import TYPE_CHECKING, ClassVar

from schedc.ir import Kind, Op, Problem, Schedule
from schedc.solvers.common.method import Template
from schedc.solvers.templates.shape import LINE, WAVE_OF_TWO, grid_for, need_split, schedule_of

if TYPE_CHECKING:
    from collections.abc import Iterator


class ZBH1(Template, frozen=True):
    """ZB-H1 (Qi et al., 2023, section 2.3): the order of 1F1B, W as late as p activations on every rank allow."""

    name, place = "zb-h1", 40
    summary = "1F1B's order with W put off as far as p activations allow"
    placements = "unidirectional"
    source = "Qi et al., 2023, section 2.3"
    warm_up_of_next: ClassVar[int] = 1

    def construct(self, problem: Problem) -> Schedule:
        """One more F for every position behind, `warm_up_of_next` times; each position delays W until all hold as many activations.

        Raises:
            Unsupported: the placement is not unidirectional, or B and W cannot run apart.
        """
        need_split(problem, self.name)
        grid = grid_for(problem, self.name, LINE)
        count = problem.microbatches

        def order(position: int) -> Iterator[Op]:
            (stage,) = grid.stages[position]
            warm_up = min(self.warm_up_of_next * (grid.positions - 1 - position), count)
            lag = self.warm_up_of_next * position
            yield from (Op(Kind.F, stage, microbatch) for microbatch in range(warm_up))
            for microbatch in range(count):
                if microbatch + warm_up < count:
                    yield Op(Kind.F, stage, microbatch + warm_up)
                yield Op(Kind.B, stage, microbatch)
                if microbatch >= lag:
                    yield Op(Kind.W, stage, microbatch - lag)
            yield from (Op(Kind.W, stage, microbatch) for microbatch in range(max(count - lag, 0), count))

        return schedule_of(problem, grid, order)


class ZBH2(ZBH1, frozen=True):
    """ZB-H2 (Qi et al., 2023, section 2.3): twice the warm-up of 1F1B, so that no rank waits; 2p − 1 activations on every rank."""

    name, place = "zb-h2", 50
    summary = "no bubble but the last W's, for equal costs; holds at most 2 p - 1 activations"
    warm_up_of_next = 2


class ZBV(Template, frozen=True):
    """ZB-V (Qi et al., 2023, section 6, in the order of PyTorch's ScheduleZBVZeroBubble).

    No rank waits for F = B = W, and every rank holds 2p half-size activations, as much as 1F1B's first. The pattern needs 2p − 1
    microbatches; with fewer it runs with the missing ones left out.
    """

    name, place = "zb-v", 60
    summary = "no bubble at 1F1B's memory, for equal costs; holds at most 2 p activations of chunks"
    placements = "wave with 2 chunks"
    source = "Qi et al., 2023, section 6"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is not a wave of 2 chunks, or B and W cannot run apart.
        """
        need_split(problem, self.name)
        grid = grid_for(problem, self.name, WAVE_OF_TWO)
        positions = grid.positions
        microbatches = max(2 * positions - 1, problem.microbatches)

        def order(position: int) -> Iterator[Op]:
            behind = positions - position
            down, up = grid.stages[position]
            counters = {(kind, stage): count() for kind in (Kind.F, Kind.B, Kind.W) for stage in (down, up)}

            def run(stage: int, *kinds: Kind) -> Iterator[Op]:
                return (Op(kind, stage, next(counters[kind, stage])) for kind in kinds)

            for _ in range(2 * behind - 1):
                yield from run(down, Kind.F)
            for _ in range(position):
                yield from run(up, Kind.F)
                yield from run(down, Kind.F)
            for _ in range(behind):
                yield from run(up, Kind.F, Kind.B, Kind.W)
            # 2·behind − 1 + position forwards of the first chunk are above, and position + behind of the second.
            more = microbatches - (2 * behind - 1 + position)
            for index in range(microbatches - positions):
                if index < more:
                    yield from run(down, Kind.F)
                yield from run(down, Kind.B, Kind.W)
                yield from run(up, Kind.F, Kind.B, Kind.W)
            for _ in range(position):
                yield from run(down, Kind.B)
                yield from run(up, Kind.B)
            for _ in range(behind):
                yield from run(down, Kind.B, Kind.W)
            for _ in range(position):
                yield from run(up, Kind.W)
            for _ in range(position):
                yield from run(down, Kind.W)

        return schedule_of(problem, grid, order)


class DualPipeV(Template, frozen=True):
    """DualPipe-V (DeepSeek-AI, 2025, DualPipe's "cut in half"; PyTorch's ScheduleDualPipeV): eight steps, B and W mostly fused.

    A forward and a backward that are meant to overlap are one after the other. Every rank holds at most 2p + 1 activations, of
    half size. The pattern needs 2p microbatches; with fewer it runs with the missing ones left out.
    """

    name, place = "dualpipe-v", 90
    summary = "DualPipe folded onto half the ranks; holds at most 2 p + 1 activations of chunks"
    placements = "wave with 2 chunks"
    source = "DeepSeek-AI, DualPipe, 2025"

    def construct(self, problem: Problem) -> Schedule:
        """The schedule.

        Raises:
            Unsupported: the placement is not a wave of 2 chunks, or B and W cannot run apart.
        """
        need_split(problem, self.name)
        grid = grid_for(problem, self.name, WAVE_OF_TWO)
        positions = grid.positions
        microbatches = max(2 * positions, problem.microbatches)

        def order(position: int) -> Iterator[Op]:
            behind = positions - 1 - position
            down, up = grid.stages[position]
            forwards = {stage: count() for stage in (down, up)}
            backwards = {stage: count() for stage in (down, up)}
            pending: deque[Op] = deque()

            def forward(stage: int) -> Op:
                return Op(Kind.F, stage, next(forwards[stage]))

            def backward(stage: int, *, split: bool = False) -> Op:
                microbatch = next(backwards[stage])
                if not split:
                    return Op(Kind.BW, stage, microbatch)
                pending.append(Op(Kind.W, stage, microbatch))
                return Op(Kind.B, stage, microbatch)

            for _ in range(2 * behind):
                yield forward(down)
            for _ in range(position + 1):
                yield forward(down)
                yield forward(up)
            for _ in range(behind):
                yield backward(up, split=True)
                yield pending.popleft()
                yield forward(up)
            for _ in range(microbatches - 2 * positions + position + 1):
                yield forward(down)
                yield backward(up)
                yield forward(up)
                yield backward(down)
            for _ in range(behind):
                yield backward(up)
                yield forward(up)
                yield backward(down)
            # The second half of these backwards is split, so that the W left over fill the drain; the odd op goes to the fused
            # half.
            for index in range(2 * (position + 1)):
                yield backward(down if index % 2 else up, split=index > position)
            for _ in range(behind):
                if pending:
                    yield pending.popleft()
                yield backward(down, split=True)
            yield from pending

        return schedule_of(problem, grid, order)
