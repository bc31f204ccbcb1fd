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
    from collections.abc import Mapping, Sequence


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


class LastBlock(SlicedBlock):
    """The last one, with the norm before the head, which is none of the parts' own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor, state: Any = None) -> Any:
        """As a block."""
        x, state = super().forward(x, state)
        return self.norm(x), state


class Whole(nn.Module):
    """A layer of whole sequences, for plans without slices."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> Any:
        """What the layer gives, without a state."""
        return self.layer(x)[0]


def make_model(blocks: int) -> list[nn.Module]:
    """The layers before the head, the same on every rank."""
    torch.manual_seed(0)
    return [SlicedEmbedding(), *(SlicedBlock() for _ in range(blocks - 1)), LastBlock()]


def make_head() -> torch.Tensor:
    """The whole head's weight, the same on every rank."""
    return 0.1 * torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))


def largest_error(
    stages: Mapping[int, nn.Module],
    layers: Sequence[nn.Module],
    loss: torch.Tensor,
    inputs: torch.Tensor,
    targets: torch.Tensor,
) -> float:
    """The largest relative error of the loss and of this rank's gradients, against the model in one piece on whole sequences.

    Args:
        stages: this rank's.
        layers: those before the head, of which the stages' are some.
        loss: of the step.
        inputs: of the step.
        targets: of the step.
    """
    whole, weight = [layer.double() for layer in make_model(len(layers) - 1)], nn.Parameter(make_head().double())
    x = inputs
    for layer in whole:
        x = layer(x)[0]
    expected = cross_entropy((x @ weight.T).flatten(0, 1), targets.flatten())
    torch.autograd.backward(expected)
    same = dict(
        pair
        for layer, other in zip(layers, whole, strict=True)
        for pair in zip(layer.parameters(), (one.grad for one in other.parameters()), strict=True)
    )
    errors = [abs(loss.item() - expected.item()) / expected.item()]
    for part in nn.ModuleList(stages.values()).modules():
        if isinstance(part, HeadPart) and weight.grad is not None:
            same[part.weight] = weight.grad[part.first : part.first + part.rows]
    for own in nn.ModuleList(stages.values()).parameters():
        right = same[own]
        if own.grad is None or right is None:
            raise SystemExit("a parameter has no gradient")
        errors.append(float((own.grad - right).norm() / right.norm()))
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
    ends = [stage.layers[1] for stage in plan.problem.stages if stage.layers is not None]
    if plan.problem.is_chain or not ends:
        raise SystemExit(f'plan {plan.name!r} has no split head; compile a job with head = "split"')
    layers = make_model(max(ends) - plan.problem.ranks - 2)  # but the embedding, the parts and the join
    rows = torch.arange(TOKENS).tensor_split(plan.problem.ranks)
    head: list[nn.Module] = [HeadPart(make_head()[own], first=int(own[0]), vocabulary=TOKENS) for own in rows]
    before = layers if plan.problem.slices else [Whole(layer) for layer in layers]
    stages = schedc.runtime.build_stages([*before, *head, HeadJoin()], plan)
    if options.check:
        for module in (*layers, *head):
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
                error = largest_error(stages, layers, loss, inputs, targets)
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
