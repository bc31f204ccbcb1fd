"""How a step or an evaluation begins: ranks look at the batch; if it does not fit, all say so and nothing has run.

Ranks with inputs ask the other pipelines, and say to all ranks whether the call begins. Those without inputs hear it when the
receives of their first op are posted: the word is there before what it works on. Before evaluations and the first step of a plan
those with inputs ask those with inputs or targets, too; in each step that would cost up to the way of a message over the slowest
link (benchmarks/runtime/beginning.py). So a rank may refuse what others have begun: it closes the pipe.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import InvalidInput
from schedc.ir import Problem
from schedc.runtime.common.failure import BatchRefused
from schedc.runtime.common.program import starts_of
from schedc.runtime.stage.batches import (
    Batches,
    Microbatch,
    Microbatches,
    checked_inputs,
    cut,
    same_samples,
)
from schedc.runtime.transports.gloo import BEGINNING, PeerWords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.runner import Executor
    from schedc.runtime.stage.weighing import Shares, Weights


WAITS, SAYS = "rank {rank} waits until rank {peer} begins", "rank {rank} says to rank {peer} that it begins"


class Given(NamedTuple):
    """What a rank is given for a call, as `Pipe.step` and `Pipe.evaluate` say."""

    call: str
    inputs: Batches | None
    targets: Batches | None
    weights: Weights | None
    divide_by: float | None
    scale: float = 1.0
    outputs: bool = False
    """Whether the targets may be missing."""

    @property
    def is_even(self) -> bool:
        """Whether all microbatches count the same, and gradients are not scaled."""
        return self.weights is None and self.divide_by is None and self.scale == 1


class PipeCall(NamedTuple):
    """What a rank has of a call that begins."""

    batch: Microbatches
    shares: Shares | None
    """Of the microbatches, where they are not even and this rank needs them."""
    way: tuple[float, float]
    """What this pipeline's losses are divided by, and the scale of the gradients."""


class Beginning:
    """One rank's side of it."""

    def __init__(self, groups: Groups, all_see: Callable[[bool], bool] | None, patience_s: float, sequence_dim: int = 1) -> None:
        """Take the ranks, `SwapGroup.all_see` where there is one, how long to wait for a rank, and along what slices are cut."""
        self._sequence_dim = sequence_dim
        self._groups = groups
        self._all_see = all_see
        self._patience_s = patience_s
        self._words = PeerWords(groups.all, BEGINNING)

    def use(self, problem: Problem, ending: Collection[int], cut_by_name: Callable[..., Microbatches] | None = None) -> None:
        """From now on calls are for a plan of this problem, of which no step has run.

        `ending` are the ranks that compute losses; `cut_by_name` cuts batches where stages are a graph, and any rank may have some.
        """
        self._starting, self._ending = {problem.stages[stage].rank for stage in starts_of(problem)}, {*ending}
        self._cut_by_name = cut_by_name
        self._given = {*range(problem.ranks)} if cut_by_name else self._starting | self._ending
        self._count, self._slices = problem.microbatches, problem.slices
        self._samples: int | None = None
        self._has_run = False

    def ran(self, inputs: Sequence[Microbatch], shapes: Collection[Sequence[int]]) -> None:
        """Take note that a step has run: of its inputs, and of the shapes of what this rank exchanges with others."""
        self._samples = self._samples or (same_samples(inputs, shapes) if inputs else None)
        self._has_run = True

    def agree(self, given: Given, hooks: ReplicaHooks, executor: Executor) -> PipeCall:
        """What this rank has of the call. All ranks of all pipelines call it together.

        Raises:
            BatchRefused: what a rank was given does not fit, and nothing has run.
            InvalidInput: this rank's does not fit, and others may have begun; or pipelines are called for something else; or the
                weights of all pipelines are 0.
            TransferFailed: another rank has ended, or does not answer.
        """
        own, refusal, steps = None, None, given.call == "step"
        if given.weights is None and given.divide_by is None and len({*self._slices}) > 1:  # the mean over all tokens
            given = given._replace(weights=self._slices * (self._count // len(self._slices)))
        try:
            own = self._microbatches(given, self._samples if steps else None)
        except InvalidInput as error:
            refusal = error
        if self._begins(given, hooks, executor if steps else None, fits=own is not None):
            if refusal is not None:
                raise refusal
            assert own is not None
            shares, count = None, self._count
            if self._groups.rank in self._ending and not given.is_even:
                from schedc.runtime.stage.weighing import weigh

                shares = weigh(given.weights, given.divide_by, given.scale, self._groups.rank, count, hooks)
            return PipeCall(own, shares, (float(count * hooks.pipelines), 1.0) if shares is None else shares.way)
        line = None if refusal is None else str(refusal)
        for others in (self._groups, *self._groups.beside):
            line = next(filter(None, others.exchange(line)), None)
        if steps:
            executor.cancel()
        raise BatchRefused(line)

    def _microbatches(self, given: Given, samples: int | None) -> Microbatches:
        rank, count = self._groups.rank, self._count
        if rank in self._ending and not given.is_even:
            from schedc.runtime.stage.weighing import check_weights

            check_weights(given.weights, given.divide_by, given.scale, rank, count)
        if not self._slices:
            return self._whole(given, samples, count)
        from schedc.runtime.stage.slices import in_slices

        return in_slices(self._whole(given, samples, count // len(self._slices)), self._slices, self._sequence_dim, rank)

    def _whole(self, given: Given, samples: int | None, count: int) -> Microbatches:
        rank = self._groups.rank
        if self._cut_by_name is not None:
            return self._cut_by_name(given.inputs, given.targets, count, bare=given.outputs)
        inputs = checked_inputs(given.inputs, count, rank, samples) if rank in self._starting else ()
        if rank not in self._ending:
            return Microbatches(inputs, ())
        if given.outputs and given.targets is None:
            return Microbatches(inputs, None)
        return Microbatches(inputs, cut(given.targets, count, "targets", rank))

    def _begins(self, given: Given, hooks: ReplicaHooks, executor: Executor | None, *, fits: bool) -> bool:
        """Whether the call begins, on any rank; what this one was given `fits`. The executor is that of a step."""
        rank, starts = self._groups.rank, self._groups.rank in self._starting
        self._words.finish(self._patience_s)  # what is left of the call before
        if executor is None or not self._has_run:
            said = self._words.expect(self._given if starts else (), WAITS)
            if rank in self._given:
                self._words.say(fits, self._starting, SAYS)
            self._words.finish(self._patience_s)
            fits = fits and all(map(bool, said.values()))
        weighed = given.weights is not None and given.divide_by is None and rank in self._ending
        hooks.begin_call(f"{given.call} with weights" if weighed else given.call, fits=fits)
        begun = self._words.expect(self._starting, WAITS)
        if starts:
            begins = hooks.begins(fits)
            if self._all_see is not None:
                begins = self._all_see(begins)
            self._words.say(begins, range(self._groups.size), SAYS)
            if begins:
                return True
        elif executor is not None:
            executor.prepare()
        self._words.finish(self._patience_s, sent=False)
        return any(map(bool, begun.values()))
