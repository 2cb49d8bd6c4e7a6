"""config.json of a drafter checkpoint ↔ `DrafterConfig`, in the published layout.

Nothing that changes the function without changing a shape has a default: a missing one is an error naming its full key.
Every problem of a file is reported at once.
"""

from __future__ import annotations

import math
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.train.config import ROPE_TYPES, DrafterConfig, default_target_layer_ids
from lilicorr.train.head_json import ARCHITECTURES, head_to_dict, read_head


class _Reader:
    """Reads typed fields and remembers every problem, so that they are reported together."""

    def __init__(self, data: dict[str, Any]):
        self.data, self.used = data, set[str]()
        self.problems: list[str] = []

    def peek(self, key: str) -> Any:
        value: Any = self.data
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return value

    def get(self, key: str, kind: type, default: Any = ...) -> Any:
        """`key` may be dotted; without `default` a missing or null field is a problem."""
        value = self.peek(key)
        self.used.add(key.split(".")[0])
        if value is None:
            if default is ...:
                self.problems.append(f"`{key}` is missing")
            return None if default is ... else default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            self.problems.append(f"`{key}`: expected {kind.__name__}, found {value!r}")
        elif isinstance(value, float) and not math.isfinite(value):  # Python's JSON reads NaN and Infinity
            self.problems.append(f"`{key}`: expected a finite number, found {value!r}")
        return value


def config_from_dict(data: dict[str, Any], source: str = "config.json") -> DrafterConfig:
    """Parse the content of a checkpoint's config.json.

    Raises:
        UserError: every missing, mistyped or contradictory field at once, with full keys.
    """
    r = _Reader(data)
    architectures = r.get("architectures", list, [])
    if not (isinstance(architectures, list) and architectures and architectures[0] in ARCHITECTURES):
        raise UserError(
            f"`{source}`: architecture {architectures} is not a drafter we know, expected one of {[*ARCHITECTURES]}"
        )
    _refuse_unsupported(r)
    layer_types, window = _windows(r)
    fields: dict[str, Any] = {
        "hidden_size": r.get("hidden_size", int),
        "num_hidden_layers": r.get("num_hidden_layers", int),
        "num_attention_heads": r.get("num_attention_heads", int),
        "num_key_value_heads": r.get("num_key_value_heads", int),
        "head_dim": r.get("head_dim", int),
        "intermediate_size": r.get("intermediate_size", int),
        "rms_norm_eps": r.get("rms_norm_eps", float),
        "vocab_size": r.get("vocab_size", int),
        "max_position_embeddings": r.get("max_position_embeddings", int),
        "rope": _rope(r),
        "block_size": _block_size(r),
        "mask_token_id": r.get("dflash_config.mask_token_id", int),
        "target_layer_ids": _target_layer_ids(r),
        "num_target_layers": r.get("num_target_layers", int),
        "causal": r.get("dflash_config.causal", bool, False),
        "attention_bias": r.get("attention_bias", bool, False),
        "layer_types": layer_types,
        "sliding_window": window,
        "conv_kernel_size": r.get("dflash_config.conv_kernel_size", int, None),
        "conv_group_size": r.get("dflash_config.conv_group_size", int, None),
        "draft_vocab_size": r.get("draft_vocab_size", int, None),
        "has_own_lm_head": r.get("has_own_lm_head", bool, False),
        "initializer_range": r.get("initializer_range", float, 0.02),
        "head": read_head(r, architectures[0]),
    }
    if (fields["conv_kernel_size"] is None) != (fields["conv_group_size"] is None):
        r.problems.append("`dflash_config.conv_kernel_size` and `dflash_config.conv_group_size` come both or neither")
    _multiple(r, "num_attention_heads", "num_key_value_heads")
    _multiple(r, "hidden_size", "dflash_config.conv_group_size")
    _multiple(r, "dflash_config.lilicorr_hidden_size", "dflash_config.lilicorr_num_heads", zero=data.get("hidden_size"))
    if r.problems:
        raise UserError(f"`{source}` is not a usable drafter configuration:\n  " + "\n  ".join(r.problems))
    used = r.used | {"dflash_config", "rope_theta", "rope_scaling", "rope_parameters", "model_type", "torch_dtype"}
    used |= {"hidden_act", "tie_word_embeddings", "attention_dropout", "attention_sink_bias"}
    fields["extra"] = {key: value for key, value in data.items() if key not in used}
    return DrafterConfig(**fields)


def _refuse_unsupported(r: _Reader) -> None:
    """Fields that may be absent but, when present, must be what our forward computes."""
    for key, neutral in (("input_embedding_scale", 1.0), ("output_multiplier", 1.0), ("final_logit_softcapping", None)):
        found = r.get(key, float, None)
        if found not in (None, neutral):
            r.problems.append(f"`{key}` = {found!r} is not supported")
    for key in ("attention_sink_bias", "dflash_config.attention_sink_bias"):
        if r.get(key, bool, False):
            r.problems.append(f"`{key}` is not supported")
    activation = r.get("hidden_act", str, "silu")
    if activation != "silu":
        r.problems.append(f"`hidden_act` = {activation!r} is not supported, expected 'silu'")


def _target_layer_ids(r: _Reader) -> tuple[int, ...]:
    """As they are written, or by the published rule."""
    key = "dflash_config.target_layer_ids"
    ids = r.get(key, list, None)
    if ids is not None:
        if not isinstance(ids, list) or not ids or any(type(layer) is not int for layer in ids):
            r.problems.append(f"`{key}`: expected layer numbers, found {ids!r}")
            return ()
        return tuple(ids)
    layers, targets = r.peek("num_hidden_layers"), r.peek("num_target_layers")
    if not (isinstance(layers, int) and isinstance(targets, int)):
        r.problems.append(f"`{key}` is missing and cannot be derived")
        return ()
    try:
        return default_target_layer_ids(layers, targets)
    except UserError as error:
        r.problems.append(f"`{key}` is missing and cannot be derived: {error}")
        return ()


def _windows(r: _Reader) -> tuple[tuple[str, ...], int | None]:
    """Kind of each layer, and the window of those that slide."""
    kinds, layers = r.get("layer_types", list, []), r.peek("num_hidden_layers")
    kinds = tuple(kinds) if isinstance(kinds, list) else ()
    if kinds and isinstance(layers, int) and len(kinds) != layers:
        r.problems.append(f"`layer_types` has {len(kinds)} entries, expected num_hidden_layers = {layers}")
    window = r.get("sliding_window", int, None) or r.get("dflash_config.swa_window_size", int, None)
    if r.get("dflash_config.use_swa", bool, False) and "sliding_attention" not in kinds:
        r.problems.append("`dflash_config.use_swa` is true and `layer_types` names no sliding layer")
    if "sliding_attention" in kinds and window is None:
        r.problems.append("`sliding_window` is missing and `layer_types` asks for it")
    return kinds, window


def _block_size(r: _Reader) -> int | None:
    """At the top level, inside `dflash_config`, or in both."""
    outer, inner = r.get("block_size", int, None), r.get("dflash_config.block_size", int, None)
    if outer is None and inner is None:
        r.problems.append("`block_size` is missing")
    elif outer is not None and inner is not None and outer != inner:
        r.problems.append(f"`block_size` = {outer!r} and `dflash_config.block_size` = {inner!r} disagree")
    return inner if outer is None else outer


def _multiple(r: _Reader, key: str, divisor: str, zero: Any = None) -> None:
    """`key` must be a multiple of `divisor`, when both are there; a `key` of 0 stands for `zero`."""
    whole, part = r.peek(key) or zero, r.peek(divisor)
    if type(whole) is int and type(part) is int and (part < 1 or whole % part):
        r.problems.append(f"`{key}` = {whole} is not a multiple of `{divisor}` = {part}")


def _rope(r: _Reader) -> dict[str, Any]:
    """rope_theta (or rope_parameters.rope_theta) and the scaling block, as one mapping with `rope_theta` and `rope_type`."""
    parameters = r.get("rope_parameters", dict, None)
    if parameters is None:
        parameters = {"rope_theta": r.get("rope_theta", float), **(r.get("rope_scaling", dict, None) or {})}
    elif parameters.get("rope_theta") is None:
        parameters = {**parameters, "rope_theta": r.get("rope_theta", float)}
    parameters = {"rope_type": parameters.get("type", "default"), **parameters}
    if parameters["rope_type"] not in ROPE_TYPES:
        r.problems.append(f"rope_type {parameters['rope_type']!r} is not supported, expected one of {ROPE_TYPES}")
    return parameters


def config_to_dict(config: DrafterConfig) -> dict[str, Any]:
    """The published config.json content of `config`."""
    dflash: dict[str, Any] = {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        "causal": config.causal,
    }
    if config.conv_kernel_size is not None:
        dflash |= {"conv_kernel_size": config.conv_kernel_size, "conv_group_size": config.conv_group_size}
    architecture, head_fields, head_top = head_to_dict(config.head)
    dflash |= head_fields
    scaling = {key: value for key, value in config.rope.items() if key != "rope_theta"}
    data: dict[str, Any] = {
        **config.extra,
        **head_top,
        "architectures": [architecture],
        "model_type": "qwen3",
        "block_size": config.block_size,
        "dflash_config": dflash,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        "max_position_embeddings": config.max_position_embeddings,
        "initializer_range": config.initializer_range,
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "rope_theta": config.rope["rope_theta"],
        "rope_scaling": None if scaling == {"rope_type": "default"} else scaling,
        "tie_word_embeddings": False,
        "num_target_layers": config.num_target_layers,
        "layer_types": list(config.layer_types) or ["full_attention"] * config.num_hidden_layers,
    }
    if config.sliding_window is not None:
        data["sliding_window"] = config.sliding_window
    if "sliding_attention" in config.layer_types:
        dflash |= {"use_swa": True, "swa_window_size": config.sliding_window}
    if config.has_own_lm_head:
        data["has_own_lm_head"] = True
    if config.draft_vocab_size is not None:
        data["draft_vocab_size"] = config.draft_vocab_size
    return data
