"""How a step or an evaluation begins: ranks look at the batch; if it does not fit, all say so and nothing has run.

Ranks with inputs ask the other pipelines, and say to all ranks whether the call begins, which *shape* each microbatch has (a number
for the types and shapes of its tensors), and of how many samples it is. Those without inputs hear it when the receives of their
first op are posted, where shapes have been the same for long: the word is there before what it works on. Where they are others
then, all connect anew. Several ranks with inputs wait for each other.

They wait for those with targets, too, which say of each call whether theirs fit, and do not wait themselves: in most plans a rank
with inputs is the last that ends a step (benchmarks/runtime/beginning.py). Before evaluations, the first step of a plan, and steps
after one with keyword arguments on other ranks, they ask all others. So a rank in between that gets the first of these in a later
step may refuse what others have begun: it closes the pipe. The first word of a rank with inputs says what it is called for.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from schedc.errors import InvalidInput
from schedc.ir import Problem
from schedc.runtime.common.failure import BatchRefused
from schedc.runtime.common.program import starts_of
from schedc.runtime.session.shapes import ShapesOfCalls
from schedc.runtime.stage.batches import Batches, Microbatches, check_dict, check_size, cut, goes_with, samples_of
from schedc.runtime.transports.gloo import BEGINNING, PeerWords

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import nn

    from schedc.runtime.common.groups import Groups
    from schedc.runtime.common.hooks import ReplicaHooks
    from schedc.runtime.execution.runner import Executor
    from schedc.runtime.stage.weighing import Shares, Weights


CALLS = "step", "evaluation"
WAITS, SAYS = "rank {rank} waits until rank {peer} begins", "rank {rank} says to rank {peer} that it begins"


class Given(NamedTuple):
    """What a rank is given for a call, as `Pipe.step` and `Pipe.evaluate` say."""

    call: str
    inputs: Batches | None
    targets: Batches | None
    weights: Weights | None
    divide_by: float | None
    scale: float = 1.0
    outputs: MutableMapping[int, Any] | None = None
    kwargs: Mapping[str, Any] | Mapping[int, Mapping[str, Any]] | None = None
    loss_kwargs: Mapping[str, Any] | None = None

    @property
    def bare(self) -> bool:
        """Whether the targets may be missing."""
        return self.outputs is not None and self.call != "step"

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
    shapes: Sequence[int]
    """As `BoundaryMeta.shapes`."""
    samples: Sequence[int]
    """Of each microbatch; 0: it runs on the last sample once more, and counts nothing. -1: it is not known."""

    def forget_repeated(self) -> None:
        """After it: of outputs let go of those that count nothing."""
        for microbatch, samples in enumerate(self.samples):
            if not samples and self.batch.outputs is not None:
                self.batch.outputs.pop(microbatch, None)


class Beginning:
    """One rank's side of it."""

    def __init__(
        self,
        groups: Groups,
        all_see: Callable[[bool], bool] | None,
        patience_s: float,
        sequence_dim: int = 1,
        *,
        stages: Mapping[int, nn.Module],
        varying: bool = False,
    ) -> None:
        """Take the ranks, `SwapGroup.all_see` where there is one, how long to wait for a rank, and along what slices are cut.

        `stages` are this rank's; `varying` is whether tensors between stages may differ where microbatches have one shape.
        """
        self._sequence_dim, self._stages = sequence_dim, stages
        self._groups = groups
        self._all_see = all_see
        self._patience_s = patience_s
        self._words = PeerWords(groups.all, BEGINNING)
        self._shapes = ShapesOfCalls(groups.rank, varying=varying)

    def use(
        self,
        problem: Problem,
        ending: Collection[int],
        loss_fns: Sequence[Callable[..., Any]],
        cut_by_name: Callable[..., Microbatches] | None = None,
    ) -> None:
        """From now on calls are for a plan of this problem, of which no step has run.

        `ending` are the ranks that compute losses, by `loss_fns` as far as this rank knows; `cut_by_name` cuts batches where stages
        are a graph, and any rank may have some.
        """
        self._first_stages, self._ending = starts_of(problem), {*ending}
        self._starting = sorted({problem.stages[stage].rank for stage in self._first_stages})
        self._telling = self._ending - {*self._starting}
        """Those without inputs that say of each call whether what they have for it fits."""
        self._stage_count, self._loss_fns = len(problem.stages), loss_fns
        self._cut_by_name = cut_by_name
        self._everybody = range(problem.ranks)
        self._count, self._slices, self._parts = problem.microbatches, problem.slices, max(1, len(problem.slices))
        self._even = cut_by_name is not None or problem.updates is not None
        self.has_run = False
        """Whether a step has; who runs them says so."""
        self._named = False
        """Whether a rank without inputs had keyword arguments in the last step that asked; the same on all ranks."""
        self._shapes.use(self._count, self._parts)

    def limit(self, patience_s: float) -> None:
        """From now on wait so long for another rank."""
        self._patience_s = patience_s

    def agree(self, given: Given, hooks: ReplicaHooks, executor: Executor) -> PipeCall:
        """What this rank has of the call. All ranks of all pipelines call it together.

        Raises:
            BatchRefused: what a rank was given does not fit, and nothing has run.
            InvalidInput: this rank's does not fit, and others may have begun; or pipelines are called for something else; or the
                weights of all pipelines are 0.
            TransferFailed: another rank has ended, or does not answer.
        """
        own, refusal, steps = None, None, given.call == "step"
        by_slices = given.weights is None and given.divide_by is None and len({*self._slices}) > 1  # the mean over all tokens
        if by_slices:
            given = given._replace(weights=self._slices * (self._count // len(self._slices)))
        try:
            own = self._microbatches(given)
            word = self._shapes.word(given.inputs, own, plain=not given.kwargs) if self._groups.rank in self._starting else []
        except InvalidInput as error:
            refusal, word = error, [0] * (2 * self._count)
        posts = steps and self.has_run and self._shapes.are_steady
        words = self._begins(given, hooks, executor, word, fits=refusal is None, posts=posts)
        samples = words[0][1 + self._count :]
        if not all(one[0] for one in words):
            line = None if refusal is None else str(refusal)
            if own is not None and self._cut_like_inputs(given):
                try:
                    self._microbatches(given, samples)
                except InvalidInput as error:
                    line = str(error)
            for others in (self._groups, *self._groups.beside):
                line = next(filter(None, others.exchange(line)), None)
            if posts:
                executor.cancel()
            raise BatchRefused(line)
        if refusal is not None:
            raise refusal
        assert own is not None
        differ = posts and not self._shapes.are_as_before(words)
        shapes = self._shapes.of(words, executor.wiring.boundaries, steps=steps, first=not self.has_run)
        if differ:
            self._groups.exchange(None)  # who closes must not be before one that still posts
            executor.cancel()
        rank, shares = self._groups.rank, None
        if any(samples[:: self._parts] != samples_of(one, self._count // self._parts) for one in self._cut_like_inputs(given)):
            own = self._microbatches(given, samples)
        if rank in self._ending:
            given = self._by_samples(given, samples, hooks.pipelines, by_slices=by_slices)
            if not given.is_even:
                from schedc.runtime.stage.weighing import weigh

                shares = weigh(given.weights, given.divide_by, given.scale, rank, self._count, hooks)
        own = own._replace(outputs=given.outputs)
        return PipeCall(own, shares, (float(self._count * hooks.pipelines), 1.0) if shares is None else shares.way, shapes, samples)

    def _cut_like_inputs(self, given: Given) -> list[torch.Tensor]:
        """The tensors that this rank is to cut as inputs are, which it may not know: targets and keyword arguments."""
        if self._cut_by_name is not None:
            return []
        own = [given.targets] if self._groups.rank in self._ending else []
        for named in (given.kwargs, given.loss_kwargs):
            for value in (named or {}).values():
                own += value.values() if isinstance(value, Mapping) else [value]
        return [one for one in own if isinstance(one, torch.Tensor) and one.dim()]

    def _microbatches(self, given: Given, samples: Sequence[int] | None = None) -> Microbatches:
        """What this rank has of the batch; `samples` are of the inputs, where they are known."""
        count, parts, rank = self._count, self._parts, self._groups.rank
        check_dict(given.outputs, "outputs is", rank, "a dict, to get them by microbatch", MutableMapping)
        check_dict(given.kwargs, "kwargs are", rank, "a dict by name, or by stage")
        check_dict(given.loss_kwargs, "loss_kwargs are", rank)
        weighs = rank in self._ending or rank in self._starting  # what others are given is not used: no reason to close the pipe
        if weighs and not given.is_even:
            from schedc.runtime.stage.weighing import check_weights

            check_weights(given.weights, given.divide_by, given.scale, rank, count)
        of = None if samples is None else samples[::parts]
        whole = self._whole(given, count // parts, of)
        if given.kwargs or given.loss_kwargs:
            from schedc.runtime.stage.named import by_microbatch, by_stage, check_loss_kwargs

            how = partial(by_microbatch, microbatches=count // parts, samples=of, even=self._even)
            first = whole.inputs[0] if whole.inputs else ()
            inputs = dict.fromkeys(self._first_stages, len(first) if isinstance(first, tuple) else 1)
            whole = whole._replace(kwargs=by_stage(given.kwargs, self._stages, self._stage_count, rank, inputs, how))
            if given.loss_kwargs and weighs:
                whole = whole._replace(loss_kwargs=how(given.loss_kwargs, "loss_kwargs", rank))
                check_loss_kwargs(given.loss_kwargs, self._loss_fns, rank)
        if not self._slices:
            return whole
        from schedc.runtime.stage.slices import in_slices

        return in_slices(whole, self._slices, self._sequence_dim, rank)

    def _whole(self, given: Given, count: int, samples: Sequence[int] | None) -> Microbatches:
        rank, even, inputs = self._groups.rank, self._even, given.inputs
        if self._cut_by_name is not None:
            return self._cut_by_name(inputs, given.targets, count, bare=given.bare)
        if rank not in self._starting and rank not in self._ending:
            return Microbatches((), ())
        if samples is None and isinstance(inputs, torch.Tensor) and isinstance(given.targets, torch.Tensor) and inputs.dim():
            check_size(given.targets, inputs.shape[0], count, "targets", rank)
        own = cut(inputs, count, "inputs", rank, even=even) if rank in self._starting else ()
        if rank not in self._ending:
            if own and given.targets is not None:  # a mistake that all ranks make is found before any begins
                cut(given.targets, count, "targets", rank, even=even)
            return Microbatches(own, ())
        if given.bare and given.targets is None:
            return Microbatches(own, None)
        return Microbatches(own, cut(given.targets, count, "targets", rank, samples, even=even))

    def _by_samples(self, given: Given, samples: Sequence[int], pipelines: int, *, by_slices: bool) -> Given:
        """The same with weights by which each sample counts the same, where microbatches have different numbers of them."""
        if len({*samples}) == 1:
            return given
        if given.weights is None and given.divide_by is None:
            weights = [one * self._count / sum(samples) for one in samples]
            return given._replace(weights=weights, divide_by=float(self._count * pipelines))
        counts = samples if by_slices else [min(one, 1) for one in samples]  # of those that the job weighs: whether it counts
        own = [1.0] * self._count if given.weights is None else given.weights
        return given._replace(weights=[float(one) * n for one, n in zip(own, counts, strict=True)])

    def _begins(
        self, given: Given, hooks: ReplicaHooks, executor: Executor, word: Sequence[int], *, fits: bool, posts: bool
    ) -> list[list[int]]:
        """The words of ranks with inputs: whether the call begins, and `word` of each; what this rank was given `fits`."""
        rank, starts, call = self._groups.rank, self._groups.rank in self._starting, CALLS.index(given.call)
        numbers, named = 3 + 2 * self._count, not starts and bool(given.kwargs or given.loss_kwargs)
        self._words.finish(self._patience_s)  # what is left of the call before
        asks = bool(call or not self.has_run or self._named)
        asked = self._words.expect(self._starting if asks else (), WAITS, numbers)
        if starts and asks:
            self._words.say([call, *[0] * (numbers - 1)], self._everybody, SAYS)
        telling: Collection[int] = self._everybody if asks else self._telling
        said = self._words.expect(telling if starts else (), WAITS, 2)
        if rank in telling:
            ends = rank in self._ending and self._cut_by_name is None
            targets = given.targets.shape[0] if fits and ends and isinstance(given.targets, torch.Tensor) else -1
            self._words.say([targets if fits else 0, named], self._starting, SAYS)
        self._words.finish(self._patience_s, sent=False)  # the sent: of another call it is not received
        self._check_calls(given.call, asked)
        if asks:
            self._words.finish(self._patience_s)
        if said:
            others, with_names = zip(*(one.tolist() for one in said.values()), strict=True)
            named = any(with_names)
            samples, whole = sum(word[self._count :: self._parts]), self._count // self._parts
            fits = fits and all(one == -1 or (one and (samples < 0 or goes_with(one, samples, whole))) for one in others)
        weighed = given.weights is not None and given.divide_by is None and rank in self._ending
        hooks.begin_call(f"{given.call} with weights" if weighed else given.call, fits=fits)
        begun = self._words.expect(self._starting, WAITS, numbers)
        begins = False
        if starts:
            begins = hooks.begins(fits)
            if self._all_see is not None:
                begins = self._all_see(begins)
            self._words.say([call, named, begins, *word], self._everybody, SAYS)
        elif posts:
            executor.prepare()
        self._words.finish(self._patience_s, sent=not starts)  # who says that it begins has heard those that tell
        self._check_calls(given.call, begun)
        words = [[call, named, begins, *word] if one == rank else begun[one].tolist() for one in self._starting]
        self._named = any(one[1] for one in words) if not call else self._named
        return [one[2:] for one in words]

    def _check_calls(self, call: str, words: Mapping[int, torch.Tensor]) -> None:
        """Refuse where a rank with inputs, by its first word, is called for something else than this one."""
        for peer, word in words.items():
            if (other := CALLS[int(word[0])]) != call:
                own = self._groups.rank
                raise InvalidInput(f"rank {peer} is called for {other}, rank {own} for {call}; call all ranks for the same")
