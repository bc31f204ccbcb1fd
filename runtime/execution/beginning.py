"""How a step or an evaluation begins: ranks look at the batch; if it does not fit, all say so and nothing has run.

Ranks with inputs ask the other pipelines, and say to all ranks whether the call begins. Those without inputs hear it when the
receives of their first op are posted: the word is there before what it works on. A rank with inputs waits for no rank of its own
pipeline, but before evaluations and the first step of a plan, where it asks those that have inputs or targets, too. In each step
that would cost up to the way of a message over the slowest link (benchmarks/runtime/beginning.py).

Where one rank refuses its part and others have begun, it closes the pipe, as in the middle of a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import InvalidInput
from schedc.runtime.common.failure import BatchRefused
from schedc.runtime.stage.batches import checked_inputs, cut
from schedc.runtime.transports.words import BEGINNING, PeerWords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.executor import Executor
    from schedc.runtime.stage.batches import Batch, Microbatch
    from schedc.runtime.stage.weighing import Weights


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

    def __init__(self, problem: Problem, groups: Groups, all_see: Callable[[bool], bool] | None, patience_s: float) -> None:
        """Take the ranks; those with inputs or targets are the same in all plans of a pipe.

        Args:
            problem: of the plan.
            groups: of its ranks.
            all_see: `Lockstep.all_see`; None: there is none.
            patience_s: how long to wait for a rank.
        """
        self._starting, self._ending = ({problem.stages[path[end]].rank for path in problem.paths} for end in (0, -1))
        self._groups = groups
        self._all_see = all_see
        self._patience_s = patience_s
        self._words = PeerWords(groups.all, BEGINNING)

    def agree(
        self,
        call: str,
        given: Given,
        microbatches: int,
        samples: int | None,
        hooks: ReplicaHooks,
        executor: Executor | None,
        *,
        asks: bool,
    ) -> tuple[Sequence[Microbatch] | None, Sequence[Microbatch] | None]:
        """This rank's microbatches of inputs and targets; None: it has none. All ranks of all pipelines call it together.

        Args:
            call: what this pipeline is called for, as `ReplicaHooks.begin_call`.
            given: to this rank.
            microbatches: how many the plan has.
            samples: as `checked_inputs`.
            hooks: what is between pipelines.
            executor: gets prepared where a rank waits before its first op; None: there is none yet.
            asks: whether ranks with inputs ask the others of their pipeline; the same on all ranks.

        Raises:
            BatchRefused: the batch of a rank does not fit, and nothing has run.
            InvalidInput: this rank's does not fit, and others may have begun; or pipelines are called for something else.
            TransferFailed: another rank has ended, or does not answer.
        """
        own, refusal = None, None
        try:
            own = self._microbatches(given, microbatches, samples)
        except InvalidInput as error:
            refusal = error
        if self._begins(call, hooks, executor, fits=own is not None, asks=asks):
            if own is None:
                assert refusal is not None
                raise refusal
            return own
        line = None if refusal is None else str(refusal)
        for others in (self._groups, *self._groups.beside):
            line = next(filter(None, others.exchange(line)), None)
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

    def _begins(self, call: str, hooks: ReplicaHooks, executor: Executor | None, *, fits: bool, asks: bool) -> bool:
        """Whether the call begins, on any rank; what this one has been given `fits`."""
        rank, starts = self._groups.rank, self._groups.rank in self._starting
        self._finish()  # what is left of the call before
        if asks:
            said = self._expect(self._starting | self._ending if starts else ())
            if starts or rank in self._ending:
                self._say(fits, self._starting)
            self._finish()
            fits = fits and all(map(bool, said))
        hooks.begin_call(call, fits=fits)
        begun = self._expect(self._starting)
        if starts:
            begins = hooks.begins(fits)
            if self._all_see is not None:
                begins = self._all_see(begins)
            self._say(begins, range(self._groups.size))
            if begins:
                return True
        elif executor is not None:
            executor.prepare()
        self._words.hear(self._patience_s)
        return any(map(bool, begun))

    def _finish(self) -> None:
        self._words.hear(self._patience_s)
        self._words.flush(self._patience_s)

    def _expect(self, peers: Collection[int]) -> list[torch.Tensor]:
        """Begin to receive the word of each; what it is, once it is heard."""
        rank, words = self._groups.rank, []
        for peer in sorted({*peers} - {rank}):
            words.append(torch.zeros(1, dtype=torch.uint8, device="cpu"))
            self._words.receive(words[-1], peer, f"rank {rank} waits until rank {peer} begins")
        return words

    def _say(self, word: bool, peers: Collection[int]) -> None:
        rank, said = self._groups.rank, torch.tensor([word], dtype=torch.uint8, device="cpu")
        for peer in sorted({*peers} - {rank}):
            self._words.send(said, peer, f"rank {rank} says to rank {peer} that it begins")
