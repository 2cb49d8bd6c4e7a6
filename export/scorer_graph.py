"""The LiLiCorr head and its greedy walk as a graph: candidates in, draft tokens out.

Inputs and outputs: docs/design.md, "The three graphs". The function is `LiLiCorrHead.forward`, laid out for a graph of 40 rows,
where operators cost as much as arithmetic: candidates are rows of one matrix, so that a product adds its bias or the sum before it;
what depends on weights alone is one constant per place; the two factor heads are one product. The walk is one node (`walk`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.export.walk import walk_node
from lilicorr.train.lilicorr import LiLiCorrHead
from lilicorr.train.norm import at_least_fp32
from lilicorr.train.walk import greedy_walk


class ScorerGraph(nn.Module):
    """Legend of shape suffixes: M = N*S*K candidates, L = S*K, h head width, f factor width, g attention heads.

    Args:
        head: In its export dtype, evaluation mode.
        embedding: (V, H) the target's embedding table.
        slots: S, 1 to block_size - 1.
        topk: K, 1 to candidate_topk.
    """

    def __init__(self, head: LiLiCorrHead, embedding: Tensor, *, slots: int, topk: int):
        super().__init__()
        self.head, self.slots, self.topk = head, slots, topk
        self.embedding = nn.Parameter(embedding, requires_grad=False)
        rank = torch.arange(topk, dtype=torch.float32)
        ranks = [rank / max(topk - 1, 1), (rank == 0).float()]
        w_x, w_c, w_xc = head.factor_input_proj.weight.chunk(3, dim=1)
        constants = {
            "bias_gLL": head.attention_bias(slots, topk),
            "places_SKh": _places(head, slots, topk),
            "ranks_K5": torch.stack([torch.zeros(topk)] * 3 + ranks, dim=-1),
            "context_weight": w_c,
            "rows_weight": torch.cat([w_x, w_xc], dim=1),
            "factor_weight": torch.cat([head.out_head.weight, head.in_head.weight]),
            "factor_bias": torch.cat([head.out_head.bias, head.in_head.bias]),
        }
        for name, value in constants.items():
            self.register_buffer(name, value.detach().clone(), persistent=False)

    def forward(
        self, candidate_ids: Tensor, log_probs: Tensor, hidden: Tensor, anchor_row: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """candidate_ids (N,S,K) int32, log_probs (N,S,K) f32, hidden (N,S,H), anchor_row (N,H).

        Returns:
            draft_tokens (N,S) int32, path (N,S) int32, start (N,K) f32, pair (N,S-1,K,K) f32.
        """
        x_Mh = self._candidates(candidate_ids, log_probs, hidden)
        for layer in self.head.layers:
            x_Mh = layer(x_Mh, self.bias_gLL)
        start, pair = self._scores(self.head.output_norm(x_Mh), anchor_row)
        walk = walk_node if torch.compiler.is_exporting() else greedy_walk
        path = walk(start, pair)
        draft_tokens = candidate_ids.gather(2, path.to(torch.int64)[..., None])[..., 0]
        return draft_tokens, path, start, pair

    def _candidates(self, ids: Tensor, log_probs: Tensor, hidden: Tensor) -> Tensor:
        """(M, h): token, slot's hidden row, features of the log-probability, and what is the same for every block."""
        head = self.head
        slots = F.linear(hidden.flatten(0, 1), head.pass_hidden_proj.weight).unflatten(0, (-1, self.slots))
        x_Mh = (slots[:, :, None] + self.places_SKh).flatten(0, 2)
        tokens = F.embedding(ids.flatten(), self.embedding)
        same_width = isinstance(head.token_proj, nn.Identity)
        x_Mh = x_Mh + tokens if same_width else torch.addmm(x_Mh, tokens, head.token_proj.weight.t())
        logp = at_least_fp32(log_probs)[..., None]
        features = torch.cat([logp, logp.exp(), logp - logp.amax(dim=2, keepdim=True)], dim=-1)
        features = (F.pad(features, (0, 2)) + self.ranks_K5).flatten(0, 2).to(x_Mh.dtype)
        return torch.addmm(x_Mh, head.feature_mlp[:3](features), head.feature_mlp[3].weight.t())

    def _scores(self, x_Mh: Tensor, anchor_row: Tensor) -> tuple[Tensor, Tensor]:
        """start (N,K) and pair (N,S-1,K,K), fp32."""
        head = self.head
        context = head.anchor_norm(head.context_proj(anchor_row))
        shared = F.linear(context, self.context_weight, head.factor_input_proj.bias)
        x_NLh = x_Mh.unflatten(0, (-1, self.slots * self.topk))
        x_NLh = torch.cat([x_NLh, x_NLh * context[:, None]], dim=-1)
        factor = F.silu(F.linear(x_NLh, self.rows_weight) + shared[:, None])
        vectors = F.linear(factor.flatten(0, 1), self.factor_weight, self.factor_bias)
        width = head.anchor_out_head.out_features
        vectors = head.unit(vectors.view(-1, width)).view(-1, self.slots, self.topk, 2 * width)
        out_vec, in_vec = vectors.split(width, dim=-1)
        anchor_vec = head.unit(head.anchor_out_head(context))
        start = head.logit_scale * (in_vec[:, 0] @ anchor_vec[:, :, None])
        pair = head.logit_scale * (out_vec[:, :-1] @ in_vec[:, 1:].transpose(-1, -2))
        return start.squeeze(-1), pair


def _places(head: LiLiCorrHead, slots: int, topk: int) -> Tensor:
    """(S, K, h): slot and rank embeddings and the biases of everything they are added to; summed in fp32."""
    projections = [head.pass_hidden_proj, head.feature_mlp[3], head.token_proj]
    biases = [layer.bias for layer in projections if isinstance(layer, nn.Linear)]
    terms = [head.slot_embedding[0, 0, :slots], head.rank_embedding[0, 0, :, :topk], *biases]
    return sum(at_least_fp32(term) for term in terms).to(head.slot_embedding.dtype)
