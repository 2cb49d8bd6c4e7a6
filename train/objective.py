"""The published co-training objective (arXiv 2608.20530; drafter terms of DFlash) on the blocks of one step.

Legend: N blocks, S slots, K candidates, H width, Vd draft vocabulary. Slot s (0-based) predicts the token at anchor + 1 + s.
Ids are draft ids here; a gold token outside the draft vocabulary is -1 and never supervised.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from lilicorr.runtime.errors import UserError
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.norm import at_least_fp32
from lilicorr.train.walk import greedy_walk


@dataclass(frozen=True)
class Weights:
    """Weights of the terms; the published base variant is (0.25, 0, 0.25), the margin one (0.125, 0.125, 0.25)."""

    decay: float = 4.0  # gamma of exp(-s/gamma); published: 4 for B=8, 7 for B=16; 0: all slots weigh the same
    soft: float = 0.0  # share of the target's own distribution in the drafter's labels (0: gold token, 1: distillation)
    head_ce: float = 0.25
    head_margin: float = 0.0
    head_penalty: float = 0.25
    margin: float = 2.0

    @property
    def head_weights(self) -> tuple[float, float, float]:
        return self.head_ce, self.head_margin, self.head_penalty

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0 or self.soft > 1:
            raise UserError(f"objective: expected values ≥ 0 and `soft` ≤ 1, found {vars(self)}")


@dataclass(frozen=True)
class Blocks:
    """What the objective needs of N blocks.

    Attributes:
        hidden: (N, S, H) the drafter's final normed rows of the slots.
        gold: (N, S) int64 draft id of the gold token, -1 outside the draft vocabulary.
        supervised: (N, S) bool, inside the text and inside the answer.
        target_hidden: (N, S, H) the target's final normed row that predicts this slot's token, without gradient.
        anchor_row: (N, H) fused context row of the position before the anchor.
    """

    hidden: Tensor
    gold: Tensor
    supervised: Tensor
    target_hidden: Tensor
    anchor_row: Tensor


def drafter_loss(logits: Tensor, target_logits: Tensor | None, blocks: Blocks, weights: Weights) -> Tensor:
    """Position-decayed cross-entropy: Σ w·CE / (Σ w + 1e-6), w_s = exp(-s/decay) where supervised.

    Args:
        logits, target_logits: (N, S, Vd); the target's are needed when `weights.soft` > 0.
    """
    mask = blocks.supervised & (blocks.gold >= 0)
    slot = torch.arange(mask.shape[1], device=mask.device)
    w = (torch.exp(-slot / weights.decay) if weights.decay else torch.ones_like(slot)) * mask
    log_q = torch.log_softmax(at_least_fp32(logits), dim=-1)
    loss = -(1 - weights.soft) * log_q.gather(-1, blocks.gold.clamp_min(0)[..., None]).squeeze(-1)
    if weights.soft and target_logits is not None:
        loss = loss - weights.soft * (torch.softmax(at_least_fp32(target_logits), dim=-1) * log_q).sum(-1)
    return (w * loss).sum() / (w.sum() + 1e-6)


def head_terms(
    head: LiLiCorrHead, logits: Tensor, embeddings: Tensor, target_rows: Tensor, blocks: Blocks, weights: Weights
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Lattice terms and metrics.

    The candidates come from detached logits, their log-probs from live ones, so that the terms also train the backbone; the gold
    token is never injected. A slot counts when the block is wholly supervised and the gold token is in the lattice up to there.

    Args:
        logits: (N, S, Vd) live drafter logits.
        embeddings: (Vd, H) target input embedding rows of the draft vocabulary.
        target_rows: (Vd, H) target lm_head rows of the draft vocabulary.

    Returns:
        Unweighted terms `ce`, `margin`, `penalty` (means over counted slots), and metrics (see `prefix_metrics`).
    """
    ids = logits.detach().topk(head.candidate_topk, dim=-1).indices
    wide = at_least_fp32(logits)
    log_probs = wide.gather(-1, ids) - wide.logsumexp(dim=-1, keepdim=True)
    start, pair = head(F.embedding(ids, embeddings), log_probs, blocks.hidden, blocks.anchor_row)

    is_gold = ids == blocks.gold[..., None]  # (N,S,K)
    present = is_gold.any(-1)
    gold_index = is_gold.to(torch.int8).argmax(-1)
    whole = blocks.supervised.all(-1, keepdim=True)
    counted = whole & (present.cumprod(-1) > 0)

    previous = gold_index[:, :-1, None, None].expand(-1, -1, 1, pair.shape[-1])
    rows = torch.cat(
        [start[:, None], pair.gather(2, previous).squeeze(2)], dim=1
    )  # (N,S,K), teacher-forced predecessor
    log_p = torch.log_softmax(rows, dim=-1)
    denominator = counted.sum().clamp_min(1)

    def mean(values: Tensor) -> Tensor:
        return (values * counted).sum() / denominator

    gold = gold_index[..., None]
    terms = {"ce": mean(-log_p.gather(-1, gold).squeeze(-1))}
    if weights.head_margin and rows.shape[-1] > 1:
        rival = rows.masked_fill(is_gold, float("-inf")).amax(-1)
        terms["margin"] = mean(F.relu(weights.margin - (rows.gather(-1, gold).squeeze(-1) - rival)))
    # The target's logits at the K candidates only: a row product, never an (S, V) tensor.
    z = (F.embedding(ids, target_rows) @ blocks.target_hidden[..., None].to(target_rows.dtype)).squeeze(-1)
    z = at_least_fp32(z)
    terms["penalty"] = mean((log_p.exp() * F.relu(z.gather(-1, gold) - z)).sum(-1))
    return terms, prefix_metrics(start, pair, is_gold, whole)


def prefix_metrics(start: Tensor, pair: Tensor, is_gold: Tensor, whole: Tensor) -> dict[str, Tensor]:
    """Mean matched prefix over wholly supervised blocks: of the walk, of the drafter's top-1, and of the best possible path."""
    path = greedy_walk(start.detach(), pair.detach()).long()
    hits = {
        "selected_prefix": is_gold.gather(-1, path[..., None]).squeeze(-1),
        "top1_prefix": is_gold[..., 0],
        "oracle_prefix": is_gold.any(-1),
    }
    n = whole.sum().clamp_min(1)
    return {name: (hit.cumprod(-1) * whole).sum() / n for name, hit in hits.items()}
