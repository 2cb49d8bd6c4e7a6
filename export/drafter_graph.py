"""The DFlash drafter as a graph: new context rows in, candidates per slot out, no cache of its own.

The layers are `lilicorr.train.layers`'; this module gives them two-part attention (committed context rows and rows of this call)
and turns the hidden rows into sorted candidates. Inputs and outputs: docs/design.md, "The three graphs".
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.export.attention import two_part_attention, visibility_mask
from lilicorr.runtime.errors import UserError
from lilicorr.train.drafter import Drafter


class DrafterGraph(nn.Module):
    """Args:
        drafter: In its export dtype, evaluation mode.
        embedding: (V, H) the target's embedding table; rows of the anchor and of the mask token are looked up in it.
        lm_head: (V, H) the target's output rows; used unless the drafter owns a head (a reduced vocabulary keeps some rows).
        slots: S, 1 to block_size - 1.
        topk: K, candidates per slot.

    Raises:
        UserError: slots or topk out of range, or a sliding window narrower than the block.
    """

    def __init__(self, drafter: Drafter, embedding: Tensor, lm_head: Tensor, *, slots: int, topk: int):
        super().__init__()
        config = drafter.config
        if not 1 <= slots <= config.slots:
            raise UserError(f"{slots} slots asked, the drafter was trained for 1 to {config.slots} (block_size - 1)")
        if not 1 <= topk <= config.output_size:
            raise UserError(f"{topk} candidates per slot asked, expected 1 to {config.output_size}")
        windows = [config.window(i) for i in range(config.num_hidden_layers)]
        narrow = [w for w in windows if w is not None and w <= slots]
        if narrow:
            raise UserError(f"`sliding_window` {narrow[0]} is narrower than a block of {slots + 1}")
        self.drafter, self.windows, self.slots, self.topk = drafter, windows, slots, topk
        self.embedding = nn.Parameter(embedding, requires_grad=False)
        rows = drafter.output_rows(lm_head)
        self.output_rows = self.embedding if rows is embedding else nn.Parameter(rows, requires_grad=False)
        mask_row = embedding[config.mask_token_id].clone()
        self.register_buffer("mask_row", mask_row, persistent=False)
        ids = None if drafter.d2t is None else drafter.target_ids(torch.arange(len(drafter.d2t))).to(torch.int32)
        self.register_buffer("target_ids", ids, persistent=False)

    def forward(
        self,
        anchor: Tensor,
        features: Tensor,
        count: Tensor,
        lengths: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor], list[Tensor]]:
        """anchor, count, lengths (N) int32; features (N,M,F·H); caches (N,Hkv,C,D) per layer.

        Returns:
            candidate_ids (N,S,K) int32, log_probs (N,S,K) f32, hidden (N,S,H), anchor_row (N,H),
            and per layer new_k, new_v (N,Hkv,M,D).
        """
        context = self.drafter.context(features)
        context_positions = lengths[:, None] + torch.arange(features.shape[1], dtype=torch.int32)
        block_positions = (lengths + count)[:, None] + torch.arange(self.slots + 1, dtype=torch.int32)
        context_rope, block_rope = self.drafter.rotary(context_positions), self.drafter.rotary(block_positions)
        masks = self._masks(count, lengths, context_positions, block_positions, k_caches[0].shape[2])

        masked = self.mask_row.expand(anchor.shape[0], self.slots, -1)
        x = torch.cat([F.embedding(anchor[:, None], self.embedding), masked], dim=1)
        new_k, new_v = [], []
        for layer, window, k_cache, v_cache in zip(self.drafter.layers, self.windows, k_caches, v_caches, strict=True):
            k_rows, v_rows = layer.self_attn.keys_values(context, context_rope)
            new_k.append(k_rows)
            new_v.append(v_rows)

            x = layer(x, block_rope, partial(_attend, k_cache, v_cache, k_rows, v_rows, masks[window]))
        hidden = self.drafter.norm(x[:, 1:])
        candidate_ids, log_probs = self._candidates(hidden)
        last = (count - 1).clamp_min(0).to(torch.int64)[:, None, None].expand(-1, 1, context.shape[-1])
        return candidate_ids, log_probs, hidden, context.gather(1, last)[:, 0], new_k, new_v

    def _masks(
        self, count: Tensor, lengths: Tensor, context_positions: Tensor, block_positions: Tensor, capacity: int
    ) -> dict[int | None, Tensor]:
        """The mask of each window size over [cache, context rows of this call, block]."""
        batch, new = context_positions.shape
        rows = torch.arange(capacity, dtype=torch.int32)[None].expand(batch, -1)
        keys = torch.cat([rows, context_positions, block_positions], dim=1)
        valid = [rows < lengths[:, None], torch.arange(new, dtype=torch.int32) < count[:, None], block_positions >= 0]
        config = self.drafter.config
        return {
            window: visibility_mask(
                block_positions,
                keys,
                torch.cat(valid, dim=1),
                group=config.num_attention_heads // config.num_key_value_heads,
                causal=config.causal,
                window=window,
            )
            for window in dict.fromkeys(self.windows)
        }

    def _candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The K best target ids per slot and their log-probabilities; log-sum-exp in float32, shifted by the best score."""
        logits = F.linear(hidden.flatten(0, 1), self.output_rows).unflatten(0, hidden.shape[:2]).float()
        best, ids = logits.topk(self.topk, dim=-1)  # ONNX TopK: the lower index first among equals
        shift = best[..., :1]
        log_sum = (logits - shift).exp().sum(dim=-1, keepdim=True).log()
        ids = ids.to(torch.int32) if self.target_ids is None else self.target_ids[ids]
        return ids, best - shift - log_sum


def _attend(
    k_cache: Tensor, v_cache: Tensor, k_rows: Tensor, v_rows: Tensor, mask: Tensor, q: Tensor, k: Tensor, v: Tensor
) -> Tensor:
    """The block's q, k, v attend to the committed cache and to [context rows of this call, block]."""
    k, v = torch.cat([k_rows, k], dim=2), torch.cat([v_rows, v], dim=2)
    return two_part_attention(q, k_cache, v_cache, k, v, mask, q.shape[-1] ** -0.5)
