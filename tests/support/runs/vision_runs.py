"""What rank processes run in the tests of a model of several modules: an encoder beside a decoder with two heads, in any layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import schedc.runtime
from runs.harness import SAMPLES, TOKENS, WIDTH, Descent, Layer, load, loss_fn, relative_error, weights_of
from schedc.runtime.session.building import bounds_of_stages
from schedc.runtime.stage.split_head import HeadJoin, HeadPart, split_cross_entropy
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from schedc.runtime.training.clipping import clip_grad_norm_

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from schedc.ir.plan import Plan


class Patches(nn.Linear):
    """Begins the encoder with pixels."""


class Words(nn.Embedding):
    """Begins the text, and passes the ids on."""

    def forward(self, ids: torch.Tensor) -> Any:
        return {"output": super().forward(ids), "ids": ids}


class Joined(Layer):
    """Takes the words, then the encoder's output."""

    def forward(self, words: torch.Tensor, images: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(torch.cat((images, words), dim=1))


class Near(Layer):
    """Takes the text's output, and the ids of words."""

    def forward(self, text: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return super().forward(text + ids.sum(1)[:, None, None] / TOKENS)


MODULES: list[dict[str, Any]] = [
    {"name": "vision", "layers": 2, "inputs": []},
    {"name": "words", "layers": 1, "inputs": []},
    {"name": "text", "layers": 3, "inputs": ["words", "vision"]},
    {"name": "head", "layers": 1, "inputs": ["text"]},
    {"name": "near", "layers": 2, "inputs": ["text"]},
]
EDGES: list[dict[str, Any]] = [{"source": "words", "destination": "near", "value": "ids", "message": "1 KB", "gradient": False}]


def vision_layers() -> list[nn.Module]:
    """A vision-language model that predicts two tokens; its two heads and its embedding are one weight."""
    torch.manual_seed(5)
    words, heads = Words(TOKENS, WIDTH), [nn.Linear(WIDTH, TOKENS) for _ in range(2)]
    for head in heads:
        head.weight = words.weight
    layers = [Patches(4, WIDTH), Layer(), words, Joined(), Layer(), Layer(), heads[0], Near(), heads[1]]
    return [layer.double() for layer in layers]


def vision_losses(
    layers: Sequence[nn.Module], batch: Mapping[str, torch.Tensor], targets: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The sum of its losses, without a pipeline."""
    patches, encoder, words, joined, first, second, head, near, last = layers
    embedded = words(batch["words"])
    text = second(first(joined(embedded["output"], encoder(patches(batch["vision"])))))
    nearer: torch.Tensor = LOSSES["near"](last(near(text, embedded["ids"])), targets["near"])
    return nearer + LOSSES["head"](head(text), targets["head"])


LOSSES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "head": loss_fn,
    "near": lambda logits, targets: 0.3 * loss_fn(logits, targets),
}


def vision_errors(rank: int, plans: Sequence[Plan], **options: Any) -> float | str:
    """Two steps of each of the plans: the largest relative error of a loss or a gradient."""
    whole, errors = vision_layers(), [0.0]
    stages = schedc.runtime.build_stages(vision_layers(), plans[0], rank, modules=MODULES, edges=EDGES)
    with load(plans[0], stages, loss_fn=LOSSES, **options) as pipe:
        for number in range(2 * len(plans)):
            batch, targets = vision_batch(pipe.plan, number)
            for weight in (*weights_of(dict(enumerate(whole))), *weights_of(stages)):
                weight.grad = None
            expected = vision_losses(whole, batch, targets)
            torch.autograd.backward(expected)
            outputs: dict[int, Any] = {}
            errors.append(relative_error(pipe.evaluate(batch, targets, outputs=outputs), expected.detach()))
            assert {name for each in outputs.values() for name in each} <= {*LOSSES}
            errors.append(relative_error(pipe.step(batch, targets), expected.detach()))
            errors += [relative_error(own.grad, same.grad) for own, same in pairs_of(plans[0], stages, whole)]
            if number == 1 and len(plans) > 1:
                pipe.swap(plans[1])
    return max(errors)


def split_errors(rank: int, plan: Plan) -> float:
    """A step of the model whose last head is split: the largest relative error of a loss or a gradient."""
    made = []
    for _ in range(2):
        layers = vision_layers()
        layers[-1] = nn.Linear(WIDTH, TOKENS, bias=False).double()
        made.append(layers)
    made[1][-1].load_state_dict(made[0][-1].state_dict())
    whole, (*before, head) = made
    rows = torch.arange(TOKENS).tensor_split(plan.problem.ranks)
    weight = head.get_parameter("weight").detach()
    parts = [HeadPart(weight[own], first=int(own[0]), vocabulary=TOKENS) for own in rows]
    stages = schedc.runtime.build_stages([*before, *parts, HeadJoin()], plan, rank, modules=MODULES, edges=EDGES)
    batch, targets = vision_batch(plan, 0)
    expected = vision_losses(whole, batch, targets)
    torch.autograd.backward(expected)
    losses = {**LOSSES, "near": lambda numbers, of: 0.3 * split_cross_entropy(numbers, of, vocabulary=TOKENS)}
    with load(plan, stages, loss_fn=losses) as pipe:
        errors = [relative_error(run(batch, targets), expected.detach()) for run in (pipe.evaluate, pipe.step)]
    ours, theirs = (nn.ModuleList(each).parameters() for each in (before, whole[:-1]))
    same = {one: other.grad for one, other in zip(ours, theirs, strict=True)}
    found = whole[-1].get_parameter("weight").grad
    assert found is not None
    same.update((part.weight, found[own]) for part, own in zip(parts, rows, strict=True))
    return max(errors + [relative_error(weight.grad, same[weight]) for weight in weights_of(stages)])


def vision_batch(plan: Plan, number: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Inputs and targets by module."""
    generator, count = torch.Generator().manual_seed(number), SAMPLES * plan.problem.microbatches
    batch = {"vision": torch.randn(count, 2, 4, generator=generator, dtype=torch.float64)}
    batch["words"] = torch.randint(TOKENS, (count, 3), generator=generator)
    return batch, {name: torch.randint(TOKENS, (count, 5), generator=generator) for name in LOSSES}


def pairs_of(plan: Plan, stages: Mapping[int, nn.Module], whole: Sequence[nn.Module]) -> list[tuple[nn.Parameter, nn.Parameter]]:
    """Each weight of a rank, and the same one of the whole model."""
    first = [known[0] for known in bounds_of_stages(plan, "")]
    found = []
    for stage, module in stages.items():
        for layer, own in enumerate(module.children(), first[stage]):
            found += [*zip(own.parameters(), whole[layer].parameters(), strict=True)]
    return found


def resharded(rank: int, plans: Sequence[Plan], folder: Path) -> float:
    """A clipped step under one plan, a checkpoint, and the weights under another plan: the largest error."""
    whole, errors, norm = vision_layers(), list[float](), 0.1
    for plan in plans:
        layers = vision_layers()
        stages = schedc.runtime.build_stages(layers, plan, rank, modules=MODULES, edges=EDGES)
        weights = weights_of(stages)
        with load(plan, stages, loss_fn=LOSSES) as pipe:
            if plan is not plans[0]:
                for weight in weights:
                    weight.data.zero_()
                load_checkpoint(pipe, folder / "saved", convert=True)
                continue
            batch, targets = vision_batch(plan, 0)
            torch.autograd.backward(vision_losses(whole, batch, targets))
            pipe.step(batch, targets)
            every = weights_of(dict(enumerate(whole)))
            expected = nn.utils.clip_grad_norm_(every, norm)
            errors.append(relative_error(clip_grad_norm_(pipe, norm), expected))
            Descent(weights).step()
            Descent(every).step()
            save_checkpoint(pipe, folder / "saved")
        errors += [relative_error(own.detach(), same.detach()) for own, same in pairs_of(plan, stages, whole)]
    return max(errors)
