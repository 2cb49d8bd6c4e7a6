"""The target LLM as a graph: transformers' own modelling code with our attention and without a cache of its own.

transformers calls our attention through its attention interface and hands the rows of this call to a `Cache` that only keeps them.
Does not trace or write files (`tracing`, `graphs`); does not know tokenizers or sampling.

Inputs and outputs (docs/design.md): tokens (N,T) int32, lengths (N) int32, per layer k_cache and v_cache (N,Hkv,C,D) →
logits (N,T,V) f32, next_ids (N,T) int32, features (N,T,F·H), per layer new_k and new_v (N,Hkv,T,D); with native attention
(`native_attention`) the caches with those rows written take their place.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from lilicorr.export.architectures import check_architecture
from lilicorr.export.attention import two_part_attention, visibility_mask
from lilicorr.export.native_attention import attend_rows, native_mask, write_rows
from lilicorr.runtime.errors import UserError

ATTENTION = "lilicorr_two_part"
HARMLESS = frozenset({"dropout", "position_ids", "cache_position", "use_cache", "output_attentions", "return_dict"})
"""Arguments of the attention interface that do not change the result here (positions already went into the rotation)."""


@dataclass
class TargetCall:
    """What the attention function of one forward needs besides its arguments."""

    k_caches: Sequence[Tensor]
    v_caches: Sequence[Tensor]
    lengths: Tensor
    positions: Tensor
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # by sliding window
    rows: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # by layer: the K and V that the graph returns

    def attend(self, layer: int, window: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Attention of one layer, (N,Hq,T,D)."""
        self.rows[layer] = key, value
        mask = self.mask(window, query.shape[1] // key.shape[1])
        return two_part_attention(query, self.k_caches[layer], self.v_caches[layer], key, value, mask, scale)

    def mask(self, window: int | None, group: int) -> Tensor:
        """The mask of one window size, built once and shared by all its layers."""
        if window not in self.masks:
            rows = torch.arange(self.k_caches[0].shape[2], dtype=torch.int32)[None]
            rows = rows.expand(self.lengths.shape[0], -1)
            keys = torch.cat([rows, self.positions], dim=1)
            valid = torch.cat([rows < self.lengths[:, None], self.positions >= 0], dim=1)
            self.masks[window] = visibility_mask(self.positions, keys, valid, group=group, causal=True, window=window)
        return self.masks[window]


class NativeTargetCall(TargetCall):
    """The same with native attention: the rows of this call are written into the caches, then attended to there."""

    def attend(self, layer: int, window: int | None, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        keys = write_rows(self.k_caches[layer], key, self.lengths)
        values = write_rows(self.v_caches[layer], value, self.lengths)
        self.rows[layer] = keys, values
        lengths = self.lengths + self.positions.shape[1]
        if window not in self.masks:
            self.masks[window] = native_mask(
                self.positions, lengths, keys.shape[2], query.dtype, causal=True, window=window
            )
        return attend_rows(query, keys, values, self.masks[window], lengths, scale)


class NoCache(Cache):
    """Passes the K/V rows of this call through to the attention function, instead of storing a past."""

    def __init__(self) -> None:
        self.layers: list[Any] = []  # transformers asks it for layer types; there are none

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        return key_states, value_states

    def get_seq_length(self, *args: Any, **kwargs: Any) -> int:
        return 0


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    lilicorr_call: TargetCall | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function transformers calls per layer; q (N,Hq,T,D), k and v (N,Hkv,T,D) → (N,T,Hq,D)."""
    unknown = sorted(k for k, v in kwargs.items() if v is not None and k not in HARMLESS)
    if unknown or attention_mask is not None or lilicorr_call is None:
        name = type(module).__name__
        raise UserError(f"`{name}` asks for attention we do not export: {', '.join(unknown) or 'its own mask'}")
    layer, scale = int(module.layer_idx), query.shape[-1] ** -0.5 if scaling is None else scaling
    return lilicorr_call.attend(layer, sliding_window, query, key, value, scale).transpose(1, 2), None


ALL_ATTENTION_FUNCTIONS.register(ATTENTION, _attention)


class TargetGraph(nn.Module):
    """Args:
        model: A transformers causal LM of a proven architecture (`architectures`).
        target_layer_ids: 0-based layers whose *output* is captured.
        native: Native attention; it cannot compute outside a trace.

    Raises:
        UserError: an architecture that is not proven, or a layer id that does not exist.
    """

    def __init__(self, model: nn.Module, target_layer_ids: Sequence[int], *, native: bool = False):
        super().__init__()
        self._call = NativeTargetCall if native else TargetCall
        config = model.config
        check_architecture(type(model).__name__)
        wrong = [i for i in target_layer_ids if not 0 <= i < config.num_hidden_layers]
        if wrong or not target_layer_ids:
            raise UserError(
                f"target_layer_ids {list(target_layer_ids)} do not fit a target of {config.num_hidden_layers} layers"
            )
        self.model, self.target_layer_ids = model, tuple(target_layer_ids)
        self.tied = _same(model.get_input_embeddings().weight, model.get_output_embeddings().weight)
        parameters = inspect.signature(type(model.base_model).forward).parameters
        self.cache_argument = "cache" if "cache" in parameters else "past_key_values"

    @property
    def lm_head(self) -> Tensor:
        """(V, H): the embedding table itself when the two hold the same numbers, whatever the config says."""
        layer = self.model.get_input_embeddings() if self.tied else self.model.get_output_embeddings()
        return layer.weight

    def forward(
        self, tokens: Tensor, lengths: Tensor, k_caches: list[Tensor], v_caches: list[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:
        """Shapes and dtypes in the module docstring; token t has position lengths + t."""
        positions = lengths[:, None] + torch.arange(tokens.shape[1], dtype=torch.int32)[None]
        call = self._call(k_caches, v_caches, lengths, positions)
        captured = dict[int, Tensor]()
        own_attention = self.model.config._attn_implementation
        self.model.set_attn_implementation(ATTENTION)
        hooks = [
            self.model.base_model.layers[i].register_forward_hook(
                lambda _m, _a, out, i=i: captured.update({i: _rows(out)})
            )
            for i in self.target_layer_ids
        ]
        try:
            hidden = self.model.base_model(
                input_ids=tokens,
                position_ids=positions,
                use_cache=True,
                lilicorr_call=call,
                **{self.cache_argument: NoCache()},
            ).last_hidden_state
        finally:
            self.model.set_attn_implementation(own_attention)
            for hook in hooks:
                hook.remove()
        if sorted(call.rows) != list(range(len(k_caches))):
            raise UserError(
                f"`{type(self.model).__name__}`: {len(call.rows)} of {len(k_caches)} layers went through the attention "
                "interface, so the others would lose their cache"
            )
        # Two dimensions make the product one Gemm on the (V, H) table, which the embedding lookup shares untransposed.
        logits = F.linear(hidden.flatten(0, 1), self.lm_head).unflatten(0, tokens.shape).float()
        features = torch.cat([captured[i] for i in self.target_layer_ids], dim=-1)
        keys, values = zip(*(call.rows[i] for i in range(len(k_caches))), strict=True)
        return logits, logits.argmax(dim=-1).to(torch.int32), features, list(keys), list(values)


def _rows(output: Tensor | tuple[Tensor, ...]) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def _same(left: Tensor, right: Tensor) -> bool:
    return left is right or (left.shape == right.shape and bool(torch.equal(left, right)))
