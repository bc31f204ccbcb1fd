"""The profiler on graphs of modules: what layers take by edge, the sizes of edges, several losses, and what cannot be."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from schedc.api import read_job
from schedc.cli.app import main
from schedc.errors import InvalidInput
from schedc.runtime.profiling import LayerEdge, Model, ModuleEntry, measured_edges, merged, profile_model

if TYPE_CHECKING:
    from pathlib import Path

CPU = torch.device("cpu")
TOKENS, WIDTH, LENGTH, SAMPLES, PATCHES = 11, 16, 6, 3, 4
STATE, PATCH, TOKEN = SAMPLES * LENGTH * WIDTH * 4, SAMPLES * PATCHES * 8 * 4, SAMPLES * PATCHES * WIDTH * 4
"""Bytes of what a layer of the decoder, the first and the last of the encoder give."""


class Patches(nn.Module):
    """Begins the encoder with pixels, and gives the ids of tokens on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 8)

    def forward(self, pixels: torch.Tensor, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"output": self.linear(pixels), "ids": ids, "unused": ids}


class Embedding(nn.Module):
    """Tokens of images before those of text."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, WIDTH)

    def forward(self, images: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        assert images.requires_grad
        assert not ids.requires_grad
        return torch.cat((images, self.embedding(ids)), dim=1)[:, :LENGTH]


class Head(nn.Module):
    """Logits of the sum of what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, TOKENS)

    def forward(self, *states: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(sum(states))
        return result


class Trunk(nn.Module):
    """The sum of two inputs, and two tensors of which one has a gradient."""

    def forward(self, image: torch.Tensor, sound: torch.Tensor) -> dict[str, Any]:
        return {"output": image + sound, "pair": (image * sound, image.detach())}


def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return cross_entropy(logits.flatten(0, 1), targets.flatten())


def vision() -> Model:
    """An encoder of two layers, whose tokens and ids a decoder takes; of its layers the last takes what the first two give, too."""
    torch.manual_seed(0)
    ids = torch.randint(TOKENS, (SAMPLES, LENGTH))
    return Model(
        layers=[
            ("patches", Patches()),
            ("projector", nn.Linear(8, WIDTH)),
            ("embedding", Embedding()),
            ("block.0", nn.Linear(WIDTH, WIDTH)),
            ("block.1", nn.Linear(WIDTH, WIDTH)),
            ("head", Head()),
        ],
        inputs=(torch.randn(SAMPLES, PATCHES, 5), ids),
        targets=ids,
        loss_fn=loss_fn,
        modules=[ModuleEntry(name="vision", layers=2, inputs=()), ModuleEntry(name="text", layers=4, inputs=("vision",))],
        edges=[
            LayerEdge(source="vision.0", destination="text", value="ids", gradient=False),
            LayerEdge(source="text.0", destination="text.3"),
            LayerEdge(source="text.1", destination="text.3"),
        ],
    )


def measure(model: Model) -> Any:
    """The layers, quickly."""
    return profile_model(model, device=CPU, repeats=1, warmup=1)


def test_layers_take_what_their_edges_carry_and_edges_get_sizes() -> None:
    model = vision()
    layers = measure(model)
    assert [layer.message_bytes for layer in layers] == [
        SAMPLES * PATCHES * 8 * 4,
        SAMPLES * PATCHES * WIDTH * 4,
        *[STATE] * 3,
        None,
    ]
    ids, first, second = measured_edges(model, layers)
    assert (ids.message_bytes, ids.gradient, ids.gradient_message_bytes) == (SAMPLES * LENGTH * 8, False, None)
    assert {(edge.message_bytes, edge.gradient) for edge in (first, second)} == {(STATE, True)}
    patches, _, embedding, *_, head = layers
    assert patches.held_bytes < SAMPLES * PATCHES * 5 * 4  # neither pixels nor ids: they are the batch's
    assert embedding.held_bytes >= SAMPLES * LENGTH * 8  # the ids that came
    assert head.held_bytes >= 3 * STATE


def test_a_layer_costs_in_a_graph_what_it_costs_in_a_chain() -> None:
    chain = Model(
        layers=[("patches", nn.Linear(5, 8)), ("projector", nn.Linear(8, WIDTH))], inputs=torch.randn(SAMPLES, PATCHES, 5)
    )
    alone, beside = measure(chain)[1], measure(vision())[1]
    for name in ("held_bytes", "held_after_input_bytes", "parameters", "message_bytes", "gradient_message_bytes"):
        assert getattr(alone, name) == getattr(beside, name)


def test_two_encoders_and_two_losses() -> None:
    """Modules that begin with the batch get theirs by name; so do those that end with a loss."""
    ids = torch.randint(TOKENS, (SAMPLES, LENGTH))
    model = Model(
        layers=[(name, nn.Linear(5, WIDTH)) for name in ("image", "sound")]
        + [("trunk", Trunk()), ("near", Head()), ("far", Head())],
        inputs={"image": torch.randn(SAMPLES, LENGTH, 5), "sound": torch.randn(SAMPLES, LENGTH, 5)},
        targets={"near": ids, "far": ids[:, :1]},
        loss_fn={"near": loss_fn, "far": lambda logits, targets: loss_fn(logits[:, :1], targets)},
        modules=[
            ModuleEntry(name="image", layers=1),
            ModuleEntry(name="sound", layers=1, inputs=()),
            ModuleEntry(name="trunk", layers=1, inputs=("image", "sound")),
            ModuleEntry(name="near", layers=1, inputs=("trunk",)),
            ModuleEntry(name="far", layers=1, inputs=()),
        ],
        edges=[LayerEdge(source="trunk", destination="far", value="pair")],
    )
    layers = measure(model)
    assert [layer.message_bytes is None for layer in layers] == [False, False, False, True, True]
    (edge,) = measured_edges(model, layers)
    assert (edge.message_bytes, edge.gradient_message_bytes) == (2 * STATE, STATE)
    assert len(merged(layers)) == 5 - 1  # both encoders are alike
    for wrong, said in (
        ({"inputs": {"image": torch.randn(3, 6, 5)}}, "found ['image'], expected one for sound, which begins with the batch"),
        ({"loss_fn": {"near": loss_fn}}, "loss_fn of the model: found ['near'], expected one for far, whose output nothing takes"),
    ):
        with pytest.raises(InvalidInput) as refused:
            measure(replace(model, **wrong))
        assert said in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"modules": ()}, "edges of the model: found some without modules, expected these, too"),
        (
            {"modules": [ModuleEntry(name="all", layers=7)], "edges": ()},
            "layers of the model: found 6, expected 7, as its modules have",
        ),
        (
            {"modules": [ModuleEntry(name="all", layers=2)], "edges": ()},
            "layers of the model: found 6, expected 2, as its modules have",
        ),
        (
            {"edges": [LayerEdge(source="vision.0", destination="text", value="id", gradient=False)]},
            "layer 'patches': it gives a dict with ['output', 'ids', 'unused'], expected a dict with ['output', 'id']",
        ),
        (
            {"edges": [LayerEdge(source="vision.1", destination="text.3", gradient=False)]},
            "layer 'projector': its 'output' requires grad, expected none, as an edge of it has no gradient; detach it",
        ),
        ({"edges": [LayerEdge(source="text.1", destination="vision.0")]}, "an edge from layer 3 to layer 0"),
    ],
)
def test_graphs_that_cannot_be_are_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        measure(replace(vision(), **change))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_command_writes_a_profile_that_a_job_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_of_graph.py").write_text("from tests.runtime.test_profile_graph import vision\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["profile", "--model", "model_of_graph:vision", "--repeats", "2", "--device", "cpu", "-o", "profile.json"])
    assert not ended.value.code
    written = json.loads((tmp_path / "profile.json").read_text())
    assert [module["name"] for module in written["modules"]] == ["vision", "text"]
    assert written["edges"][0] == {
        "source": "vision.0",
        "destination": "text",
        "value": "ids",
        "message": "144 B",
        "gradient": False,
    }
    pipeline = 'ranks = 3\nmicrobatches = 4\nplacement = "unidirectional"\npartition = [1, 1, 4]'
    (tmp_path / "job.toml").write_text(f'[pipeline]\n{pipeline}\n[profile]\npath = "profile.json"\n')
    edges = {(edge.source, edge.destination): edge for edge in read_job(tmp_path / "job.toml").problem.edges}
    sizes = {pair: (edge.message_bytes, edge.gradient_message_bytes) for pair, edge in edges.items()}
    assert sizes == {(0, 1): (PATCH, PATCH), (0, 2): (SAMPLES * LENGTH * 8, None), (1, 2): (TOKEN, TOKEN)}


def test_layers_that_are_made_one_by_one_are_counted_at_the_end() -> None:
    model = replace(vision(), layers=iter([*vision().layers][:5]))
    with pytest.raises(InvalidInput, match="layers of the model: found 5, expected 6, as its modules have"):
        measure(model)
    with pytest.raises(InvalidInput, match="layers of the model: found more than the 6 of its modules"):
        measure(replace(model, layers=iter([*vision().layers, ("more", Head())])))
