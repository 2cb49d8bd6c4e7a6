"""The LiLiCorr head and its greedy walk as a graph: candidates in, draft tokens out.

Inputs and outputs: docs/design.md, "The three graphs". The head is `lilicorr.train.lilicorr`'s;
the walk is one custom node (`walk`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.export.walk import walk_node
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.walk import greedy_walk


class ScorerGraph(nn.Module):
    """Args:
    head: In its export dtype, evaluation mode.
    embedding: (V, H) the target's embedding table.
    """

    def __init__(self, head: LiLiCorrHead, embedding: Tensor):
        super().__init__()
        self.head = head
        self.embedding = nn.Parameter(embedding, requires_grad=False)

    def forward(
        self, candidate_ids: Tensor, log_probs: Tensor, hidden: Tensor, anchor_row: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """candidate_ids (N,S,K) int32, log_probs (N,S,K) f32, hidden (N,S,H), anchor_row (N,H).

        Returns:
            draft_tokens (N,S) int32, path (N,S) int32, start (N,K) f32, pair (N,S-1,K,K) f32.
        """
        start, pair = self.head(F.embedding(candidate_ids, self.embedding), log_probs, hidden, anchor_row)
        walk = walk_node if torch.compiler.is_exporting() else greedy_walk
        path = walk(start, pair)
        draft_tokens = candidate_ids.gather(2, path.to(torch.int64)[..., None])[..., 0]
        return draft_tokens, path, start, pair
