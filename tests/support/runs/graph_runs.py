"""What rank processes run in the tests of stages that are a graph: the same modules in a pipeline and, one after another, without.

The modules are called by the runtime as docs/graphs.md says; without a pipeline by `whole_losses`, which passes on what each stage
gives by the edges of the problem alone.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from runs.faults import Faults
from runs.harness import SAMPLES, TOKENS, WIDTH, grid, load, loss_fn, noting, relative_error, said, weights_of
from runs.retry_runs import on_failing
from schedc.errors import SchedcError
from schedc.runtime import BatchRefused
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.measure.recording import Recorder
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.training.ties import tie_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from schedc.ir.graph import Edge
    from schedc.ir.network import Link
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

Given = dict[int, tuple[torch.Tensor, ...]]


class Node(nn.Module):
    """A stage of any graph: floats and integers in, of each value floats and integers, or integers alone, out."""

    def __init__(self, problem: Problem, stage: int) -> None:
        super().__init__()
        torch.manual_seed(stage)
        self.stage = stage
        self.into = [edge.source for edge in problem.edges if edge.destination == stage]
        out = [edge for edge in problem.edges if edge.source == stage]
        self.values = {edge.value: all(one.has_gradient for one in out if one.value == edge.value) for edge in out}
        """By number, whether it has a gradient."""
        self.table = nn.Embedding(TOKENS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.takes = nn.ModuleDict({str(source): nn.Linear(WIDTH, WIDTH) for source in self.into})
        self.gives = nn.ModuleDict({str(value): nn.Linear(WIDTH, WIDTH) for value, back in self.values.items() if back})
        self.head = None if out else nn.Linear(WIDTH, TOKENS)
        self.double()

    def compute(self, taken: Mapping[int, Sequence[torch.Tensor]], batch: torch.Tensor | None) -> tuple[Given, torch.Tensor | None]:
        """The values by number, and what the loss is computed of, from what has come of each stage, or the batch."""
        found = [self.table(batch)] if batch is not None else []
        ids = batch
        for source, tensors in taken.items():
            for tensor in tensors:
                if tensor.is_floating_point():
                    found.append(self.takes[str(source)](tensor))
                else:
                    found.append(self.table(tensor % TOKENS))
                    ids = tensor
        hidden = self.norm(torch.tanh(torch.stack(found).sum(0)))
        assert ids is not None
        ids = ids + 1
        given: Given = dict.fromkeys(self.values, (ids,))
        given |= {value: (self.gives[str(value)](hidden), ids) for value, back in self.values.items() if back}
        return given, None if self.head is None else self.head(hidden)

    def forward(self, *positional: torch.Tensor) -> Any:
        """As the runtime calls it."""
        tensors, taken = iter(positional), {}
        for source in self.into:
            first = next(tensors)
            taken[source] = (first, next(tensors)) if first.is_floating_point() else (first,)
        rest = [*tensors]
        assert len(rest) == (not self.into)
        given, output = self.compute(taken, rest[0] if rest else None)
        if output is not None:
            return output
        plain = {value: one[0] if len(one) == 1 else one for value, one in given.items()}
        return plain if len(plain) > 1 or self.stage % 2 else next(iter(plain.values()))


def with_edges(problem: Problem, edges: tuple[Edge, ...], links: tuple[Link, ...]) -> Problem:
    """The problem with its stages as a graph."""
    return replace(problem, edges=edges, links=links, paths=(tuple(range(len(problem.stages))),))


def batch_of(problem: Problem, step: int) -> tuple[dict[int, torch.Tensor], dict[int, torch.Tensor]]:
    """Inputs and targets by stage; each has its own."""
    generator = torch.Generator().manual_seed(step)
    shape = (2, len(problem.stages), SAMPLES * problem.microbatches, 3)
    inputs, targets = torch.randint(TOKENS, shape, generator=generator)
    return dict(enumerate(inputs)), dict(enumerate(targets))


def whole_losses(nodes: Mapping[int, Node], problem: Problem, step: int) -> torch.Tensor:
    """The sum of the losses of the whole batch, without a pipeline."""
    inputs, targets = batch_of(problem, step)
    values: dict[int, Given] = {}
    losses = []
    for stage, node in nodes.items():
        taken = {edge.source: values[edge.source][edge.value] for edge in problem.edges if edge.destination == stage}
        values[stage], output = node.compute(taken, None if node.into else inputs[stage])
        if output is not None:
            losses.append(loss_fn(output, targets[stage]))
    return torch.stack(losses).sum()


def errors_of(rank: int, plans: Sequence[Plan], *, tied: Sequence[int] = (), recompute: Any = False, **options: Any) -> float | str:
    """Two steps of each of the plans of one problem, which take over while the job trains, and evaluations between.

    Args:
        rank: this one.
        plans: of the same stages.
        tied: stages whose tables of embeddings are one weight.
        recompute: as of `load`.
        options: of `load`, too.

    Returns:
        The largest relative error of a loss or a gradient.
    """
    problem = plans[0].problem
    nodes = {stage: Node(problem, stage) for stage in problem.paths[0]}
    own = {stage: Node(problem, stage) for stage in problem.stages_on(rank)}
    for made in (nodes, own):
        for stage in tied:
            if stage in made:
                first = nodes[tied[0]].table.weight
                made[stage].table.weight = first if made is nodes else nn.Parameter(first.detach().clone())
    copies = [own[stage].get_parameter("table.weight") for stage in tied if stage in own]
    for stage in tied:
        if stage in own:
            own[stage].table.weight = copies[0]
    errors = [0.0]
    try:
        with load(plans[0], own, recompute=recompute, **options) as pipe:
            if tied:
                tie_weights(pipe, {"table": copies[0]} if copies else {})
            for number in range(2 * len(plans)):
                for weight in (*weights_of(nodes), *weights_of(own)):
                    weight.grad = None
                batch, expected = batch_of(pipe.plan.problem, number), whole_losses(nodes, pipe.plan.problem, number)
                torch.autograd.backward(expected)
                errors.append(relative_error(pipe.evaluate(*batch), expected.detach()))
                errors.append(relative_error(pipe.step(*batch), expected.detach()))
                errors += [relative_error(pipe.losses.mean(), expected.detach())]
                for stage, node in own.items():
                    for name, weight in node.named_parameters():
                        same = nodes[stage].get_parameter(name)
                        assert (weight.grad is None or not weight.grad.any()) if same.grad is None else weight.grad is not None
                        if same.grad is not None:
                            errors.append(relative_error(weight.grad, same.grad))
                if number % 2 and number < 2 * len(plans) - 1:
                    pipe.swap(plans[number // 2 + 1])
                    pipe.step(*batch)  # with which all ranks learn of it
                    pipe.step(*batch_of(pipe.plan.problem, 0))
                    assert pipe.plan is plans[number // 2 + 1] or pipe.plan.problem is plans[number // 2 + 1].problem
    except SchedcError as error:
        return said(error)
    return max(errors)


def refused(rank: int, plan: Plan, mistake: str) -> str:
    """What a rank raises where a job makes this mistake."""
    problem, options = plan.problem, dict[str, Any]()
    own: dict[int, nn.Module] = {stage: Node(problem, stage) for stage in problem.stages_on(rank)}
    inputs, targets = batch_of(problem, 0)
    batch: Any = inputs, targets
    if mistake == "a loss without a function":
        options["loss_fn"] = {2: loss_fn}
    elif mistake == "a batch without a name":
        batch = {1: inputs[0]}, targets
    elif mistake == "ranks that choose":
        options["kind"] = ChoosingPipe
    elif mistake == "ranks that adapt":
        options["observe"] = Monitor()
    elif mistake == "a module for two losses":
        options["loss_fn"] = nn.Bilinear(1, 1, 1)
    for stage, module in own.items():
        if stage == 1 and mistake in WRONG:
            module.register_forward_hook(lambda _module, _inputs, given: WRONG[mistake](given))
        if mistake == "an input changed in place" and stage == 2:
            module.register_forward_pre_hook(_changed)
    try:
        with load(plan, own, **options) as pipe:
            pipe.step(*batch)
    except (SchedcError, TypeError) as error:
        return said(error)
    return "nothing"


def smaller(rank: int, plan: Plan) -> list[str]:
    """A batch that one rank cannot cut, and a step after it."""
    problem, said_of = plan.problem, list[str]()
    own: dict[int, nn.Module] = {stage: Node(problem, stage) for stage in problem.stages_on(rank)}
    inputs, targets = batch_of(problem, 0)
    with load(plan, own) as pipe:
        with noting(said_of, BatchRefused):
            pipe.step(inputs, {**targets, 3: targets[3][1:]})
        said_of.append(f"{pipe.step(inputs, targets):.3f}")
    return said_of


WRONG: dict[str, Callable[[Any], Any]] = {
    "a value that is missing": lambda given: {5: given},
    "integers": lambda given: torch.ones(2, dtype=torch.int64),
    "a value that requires grad": lambda given: torch.ones(2, requires_grad=True),
}


def _changed(_module: nn.Module, taken: tuple[torch.Tensor, ...]) -> None:
    for tensor in taken:
        if not tensor.is_floating_point():
            tensor.add_(1)


def replicated(process: int, plan: Plan) -> float:
    """Two pipelines of a plan on four processes, each with half of the batch: the largest error of a loss or a gradient."""
    problem = plan.problem
    (pipeline, rank), groups = divmod(process, problem.ranks), grid(2, problem.ranks)
    nodes = {stage: Node(problem, stage) for stage in problem.paths[0]}
    own = {stage: Node(problem, stage) for stage in problem.stages_on(rank)}
    whole = replace(problem, microbatches=2 * problem.microbatches)
    inputs, targets = ({stage: each.chunk(2)[pipeline] for stage, each in batch.items()} for batch in batch_of(whole, 0))
    expected = whole_losses(nodes, whole, 0)
    torch.autograd.backward(expected)
    with load(plan, own, pipeline_group=groups[0], data_parallel_group=groups[1]) as pipe:
        errors = [relative_error(pipe.step(inputs, targets), expected.detach())]
    for stage, node in own.items():
        pairs = [(weight, nodes[stage].get_parameter(name)) for name, weight in node.named_parameters()]
        errors += [relative_error(weight.grad, same.grad) for weight, same in pairs if same.grad is not None]
    return max(errors)


def again(rank: int, plan: Plan, path: Path) -> float:
    """Steps that are recorded, on channels that fail in the second, which runs again: the largest error of a loss or a gradient."""
    problem, errors = plan.problem, list[float]()
    nodes = {stage: Node(problem, stage) for stage in problem.paths[0]}
    own = {stage: Node(problem, stage) for stage in problem.stages_on(rank)}
    faults = Faults(receive={problem.microbatches + 3: "lost"}) if rank else Faults()
    with on_failing([faults]), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with load(plan, own, observe=Recorder(skip=0)) as pipe:
            for number in range(3):
                for weight in (*weights_of(nodes), *weights_of(own)):
                    weight.grad = None
                expected = whole_losses(nodes, problem, number)
                torch.autograd.backward(expected)
                errors.append(relative_error(pipe.step(*batch_of(problem, number)), expected.detach()))
                for stage, node in own.items():
                    pairs = [(weight, nodes[stage].get_parameter(name)) for name, weight in node.named_parameters()]
                    errors += [relative_error(weight.grad, same.grad) for weight, same in pairs if same.grad is not None]
            pipe.write_trace(path)
    assert [str(warning.message) for warning in told], "nothing has failed"
    return max(errors)
