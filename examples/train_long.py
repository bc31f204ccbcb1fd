"""Train a small transformer whose sequences are in slices and whose head is split over the ranks, on the CPU.

    schedc compile examples/train_long_job/job.toml -o build/train_long.plan.json
    torchrun --standalone --nproc-per-node 4 examples/train_long.py --plan build/train_long.plan.json --check

Any plan will do that has a split head, with or without slices, and as many ranks as there are processes. `--check` compares the
first step with the same model in one piece, on whole sequences, gradient by gradient, in double precision.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy, gelu
from train_gpt import HEADS, SAMPLES, TOKENS, TOLERANCE, WIDTH, Block, Chain, Embedding

import schedc.runtime
from schedc.errors import SchedcError
from schedc.formats.plan.plan_file import read_plan
from schedc.runtime import HeadJoin, HeadPart, slice_attention, split_cross_entropy

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


class SlicedEmbedding(Embedding):
    """Tokens to vectors; the state is the position of the next slice's first token."""

    def forward(self, tokens: torch.Tensor, state: Any = None) -> Any:
        """[sample, position of the slice] → [sample, position, WIDTH], and the state."""
        first = state or 0
        end = first + tokens.shape[1]
        return self.tokens(tokens) + self.positions[first:end], end


class SlicedBlock(Block):
    """A block for slices; the state are the keys and values of those before."""

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        """[sample, position of the slice, WIDTH], in and out, and the state."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.attention_norm(x)).chunk(3, -1))
        mixed, state = slice_attention(q, k, v, state)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(gelu(self.up(self.mlp_norm(x)))), state


class Piece(nn.ModuleList):
    """Layers as a stage, with the state of each."""

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        """What the next stage gets, and what the next slice does; where sequences are whole, the former alone."""
        states = []
        for layer, before in zip(self, state or [None] * len(self), strict=True):
            x, after = layer(x, before)
            states.append(after)
        return x, states


class WholePiece(Piece):
    """Layers as a stage, of whole sequences."""

    def forward(self, x: torch.Tensor) -> Any:  # type: ignore[override]
        """What the next stage gets."""
        return super().forward(x)[0]


class Last(nn.Module):
    """The last norm, in the stage before the head."""

    def __init__(self) -> None:
        super().__init__()
        self.block, self.norm = SlicedBlock(), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        """As a block."""
        x, state = self.block(x, state)
        return self.norm(x), state


def make_layer(number: int, last: int) -> nn.Module:
    """Layer `number` of those before the head, of which `last` is the last one; the same on every rank."""
    torch.manual_seed(number)
    return SlicedEmbedding() if number == 0 else Last() if number == last else SlicedBlock()


def head_weight() -> torch.Tensor:
    """The whole head's, the same on every rank."""
    return 0.1 * torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


def make_stages(plan: Plan, rank: int) -> dict[int, nn.Module]:
    """This rank's stages: embedding and blocks, as the plan says which layers a stage has; then the head's parts, and the join."""
    ranks, count = plan.problem.ranks, len(plan.problem.stages)
    *before, join = range(count)
    before, parts = before[:-ranks], before[-ranks:]
    rows = dict(zip(parts, torch.arange(TOKENS).tensor_split(ranks), strict=True))
    bounds = {stage: plan.problem.stages[stage].layers for stage in before}
    last = max(end for _, end in filter(None, bounds.values())) - 1
    stages: dict[int, nn.Module] = {}
    for stage in plan.problem.stages_on(rank):
        if stage in rows:
            stages[stage] = HeadPart(head_weight()[rows[stage]], first=int(rows[stage][0]), vocabulary=TOKENS)
        elif stage == join:
            stages[stage] = HeadJoin()
        else:
            own = [make_layer(number, last) for number in range(*(bounds[stage] or ()))]
            stages[stage] = Piece(own) if plan.problem.slices else WholePiece(own)
    return stages


def largest_error(
    plan: Plan, stages: dict[int, nn.Module], loss: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor
) -> float:
    """The largest relative error of the loss and of this rank's gradients, against the model in one piece on whole sequences."""
    ends = [stage.layers[1] for stage in plan.problem.stages if stage.layers is not None]
    layers = [make_layer(number, ends[-1] - plan.problem.ranks - 2).double() for number in range(ends[-1] - plan.problem.ranks - 1)]
    weight = nn.Parameter(head_weight().double())
    x = inputs
    for layer in layers:
        x = layer(x)[0]
    expected = cross_entropy((x @ weight.T).flatten(0, 1), targets.flatten())
    torch.autograd.backward(expected)
    pairs: list[tuple[torch.Tensor | None, torch.Tensor | None]] = []
    for stage, module in stages.items():
        if isinstance(module, HeadPart):
            assert weight.grad is not None
            pairs.append((module.weight.grad, weight.grad[module.first : module.first + module.rows]))
        elif isinstance(module, Piece):
            first = (plan.problem.stages[stage].layers or (0,))[0]
            for number, layer in enumerate(module, first):
                pairs += [(own.grad, layers[number].get_parameter(name).grad) for name, own in layer.named_parameters()]
    errors = [abs(loss.item() - expected.item()) / expected.item()]
    for own, right in pairs:
        if own is None or right is None:
            raise SystemExit("a parameter has no gradient")
        errors.append(float((own - right).norm() / right.norm()))
    return max(errors)


def main() -> None:
    """Parse, load, train."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--plan", required=True, help="the plan file")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--check", action="store_true", help="compare the first step with the model in one piece")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    plan = read_plan(options.plan)
    if plan.problem.is_chain or len(plan.problem.stages) < plan.problem.ranks + 2:
        raise SystemExit(f'plan {plan.name!r} has no split head; compile a job with head = "split"')
    stages = make_stages(plan, rank)
    if options.check:
        for module in stages.values():
            module.double()
    chain = Chain()
    loss_fn = partial(split_cross_entropy, vocabulary=TOKENS)
    weights = [weight for module in stages.values() for weight in module.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn) as pipe:
        for step in range(options.steps):
            inputs, targets = chain.batch(SAMPLES * plan.problem.microbatches // max(1, len(plan.problem.slices)))
            optimizer.zero_grad()
            loss = pipe.step(inputs, targets)  # whole sequences, and on every rank the targets, which the parts of the head take
            if options.check and step == 0:
                error = largest_error(plan, stages, loss, inputs, targets)
                print(f"rank {rank}: the loss and all gradients are within {error:.1e} of those in one piece\n", end="", flush=True)
                if not error < TOLERANCE:
                    raise SystemExit(f"rank {rank}: expected at most {TOLERANCE:.0e}")
            optimizer.step()
            if rank == 0 and (step % 10 == 0 or step == options.steps - 1):
                print(f"step {step:3}  loss {loss.item():.4f}  (the data's entropy is {chain.entropy():.4f})", flush=True)
        loss = pipe.evaluate(*chain.batch(SAMPLES * plan.problem.microbatches // max(1, len(plan.problem.slices))))
        if rank == 0:
            print(f"unseen    loss {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    try:
        main()
    except SchedcError as error:
        sys.exit(str(error))
