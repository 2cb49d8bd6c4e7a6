"""The DFlash drafter as a graph: new context rows in, candidates per slot out, no cache of its own.

The layers are `lilicorr.train.layers`'; this module gives them attention over committed context rows and rows of this call
(`drafter_attention`) and turns the hidden rows into sorted candidates. Inputs and outputs: docs/design.md, "The three graphs".
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.export.drafter_attention import DrafterCall, NativeDrafterCall
from lilicorr.runtime.errors import UserError
from lilicorr.train.drafter import Drafter


class DrafterGraph(nn.Module):
    """Args:
        drafter: In its export dtype, evaluation mode.
        embedding: (V, H) the target's embedding table; rows of the anchor and of the mask token are looked up in it.
        lm_head: (V, H) the target's output rows; used unless the drafter owns a head (a reduced vocabulary keeps some rows).
        slots: S, 1 to block_size - 1.
        topk: K, candidates per slot.
        native: Native attention; it cannot compute outside a trace.

    Raises:
        UserError: slots or topk out of range, or a sliding window narrower than the block.
    """

    def __init__(
        self, drafter: Drafter, embedding: Tensor, lm_head: Tensor, *, slots: int, topk: int, native: bool = False
    ):
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
        self.drafter, self.slots, self.topk = drafter, slots, topk
        self._call = NativeDrafterCall if native else DrafterCall
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
            and per layer new_k, new_v (N,Hkv,M,D), or with native attention the caches with those rows written.
        """
        context = self.drafter.context(features)
        context_positions = lengths[:, None] + torch.arange(features.shape[1], dtype=torch.int32)
        block_positions = (lengths + count)[:, None] + torch.arange(self.slots + 1, dtype=torch.int32)
        context_rope, block_rope = self.drafter.rotary(context_positions), self.drafter.rotary(block_positions)
        call = self._call(self.drafter.config, k_caches, v_caches, lengths, count, context_positions, block_positions)
        masked = self.mask_row.expand(anchor.shape[0], self.slots, -1)
        x = torch.cat([F.embedding(anchor[:, None], self.embedding), masked], dim=1)
        for index, layer in enumerate(self.drafter.layers):
            rows = layer.self_attn.keys_values(context, context_rope)
            x = layer(x, block_rope, partial(call.attend, index, *rows))
        hidden = self.drafter.norm(x[:, 1:])
        candidate_ids, log_probs = self._candidates(hidden)
        last = (count - 1).clamp_min(0).to(torch.int64)[:, None, None].expand(-1, 1, context.shape[-1])
        return candidate_ids, log_probs, hidden, context.gather(1, last)[:, 0], call.new_k, call.new_v

    def _candidates(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The K best target ids per slot and their log-probabilities; log-sum-exp in float32, shifted by the best score."""
        logits = F.linear(hidden.flatten(0, 1), self.output_rows).unflatten(0, hidden.shape[:2]).float()
        best, ids = logits.topk(self.topk, dim=-1)  # ONNX TopK: the lower index first among equals
        shift = best[..., :1]
        log_sum = (logits - shift).exp().sum(dim=-1, keepdim=True).log()
        ids = ids.to(torch.int32) if self.target_ids is None else self.target_ids[ids]
        return ids, best - shift - log_sum
