"""Hugging Face's `config.json` as the fields of a `TransformerShape`.

A config gives sizes and the name of an architecture (`model_type`); what a model of it has besides
(biases, norms, how experts are routed) is in the code of huggingface/transformers, and here in
`huggingface.toml`. A config says how long a sequence may be, not how long one is: up to 4,096
tokens are assumed, and the note says so.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from hybridperf.io import InputError, shipped_toml, unknown
from hybridperf.workloads.transformer.fields import MOST_LAYERS, check_number, check_whole
from hybridperf.workloads.transformer.shape import (
    Compressed,
    Heads,
    Latent,
    Scan,
    TransformerShape,
)
from hybridperf.workloads.transformer.sizes import SCANS

SEQ = 4096  # tokens of a sequence, where a model may have as many
_PADDING_ROWS = 2  # of a table of positions: beside those that OPT's config counts, among RoBERTa's
_WITH_PADDING = ("roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "data2vec-text")
_KNOWN_MIXERS = "full, sliding and linear attention, Mamba-2, short convolutions and MLPs"
# the gated delta rule has a decay and a rate of its own, and chunks of 64 tokens
_DELTA = {"chunk": 64, "rates": 2}
# keys that are one by the kind of a layer, and where older configs say it
_RATES = {
    "compressed_sparse_attention": "compress_rate_csa",
    "heavily_compressed_attention": "compress_rate_hca",
}
_TABLES = ("attn_config", "ffn_config")  # of a config, which say what others say beside them
_NESTED = ("keys", "names", "defaults", "only")  # tables of a section
_SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
_NEEDED = ("hidden", "heads", "layers", "ffn", "vocab")


def is_config(content: dict[str, Any]) -> bool:
    """Whether a JSON file is a config of Hugging Face and not one of our own fields."""
    return bool(content.keys() & {"model_type", "architectures", "_class_name"})


def architectures() -> list[str]:
    """The `model_type`s that can be read."""
    return [name for name in _sections() if not name.startswith("_")]


def fields_of(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `TransformerShape` that a config means, its note included.

    Args:
        config: content of a `config.json`; of one with images or sound, its text model counts.

    Raises:
        InputError: for an architecture that is not known, a missing size, or a model that our
            fields cannot hold.
    """
    notes = []
    if isinstance(config.get("text_config"), dict):
        notes.append("its text model alone")
        config = {**_shared(config), **config["text_config"]}
    name = config.get("model_type") or config.get("_class_name")  # diffusers' word for it
    if name not in architectures():
        raise unknown("model_type", str(name), architectures(), "give its sizes in a .toml file")
    habits = _architecture(str(name))
    for table in (config.get(one) for one in _TABLES):
        config = {**(table if isinstance(table, dict) else {}), **config}
    if name == "nemotron_h" and isinstance(words := config.get("layers_block_type"), list):
        letters = _words("letters")
        pattern = [letters.get(word, word) for word in words]  # as Transformers 5 saves it
        config = {"hybrid_override_pattern": pattern, "num_hidden_layers": len(words)} | config
    config = {**habits["defaults"], **{key: one for key, one in config.items() if one is not None}}
    config |= {ours: config[own] for ours, own in habits["names"].items() if own in config}
    config = _delta_attention(config)
    _check_holds(str(name), config, habits["only"])
    found = {
        field: next((config[key] for key in keys if key in config), None)
        for field, keys in habits["keys"].items()
    }
    longest = found.pop("longest")
    if habits["family"] == "vit":
        found["vocab"] = len(config.get("id2label") or ()) or config["num_labels"]
    fields = {field: value for field, value in habits.items() if field not in _NESTED}
    if (width := fields.pop("mlp_over_hidden", None)) and found["hidden"] and not found["ffn"]:
        found["ffn"] = width * found["hidden"]
    fields |= {field: value for field, value in found.items() if value is not None}
    if missing := [habits["keys"][field][0] for field in _NEEDED if field not in fields]:
        raise InputError(f"expected {', '.join(missing)} in the config of a {name}, found none")
    check_whole(f"{habits['keys']['layers'][0]} of a {name}", fields["layers"], most=MOST_LAYERS)
    hidden, heads = fields["hidden"], fields["heads"]
    numbers = isinstance(hidden, int) and isinstance(heads, int) and heads > 0
    if numbers and hidden % heads and "kv_lora_rank" not in config:
        fields.setdefault("head_dim", hidden // heads)  # as Transformers rounds it
    if config.get("block_auto_adjust_ff_dim"):
        fields["ffn"] = _adjusted(str(name), config, fields["ffn"])
    fields |= _positions(str(name), fields, longest) | _experts(config, fields)
    if config.get("zero_expert_num"):
        fields |= _shortcut(fields)
    if config.get("enable_moe_block"):
        fields |= _beside_experts(config, fields)
    fields |= _mixers(str(name), config, fields, longest)
    fields |= _heads(str(name), config, fields) | _compressed(str(name), config)
    if name == "falcon":
        fields |= _falcon(config)
    if fields["family"] == "moe" and fields.get("experts") == 0:
        width = fields.pop("shared_ffn", 0) or fields["ffn"]
        fields |= {"family": "llama", "ffn": width, "topk": 0}
    if fields["family"] == "t5":
        fields["gated"] = str(config.get("feed_forward_proj", "")).startswith("gated")
    if fields["family"] == "vit":
        _check_above_0(str(name), image_size=fields["image"], patch_size=fields["patch"])
        fields["seq"] = (fields["image"] // fields["patch"]) ** 2 + 1  # and the class's
    if not fields.get("dense_layers"):
        fields.pop("dense_ffn", None)
    return {**fields, "note": "; ".join([*_notes(str(name), config, fields, longest), *notes])}


def _delta_attention(config: dict[str, Any]) -> dict[str, Any]:
    """Sizes and places of Kimi's linear attention, which files on the hub say in a table."""
    told, layers = config.get("linear_attn_config"), config.get("num_hidden_layers")
    if not isinstance(told, dict) or not isinstance(layers, int):
        return config
    attending = told.get("full_attn_layers", ())  # counted from 1
    kinds = ("linear_attention", "full_attention")
    return config | {
        "linear_num_heads": told.get("num_heads"),
        "linear_head_dim": told.get("head_dim"),
        "linear_conv_kernel_dim": told.get("short_conv_kernel_size"),
        "layer_types": [kinds[at + 1 in attending] for at in range(min(layers, MOST_LAYERS))],
    }


def _adjusted(name: str, config: dict[str, Any], ffn: int) -> int:
    """Width of a gated MLP with as many weights as a plain one, a multiple of a whole number."""
    multiple, times = config.get("block_multiple_of", 256), config.get("block_ffn_dim_multiplier")
    _check_above_0(name, intermediate_size=ffn, block_multiple_of=multiple)
    check_number("block_ffn_dim_multiplier", 1.0 if times is None else times)
    ffn = int((1.0 if times is None else times) * int(2 * ffn / 3))
    return -(-ffn // multiple) * multiple


def _beside_experts(config: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Experts beside each layer's MLP, three norms more (Gemma 4)."""
    sizes = {"experts": config.get("num_experts"), "topk": config.get("top_k_experts")}
    sizes |= {"ffn": config.get("moe_intermediate_size"), "shared_ffn": fields["ffn"]}
    return {"family": "moe", "norms_per_layer": 7, **sizes}


def _shortcut(fields: dict[str, Any]) -> dict[str, Any]:
    """Layers of two attentions and two MLPs, experts beside the first MLP: each as two."""
    layers, wide = fields["layers"], fields.get("dense_ffn")
    return {"layers": 2 * layers, "dense_layers": layers, "shared_ffn": wide}


def _heads(name: str, config: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Heads of layers that attend to all, where those with a window have others."""
    mixers = fields.get("mixers", ())
    if not {"window", "attention"} <= {*mixers}:
        return {}
    usual = {field: fields.get(field) for field in ("heads", "kv_heads", "head_dim")}
    full, windowed = dict(usual), dict(usual)
    each = config.get("num_attention_heads_per_layer")
    if isinstance(each, list) and len(each) == len(mixers):
        full["heads"], windowed["heads"] = (
            each[mixers.index(one)] for one in ("attention", "window")
        )
    if times := config.get("window_kv_heads_over"):
        windowed["kv_heads"] = config.get("swa_num_key_value_heads") or times * usual["kv_heads"]
    if "global_head_dim" not in _architecture(name)["defaults"]:
        return {**windowed, "full_heads": full} if full != windowed else {}
    saved = config.get("per_layer_config")  # of layers that differ, as Transformers saves them
    first: Any = next(iter(saved.values()), {}) if isinstance(saved, dict) else {}
    own: dict[str, Any] = first if isinstance(first, dict) else {}
    full["head_dim"] = own.get("head_dim") or config["global_head_dim"]
    if config.get("attention_k_eq_v"):
        told = own.get("num_key_value_heads") or config.get("num_global_key_value_heads")
        full |= {"kv_heads": told or full["kv_heads"], "keys_as_values": True}
    return {"full_heads": full} if full != usual else {}


def _compressed(name: str, config: dict[str, Any]) -> dict[str, Any]:
    """Widths of attention to compressed keys, and streams."""
    if "compress_rate_csa" not in config:
        return {}
    rates = config.get("compress_rates")
    picked, condensed = (
        rates.get(long, config[short]) if isinstance(rates, dict) else config[short]
        for long, short in _RATES.items()
    )
    told = {field: config.get(key) for field, key in _words("compressed").items()}
    _check_above_0(name, **{str(key): told[field] for field, key in _words("compressed").items()})
    own = {**told, "picked_rate": picked, "condensed_rate": condensed}
    return {"compressed": own, "streams": config.get("hc_mult", 0)}


def config_of(shape: TransformerShape) -> dict[str, Any]:
    """A `config.json` that means a shape: of the first architecture whose models have its fields.

    Raises:
        InputError: for a model that no architecture here has.
    """
    for name in architectures():
        config = _config_as(name, shape)
        try:
            fields = fields_of(config)
            if isinstance(fields.get("latent"), dict):
                fields["latent"] = Latent(**fields["latent"])
            if isinstance(fields.get("scan"), dict):
                fields["scan"] = Scan(**fields["scan"])
            if isinstance(fields.get("full_heads"), dict):
                fields["full_heads"] = Heads(**fields["full_heads"])
            if isinstance(fields.get("compressed"), dict):
                fields["compressed"] = Compressed(**fields["compressed"])
            fields["mixers"] = tuple(fields.get("mixers", ()))
            if TransformerShape(name=shape.name, **fields).same_model(shape):
                return config
        except (InputError, TypeError):
            continue
    raise InputError(
        f"expected a model that a config of Hugging Face describes, got {shape.name}, of whose"
        f" fields none of {', '.join(architectures())} is"
    )


def _config_as(name: str, shape: TransformerShape) -> dict[str, Any]:
    """What a config of an architecture would say of a shape, were it one."""
    own = {**vars(shape), "kv_heads": shape.key_heads, "head_dim": shape.dim}
    # a window as long as a model's positions is none
    longest = shape.max_positions or max(shape.seq, shape.window + 1)
    own |= {"longest": longest, "ffn": shape.ffn}
    own["qkv_biases"] = shape.biases if shape.qkv_biases is None else shape.qkv_biases
    config: dict[str, Any] = {"model_type": name}
    for field, keys in _architecture(name)["keys"].items():
        if keys:
            config[keys[0]] = own[field]
    if shape.shared_ffn and "n_shared_experts" not in config and shape.ffn:
        config["n_shared_experts"] = shape.shared_ffn // shape.ffn
    if shape.expert_groups:
        config |= {"n_group": shape.expert_groups, "topk_group": shape.topk_groups}
    if shape.window:
        words = {"attention": "full_attention", "window": "sliding_attention"}
        config |= {"sliding_window": shape.window, "use_sliding_window": True}
        config["layer_types"] = [words.get(one, one) for one in shape.mixers]
    if shape.dense_layers and "interleave_moe_layer_step" in _architecture(name)["defaults"]:
        with_experts = shape.layers - shape.dense_layers
        config["interleave_moe_layer_step"] = shape.layers // max(with_experts, 1)
    if "zero_expert_num" in _architecture(name)["defaults"]:  # each of its layers is two here
        config[_architecture(name)["keys"]["layers"][0]] = shape.layers // 2
    if heads := shape.full_heads:
        config |= {
            "global_head_dim": heads.head_dim, "num_global_key_value_heads": heads.kv_heads,
            "attention_k_eq_v": heads.keys_as_values, "swa_num_key_value_heads": shape.kv_heads,
        }  # fmt: skip
        if not heads.keys_as_values:
            config["num_key_value_heads"] = heads.kv_heads
    if shape.shared_ffn and "global_head_dim" in _architecture(name)["defaults"]:
        config |= {
            "enable_moe_block": True, "num_experts": shape.experts, "top_k_experts": shape.topk,
            "moe_intermediate_size": shape.ffn, "intermediate_size": shape.shared_ffn,
        }  # fmt: skip
    config |= {"hidden_size_per_layer_input": 0} if shape.full_heads else {}
    if shape.scan is not None and shape.scan.rank:
        words = {"scan": "linear_attention", "attention": "full_attention"}
        config["layer_types"] = [words.get(one, one) for one in shape.mixers]
        config |= {"linear_num_heads": shape.scan.heads, "linear_head_dim": shape.scan.head_dim}
        config["linear_conv_kernel_dim"] = shape.scan.conv
    elif shape.scan is not None and shape.scan.rates == _DELTA["rates"]:
        words = {"scan": "linear_attention", "attention": "full_attention"}
        config["layer_types"] = [words.get(one, one) for one in shape.mixers]
        config |= {keys[-1]: getattr(shape.scan, field) for field, keys in _words("scan").items()}
    elif shape.scan is not None:
        mlp = "E" if shape.experts else "-"
        letters = {"scan": "M", "attention": "*", "mlp": mlp}
        config["hybrid_override_pattern"] = "".join(letters.get(one, "?") for one in shape.mixers)
        config |= {keys[0]: getattr(shape.scan, field) for field, keys in _words("scan").items()}
        config["chunk_size"] = shape.scan.chunk
    if shape.experts and shape.scan is not None:
        config |= {
            "moe_intermediate_size": shape.ffn, "n_routed_experts": shape.experts,
            "num_experts_per_tok": shape.topk, "n_shared_experts": int(shape.shared_ffn > 0),
            "moe_shared_expert_intermediate_size": shape.shared_ffn,
            "moe_latent_size": shape.expert_hidden or None,
        }  # fmt: skip
    if told := shape.compressed:
        config |= {key: getattr(told, field) for field, key in _words("compressed").items()}
        config |= {"compress_rate_csa": told.picked_rate, "compress_rate_hca": told.condensed_rate}
        called = dict(zip(("picked", "condensed"), _RATES, strict=True))
        called["window"] = "sliding_attention"
        config["layer_types"] = [called.get(one, one) for one in shape.mixers]
        config["hc_mult"] = shape.streams
    if latent := shape.latent:
        config |= {
            "q_lora_rank": latent.query_rank, "kv_lora_rank": latent.kv_rank,
            "qk_nope_head_dim": latent.plain_dim, "qk_rope_head_dim": latent.rotary_dim,
            "v_head_dim": latent.value_dim,
        }  # fmt: skip
        config |= {
            key: getattr(latent, field)
            for field, key in _words("sparse").items()
            if latent.selected
        }
    return config


def _shared(config: dict[str, Any]) -> dict[str, Any]:
    """What a config with several parts says of all of them."""
    return {key: config[key] for key in ("tie_word_embeddings",) if key in config}


@functools.cache
def _sections() -> dict[str, dict[str, Any]]:
    return shipped_toml(__package__, "huggingface.toml")


def _words(what: str) -> dict[str, Any]:
    """Words of configs that several architectures share."""
    return _sections()[f"_{what}"]


@functools.cache
def _architecture(name: str) -> dict[str, Any]:
    """A section with what it is like, key by key."""
    own = dict(_sections()[name])
    parent = _architecture(own.pop("like")) if "like" in own else {}
    merged = {**parent, **own}
    return merged | {key: {**parent.get(key, {}), **own.get(key, {})} for key in _NESTED}


def _check_holds(name: str, config: dict[str, Any], only: dict[str, Any]) -> None:
    for key, value in only.items():
        wanted = config.get(value) if isinstance(value, str) else value
        if key in config and config[key] != wanted:
            raise InputError(
                f"a {name} with {key} {config[key]} is no model that sizes alone describe; only"
                f" {key} {wanted} is"
            )


def _check_above_0(name: str, **sizes: Any) -> None:
    for key, size in sizes.items():
        if not (isinstance(size, int) and size > 0):
            raise InputError(f"expected {key} of a {name}, a whole number above 0, got {size}")


def _positions(name: str, fields: dict[str, Any], longest: int | None) -> dict[str, Any]:
    """Tokens of a sequence, and rows of a learned table of positions."""
    if fields.get("positions", "learned") != "learned" or longest is None:
        return {"seq": min(longest or SEQ, SEQ)}
    padding = _PADDING_ROWS if name == "opt" else 0
    seq = longest - _PADDING_ROWS if name in _WITH_PADDING else longest
    return {"seq": seq, "max_positions": longest + padding}


def _experts(config: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Shared experts and latent attention of the DeepSeek family."""
    found: dict[str, Any] = {}
    if shared := next((config[key] for key in _SHARED if config.get(key)), 0):
        found["shared_ffn"] = shared * fields["ffn"]
    if words := config.get("mlp_layer_types"):
        found["dense_layers"] = [*words].count("dense")
    if step := config.get("interleave_moe_layer_step"):
        found["dense_layers"] = fields["layers"] - fields["layers"] // step
    if (config.get("n_group") or 0) > 1:
        found |= {"expert_groups": config["n_group"], "topk_groups": config.get("topk_group")}
    if "kv_lora_rank" in config:
        found["latent"] = {
            "query_rank": config.get("q_lora_rank"),
            "kv_rank": config["kv_lora_rank"],
            "plain_dim": config.get("qk_nope_head_dim"),
            "rotary_dim": config.get("qk_rope_head_dim"),
            "value_dim": config.get("v_head_dim"),
            **{
                field: config[key]
                for field, key in _words("sparse").items()
                if config.get("index_topk") and key in config
            },
        }
    return found


def mixers_of(name: str, words: Iterable[str]) -> list[str]:
    """What layers have before their MLPs, by words or letters of a config of a model.

    Raises:
        InputError: for a word of no layer that is modelled.
    """
    known = _words("mixers")
    for word in words:
        if word not in known:
            raise InputError(f"a {name} with {word!r} layers is not modelled; {_KNOWN_MIXERS} are")
    return [known[word] for word in words]


def _mixers(
    name: str, config: dict[str, Any], fields: dict[str, Any], longest: int | None
) -> dict[str, Any]:
    """What hybrids have before their MLPs, layer by layer, and the sizes of windows and scans."""
    layers, chunk = fields["layers"], config.get("attention_chunk_size")
    window = config.get("sliding_window") or config.get("window_size") or chunk
    experts: dict[str, Any] = {}
    if not config.get("use_sliding_window", True) or (longest and window and window >= longest):
        window = None
    every = config.get("sliding_window_pattern")  # so many layers to one that attends to all
    if pattern := config.get("hybrid_override_pattern"):
        words = [*pattern]
        experts = _experts_apart(name, config, words)
    elif (attending := config.get("attn_layer_indices")) is not None:
        words = ["attention" if at in attending else "mamba" for at in range(layers)]
    elif (attending := config.get("full_attn_idxs")) is not None and not config.get("layer_types"):
        words = ["attention" if at in attending else "conv" for at in range(layers)]
    else:
        listed = ("layer_types", "layers_block_type", "attention_layers")
        words = next((config[key] for key in listed if config.get(key)), [])
    ratios = config.get("compress_ratios")
    if isinstance(ratios, list) and not words:  # keys that are one, layer by layer
        picked, condensed = _RATES
        each = {0: "sliding_attention", config.get("compress_rate_csa"): picked}
        words = [each.get(one, condensed) for one in ratios][:layers]
    if own := fields.get("mixers"):
        words = [own[at % len(own)] for at in range(layers)]
    if kinds := config.get("attn_type_list"):
        words = ["full_attention" if one else "linear_attention" for one in kinds]
    if not words and (interval := config.get("full_attention_interval")):
        kinds = ("linear_attention", "full_attention")
        words = [kinds[(at + 1) % interval == 0] for at in range(layers)]
    if not words and window:
        most = config.get("max_window_layers", 0)
        full = [
            _attends_to_all(name, at, most) or (at + 1) % (every or layers + 1) == 0
            for at in range(layers)
        ]
        words = ["full_attention" if one else "sliding_attention" for one in full]
    if len(words) != layers and (words or name == "nemotron_h"):
        raise InputError(
            f"expected a word or letter for each of the {layers} layers of a {name}"
            f" (hybrid_override_pattern, layer_types), got {len(words)}"
        )
    if chunk:  # taken for a window
        words = ["sliding_attention" if one == "chunked_attention" else one for one in words]
    mixers = mixers_of(name, words)
    if not window:
        mixers = ["attention" if one == "window" else one for one in mixers]
    if not set(mixers) - {"attention"}:
        return {}
    found: dict[str, Any] = {"mixers": mixers, "window": window or 0, **experts}
    if "conv" in mixers:
        found["conv"] = config.get("conv_L_cache")
    if "linear_num_heads" in config:  # Kimi's, arXiv 2510.26692
        heads, dim = config["linear_num_heads"], config.get("linear_head_dim")
        _check_above_0(name, linear_num_heads=heads, linear_head_dim=dim)
        wide = dict.fromkeys(("head_dim", "state", "rank", "gate_rank"), dim)
        taps, chunk = config.get("linear_conv_kernel_dim"), _DELTA["chunk"]
        found["scan"] = {"heads": heads, "groups": heads, **wide, "conv": taps, "chunk": chunk}
    elif "scan" in mixers and name.startswith("minimax"):  # lightning attention, arXiv 2501.08313
        heads, hidden = fields["heads"], fields["hidden"]
        _check_above_0(name, num_attention_heads=heads, hidden_size=hidden)
        dim = fields.get("head_dim") or hidden // heads
        own = {"chunk": config.get("block_size", 256), "rates": 0}
        found["scan"] = {"heads": heads, "groups": heads, "head_dim": dim, "state": dim, **own}
    elif set(SCANS) & {*mixers}:
        called = _words("scan")
        scan = {
            field: next((config[key] for key in keys if config.get(key) is not None), None)
            for field, keys in called.items()
        }
        if missing := [keys[0] for field, keys in called.items() if scan[field] is None]:
            raise InputError(f"expected {', '.join(missing)} in the config of a {name}, found none")
        chunk = config.get("chunk_size") or config.get("mamba_chunk_size")
        delta = _DELTA if "linear_key_head_dim" in config else {}
        found["scan"] = scan | ({"chunk": chunk} if chunk else {}) | delta
    return found


def _attends_to_all(name: str, at: int, most: int) -> bool:
    """Whether a layer has no window, where a config tells of one and of `max_window_layers`: Qwen's
    later layers have one, of its first experts every other of the earlier, of the next all.
    """
    if name == "qwen3_moe":
        return False
    return at % 2 == 1 or at >= most if name == "qwen2_moe" else at < most


def _experts_apart(name: str, config: dict[str, Any], words: list[str]) -> dict[str, Any]:
    """Of a pattern whose MLPs are experts: their sizes, which stand beside those of one MLP."""
    if "E" not in words:
        return {}
    if "-" in words:
        raise InputError(f"a {name} with both MLPs and experts as layers is not modelled")
    keys = ("moe_intermediate_size", "n_routed_experts", "num_experts_per_tok")
    if missing := [key for key in keys if not config.get(key)]:
        raise InputError(f"expected {', '.join(missing)} in the config of a {name}, found none")
    ffn, experts, topk = (config[key] for key in keys)
    shared = config.get("moe_shared_expert_intermediate_size") or 0
    shared *= config.get("n_shared_experts") or 1
    return {
        "family": "moe", "ffn": ffn, "experts": experts, "topk": topk, "shared_ffn": shared,
        "router_bias": True, "expert_hidden": config.get("moe_latent_size") or 0,
    }  # fmt: skip


def _falcon(config: dict[str, Any]) -> dict[str, Any]:
    """Keys and values, and norms: a new Falcon has one norm for attention and one for the MLP."""
    if config.get("new_decoder_architecture"):
        norms = config.get("num_ln_in_parallel_attn", 2)
        return {"kv_heads": config.get("num_kv_heads"), "norms_per_layer": norms}
    parallel = config.get("parallel_attn", True)
    kv_heads = 1 if config.get("multi_query", True) else None
    return {"kv_heads": kv_heads, "norms_per_layer": 1 if parallel else 2}


def _notes(name: str, config: dict[str, Any], fields: dict[str, Any], longest: Any) -> list[str]:
    most = f" of at most {longest}" if longest and longest != fields["seq"] else ""
    notes = [f"those of {name} in Transformers, sequences of {fields['seq']} tokens{most}"]
    if config.get("num_nextn_predict_layers"):
        notes.append("without the layers that predict further tokens")
    return notes
