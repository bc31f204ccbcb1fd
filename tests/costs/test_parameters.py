"""Parameter counts: those that are published, and the sum over the operators that devices run."""

from __future__ import annotations

import pytest

from schedc.costs.architecture import Setting, further_token_parameters, parameters
from schedc.costs.devices import DEVICES
from schedc.costs.hugging_face import architecture_of_config
from schedc.costs.layers import architecture_named, known_models, layers_of
from schedc.io.location import Location


@pytest.mark.parametrize("name", known_models())
def test_parameters_are_the_published_ones_within_a_percent(name: str) -> None:
    """Or, where one digit is published, those that are rounded to it."""
    said = known_models()[name]
    assert said["source"]
    assert said["published_source"]
    assert parameters(architecture_named(name)) == pytest.approx(said["published"], rel=0.01, abs=said.get("published_to", 0) / 2)


def test_one_number_is_rounded_to_more_than_a_percent() -> None:
    """Nemotron-H 8B has 8.10 billion parameters."""
    assert [name for name, said in known_models().items() if said.get("published_to")] == ["nemotron-h-8b"]
    assert parameters(architecture_named("nemotron-h-8b")) == 8_100_852_736


def test_the_size_of_a_hybrid_checkpoint() -> None:
    """Nemotron-H 4B is 8B pruned to width 3,072, 112 Mamba heads and a feed-forward width of 12,288: files of 4.99 and 3.98 GB."""
    config = {
        "model_type": "nemotron_h",
        "num_hidden_layers": 52,
        "hidden_size": 3072,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "attention_head_dim": 128,
        "intermediate_size": 12288,
        "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
        "mamba_num_heads": 112,
        "mamba_head_dim": 64,
        "ssm_state_size": 128,
        "n_groups": 8,
        "vocab_size": 131072,
    }
    pruned = architecture_of_config(config, "nemotron-h-4b", Location("config.json"))
    assert 2 * parameters(pruned) == pytest.approx(8.97e9, rel=0.001)


def test_the_exact_counts_of_checkpoints() -> None:
    """The sizes of published checkpoints, to the parameter."""
    exact = {
        "llama3-8b": 8_030_261_248,
        "llama3-70b": 70_553_706_496,
        "llama3-405b": 405_853_388_800,
        "qwen2.5-7b": 7_615_616_512,
        "qwen2.5-72b": 72_706_203_648,
        "mixtral-8x7b": 46_702_792_704,
        "gemma2-9b": 9_241_705_984,
        "llama4-scout": 108_641_793_536,
        "qwen2.5-vl-3b": 3_754_622_976,
        "qwen2.5-vl-7b": 8_292_166_656,
    }
    assert {name: parameters(architecture_named(name)) for name in exact} == exact


def test_the_module_for_further_tokens() -> None:
    """DeepSeek-V3's notes on its weights: 11.5 billion parameters besides the shared embedding and head."""
    assert further_token_parameters(architecture_named("deepseek-v3-671b")) == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.parametrize("name", known_models())
def test_operators_hold_the_parameters_of_the_model(name: str) -> None:
    """What a head or a module for further tokens shares with the embedding is held by both; nothing is divided on one device."""
    architecture = architecture_named(name)
    setting = Setting(sequence_length=64)
    if architecture.vision is not None:
        setting = Setting(sequence_length=4096, images=1, image_size=(896, 896) if "vl" in name else None)
    layers = layers_of(architecture, DEVICES["h100"], setting)
    twice = architecture.vocabulary * architecture.hidden if architecture.tied or architecture.further_tokens else 0
    held = sum(layer.parameters or 0 for layer in layers)
    assert held == parameters(architecture) + further_token_parameters(architecture) + twice


@pytest.mark.parametrize(("name", "expert_parallel"), [("llama3-405b", 1), ("qwen3-235b-a22b", 16), ("gpt3-175b", 1)])
def test_a_group_of_devices_holds_the_model_between_them(name: str, expert_parallel: int) -> None:
    """All but norms, biases and routers is divided; of those each device has a copy."""
    architecture, group = architecture_named(name), 4 * expert_parallel
    setting = Setting(sequence_length=64, tensor_parallel=4, expert_parallel=expert_parallel)
    block = layers_of(architecture, DEVICES["h100"], setting)[1].parameters or 0
    whole = layers_of(architecture, DEVICES["h100"], Setting(sequence_length=64))[1].parameters or 0
    shared_by_four = whole / 4 if expert_parallel == 1 else block
    assert whole / group <= block <= shared_by_four * 1.001
