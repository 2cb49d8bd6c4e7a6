"""The Domino head (arXiv 2605.29707): a GRU over the tokens so far corrects the drafter's logits, one slot after the other.

Legend: N blocks, S slots, H width, G GRU width, E bottleneck, Vd draft vocabulary. Slot j (0-based) is read from block row j and
predicts anchor + 1 + j; the GRU has then read the tokens at anchor … anchor + j. Parameter names are the published ones.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.config import DominoConfig, DrafterConfig
from lilicorr.train.heads import DraftHead, Stage, Tables, embed, first_best
from lilicorr.train.norm import at_least_fp32
from lilicorr.train.objective import Blocks, Terms, Weights, drafter_terms, prefix_mean
from lilicorr.train.vocabulary import in_chunks


class DominoHead(DraftHead):
    """Final logits = base logits + embed_proj([hidden ; GRU state]); the first `pure_draft_prefix_len` slots keep the base ones."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        head = config.head
        assert isinstance(head, DominoConfig)
        H, G, E = config.hidden_size, head.gru_hidden_dim, head.emb_dim
        self.prefix_len = head.pure_draft_prefix_len
        self.prefix_gru = nn.GRU(H, G, bias=False, batch_first=True)
        self.embed_proj = nn.Sequential(
            nn.Linear(H + G, E, bias=False), nn.SiLU(), nn.Linear(E, config.output_size, bias=False)
        )
        for linear in (self.embed_proj[0], self.embed_proj[2]):
            nn.init.normal_(linear.weight, std=config.initializer_range)

    def bottleneck(self, hidden: Tensor, states: Tensor) -> Tensor:
        """hidden (..., H), GRU states (..., G) → (..., E), what the last projection reads."""
        return self.embed_proj[1](self.embed_proj[0](torch.cat([hidden, states.to(hidden.dtype)], dim=-1)))

    def terms(self, blocks: Blocks, tables: Tables, weights: Weights, stage: Stage) -> tuple[Terms, dict[str, Tensor]]:
        """(1-λ) · terms of the final logits + λ · terms of the base logits; λ falls linearly over training."""
        share = base_share(weights, stage.progress)
        states, _ = self.prefix_gru(embed(tables, blocks.previous).to(self.prefix_gru.weight_ih_l0.dtype))
        slot = torch.arange(blocks.gold.shape[1], device=blocks.gold.device)
        corrected = (slot >= self.prefix_len).expand_as(blocks.gold)

        def rows(hidden: Tensor, extra: Tensor, corrected: Tensor, gold: Tensor, teacher: Tensor) -> tuple[Tensor, ...]:
            base = at_least_fp32(F.linear(hidden, tables.rows))
            final = base + at_least_fp32(self.embed_proj[2](extra)) * corrected[:, None]
            target = at_least_fp32(F.linear(teacher, tables.rows)).softmax(-1) if weights.soft else None
            return *_of_gold(base, gold, target), *_of_gold(final, gold, target)

        extra = self.bottleneck(blocks.hidden, states)
        flat = (t.flatten(0, 1) for t in (blocks.hidden, extra, corrected, blocks.gold, blocks.target_hidden))
        results = [t.view(blocks.gold.shape) for t in in_chunks(rows, stage.chunk, *flat)]
        base_log_q, base_hit, base_soft, log_q, hit, soft = results
        base = drafter_terms(base_log_q, base_hit, base_soft, blocks, weights)
        final = drafter_terms(log_q, hit, soft, blocks, weights)
        terms: Terms = {name: ((1 - share) * weight, value) for name, (weight, value) in final.items()}
        terms |= {f"base_{name}": (share * weight, value) for name, (weight, value) in base.items()}
        whole = blocks.supervised.all(-1, keepdim=True)
        metrics = {"top1_prefix": prefix_mean(base_hit, whole), "selected_prefix": prefix_mean(hit, whole)}
        return terms, metrics

    def draft(self, hidden: Tensor, anchor_ids: Tensor, anchor_row: Tensor, tables: Tables) -> Tensor:
        base = at_least_fp32(tables.logits(hidden))
        token, state, drafts = anchor_ids, None, []
        for slot in range(hidden.shape[1]):
            token_embedding = embed(tables, token).to(self.prefix_gru.weight_ih_l0.dtype)
            output, state = self.prefix_gru(token_embedding[:, None], state)
            logits = base[:, slot]
            if slot >= self.prefix_len:
                logits = logits + self.embed_proj[2](self.bottleneck(hidden[:, slot], output[:, 0]))
            token = tables.to_target(first_best(logits))
            drafts.append(token)
        return torch.stack(drafts, dim=1)


def base_share(weights: Weights, progress: float) -> float:
    """λ: `base_start` at the first step, 0 from `base_until` of the steps on."""
    return min(1.0, max(0.0, weights.base_start * (1 - progress / weights.base_until)))


def _of_gold(logits: Tensor, gold: Tensor, target: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """log-prob of gold, whether it is the most probable, Σ target · log q: each (M,)."""
    log_q = logits.log_softmax(-1)
    soft = (target * log_q).sum(-1) if target is not None else log_q.new_zeros(len(gold))
    return log_q.gather(-1, gold.clamp_min(0)[:, None]).squeeze(-1), logits.argmax(-1) == gold, soft
