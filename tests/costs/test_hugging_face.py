"""Configs as they are published, one of each kind: the architecture that is read from them, and what is refused."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from schedc.cli.app import main
from schedc.costs.architecture import Architecture, Attention, Block, Experts, FeedForward, LatentAttention, Mamba, parameters
from schedc.costs.hugging_face import MODEL_TYPES, architecture_of_config
from schedc.costs.layers import architecture_named
from schedc.errors import InvalidInput
from schedc.io.location import Location

if TYPE_CHECKING:
    from pathlib import Path

COMMON = {
    "architectures": ["XForCausalLM"],
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 10000.0,
    "torch_dtype": "bfloat16",
    "transformers_version": "4.48.0",
    "use_cache": True,
}
"""Keys that nearly every config has and that change nothing."""
LLAMA = {
    **COMMON,
    "model_type": "llama",
    "attention_bias": False,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "pretraining_tp": 1,
    "tie_word_embeddings": False,
    "vocab_size": 128256,
}
QWEN2 = {
    **COMMON,
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "sliding_window": 131072,
    "tie_word_embeddings": False,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}
QWEN3_MOE = {
    **COMMON,
    "model_type": "qwen3_moe",
    "attention_bias": False,
    "decoder_sparse_step": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}
GEMMA2 = {
    **COMMON,
    "model_type": "gemma2",
    "attention_bias": False,
    "attn_logit_softcapping": 50.0,
    "cache_implementation": "hybrid",
    "final_logit_softcapping": 30.0,
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 3584,
    "intermediate_size": 14336,
    "num_attention_heads": 16,
    "num_hidden_layers": 42,
    "num_key_value_heads": 8,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "sliding_window_size": 4096,
    "vocab_size": 256000,
}
GEMMA3 = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "boi_token_index": 255999,
    "eoi_token_index": 256000,
    "model_type": "gemma3",
    "text_config": {
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "model_type": "gemma3_text",
        "num_attention_heads": 16,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    },
    "image_token_index": 262144,
    "initializer_range": 0.02,
    "mm_tokens_per_image": 256,
    "vision_config": {
        "hidden_size": 1152,
        "image_size": 896,
        "intermediate_size": 4304,
        "model_type": "siglip_vision_model",
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "patch_size": 14,
        "vision_use_head": False,
    },
}
QWEN2_5_VL = {
    **COMMON,
    "model_type": "qwen2_5_vl",
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "vision_token_id": 151654,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "max_window_layers": 70,
    "num_attention_heads": 16,
    "num_hidden_layers": 36,
    "num_key_value_heads": 2,
    "sliding_window": 32768,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
    "vision_config": {
        "depth": 32,
        "hidden_act": "silu",
        "hidden_size": 1280,
        "intermediate_size": 3420,
        "num_heads": 16,
        "in_chans": 3,
        "out_hidden_size": 2048,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31],
        "tokens_per_second": 2,
        "temporal_patch_size": 2,
    },
    "vocab_size": 151936,
}
"""Qwen2.5-VL 3B, as it was published: the decoder's keys are beside `vision_config`."""
LLAMA4: dict[str, Any] = {
    "architectures": ["Llama4ForConditionalGeneration"],
    "boi_token_index": 200080,
    "eoi_token_index": 200081,
    "image_token_index": 200092,
    "model_type": "llama4",
    "text_config": {
        "attention_bias": False,
        "attention_chunk_size": 8192,
        "attn_scale": 0.1,
        "attn_temperature_tuning": 4,
        "bos_token_id": 200000,
        "eos_token_id": [200001, 200007, 200008],
        "floor_scale": 8192,
        "for_llm_compressor": False,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 5120,
        "interleave_moe_layer_step": 1,
        "intermediate_size": 8192,
        "intermediate_size_mlp": 16384,
        "model_type": "llama4_text",
        "moe_layers": [*range(48)],
        "no_rope_layers": [1, 1, 1, 0] * 12,
        "num_attention_heads": 40,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 48,
        "num_key_value_heads": 8,
        "num_local_experts": 16,
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
        "router_jitter_noise": 0.0,
        "use_qk_norm": True,
        "vocab_size": 202048,
    },
    "tie_word_embeddings": False,
    "vision_config": {
        "hidden_act": "gelu",
        "hidden_size": 1408,
        "image_size": 336,
        "intermediate_size": 5632,
        "model_type": "llama4_vision_model",
        "multi_modal_projector_bias": False,
        "norm_eps": 1e-05,
        "num_attention_heads": 16,
        "num_channels": 3,
        "num_hidden_layers": 34,
        "patch_size": 14,
        "pixel_shuffle_ratio": 0.5,
        "projector_dropout": 0.0,
        "projector_input_dim": 4096,
        "projector_output_dim": 4096,
        "rope_theta": 10000,
        "vision_feature_layer": -1,
        "vision_feature_select_strategy": "default",
        "vision_output_dim": 4096,
    },
}
DEEPSEEK_V3 = {
    **COMMON,
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "auto_map": {},
    "aux_loss_alpha": 0.001,
    "ep_size": 1,
    "first_k_dense_replace": 3,
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 8,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 128,
    "num_nextn_predict_layers": 1,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "quantization_config": {"quant_method": "fp8"},
    "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid",
    "seq_aux": True,
    "tie_word_embeddings": False,
    "topk_group": 4,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 129280,
}
NEMOTRON_H = {
    **COMMON,
    "model_type": "nemotron_h",
    "attention_bias": False,
    "attention_head_dim": 128,
    "chunk_size": 128,
    "conv_kernel": 4,
    "expand": 2,
    "hidden_dropout": 0.0,
    "hidden_size": 4096,
    "hybrid_override_pattern": "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
    "intermediate_size": 21504,
    "layer_norm_epsilon": 1e-05,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "mamba_num_heads": 128,
    "mamba_proj_bias": False,
    "mlp_bias": False,
    "mlp_hidden_act": "relu2",
    "n_groups": 8,
    "num_attention_heads": 32,
    "num_hidden_layers": 52,
    "num_key_value_heads": 8,
    "num_logits_to_keep": 1,
    "rescale_prenorm_residual": True,
    "residual_in_fp32": False,
    "sliding_window": None,
    "ssm_state_size": 128,
    "tie_word_embeddings": False,
    "time_step_limit": [0.0, "inf"],
    "time_step_max": 0.1,
    "time_step_min": 0.001,
    "use_bias": False,
    "use_conv_bias": True,
    "use_mamba_kernels": True,
    "vocab_size": 131072,
}
GPT2 = {
    "activation_function": "gelu_new",
    "attn_pdrop": 0.1,
    "bos_token_id": 50256,
    "embd_pdrop": 0.1,
    "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2",
    "n_ctx": 1024,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "n_positions": 1024,
    "resid_pdrop": 0.1,
    "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True}},
    "vocab_size": 50257,
}
MIXTRAL = {
    **COMMON,
    "model_type": "mixtral",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "num_local_experts": 8,
    "router_aux_loss_coef": 0.02,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
LITE = {"n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6, "moe_intermediate_size": 1408, "q_lora_rank": None}
DEEPSEEK_V2_LITE = {
    key: value
    for key, value in {
        **DEEPSEEK_V3,
        **LITE,
        "model_type": "deepseek_v2",
        "first_k_dense_replace": 1,
        "topk_method": "greedy",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "num_attention_heads": 16,
        "num_hidden_layers": 27,
        "vocab_size": 102400,
    }.items()
    if key != "num_nextn_predict_layers"
}


def read(config: dict[str, Any]) -> Architecture:
    """The architecture of a config."""
    return architecture_of_config(config, "a model", Location("config.json"))


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "llama3-8b"),
        (QWEN2, "qwen2.5-7b"),
        (QWEN3_MOE, "qwen3-30b-a3b"),
        (GEMMA2, "gemma2-9b"),
        (DEEPSEEK_V3, "deepseek-v3-671b"),
        (DEEPSEEK_V2_LITE, "deepseek-v2-lite-16b"),
        (MIXTRAL, "mixtral-8x7b"),
        (QWEN2_5_VL, "qwen2.5-vl-3b"),
        (LLAMA4, "llama4-scout"),
    ],
)
def test_a_published_config_is_the_architecture_of_that_name(config: dict[str, Any], name: str) -> None:
    known, found = architecture_named(name), read(config)
    assert replace(found, name=name) == known


def test_a_config_whose_decoder_is_described_by_itself() -> None:
    """As newer versions of transformers write it, some keys twice."""
    of_text = {key: value for key, value in QWEN2_5_VL.items() if key not in ("vision_config", "image_token_id", "video_token_id")}
    both = {"tie_word_embeddings": True, "vocab_size": 151936, "vision_config": QWEN2_5_VL["vision_config"]}
    newer = {"model_type": "qwen2_5_vl", "text_config": {**of_text, "model_type": "qwen2_5_vl_text"}, **both}
    assert read(newer) == read(QWEN2_5_VL)
    assert not read({**newer, "tie_word_embeddings": False}).tied  # what the whole says counts
    with pytest.raises(InvalidInput, match="vocab_size: found 8 under an unknown key"):
        read({**newer, "vocab_size": 8})


def test_a_multimodal_config_whose_defaults_are_left_out() -> None:
    found, known = read(GEMMA3), architecture_named("gemma3-12b")
    assert (found.blocks, found.vision) == (known.blocks, known.vision)
    assert read(without(GEMMA3, "vision_config")).vision is None
    assert found.vocabulary == 262208  # transformers' default; the known model has 262144


def test_a_hybrid_config() -> None:
    found, known = read(NEMOTRON_H), architecture_named("nemotron-h-8b")
    assert parameters(found) == parameters(known)
    assert found.blocks[0] == Block((Mamba(heads=128, head_dim=64, state=128, groups=8, chunk=128),))
    assert found.blocks[7] == Block((Attention(heads=32, kv_heads=8, head_dim=128, rotary=False),))


def test_gpt2_has_124_million_parameters() -> None:
    assert parameters(read(GPT2)) == 124_439_808


def test_every_kind_of_sublayer() -> None:
    of_v3 = read(DEEPSEEK_V3)
    attention = LatentAttention(heads=128, query_rank=1536, kv_rank=512, plain_dim=128, rotary_dim=64, value_dim=128)
    assert of_v3.blocks[2] == Block((attention, FeedForward(width=18432, gated=True)))
    experts = Experts(count=256, chosen=8, width=2048, shared_width=2048, router_bias=True, groups=8, chosen_groups=4)
    assert of_v3.blocks[3] == of_v3.further_tokens[0] == Block((attention, experts))


def test_windows_of_layers() -> None:
    def windows(config: dict[str, Any]) -> list[int | None]:
        of_blocks = [block.sublayers[0] for block in read(config).blocks]
        return [attention.window for attention in of_blocks if isinstance(attention, Attention)]

    assert windows(GEMMA2)[:4] == [4096, None, 4096, None]
    assert windows(GEMMA3)[:7] == [1024] * 5 + [None, 1024]
    assert windows(QWEN2) == [None] * 28
    assert windows({**QWEN2, "use_sliding_window": True, "max_window_layers": 26}) == [None] * 26 + [131072] * 2
    types = ["full_attention", "sliding_attention"] * 14
    sliding = {**QWEN2, "use_sliding_window": True, "layer_types": types}
    assert windows(sliding) == [None, 131072] * 14
    assert windows({**LLAMA, "model_type": "mistral", "sliding_window": 4096}) == [4096] * 32
    assert windows({**LLAMA, "model_type": "mistral", "sliding_window": None}) == [None] * 32


def test_defaults_of_missing_keys() -> None:
    """Heads that divide the width give a head's size; without heads of keys there is one for each head."""
    small = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "tie_word_embeddings")}
    assert read(small).blocks[0].sublayers[0] == Attention(heads=32, kv_heads=32, head_dim=128)
    assert not read(small).tied
    assert read({key: value for key, value in GEMMA2.items() if key != "head_dim"}).tied


LLAMA4_TEXT: dict[str, Any] = LLAMA4["text_config"]


def vision(config: dict[str, Any], **keys: object) -> dict[str, Any]:
    """The config with other keys of its `vision_config`."""
    return {**config, "vision_config": {**config["vision_config"], **keys}}


def without(config: dict[str, Any], key: str) -> dict[str, Any]:
    """The config without the key."""
    return {name: value for name, value in config.items() if name != key}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (without(LLAMA, "model_type"), "model_type: found nothing, expected one of deepseek_v2, "),
        ({**LLAMA, "model_type": "bert"}, 'model_type: found "bert", expected one of '),
        ({**LLAMA, "model_type": ["llama"]}, 'model_type: found ["llama"], expected one of '),
        (without(LLAMA, "hidden_size"), "hidden_size: found nothing, expected a whole number from 1"),
        ({**LLAMA, "vocab_size": "128k"}, 'vocab_size: found "128k", expected a whole number'),
        ({**LLAMA, "num_hidden_layers": 10**9}, "num_hidden_layers: found 1000000000, expected a whole number from 1 to 65536"),
        ({**LLAMA, "num_hidden_layers": True}, "num_hidden_layers: found true, expected a whole number"),
        ({**LLAMA, "tie_word_embeddings": 1}, "tie_word_embeddings: found 1, expected true or false"),
        ({**LLAMA, "num_local_experts": 8}, "num_local_experts: found 8 under an unknown key, expected keys whose effect"),
        ({**LLAMA, "num_key_value_heads": 5}, "num_key_value_heads: found 5, expected a divisor of 32 heads"),
        ({**LLAMA, "num_attention_heads": 33}, "head_dim: found nothing, expected a whole number, as 4096 is no multiple of 33"),
        ({**LLAMA, "model_type": "mistral"}, "sliding_window: found nothing, expected a whole number, or null"),
        ({**DEEPSEEK_V3, "n_group": 6}, "n_group: found 6, expected a divisor of 256 experts of which topk_group = 4"),
        ({**DEEPSEEK_V3, "topk_group": 9}, "topk_group: found 9, expected a whole number from 1 to 8"),
        ({**GEMMA2, "layer_types": ["sliding_attention"]}, 'expected 42 times "full_attention" or "sliding_attention"'),
        ({**GEMMA2, "layer_types": [{}] * 42}, 'expected 42 times "full_attention" or "sliding_attention"'),
        (vision(GEMMA3, vision_use_head=True), "vision_config.vision_use_head: found true, expected false"),
        (vision(GEMMA3, image_size=900), "vision_config.image_size: found 900, expected a multiple of patch_size, 14"),
        ({**GEMMA3, "mm_tokens_per_image": 200}, "mm_tokens_per_image: found 200, expected 4096 patches divided by a square"),
        (vision(QWEN2_5_VL, out_hidden_size=8), "vision_config.out_hidden_size: found 8, expected 2048, which takes it"),
        (vision(QWEN2_5_VL, num_heads=7), "vision_config.hidden_size: found 1280, expected a multiple of 7 heads"),
        (vision(QWEN2_5_VL, deepstack=[8]), "vision_config.deepstack: found [8] under an unknown key"),
        (vision(LLAMA4, pixel_shuffle_ratio=0.3), "vision_config.pixel_shuffle_ratio: found 0.3, expected 1, 0.5, 0.25"),
        ({**LLAMA4, "text_config": {**LLAMA4_TEXT, "no_rope_layers": [1]}}, "no_rope_layers: found [1], expected 48 numbers"),
        ({**GEMMA3, "text_config": None}, "text_config: found nothing, expected a table"),
        ({**GEMMA3, "text_config": {"hidden_size": 8}}, "text_config.intermediate_size: found nothing"),
        ({**QWEN3_MOE, "use_sliding_window": True}, "use_sliding_window: found true, expected false"),
        ({**QWEN3_MOE, "mlp_only_layers": [True]}, "mlp_only_layers: found [true], expected a list of whole numbers"),
        ({**NEMOTRON_H, "hybrid_override_pattern": "ME*"}, 'found "ME*", expected 52 letters, each M, * or -'),
        ({**NEMOTRON_H, "use_conv_bias": False}, "use_conv_bias: found false, expected true"),
        ({**GPT2, "n_head": 7}, "n_head: found 7, expected a divisor of n_embd, 768"),
    ],
)
def test_what_is_unknown_or_missing_is_refused(config: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(expected)) as refused:
        read(config)
    assert str(refused.value).startswith("config.json: ")


def test_every_model_type_is_read_here() -> None:
    read_here = [
        QWEN2_5_VL,
        LLAMA,
        QWEN2,
        QWEN3_MOE,
        GEMMA2,
        GEMMA3,
        DEEPSEEK_V3,
        DEEPSEEK_V2_LITE,
        NEMOTRON_H,
        GPT2,
        MIXTRAL,
        LLAMA4,
    ]
    by_name = {"gemma3_text", "mistral", "qwen3", "llama4_text"}  # of the known names, and above
    assert {config["model_type"] for config in read_here} | by_name == set(MODEL_TYPES)


def test_a_config_of_a_folder_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    config = folder / "config.json"
    config.write_text(json.dumps(LLAMA))
    with pytest.raises(SystemExit) as ended:
        main(["costs", str(config), "--json", "-o", str(tmp_path / "profile.json")])
    assert not ended.value.code
    printed = json.loads(capsys.readouterr().out)
    assert (printed["model"], printed["parameters"]) == ("my-llama", 8_030_261_248)
    with pytest.raises(SystemExit) as ended:
        main(["costs", str(config), "-o", str(config)])
    assert ended.value.code == 2
    assert "cannot be written: this command reads it" in capsys.readouterr().err
