"""How a step or an evaluation begins: all ranks of all pipelines agree that the batch fits before anything of it runs.

Ranks with inputs or targets say to those with inputs whether theirs fit. These ask the other pipelines, and say to the rest whether
the call begins. The rest hears that when the receives of its first op are posted: the word is there before what it works on. So a
rank with inputs waits for a message of each rank with targets, which ends a step before it in most plans, and for other pipelines.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.failure import BatchRefused
from schedc.runtime.stage.batches import checked_inputs, cut
from schedc.runtime.transports.words import BEGINNING, Words

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.executor import Executor
    from schedc.runtime.session.lockstep import Lockstep
    from schedc.runtime.stage.batches import Batch, Microbatch
    from schedc.runtime.stage.weighing import Weights

__all__ = ["Beginning", "Given"]

BEGINS, REFUSED, CLOSES = range(3)
"""What ranks with inputs say. The last: it is refused, and other pipelines, whose word is not known, may begin."""


class Given(NamedTuple):
    """What a call is given on one rank, as `Pipe.step` and `Pipe.evaluate` say."""

    inputs: Batch | None
    targets: Batch | None
    weights: Weights | None
    divide_by: float | None
    scale: float = 1.0
    outputs: bool = False
    """Whether the targets may be missing."""

    @property
    def is_even(self) -> bool:
        """Whether the call gives the mean of all microbatches."""
        return self.weights is None and self.divide_by is None and self.scale == 1


class Beginning:
    """One rank's side of it."""

    def __init__(self, problem: Problem, groups: Groups, lockstep: Lockstep | None, patience_s: float) -> None:
        """Take the ranks, and how long to wait for one. Those with inputs or targets are the same in all plans of a pipe."""
        self._starting, self._ending = ({problem.stages[path[end]].rank for path in problem.paths} for end in (0, -1))
        self._groups = groups
        self._lockstep = lockstep
        self._patience_s = patience_s
        self._words = Words(groups.all, BEGINNING)

    def agree(
        self, call: str, given: Given, microbatches: int, samples: int | None, hooks: ReplicaHooks, executor: Executor | None = None
    ) -> tuple[Sequence[Microbatch] | None, Sequence[Microbatch] | None]:
        """This rank's microbatches of inputs and targets; None: it has none. All ranks of all pipelines call it together.

        Args:
            call: what this pipeline is called for, as `ReplicaHooks.begin_call`.
            given: to this rank.
            microbatches: how many the plan has.
            samples: as `checked_inputs`.
            hooks: what is between pipelines.
            executor: gets prepared where a rank waits before its first op; None: there is none yet.

        Raises:
            BatchRefused: the batch of a rank does not fit, and nothing has run.
            InvalidInput: the same, but other pipelines may have begun; or these are called for something else.
            TransferFailed: another rank has ended, or does not answer.
        """
        own, refusal = None, None
        try:
            own = self._microbatches(given, microbatches, samples)
        except InvalidInput as error:
            refusal = str(error)
        verdict = self._verdict(call, hooks, executor, fits=refusal is None)
        if own is not None and verdict == BEGINS:
            return own
        line = _first(self._groups.exchange(refusal))
        if verdict == CLOSES:
            raise InvalidInput(line)
        for others in self._groups.beside:
            line = _first(others.exchange(line))
        if executor is not None:
            executor.cancel()
        raise BatchRefused(line)

    def _microbatches(
        self, given: Given, microbatches: int, samples: int | None
    ) -> tuple[Sequence[Microbatch] | None, Sequence[Microbatch] | None]:
        rank, inputs, targets = self._groups.rank, None, None
        if rank in self._starting:
            inputs = checked_inputs(given.inputs, microbatches, rank, samples)
        if rank in self._ending:
            if not (given.outputs and given.targets is None):
                targets = cut(given.targets, microbatches, "targets", rank)
            if not given.is_even:
                from schedc.runtime.stage.weighing import check_weights

                check_weights(given.weights, given.divide_by, given.scale, rank, microbatches)
        return inputs, targets

    def _verdict(self, call: str, hooks: ReplicaHooks, executor: Executor | None, *, fits: bool) -> int:
        """Whether the call begins, if this rank's part `fits`; the same on all ranks."""
        rank, starts, words = self._groups.rank, self._groups.rank in self._starting, self._words
        words.flush(self._patience_s)  # of the call before, for which this rank has not waited
        heard = [torch.zeros(1, dtype=torch.uint8, device="cpu") for _ in range(self._groups.size)]
        for peer in (self._starting | self._ending if starts else self._starting) - {rank}:
            words.receive(heard[peer], peer, f"rank {rank} waits until rank {peer} begins")
        if starts or rank in self._ending:
            self._say(BEGINS if fits else REFUSED, self._starting - {rank})
        if not starts:
            hooks.begin_call(call)
            if executor is not None:
                executor.prepare()
        words.hear(self._patience_s)
        worst = max(map(int, heard))
        if not starts:
            return worst
        fits = fits and worst == BEGINS
        hooks.begin_call(call, fits=fits)
        everywhere = hooks.all_fit(fits)
        if everywhere is not None and self._lockstep is not None:
            everywhere = self._lockstep.all_see(everywhere)
        verdict = CLOSES if everywhere is None else BEGINS if everywhere else REFUSED
        self._say(verdict, set(range(self._groups.size)) - self._starting)
        return verdict

    def _say(self, word: int, peers: Collection[int]) -> None:
        said = torch.tensor([word], dtype=torch.uint8, device="cpu")
        for peer in peers:
            self._words.send(said, peer, f"rank {self._groups.rank} says to rank {peer} that it begins")


def _first(lines: Sequence[str | None]) -> str | None:
    return next(filter(None, lines), None)
