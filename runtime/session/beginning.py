"""How a step or an evaluation begins: ranks look at the batch; if it does not fit, all say so and nothing has run.

Ranks with inputs ask the other pipelines, and say to all ranks whether the call begins. Those without inputs hear it when the
receives of their first op are posted: the word is there before what it works on. Before evaluations and the first step of a plan
those with inputs ask those with inputs or targets, too; in each step that would cost up to the way of a message over the slowest
link (benchmarks/runtime/beginning.py). So a rank may refuse what others have begun: it closes the pipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import InvalidInput
from schedc.runtime.common.failure import BatchRefused
from schedc.runtime.stage.batches import Batch, Microbatch, Microbatches, Weights, check_weights, checked_inputs, cut, same_samples
from schedc.runtime.transports.words import BEGINNING, PeerWords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import torch

    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.runner import Executor


class Given(NamedTuple):
    """What a rank is given for a call, as `Pipe.step` and `Pipe.evaluate` say."""

    call: str
    inputs: Batch | None
    targets: Batch | None
    weights: Weights | None
    divide_by: float | None
    scale: float = 1.0
    outputs: bool = False
    """Whether the targets may be missing."""

    @property
    def is_even(self) -> bool:
        """Whether all microbatches count the same, and gradients are not scaled."""
        return self.weights is None and self.divide_by is None and self.scale == 1


class Beginning:
    """One rank's side of it."""

    def __init__(self, groups: Groups, all_see: Callable[[bool], bool] | None, patience_s: float) -> None:
        """Take the ranks, `SwapGroup.all_see` where there is one, and how long to wait for a rank."""
        self._groups = groups
        self._all_see = all_see
        self._patience_s = patience_s
        self._words = PeerWords(groups.all, BEGINNING)

    def use(self, problem: Problem) -> None:
        """From now on calls are for a plan of this problem, of which no step has run."""
        self._starting, self._ending = ({problem.stages[path[end]].rank for path in problem.paths} for end in (0, -1))
        self._count = problem.microbatches
        self._samples: int | None = None
        self._has_run = False

    def ran(self, inputs: Sequence[Microbatch], shapes: Collection[Sequence[int]]) -> None:
        """Take note that a step has run: of its inputs, and of the shapes of what this rank exchanges with others."""
        self._samples = self._samples or (same_samples(inputs, shapes) if inputs else None)
        self._has_run = True

    def agree(self, given: Given, hooks: ReplicaHooks, executor: Executor) -> Microbatches:
        """What this rank has of the batch. All ranks of all pipelines call it together.

        Raises:
            BatchRefused: what a rank was given does not fit, and nothing has run.
            InvalidInput: this rank's does not fit, and others may have begun; or pipelines are called for something else.
            TransferFailed: another rank has ended, or does not answer.
        """
        own, refusal, steps = None, None, given.call == "step"
        try:
            own = self._microbatches(given, self._samples if steps else None)
        except InvalidInput as error:
            refusal = error
        if self._begins(given, hooks, executor if steps else None, fits=own is not None):
            if refusal is not None:
                raise refusal
            assert own is not None
            return own
        line = None if refusal is None else str(refusal)
        for others in (self._groups, *self._groups.beside):
            line = next(filter(None, others.exchange(line)), None)
        if steps:
            executor.cancel()
        raise BatchRefused(line)

    def _microbatches(self, given: Given, samples: int | None) -> Microbatches:
        rank, count = self._groups.rank, self._count
        inputs = checked_inputs(given.inputs, count, rank, samples) if rank in self._starting else ()
        if rank not in self._ending:
            return Microbatches(inputs, ())
        if not given.is_even:
            check_weights(given.weights, given.divide_by, given.scale, rank, count)
        if given.outputs and given.targets is None:
            return Microbatches(inputs, None)
        return Microbatches(inputs, cut(given.targets, count, "targets", rank))

    def _begins(self, given: Given, hooks: ReplicaHooks, executor: Executor | None, *, fits: bool) -> bool:
        """Whether the call begins, on any rank; what this one was given `fits`. The executor is that of a step."""
        rank, starts = self._groups.rank, self._groups.rank in self._starting
        self._finish()  # what is left of the call before
        if executor is None or not self._has_run:
            said = self._expect(self._starting | self._ending if starts else ())
            if starts or rank in self._ending:
                self._say(fits, self._starting)
            self._finish()
            fits = fits and all(map(bool, said.values()))
        weighed = given.weights is not None and given.divide_by is None and rank in self._ending
        hooks.begin_call(f"{given.call} with weights" if weighed else given.call, fits=fits)
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
        return any(map(bool, begun.values()))

    def _finish(self) -> None:
        self._words.hear(self._patience_s)
        self._words.flush(self._patience_s)

    def _expect(self, peers: Collection[int]) -> dict[int, torch.Tensor]:
        """Begin to receive the word of each; what it is, once it is heard."""
        rank = self._groups.rank
        return self._words.expect(sorted({*peers} - {rank}), f"rank {rank} waits until rank {{peer}} begins")

    def _say(self, word: bool, peers: Collection[int]) -> None:
        rank = self._groups.rank
        self._words.say(word, sorted({*peers} - {rank}), f"rank {rank} says to rank {{peer}} that it begins")
