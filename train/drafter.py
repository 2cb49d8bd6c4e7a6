"""The DFlash block drafter: Qwen3 layers over the block rows, context keys from target features, and its optional head.

Legend: R sequences, A blocks (anchors) per sequence, B block size, C context rows, H width, F captured target layers. Parameter
names are the published checkpoint's.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.block_attention import block_attention
from lilicorr.train.config import DominoConfig, DrafterConfig, DSparkConfig, HeadConfig
from lilicorr.train.conv import BlockConv
from lilicorr.train.domino import DominoHead
from lilicorr.train.dspark import DSparkHead
from lilicorr.train.heads import DraftHead, NoHead, Tables
from lilicorr.train.layers import DrafterLayer
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.norm import RMSNorm, at_least_fp32
from lilicorr.train.rope import Rotary

HEADS: dict[type, Callable[[DrafterConfig], DraftHead]] = {
    HeadConfig: LiLiCorrHead.from_config,
    DominoConfig: DominoHead,
    DSparkConfig: DSparkHead,
}


class Drafter(nn.Module):
    """Block drafter and, in `head`, what turns its rows into drafts (None for plain DFlash). Owns no embedding; owns an output head
    only when the configuration says so (`has_own_lm_head`), otherwise the target's lm_head rows are passed in."""

    d2t: Tensor | None

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.config = config
        H = config.hidden_size
        self.fc = nn.Linear(len(config.target_layer_ids) * H, H, bias=False)
        self.hidden_norm = RMSNorm(H, config.rms_norm_eps)
        self.layers = nn.ModuleList(DrafterLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(H, config.rms_norm_eps)
        self.rotary = Rotary(config.rope, config.head_dim, config.max_position_embeddings)
        self.lm_head = nn.Linear(H, config.output_size, bias=False) if config.has_own_lm_head else None
        reduced = config.draft_vocab_size is not None
        self.register_buffer("d2t", torch.zeros(config.output_size, dtype=torch.int64) if reduced else None)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=config.initializer_range)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, BlockConv):
                module.reset_parameters()
        if config.head is not None:
            self.add_module(config.head.kind, HEADS[type(config.head)](config))

    @property
    def head(self) -> DraftHead | None:
        return getattr(self, self.config.head.kind) if self.config.head else None

    @property
    def drafting(self) -> DraftHead:
        """The head, or the one without parameters that drafts each slot's most probable token."""
        return self.head or NoHead()

    def tables(self, embeddings: Tensor, lm_head_weight: Tensor) -> Tables:
        """What a head reads of the target: its input embedding (V, H) and its lm_head (V, H), reduced to the draft vocabulary."""
        return Tables(embeddings, self.output_rows(lm_head_weight), self._kept())

    def context(self, features: Tensor) -> Tensor:
        """Fused context rows hidden_norm(fc(features)): (..., C, F*H) → (..., C, H)."""
        return self.hidden_norm(self.fc(features))

    def forward(self, blocks: Tensor, context: Tensor, anchors: Tensor) -> Tensor:
        """Final normed hidden rows of many blocks over their sequences' contexts.

        Args:
            blocks: (R, A, B, H) embedded block inputs: anchor token, then masks.
            context: (R, C, H) fused context rows at positions 0…C-1.
            anchors: (R, A) absolute position of each block's anchor; a block sees the context rows strictly before it.

        Returns:
            (R, A, B, H).
        """
        B, C = blocks.shape[2], context.shape[1]
        block_rope = self.rotary(anchors[..., None] + torch.arange(B, device=anchors.device))
        context_rope = self.rotary(torch.arange(C, device=anchors.device)[None])
        windows = [self.config.window(index) for index in range(len(self.layers))]
        attention = {window: block_attention(anchors, B, C, window, self.config.causal) for window in set(windows)}
        x = blocks
        for layer, window in zip(self.layers, windows, strict=True):
            x = layer(x, block_rope, partial(attention[window], *layer.self_attn.keys_values(context, context_rope)))
        return self.norm(x)

    def block_hidden(self, block_embeddings: Tensor, features: Tensor) -> Tensor:
        """Plain reference forward without any cache: context rows at positions 0…C-1, block at C…C+B-1.

        Args:
            block_embeddings: (N, B, H).
            features: (N, C, F*H) target features of all rows before the anchor.

        Returns:
            (N, B, H) final normed hidden rows; row 0 is the anchor's, rows 1…B-1 are the slots'.
        """
        N, C = features.shape[:2]
        anchors = torch.full((N, 1), C, dtype=torch.int64, device=features.device)
        return self(block_embeddings[:, None], self.context(features), anchors)[:, 0]

    def output_rows(self, lm_head_weight: Tensor) -> Tensor:
        """Rows of the vocabulary product (output_size, H): the own head's, or the kept rows of the target's (V, H)."""
        if self.lm_head is not None:
            return self.lm_head.weight
        ids = self._kept()
        return lm_head_weight if ids is None else lm_head_weight[ids]

    def _kept(self) -> Tensor | None:
        """Target ids of a reduced vocabulary, in draft order."""
        return None if self.d2t is None else self.target_ids(torch.arange(len(self.d2t), device=self.d2t.device))

    def target_ids(self, draft_ids: Tensor) -> Tensor:
        """Draft vocabulary ids → target ids (target = draft + d2t[draft], the EAGLE-3 convention)."""
        return draft_ids if self.d2t is None else draft_ids + self.d2t[draft_ids]

    def candidates(self, hidden: Tensor, lm_head_weight: Tensor) -> tuple[Tensor, Tensor]:
        """The K best tokens per slot: hidden (N, S, H) → target ids (N, S, K) int64, log-probs (N, S, K) fp32, sorted."""
        logits = at_least_fp32(F.linear(hidden, self.output_rows(lm_head_weight).to(hidden.dtype)))
        top = logits.topk(self.config.candidate_topk, dim=-1)
        return self.target_ids(top.indices), top.values - logits.logsumexp(dim=-1, keepdim=True)
