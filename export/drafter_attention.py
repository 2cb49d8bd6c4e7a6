"""Attention of one drafter call in either form: the block's queries over committed context rows, rows of this call, and the block.

The drafter graph gives it every layer's rows and takes the K and V that the graph returns from it. Traces nothing itself.

Shapes: N batch, Hq query heads, Hkv key/value heads, M context rows of this call, B block rows, C cache capacity, D head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lilicorr.export.attention import two_part_attention, visibility_mask
from lilicorr.export.native_attention import attend_rows, native_mask, write_rows
from lilicorr.train.config import DrafterConfig


@dataclass
class DrafterCall:
    """Two-part attention; `new_k` and `new_v` gather the context rows (N,Hkv,M,D) of the layers in order."""

    config: DrafterConfig
    k_caches: Sequence[Tensor]
    v_caches: Sequence[Tensor]
    lengths: Tensor  # (N) committed rows
    count: Tensor  # (N) valid context rows of this call
    context_positions: Tensor  # (N, M)
    block_positions: Tensor  # (N, B)
    masks: dict[int | None, Tensor] = field(default_factory=dict)  # by sliding window
    new_k: list[Tensor] = field(default_factory=list)
    new_v: list[Tensor] = field(default_factory=list)

    def attend(self, layer: int, k_rows: Tensor, v_rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of one layer.

        Args:
            k_rows, v_rows: (N,Hkv,M,D) of the context rows.
            q: (N,Hq,B,D); k, v (N,Hkv,B,D): of the block.

        Returns:
            (N,Hq,B,D).
        """
        self.new_k.append(k_rows)
        self.new_v.append(v_rows)
        window = self.config.window(layer)
        if window not in self.masks:
            self.masks[window] = self._mask(window)
        k, v = torch.cat([k_rows, k], dim=2), torch.cat([v_rows, v], dim=2)
        scale = q.shape[-1] ** -0.5
        return two_part_attention(q, self.k_caches[layer], self.v_caches[layer], k, v, self.masks[window], scale)

    def _mask(self, window: int | None) -> Tensor:
        """Over [cache, context rows of this call, block]."""
        batch, new = self.context_positions.shape
        rows = torch.arange(self.k_caches[0].shape[2], dtype=torch.int32)[None].expand(batch, -1)
        valid = [
            rows < self.lengths[:, None],
            torch.arange(new, dtype=torch.int32) < self.count[:, None],
            self.block_positions >= 0,
        ]
        return visibility_mask(
            self.block_positions,
            torch.cat([rows, self.context_positions, self.block_positions], dim=1),
            torch.cat(valid, dim=1),
            group=self.config.num_attention_heads // self.config.num_key_value_heads,
            causal=self.config.causal,
            window=window,
        )


class NativeDrafterCall(DrafterCall):
    """Native attention; `new_k` and `new_v` are the caches with the valid context rows and, behind them, the block written in.

    A row's place is its position, so the mask is the target's. The block's rows lie beyond what the caller counts as committed,
    and the next call writes over them.
    """

    def attend(self, layer: int, k_rows: Tensor, v_rows: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys = write_rows(self.k_caches[layer], self._in_order(k_rows, k), self.lengths)
        values = write_rows(self.v_caches[layer], self._in_order(v_rows, v), self.lengths)
        self.new_k.append(keys)
        self.new_v.append(values)
        lengths, window = self.lengths + self.count + q.shape[2], self.config.window(layer)
        if window not in self.masks:
            causal, positions, capacity = self.config.causal, self.block_positions, keys.shape[2]
            self.masks[window] = native_mask(positions, lengths, capacity, q.dtype, causal=causal, window=window)
        return attend_rows(q, keys, values, self.masks[window], lengths, q.shape[-1] ** -0.5)

    def _in_order(self, context: Tensor, block: Tensor) -> Tensor:
        """(N,Hkv,M+B,D): `count` rows of `context`, then those of `block`; the rest repeats the block's last row."""
        new, width = context.shape[2], block.shape[2]
        place = torch.arange(new + width, dtype=torch.int64)[None]
        count = self.count.to(torch.int64)[:, None]
        source = torch.where(place < count, place, (place + new - count).clamp_max(new + width - 1))
        source = source[:, None, :, None].expand(-1, context.shape[1], -1, context.shape[3])
        return torch.cat([context, block], dim=2).gather(2, source)
