"""What every drafting head is to the trainer and to replay: terms of the objective, and drafts from the drafter's rows.

Heads: none (plain DFlash, here), LiLiCorr, Domino, DSpark (one module each). Slot s always predicts the token at anchor + 1 + s;
heads differ in the row they read it from (`DrafterConfig.first_row`).

Legend: N blocks, S slots, H width, V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.norm import at_least_fp32
from lilicorr.train.objective import Blocks, Terms, Weights, drafter_terms, prefix_mean
from lilicorr.train.vocabulary import Picked, pick


@dataclass(frozen=True)
class Tables:
    """What the target lends.

    Attributes:
        embeddings: (V, H) input embedding.
        rows: (Vd, H) output rows of the draft vocabulary, without gradient.
        target_ids: (Vd,) target id of each draft id; None when they are the same.
    """

    embeddings: Tensor
    rows: Tensor
    target_ids: Tensor | None = None

    def to_target(self, draft_ids: Tensor) -> Tensor:
        return draft_ids if self.target_ids is None else self.target_ids[draft_ids]

    def logits(self, hidden: Tensor) -> Tensor:
        """(..., H) → (..., Vd)"""
        return F.linear(hidden, self.rows.to(hidden.dtype))


@dataclass(frozen=True)
class Stage:
    """How far training is (0 to 1), and how many rows of logits may exist at a time."""

    progress: float
    chunk: int


class DraftHead(nn.Module):
    """A head's part of training and of drafting. Subclasses are built from the drafter's whole configuration."""

    def initialise(self, embeddings: Tensor) -> None:
        """Fit the weights of a new head to the target's input embedding (V, H); most heads need nothing."""

    @abstractmethod
    def terms(self, blocks: Blocks, tables: Tables, weights: Weights, stage: Stage) -> tuple[Terms, dict[str, Tensor]]:
        """The whole objective of these blocks, drafter terms included, and metrics to log."""

    @abstractmethod
    def draft(self, hidden: Tensor, anchor_ids: Tensor, anchor_row: Tensor, tables: Tables) -> Tensor:
        """Greedy drafts.

        Args:
            hidden: (N, S, H) final normed rows, one per slot.
            anchor_ids: (N,) target ids.
            anchor_row: (N, H) fused context row of the position before the anchor.

        Returns:
            (N, S) int64 target ids.
        """


class NoHead(DraftHead):
    """Plain DFlash: every slot's most probable token."""

    def terms(self, blocks: Blocks, tables: Tables, weights: Weights, stage: Stage) -> tuple[Terms, dict[str, Tensor]]:
        picked = pick_blocks(blocks, tables, 1, weights, stage)
        return base_terms(picked, blocks, weights), {"top1_prefix": top1_prefix(picked, blocks)}

    def draft(self, hidden: Tensor, anchor_ids: Tensor, anchor_row: Tensor, tables: Tables) -> Tensor:
        return tables.to_target(first_best(tables.logits(hidden)))


def pick_blocks(blocks: Blocks, tables: Tables, topk: int, weights: Weights, stage: Stage) -> Picked:
    """`pick` on all slots of the blocks, as N·S rows."""
    target_hidden = blocks.target_hidden.flatten(0, 1) if weights.soft else None
    hidden, gold = blocks.hidden.flatten(0, 1), blocks.gold.flatten()
    return pick(hidden, tables.rows, gold, topk, target_hidden, chunk=stage.chunk)


def base_terms(picked: Picked, blocks: Blocks, weights: Weights) -> Terms:
    """Drafter terms of the logits as the drafter makes them."""
    shape = blocks.gold.shape
    hit = (picked.ids[:, 0] == blocks.gold.flatten()).view(shape)
    return drafter_terms(picked.gold.view(shape), hit, picked.soft.view(shape), blocks, weights)


def top1_prefix(picked: Picked, blocks: Blocks) -> Tensor:
    hit = (picked.ids[:, 0] == blocks.gold.flatten()).view(blocks.gold.shape)
    return prefix_mean(hit, blocks.supervised.all(-1, keepdim=True))


def first_best(logits: Tensor) -> Tensor:
    """(..., Vd) → (...) lowest id of the largest logit."""
    return at_least_fp32(logits).argmax(-1)


def embed(tables: Tables, target_ids: Tensor) -> Tensor:
    """(...) target ids → (..., H), without gradient."""
    return F.embedding(target_ids, tables.embeddings).detach()


def soft_distribution(target_hidden: Tensor, tables: Tables) -> Tensor:
    """The target's distribution over the draft vocabulary, without gradient: (..., H) → (..., Vd) fp32 or wider."""
    with torch.no_grad():
        return at_least_fp32(F.linear(target_hidden, tables.rows)).softmax(-1)
