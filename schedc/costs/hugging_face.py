"""A Hugging Face config.json as an architecture.

Each `model_type` has a function that reads the keys on which its costs depend. What transformers derives where a key is missing is
derived here as well; other missing keys are refused. So is every key that no reader knows and that is not known to leave the
layers' dimensions alone: a key that was skipped in silence could make every number wrong.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedc.costs.architecture import Architecture, Attention, Block, Experts, FeedForward, LatentAttention, Mamba, Sublayer
from schedc.costs.config_keys import ConfigKeys
from schedc.costs.hugging_face_vision import llama4_vision, qwen_vision, siglip
from schedc.io.location import Location, show

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schedc.costs.architecture import Vision

MOST_LAYERS = 2**16


def architecture_of_config(table: Mapping[str, Any], name: str, location: Location) -> Architecture:
    """The architecture that a config.json describes.

    Raises:
        InvalidInput: an unknown `model_type`, a key that is missing, unknown or of a wrong type.
    """
    kind = table.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_TYPES:
        found = "nothing" if kind is None else show(kind)
        raise (location / "model_type").refuse(found, f"one of {', '.join(sorted(MODEL_TYPES))}")
    keys = ConfigKeys(table, location)
    architecture = MODEL_TYPES[kind](keys, name)
    keys.check()
    return architecture


def _with_images(
    keys: ConfigKeys, name: str, defaults: Mapping[str, Any], vision_of: Callable[[ConfigKeys, ConfigKeys, int], Vision]
) -> Architecture:
    """A decoder, described in `text_config` or, in Qwen's older files, beside `vision_config`; and what makes tokens of images.

    `defaults` are those of transformers for the decoder, `model_type` included; `vision_of` reads `vision_config`, given the keys
    of the whole and the decoder's width, too.
    """
    if not keys.has("text_config") and defaults["model_type"] == "qwen2":
        inner, place = {key: value for key, value in keys.table.items() if key not in _OF_IMAGES}, keys.location
        keys.read |= set(inner)
    else:
        of_text = keys.table_of("text_config")
        inner, place = dict(of_text.table), of_text.location
        keys.read |= {key for key in inner if keys.table.get(key) == inner[key]}  # said twice
    tied = {"tie_word_embeddings": keys.flag("tie_word_embeddings", False)} if keys.has("tie_word_embeddings") else {}
    text = architecture_of_config({**defaults, **inner, **tied, "model_type": defaults["model_type"]}, name, place)
    if not keys.has("vision_config"):
        return text
    of_vision = keys.table_of("vision_config")
    vision = vision_of(of_vision, keys, text.hidden)
    of_vision.check()
    return replace(text, vision=vision)


_OF_IMAGES = {
    "vision_config",
    "image_token_id",
    "video_token_id",
    "vision_start_token_id",
    "vision_end_token_id",
    "vision_token_id",
}


def _attention(
    keys: ConfigKeys, *, input_bias: bool | None = None, head_norms: bool = False, head_dim: int | None = None
) -> Attention:
    """Attention by the keys that most models share; `input_bias` None: what `attention_bias` says, of the output, too."""
    heads, hidden = keys.count("num_attention_heads"), keys.count("hidden_size")
    if head_dim is None and not keys.has("head_dim") and hidden % heads:
        raise keys.refuse("head_dim", f"a whole number, as {hidden} is no multiple of {heads} heads")
    kv_heads = keys.count("num_key_value_heads", heads)
    if heads % kv_heads:
        raise keys.refuse("num_key_value_heads", f"a divisor of {heads} heads", kv_heads)
    bias = keys.flag("attention_bias", False)
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=keys.count("head_dim", head_dim or hidden // heads),
        input_bias=bias if input_bias is None else input_bias,
        output_bias=bias if input_bias is None else False,
        head_norms=head_norms,
    )


def _gated(keys: ConfigKeys) -> FeedForward:
    return FeedForward(width=keys.count("intermediate_size"), gated=True, bias=keys.flag("mlp_bias", False))


def _decoder(keys: ConfigKeys, name: str, *blocks: Block, tied: bool = False) -> Architecture:
    """Of these blocks, or of as many equal ones as there are layers."""
    return Architecture(
        name=name,
        hidden=keys.count("hidden_size"),
        vocabulary=keys.count("vocab_size"),
        blocks=blocks * len(_layers(keys)) if len(blocks) == 1 else blocks,
        tied=keys.flag("tie_word_embeddings", tied),
    )


def _layers(keys: ConfigKeys) -> range:
    return range(keys.count("num_hidden_layers", most=MOST_LAYERS))


def _llama(keys: ConfigKeys, name: str) -> Architecture:
    return _decoder(keys, name, Block((_attention(keys), _gated(keys))))


def _mistral(keys: ConfigKeys, name: str) -> Architecture:
    """A window in all layers, or in none: null. Where the key is missing there is one, so it must be there."""
    if "sliding_window" not in keys.table:
        raise keys.refuse("sliding_window", "a whole number, or null")
    window = keys.window()
    return _decoder(keys, name, Block((replace(_attention(keys), window=window), _gated(keys))))


def _windowed_layers(keys: ConfigKeys, *, otherwise: Callable[[int], bool], limited: str = "sliding_attention") -> list[bool]:
    """Whether each layer has a window, or chunks: as `layer_types` says, or by a rule where that is missing."""
    layers, kinds = _layers(keys), {"full_attention": False, limited: True}
    if not keys.has("layer_types"):
        return [otherwise(layer) for layer in layers]
    types = keys.table["layer_types"]
    if (
        not isinstance(types, list)
        or len(types) != len(layers)
        or any(not isinstance(kind, str) or kind not in kinds for kind in types)
    ):
        raise keys.refuse("layer_types", f'{len(layers)} times "full_attention" or "{limited}"', types)
    return [kinds[kind] for kind in types]


def _qwen(keys: ConfigKeys, name: str, attention: Attention) -> Architecture:
    """Dense Qwen: with `use_sliding_window`, the layers from `max_window_layers` on have a window."""
    feed_forward = _gated(keys)
    keys.read |= {"sliding_window", "max_window_layers", "layer_types"}
    if not keys.flag("use_sliding_window", False):
        return _decoder(keys, name, Block((attention, feed_forward)))
    first, windowed = keys.count("max_window_layers", least=0), replace(attention, window=keys.count("sliding_window"))
    slides = _windowed_layers(keys, otherwise=lambda layer: layer >= first)
    return _decoder(keys, name, *(Block((windowed if has_window else attention, feed_forward)) for has_window in slides))


def _qwen3_moe(keys: ConfigKeys, name: str) -> Architecture:
    attention = _attention(keys, head_norms=True)
    experts = Experts(
        count=keys.count("num_experts"), chosen=keys.count("num_experts_per_tok"), width=keys.count("moe_intermediate_size")
    )
    keys.must_be(False, "use_sliding_window")
    keys.read |= {"sliding_window", "max_window_layers", "intermediate_size", "layer_types"}
    every, dense = keys.count("decoder_sparse_step", 1), keys.whole_numbers("mlp_only_layers") or []
    sparse = [layer not in dense and (layer + 1) % every == 0 for layer in _layers(keys)]
    return _decoder(keys, name, *(Block((attention, experts if is_sparse else _gated(keys))) for is_sparse in sparse))


def _mixtral(keys: ConfigKeys, name: str) -> Architecture:
    window = keys.window()
    experts = Experts(
        count=keys.count("num_local_experts"), chosen=keys.count("num_experts_per_tok"), width=keys.count("intermediate_size")
    )
    return _decoder(keys, name, Block((replace(_attention(keys), window=window), experts)))


def _llama4(keys: ConfigKeys, name: str) -> Architecture:
    """Layers with rotary embedding attend within chunks, and their queries and keys pass norms without weights; others see all."""
    layers = _layers(keys)
    rotary = keys.whole_numbers("no_rope_layers")
    every, plain = keys.count("no_rope_layer_interval", 4), _attention(keys, head_dim=128)
    rotary = rotary or [int((layer + 1) % every != 0) for layer in layers]
    if len(rotary) != len(layers):
        raise keys.refuse("no_rope_layers", f"{len(layers)} numbers, 1 for each layer with rotary embedding", rotary)
    chunks = _windowed_layers(keys, otherwise=lambda layer: bool(rotary[layer]), limited="chunked_attention")
    chunk, normed = keys.count("attention_chunk_size", 8192), keys.flag("use_qk_norm", True)
    step, width = keys.count("interleave_moe_layer_step", 1), keys.count("intermediate_size")
    sparse = keys.whole_numbers("moe_layers")
    sparse = [*layers[step - 1 :: step]] if sparse is None else sparse
    experts = Experts(
        count=keys.count("num_local_experts"), chosen=keys.count("num_experts_per_tok"), width=width, shared_width=width
    )
    dense = FeedForward(width=keys.count("intermediate_size_mlp", 16384), gated=True)
    blocks = []
    for layer in layers:
        turned = bool(rotary[layer])
        attention = replace(plain, rotary=turned, head_norms=turned and normed, head_norm_weights=False)
        mixer = replace(attention, chunk=chunk) if chunks[layer] else attention
        blocks.append(Block((mixer, experts if layer in sparse else dense)))
    return _decoder(keys, name, *blocks)


def _gemma(keys: ConfigKeys, name: str) -> Architecture:
    """Gemma 2: every second layer has a window, the first one among them. Gemma 3: all but every sixth."""
    third = keys.table["model_type"] != "gemma2"
    every = keys.count("sliding_window_pattern", keys.count("_sliding_window_pattern", 6)) if third else 2
    attention, window = _attention(keys, head_norms=third, head_dim=256), keys.count("sliding_window", 4096)
    feed_forward = _gated(keys)
    keys.must_be(False, "use_bidirectional_attention")
    slides = _windowed_layers(keys, otherwise=lambda layer: (layer + 1) % every != 0)
    mixers = (replace(attention, window=window if has_window else None) for has_window in slides)
    return _decoder(keys, name, *(Block((mixer, feed_forward), norms_after=True) for mixer in mixers), tied=True)


def _deepseek(keys: ConfigKeys, name: str) -> Architecture:
    attention = LatentAttention(
        heads=keys.count("num_attention_heads"),
        query_rank=keys.count("q_lora_rank") if keys.has("q_lora_rank") else None,
        kv_rank=keys.count("kv_lora_rank"),
        plain_dim=keys.count("qk_nope_head_dim"),
        rotary_dim=keys.count("qk_rope_head_dim"),
        value_dim=keys.count("v_head_dim"),
    )
    width, count, chosen = keys.count("moe_intermediate_size"), keys.count("n_routed_experts"), keys.count("num_experts_per_tok")
    groups = 1 if keys.table.get("topk_method") == "greedy" else keys.count("n_group", 1)
    taken = 1 if groups == 1 else keys.count("topk_group", groups, most=groups)
    if count % groups or chosen > count // groups * taken:
        raise keys.refuse("n_group", f"a divisor of {count} experts of which topk_group = {taken} groups have {chosen}", groups)
    experts = Experts(
        count=count,
        chosen=chosen,
        width=width,
        shared_width=width * keys.count("n_shared_experts", least=0),
        router_bias=keys.table["model_type"] == "deepseek_v3",
        groups=groups,
        chosen_groups=taken,
    )
    keys.read |= {"num_key_value_heads", "head_dim", "qk_head_dim"}
    keys.must_be(False, "attention_bias")
    dense, every = keys.count("first_k_dense_replace", 0, least=0), keys.count("moe_layer_freq", 1)
    feed_forward = _gated(keys)
    blocks = [Block((attention, experts if layer >= dense and layer % every == 0 else feed_forward)) for layer in _layers(keys)]
    further = (Block((attention, experts)),) * keys.count("num_nextn_predict_layers", 0, least=0, most=MOST_LAYERS)
    return replace(_decoder(keys, name, *blocks), further_tokens=further)


def _nemotron_h(keys: ConfigKeys, name: str) -> Architecture:
    """`hybrid_override_pattern` has a letter for each layer: M Mamba-2, * attention, - feed-forward."""
    keys.must_be(False, "attention_bias", "mlp_bias", "mamba_proj_bias", "use_bias")
    keys.must_be(True, "use_conv_bias")
    width = "attention_head_dim" if keys.has("attention_head_dim") else "head_dim"
    mamba = Mamba(
        heads=keys.count("mamba_num_heads"),
        head_dim=keys.count("mamba_head_dim"),
        state=keys.count("ssm_state_size"),
        groups=keys.count("n_groups"),
        convolution=keys.count("conv_kernel", 4),
        chunk=keys.count("chunk_size", 128),
    )
    attention = Attention(
        heads=keys.count("num_attention_heads"),
        kv_heads=keys.count("num_key_value_heads"),
        head_dim=keys.count(width),
        rotary=False,
    )
    sublayers: dict[str, Sublayer] = {
        "M": mamba,
        "*": attention,
        "-": FeedForward(width=keys.count("intermediate_size"), gated=False),
    }
    keys.read |= {"expand", "head_dim"}
    pattern, layers = keys.table.get("hybrid_override_pattern"), _layers(keys)
    keys.read.add("hybrid_override_pattern")
    if not isinstance(pattern, str) or len(pattern) != len(layers) or set(pattern) - set(sublayers):
        raise keys.refuse("hybrid_override_pattern", f"{len(layers)} letters, each M, * or -", pattern)
    return _decoder(keys, name, *(Block((sublayers[letter],)) for letter in pattern))


def _gpt2(keys: ConfigKeys, name: str) -> Architecture:
    hidden, heads = keys.count("n_embd"), keys.count("n_head")
    if hidden % heads:
        raise keys.refuse("n_head", f"a divisor of n_embd, {hidden}", heads)
    attention = Attention(heads=heads, kv_heads=heads, head_dim=hidden // heads, input_bias=True, output_bias=True, rotary=False)
    feed_forward = FeedForward(width=keys.count("n_inner", 4 * hidden), gated=False, bias=True)
    return Architecture(
        name=name,
        hidden=hidden,
        vocabulary=keys.count("vocab_size"),
        blocks=(Block((attention, feed_forward)),) * keys.count("n_layer", most=MOST_LAYERS),
        tied=keys.flag("tie_word_embeddings", True),
        positions=keys.count("n_positions"),
        norm_bias=True,
    )


_GEMMA3 = {"model_type": "gemma3_text", "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4}
"""The defaults of transformers' Gemma3TextConfig for what published files leave out."""
MODEL_TYPES: dict[str, Callable[[ConfigKeys, str], Architecture]] = {
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "gemma2": _gemma,
    "gemma3": lambda keys, name: _with_images(keys, name, _GEMMA3, siglip),
    "gemma3_text": _gemma,
    "gpt2": _gpt2,
    "llama": _llama,
    "llama4": lambda keys, name: _with_images(keys, name, {"model_type": "llama4_text"}, llama4_vision),
    "llama4_text": _llama4,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "nemotron_h": _nemotron_h,
    "qwen2_5_vl": lambda keys, name: _with_images(keys, name, {"model_type": "qwen2"}, qwen_vision),
    "qwen2": lambda keys, name: _qwen(keys, name, _attention(keys, input_bias=True)),
    "qwen3": lambda keys, name: _qwen(keys, name, _attention(keys, head_norms=True, head_dim=128)),
    "qwen3_moe": _qwen3_moe,
}
"""The reader of each `model_type`."""
