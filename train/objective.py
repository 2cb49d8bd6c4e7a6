"""Training objectives as small terms over the blocks of one step, each with its own weight and its own logged value.

Drafter terms: cross-entropy with position decay (DFlash) or D-PACE weights (arXiv 2605.18810), first-error focal and chain (arXiv
2606.11552). Lattice terms of LiLiCorr (arXiv 2608.20530): cross-entropy, margin, distractor penalty. The terms of the other heads
are beside the heads.

Legend: N blocks, S slots, K candidates, H width, Vd draft vocabulary. Slot s (0-based) predicts the token at anchor + 1 + s.
Ids are draft ids here; a gold token outside the draft vocabulary is -1 and never a label.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.runtime.errors import UserError
from lilicorr.train.norm import at_least_fp32
from lilicorr.train.vocabulary import Picked
from lilicorr.train.walk import greedy_walk

Terms = dict[str, tuple[float, Tensor]]
"""name → (weight, value); the loss is the sum of weight · value."""


@dataclass(frozen=True)
class Weights:
    """Weights of the terms; LiLiCorr's published base variant is (0.25, 0, 0.25), the margin one (0.125, 0.125, 0.25)."""

    decay: float = 4.0  # gamma of exp(-s/gamma); published: 4 for B=8, 7 for B=16; 0: all slots weigh the same
    dpace: float = 0.0  # alpha of D-PACE's weights, which then replace the decay; published 0.5, 0: off
    soft: float = 0.0  # share of the target's own distribution in the drafter's labels (0: gold token, 1: distillation)
    first_error: float = 0.0  # published 0.3
    chain: float = 0.0  # on our scale, which does not grow with the block size
    head_ce: float = 0.25
    head_margin: float = 0.0
    head_penalty: float = 0.25
    head_soft: float = 0.0  # divergence of the head's choice from the target's own, over the K candidates
    head_first_error: float = 0.0  # first_error and chain of the head's choice
    head_chain: float = 0.0
    margin: float = 2.0
    base_start: float = 1.0  # Domino: share of the loss of the base logits at the first step, falling linearly to 0
    base_until: float = 1.0  # Domino: share of the steps after which it is 0
    token_ce: float = 0.1  # DSpark: cross-entropy with the gold token
    token_l1: float = 0.9  # DSpark: L1 distance to the target's distribution
    confidence: float = 1.0  # DSpark: cross-entropy of the confidence

    @property
    def head_weights(self) -> tuple[float, ...]:
        """Those of the published lattice terms and of ours, any of which trains the head."""
        return self.head_ce, self.head_margin, self.head_penalty, self.head_soft, self.head_first_error, self.head_chain

    def __post_init__(self) -> None:
        if min(vars(self).values()) < 0 or max(self.soft, self.dpace) > 1 or self.base_until == 0:
            raise UserError(
                f"objective: expected values ≥ 0, `soft` and `dpace` ≤ 1 and `base_until` > 0, found {vars(self)}"
            )


@dataclass(frozen=True)
class Blocks:
    """What the objective needs of N blocks.

    Attributes:
        hidden: (N, S, H) the drafter's final normed rows, one per slot.
        gold: (N, S) int64 draft id of the gold token, -1 outside the draft vocabulary.
        supervised: (N, S) bool, inside the answer that the anchor is in.
        target_hidden: (N, S, H) the target's final normed row that predicts this slot's token, without gradient.
        anchor_row: (N, H) fused context row of the position before the anchor.
        previous: (N, S) int64 target id of the token before the slot's; that of slot 0 is the anchor.
    """

    hidden: Tensor
    gold: Tensor
    supervised: Tensor
    target_hidden: Tensor
    anchor_row: Tensor
    previous: Tensor

    @property
    def labelled(self) -> Tensor:
        """(N, S) bool: supervised and with a gold token that can be drafted."""
        return self.supervised & (self.gold >= 0)


def weighted_mean(loss: Tensor, w: Tensor) -> Tensor:
    """Σ w·loss / (Σ w + 1e-6), the published normalisation."""
    return (w * loss).sum() / (w.sum() + 1e-6)


def slot_weights(log_q: Tensor, mask: Tensor, weights: Weights) -> Tensor:
    """(N, S) without gradient, 0 outside `mask`: exp(-s/decay), or D-PACE's from the log-probs of the gold tokens.

    D-PACE: q̃ = (1-α) q + α, C_j = Π_{i≤j} q̃_i, w_j = Σ_{m≥j} C_m over the slots of `mask`; the others are 1 in the product.
    """
    if not weights.dpace:
        slot = torch.arange(mask.shape[1], device=mask.device)
        return (torch.exp(-slot / weights.decay) if weights.decay else torch.ones_like(slot)) * mask
    smooth = (1 - weights.dpace) * log_q.detach().exp() + weights.dpace
    reach = torch.where(mask, smooth, 1.0).cumprod(-1) * mask
    return reach.flip(-1).cumsum(-1).flip(-1) * mask


def drafter_terms(log_q: Tensor, hit: Tensor, soft: Tensor, blocks: Blocks, weights: Weights) -> Terms:
    """The terms on a drafter's own distribution.

    Args:
        log_q: (N, S) log-prob of the gold token, any number where there is none.
        hit: (N, S) bool, the gold token is the most probable one.
        soft: (N, S) Σ_v p_target(v) · log q(v); read when `weights.soft` > 0.
    """
    loss = -(1 - weights.soft) * log_q
    if weights.soft:
        loss = loss - weights.soft * soft
    mask = blocks.labelled
    terms = {"drafter": (1.0, weighted_mean(loss, slot_weights(log_q, mask, weights)))}
    return terms | left_to_right_terms(log_q, hit, blocks, weights)


def left_to_right_terms(log_q: Tensor, hit: Tensor, blocks: Blocks, weights: Weights) -> Terms:
    """What position weights leave out: that a draft counts only when all before it are right. Terms of weight 0 are not made.

    - first_error: the cross-entropy at the first supervised slot whose most probable token is not gold, averaged over the blocks
      that have one (and whose gold token there is in the draft vocabulary);
    - chain: -Σ_k Π_{j≤k} q_j / S, averaged over the blocks with a supervised slot; an unlabelled slot ends the product.
    """
    terms: Terms = {}
    if weights.first_error:
        terms["first_error"] = weights.first_error, first_error(log_q, hit, blocks.supervised, blocks.labelled)
    if weights.chain:
        terms["chain"] = weights.chain, chain(log_q, blocks.supervised, blocks.labelled)
    return terms


def first_error(log_q: Tensor, hit: Tensor, supervised: Tensor, labelled: Tensor) -> Tensor:
    """Cross-entropy at the first supervised slot without a hit, over the blocks where it is labelled; all (N, S)."""
    wrong = supervised & ~hit
    first = wrong & (wrong.cumsum(-1) == 1) & labelled
    return -(log_q * first).sum() / first.sum().clamp_min(1)


def chain(log_q: Tensor, supervised: Tensor, labelled: Tensor) -> Tensor:
    """-Σ_k Π_{j≤k} q_j / S over the blocks with a supervised slot; all (N, S)."""
    alive = labelled.cumprod(-1)
    products = torch.exp((log_q * alive).cumsum(-1)) * alive
    return -products.sum() / (supervised.any(-1).sum().clamp_min(1) * log_q.shape[1])


def lattice_terms(
    head: nn.Module, picked: Picked, embeddings: Tensor, target_rows: Tensor, blocks: Blocks, weights: Weights
) -> tuple[Terms, dict[str, Tensor]]:
    """Lattice terms and metrics.

    The candidates are chosen without gradient, their log-probs have one, so that the terms also train the backbone; the gold
    token is never injected. A slot counts when the block is wholly supervised and the gold token is in the lattice up to there.

    Args:
        head: (embeddings (N,S,K,H), log-probs, hidden, anchor row) → start (N,K), pair (N,S-1,K,K).
        picked: of the N·S rows, with K candidates.
        embeddings: (N, S, K, H) target input embeddings of the candidates.
        target_rows: (Vd, H) target lm_head rows of the draft vocabulary.

    Returns:
        `ce`, `margin`, `penalty` and `head_soft` (means over counted slots), `head_first_error` and `head_chain` (those of
        `left_to_right_terms` for the head's choice after the gold predecessor); and metrics: see `prefix_metrics`;
        `oracle_gap` = oracle - selected; `gold_in_lattice`, the share of supervised slots; `score_spread`, the standard
        deviation of the scores over the candidates (0: the factors have collapsed and the head tells nothing apart).
    """
    ids, log_probs = (t.view(*blocks.gold.shape, -1) for t in (picked.ids, picked.log_probs))
    start, pair = head(embeddings, log_probs, blocks.hidden, blocks.anchor_row)

    is_gold = ids == blocks.gold[..., None]  # (N,S,K)
    present = is_gold.any(-1)
    gold_index = is_gold.to(torch.int8).argmax(-1)
    whole = blocks.supervised.all(-1, keepdim=True)
    counted = whole & (present.cumprod(-1) > 0)

    previous = gold_index[:, :-1, None, None].expand(-1, -1, 1, pair.shape[-1])
    # (N,S,K): the row of the gold predecessor (teacher forcing)
    rows = torch.cat([start[:, None], pair.gather(2, previous).squeeze(2)], dim=1)
    log_p = torch.log_softmax(rows, dim=-1)
    denominator = counted.sum().clamp_min(1)

    def mean(values: Tensor) -> Tensor:
        return (values * counted).sum() / denominator

    gold = gold_index[..., None]
    log_q = log_p.gather(-1, gold).squeeze(-1)
    terms: Terms = {"ce": (weights.head_ce, mean(-log_q))}
    if weights.head_margin and rows.shape[-1] > 1:
        rival = rows.masked_fill(is_gold, float("-inf")).amax(-1)
        margin = F.relu(weights.margin - (rows.gather(-1, gold).squeeze(-1) - rival))
        terms["margin"] = weights.head_margin, mean(margin)
    # The target's logits at the K candidates only: a row product, never an (S, V) tensor.
    z = (F.embedding(ids, target_rows) @ blocks.target_hidden[..., None].to(target_rows.dtype)).squeeze(-1)
    z = at_least_fp32(z)
    penalty = mean((log_p.exp() * F.relu(z.gather(-1, gold) - z)).sum(-1))
    terms["penalty"] = weights.head_penalty, penalty
    if weights.head_soft:
        log_t = torch.log_softmax(z, dim=-1)
        terms["head_soft"] = weights.head_soft, mean((log_t.exp() * (log_t - log_p)).sum(-1))
    if weights.head_first_error:
        hit = rows.argmax(-1) == gold_index
        terms["head_first_error"] = weights.head_first_error, first_error(log_q, hit, counted, counted)
    if weights.head_chain:
        terms["head_chain"] = weights.head_chain, chain(log_q, whole.expand_as(counted), counted)
    metrics = prefix_metrics(start, pair, is_gold, whole)
    metrics["oracle_gap"] = metrics["oracle_prefix"] - metrics["selected_prefix"]
    metrics["gold_in_lattice"] = (present & blocks.supervised).sum() / blocks.supervised.sum().clamp_min(1)
    metrics["score_spread"] = rows.detach().std(-1, correction=0).mean()
    return terms, metrics


def prefix_metrics(start: Tensor, pair: Tensor, is_gold: Tensor, whole: Tensor) -> dict[str, Tensor]:
    """Mean matched prefix over wholly supervised blocks: of the walk, of the drafter's top-1, and of the best possible path."""
    path = greedy_walk(start.detach(), pair.detach()).long()
    hits = {
        "selected_prefix": is_gold.gather(-1, path[..., None]).squeeze(-1),
        "top1_prefix": is_gold[..., 0],
        "oracle_prefix": is_gold.any(-1),
    }
    return {name: prefix_mean(hit, whole) for name, hit in hits.items()}


def prefix_mean(hit: Tensor, whole: Tensor) -> Tensor:
    """Mean length of the leading run of `hit` (N, S) over the blocks of `whole` (N, 1)."""
    return (hit.cumprod(-1) * whole).sum() / whole.sum().clamp_min(1)
