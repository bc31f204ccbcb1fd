"""Measured layers in the place of predicted ones."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from suite.command_line import schedc

from schedc.costs.devices import device_named
from schedc.costs.measured import with_measured
from schedc.costs.predicted import predicted
from schedc.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.formats.profile_file import LayerEntry

MS = 1_000_000
TIMES = {"forward": "3 ms", "backward_input": "4 ms", "backward_weight": "2 ms"}


def profile_in(path: Path, *layers: dict[str, Any]) -> Path:
    """A file with these layers."""
    path.write_text(json.dumps({"format": "schedc.profile", "version": 1, "layers": layers}))
    return path


def made(
    path: Path, model: str = "llama3-8b", **options: Any
) -> tuple[dict[str, LayerEntry], dict[str, LayerEntry], tuple[str, ...]]:
    """The layers by name, predicted and with the profile's; and what is said."""
    before = predicted(model, "h100", **options).layers
    after, said = with_measured(before, path, device_named("h100"))
    return {each.name: each for each in before}, {each.name: each for each in after}, said


def test_a_measured_kind_counts_for_all_its_layers(tmp_path: Path) -> None:
    """Times and activations are the profile's, all else the model's; what was not measured is as it was, and is named."""
    block = {"kind": "attention + feed-forward", **TIMES, "activation": "1 GiB", "activation_after_input": "1 MiB"}
    before, after, said = made(profile_in(tmp_path / "p.json", block))
    new, old = after["blocks 0 to 31"], before["blocks 0 to 31"]
    assert (new.forward_ns, new.parts_ns, new.whole_ns) == (3 * MS, (4 * MS, 2 * MS), 6 * MS)
    assert (new.activation_bytes, new.activation_after_input_bytes) == (2**30, 2**20)
    assert (new.repeat, new.parameters, new.message_bytes, new.kind) == (32, old.parameters, old.message_bytes, old.kind)
    assert [after[name] == before[name] for name in ("embedding", "head")] == [True, True]
    ratio = 9 * MS / (old.forward_ns + old.whole_ns)
    expected = f"blocks 0 to 31: measured, F 3 ms, BW 6 ms: {ratio:.2f} × the prediction"
    nowhere = "p.json does not say which device it was measured on"
    assert said == (nowhere, "embedding: not measured, predicted", expected, "head: not measured, predicted")


def test_another_devices_profile_is_refused_unless_asked_for(tmp_path: Path) -> None:
    path = profile_in(tmp_path / "p.json", {"name": "block", **TIMES})
    for said, is_of in (("NVIDIA H100 80GB HBM3", True), ("NVIDIA GH100", False), ("the CPU, threads: 2", False)):
        path.write_text(json.dumps({**json.loads(path.read_text()), "device": said}))
        if is_of:
            assert made(path)[2][0] == "embedding: not measured, predicted"
            continue
        done = schedc("costs", "llama3-8b", "--measured", path, "-o", tmp_path / "out.json")
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        expected = f'p.json: device: found "{said}", expected NVIDIA H100 SXM5 80 GB, whose costs are asked for, or --other-device'
        assert expected in done.stderr.replace(".json.", ".json: ")
        assert schedc("costs", "llama3-8b", "--measured", path, "--other-device", "-o", tmp_path / "out.json").returncode == 0
    assert schedc("costs", "llama3-8b", "--device", "h200", "--measured", tmp_path / "out.json", "-o", path).returncode == 2


@pytest.mark.parametrize("naming", [{"name": "block.7"}, {"kind": "block"}])
def test_layers_are_known_by_what_their_names_begin_with(tmp_path: Path, naming: dict[str, str]) -> None:
    """As `schedc profile` writes them; of several the mean counts, each as often as it is there."""
    layers: list[dict[str, Any]] = [
        {**naming, **TIMES, "repeat": 3},
        {**naming, **TIMES, "forward": "7 ms"},
        {"name": "head", **TIMES, "forward": "9 ms"},
    ]
    _, after, _ = made(profile_in(tmp_path / "p.json", *layers))
    assert (after["blocks 0 to 31"].forward_ns, after["head"].forward_ns) == (4 * MS, 9 * MS)


def test_fused_backwards(tmp_path: Path) -> None:
    fused = profile_in(tmp_path / "p.json", {"name": "block", "forward": "3 ms", "backward": "5 ms"})
    with pytest.raises(Unsupported, match=r"blocks 0 to 31: B and W were measured together alone; expected --no-split-backward"):
        made(fused)
    _, after, _ = made(fused, split_backward=False)
    assert (after["blocks 0 to 31"].is_fused, after["blocks 0 to 31"].whole_ns) == (True, 5 * MS)
    _, after, _ = made(profile_in(tmp_path / "q.json", {"name": "block", **TIMES}), split_backward=False)
    assert (after["blocks 0 to 31"].is_fused, after["blocks 0 to 31"].whole_ns) == (True, 6 * MS)


def test_the_bias_of_single_layers_is_stated_and_counted(tmp_path: Path) -> None:
    path = profile_in(tmp_path / "p.json", {"name": "block", **TIMES})
    done = schedc("costs", "llama3-8b", "--measured", path, "--bias", "0.9", "-o", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "1 × 4096 tokens, with the layers of p.json: predicted" in said
    assert "blocks 0 to 31: measured alone × 0.9, F 2.7 ms, BW 5.4 ms:" in said
    block = json.loads((tmp_path / "out.json").read_text())["layers"][1]
    assert (block["forward"], block["backward_input"], block["backward_weight"]) == ("2.7 ms", "3.6 ms", "1.8 ms")


@pytest.mark.parametrize(
    ("model", "layer", "said"),
    [
        ("llama3-8b", {"kind": "mamba"}, 'layers[0].kind: found "mamba", expected a kind of layer that the model has'),
        ("llama3-8b", {"name": "stem"}, 'layers[0].kind: found "stem"'),
        ("deepseek-v3-671b", {"kind": "block"}, 'layers[0].kind: found "block"'),  # which of two kinds?
    ],
)
def test_a_layer_that_the_model_lacks_is_refused(tmp_path: Path, model: str, layer: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        made(profile_in(tmp_path / "p.json", {**layer, **TIMES}), model)
    assert said in str(refused.value) and "\n" not in str(refused.value)
