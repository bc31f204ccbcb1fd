"""In which rounds two ops of a rank may meet in a modulo schedule: by what lies between them at least, and at most.

A `ModuloModel` goes in, with its period T, and what ops need of each other; the least and the most that may lie between the
starts of any two ops come out. They are the shortest paths in a graph of differences (Bellman): those that always hold, and some
that can be assumed.

Always: an op follows what it needs. Under 2BW F of a step lies at most two periods before the end of U; with at most D updates in
between, a backward ends at most D + 1 periods after its F. As long as a microbatch is under way, those that follow it on a stage
are, too: with room for M activations and n alike microbatches in a step, F and B are at most M // n + 1 periods apart.

Others can be assumed, and no optimum is lost. Where an op starts more than a period later than it could, it and all that follows it
can run a whole period earlier: no rank's order changes, and nothing is held for longer. So U follows the last backward of its step
within a period, and W its B where W need not run in order. Under stash, whose rule does not count steps, each op follows what it
needs within a period. Where microbatches are alike, that is assumed of one of them, so the others have two periods. Where messages
share a link, it is assumed of the transfer behind its producer, and of the op behind the transfer, so there are twice as many.
Groups of microbatches begin within two periods of each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import Kind, Op, Versions, groups_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.models.modulo_orders import ModuloNeed
    from schedc.models.modulo_variables import ModuloModel

FAR = 1 << 60


class Differences:
    """The least that one of some ops starts after another."""

    def __init__(self, ops: Sequence[Op]) -> None:
        """Nothing is known."""
        self._at = {op: number for number, op in enumerate(ops)}
        self._least = np.full((len(ops), len(ops)), -FAR, np.int64)
        np.fill_diagonal(self._least, 0)

    def add(self, earlier: Op, later: Op, least_ns: int) -> None:
        """The later one starts at least this long after the other; less than nothing: it may be as long before it."""
        pair = self._at[earlier], self._at[later]
        self._least[pair] = max(self._least[pair], least_ns)

    def close(self) -> bool:
        """Add what follows; whether all can be."""
        for middle in range(len(self._least)):
            ways = self._least[:, middle, None] + self._least[None, middle]
            np.maximum(self._least, np.maximum(ways, -FAR), out=self._least)
        return not (self._least.diagonal() > 0).any()

    def between(self, one: Op, other: Op) -> tuple[int, int]:
        """By how much the other starts after the one, at least and at most."""
        at, to = self._at[one], self._at[other]
        return int(self._least[at, to]), -int(self._least[to, at])


class RoundRanges:
    """What lies between the ops of a model, and in which rounds they meet."""

    def __init__(self, built: ModuloModel, needs: Sequence[ModuloNeed], shared: set[ModuloNeed]) -> None:
        """Of the needs, those whose messages wait for others of their link are `shared`."""
        self._built, problem = built, built.problem
        groups = groups_of(problem)
        self._group = list(groups)
        members = sorted(set(self._group))
        self._alike = {each: self._group.count(each) for each in members}
        updates = [op for ops in built.ops for op in ops if op.kind is Kind.U]
        blocks = [block for block in built.blocks() if block[1] in members]
        self._differences = Differences([*updates, *(Op(kind, *block) for block in blocks for kind in built.kinds)])
        self._add_needs([need for need in needs if need.producer.microbatch in members], shared)
        for stage, microbatch in blocks:
            self._add_block(stage, microbatch)
        self._add_begins(members)
        for update in updates:  # of a stage that no path has: within a period of any other
            if update.stage not in {stage for stage, _ in blocks} and update != updates[0]:
                self._differences.add(updates[0], update, 0)
                self._differences.add(update, updates[0], -built.period_ns)
        self.is_possible = self._differences.close() and self._add_ends(blocks)

    def _add_needs(self, needs: Sequence[ModuloNeed], shared: set[ModuloNeed]) -> None:
        built, period_ns = self._built, self._built.period_ns
        is_stash = built.problem.updates is not None and built.problem.updates.versions is Versions.STASH
        slowest_ns: dict[object, int] = {}
        sources: dict[object, set[int]] = {}
        for need in needs:
            way_ns = need.occupancy_ns + need.latency_ns
            slowest_ns[need.resource] = max(slowest_ns.get(need.resource, 0), way_ns)
            sources.setdefault(need.resource, set()).add(built.problem.rank_of(need.producer))
        for need in needs:
            way_ns = need.occupancy_ns + need.latency_ns
            self._differences.add(need.producer, need.consumer, built.least_ns(need.producer) + way_ns)
            if not is_stash:
                continue
            periods = 1 + (self._alike[need.producer.microbatch] > 1)
            if need in shared:
                periods *= 2
                if len(sources[need.resource]) > 1:  # messages are taken in the order of their wire, the quick ones behind the slow
                    way_ns, periods = 2 * slowest_ns[need.resource], 2 * periods
            most_ns = built.most_ns(need.producer) + way_ns + periods * period_ns
            self._differences.add(need.consumer, need.producer, -most_ns)

    def _add_block(self, stage: int, microbatch: int) -> None:
        """What the mode's rule and memory say of the time between F and its backwards; and that W follows B."""
        built, period_ns, add = self._built, self._built.period_ns, self._differences.add
        problem, updates = built.problem, built.problem.updates
        assert updates is not None
        forward, backward, ended = (Op(kind, stage, microbatch) for kind in (Kind.F, built.backward, built.last))
        update, costs = Op(Kind.U, stage, 0), problem.stages[stage]
        add(backward, update, built.least_ns(backward))
        add(ended, update, built.least_ns(ended) - built.is_mixed * self._spread(ended) * period_ns)
        if updates.versions is Versions.TWO_BUFFERED:
            add(update, forward, costs.update_ns - 2 * period_ns)
        if updates.most_delay is not None:
            add(backward if built.is_mixed else ended, forward, -(updates.most_delay + 1) * period_ns)
        if ended != backward:
            add(backward, ended, built.least_ns(backward))
            if updates.versions is Versions.STASH or built.is_mixed:
                add(ended, backward, -built.most_ns(backward) - (1 + (self._alike[microbatch] > 1)) * period_ns)
        limit_bytes = problem.memory_limit_bytes[costs.rank]
        if limit_bytes is not None and costs.activation_bytes:
            most = limit_bytes // costs.activation_bytes
            add(backward, forward, -(most // self._alike[microbatch] + 1) * period_ns)

    def _add_begins(self, members: Sequence[int]) -> None:
        """Groups begin within some periods of the first."""
        built, problem = self._built, self._built.problem
        updates = problem.updates
        assert updates is not None
        periods = 6 * len(problem.paths) if updates.versions is Versions.TWO_BUFFERED else 2
        begins = [Op(Kind.F, built.path(each)[0], each) for each in members if built.path(each)]
        for one in begins:
            for other in begins:
                if one != other:
                    self._differences.add(one, other, -periods * built.period_ns)

    def _add_ends(self, blocks: Sequence[tuple[int, int]]) -> bool:
        """U follows the last backward of its step, whichever it is, within a period; whether all can be."""
        built, ended = self._built, dict[Op, list[Op]]()
        for stage, microbatch in blocks:
            ended.setdefault(Op(Kind.U, stage, 0), []).append(Op(built.last, stage, microbatch))
        later = []
        for update, lasts in ended.items():
            most_ns = max(
                self._differences.between(lasts[0], each)[1] + built.most_ns(each) + self._spread(each) * built.period_ns
                for each in lasts
            )
            later.append((update, lasts[0], -most_ns - built.period_ns))
        for each in later:
            self._differences.add(*each)
        return self._differences.close()

    def _spread(self, op: Op) -> int:
        """Within how many periods this kind of op of a stage runs for all microbatches that are alike."""
        if op.kind is Kind.U or self._alike[self._group[op.microbatch]] == 1:
            return 0
        return 3 if op.kind is Kind.W and self._built.fused else 1

    def span_ns(self, one: Op, other: Op) -> tuple[int, int]:
        """By how much the other starts after the one, at least and at most."""
        same = [op if op.kind is Kind.U else op._replace(microbatch=self._group[op.microbatch]) for op in (one, other)]
        least_ns, most_ns = self._differences.between(*same)
        if Kind.U not in (one.kind, other.kind) and one.microbatch != other.microbatch and same[0].microbatch == same[1].microbatch:
            spread = max(map(self._spread, same))
            if spread > 1 or one.microbatch > other.microbatch:
                least_ns -= spread * self._built.period_ns
            if spread > 1 or one.microbatch < other.microbatch:
                most_ns += spread * self._built.period_ns
        return least_ns, most_ns

    def rounds(self, one: Op, other: Op) -> tuple[int, int]:
        """The rounds of the one op, the least and the most, in which the other runs."""
        built, period_ns = self._built, self._built.period_ns
        least_ns, most_ns = self.span_ns(one, other)
        return -(-(least_ns + built.least_ns(other)) // period_ns) - 1, (most_ns - built.least_ns(one)) // period_ns
