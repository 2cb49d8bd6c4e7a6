"""The LiLiCorr head (arXiv 2608.20530): scores every pair of neighbouring candidates in one light pass.

Legend of shape suffixes: N blocks, S slots, K candidates, H model width, h head width, f factor width, L = S*K lattice.
`state_dict` names are the published sequential layout. The walk over the scores is `lilicorr.train.walk`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.config import DrafterConfig, HeadConfig
from lilicorr.train.heads import DraftHead, Stage, Tables, base_terms, embed, pick_blocks
from lilicorr.train.lattice import LatticeAttention, LatticeLayer
from lilicorr.train.norm import RMSNorm, at_least_fp32
from lilicorr.train.objective import Blocks, Terms, Weights, lattice_terms
from lilicorr.train.walk import greedy_walk

TOKEN_RMS = 1.5  # after 200 steps of the head alone 1.6 was better than 0.5 and 4.9 (docs/study.md)


class LiLiCorrHead(DraftHead):
    """Start and pair scores of the candidates of one block (paper §3; published recipe's forward).

    Args:
        model_hidden_size: H, width of target and drafter.
        hidden_size: h, width of the head.
        num_layers, num_heads, mlp_ratio: the lattice transformer; MLP width int(h * mlp_ratio).
        block_size: B; the head has parameters for B-1 slots.
        candidate_topk: K the rank embedding was made for.
        factor_dim: f, width of the in/out vectors.
        rms_norm_eps: the drafter's.
        vector_eps: floor of the L2 norms of the in/out vectors.
        logit_scale: fixed factor on the cosines.
    """

    def __init__(
        self,
        *,
        model_hidden_size: int,
        hidden_size: int,
        num_layers: int,
        num_heads: int,
        mlp_ratio: float,
        block_size: int,
        candidate_topk: int,
        factor_dim: int,
        rms_norm_eps: float,
        vector_eps: float,
        logit_scale: float,
    ):
        super().__init__()
        H, h, f = model_hidden_size, hidden_size, factor_dim
        if h % num_heads:
            raise ValueError(f"hidden_size {h} is not divisible by num_heads {num_heads}")
        self.block_size, self.candidate_topk = block_size, candidate_topk
        self.vector_eps, self.logit_scale = vector_eps, logit_scale
        self.token_proj = nn.Identity() if h == H else nn.Linear(H, h)
        self.pass_hidden_proj = nn.Linear(H, h)
        self.context_proj = nn.Linear(H, h)
        self.feature_mlp = nn.Sequential(nn.LayerNorm(5, eps=1e-5), nn.Linear(5, h), nn.SiLU(), nn.Linear(h, h))
        self.slot_embedding = nn.Parameter(torch.zeros(1, 1, block_size - 1, 1, h))
        self.rank_embedding = nn.Parameter(torch.zeros(1, 1, 1, candidate_topk, h))
        self.relative_slot_bias = nn.Parameter(torch.zeros(num_heads, 2 * block_size - 1))
        self.same_slot_bias = nn.Parameter(torch.zeros(num_heads))
        self.layers = nn.ModuleList(LatticeLayer(h, num_heads, mlp_ratio, rms_norm_eps) for _ in range(num_layers))
        self.output_norm = RMSNorm(h, rms_norm_eps)
        self.anchor_norm = RMSNorm(h, rms_norm_eps)
        self.factor_input_proj = nn.Linear(3 * h, h)
        self.out_head = nn.Linear(h, f)
        self.in_head = nn.Linear(h, f)
        self.anchor_out_head = nn.Linear(h, f)
        self.reset_parameters()

    @classmethod
    def from_config(cls, config: DrafterConfig) -> LiLiCorrHead:
        assert isinstance(config.head, HeadConfig)
        return cls(
            **vars(config.head),
            model_hidden_size=config.hidden_size,
            block_size=config.block_size,
            rms_norm_eps=config.rms_norm_eps,
        )

    def reset_parameters(self) -> None:
        """Linear N(0, 0.02), biases and embeddings 0. The factor heads must not be zero: the score is bilinear, 0 is a saddle."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)
            elif isinstance(module, LatticeAttention):
                nn.init.normal_(module.in_proj_weight, std=0.02)

    @torch.no_grad()
    def initialise(self, embeddings: Tensor) -> None:
        """Let the token's part of the lattice rows begin with an RMS of `TOKEN_RMS`.

        The published init leaves it far below the part of the hidden row that all candidates of a slot share (here 0.07
        against 0.5), and the head takes hundreds of steps to tell candidates apart.
        """
        if isinstance(self.token_proj, nn.Linear):
            some = embeddings[:: max(1, len(embeddings) // 4096)].to(self.token_proj.weight.dtype)
            rms = self.token_proj(some).square().mean().sqrt()
            self.token_proj.weight *= TOKEN_RMS / rms

    def attention_bias(self, slots: int, topk: int) -> Tensor:
        """(heads, S*K, S*K) fp32: relative_slot_bias[slot(i) - slot(j) + B - 1] + same_slot_bias where the slots are equal.

        The offset stays the trained B - 1 when fewer slots are served.
        """
        slot = torch.arange(slots, device=self.same_slot_bias.device).repeat_interleave(topk)
        distance = slot[:, None] - slot[None, :]
        same = (distance == 0).to(self.same_slot_bias.dtype)
        return self.relative_slot_bias[:, distance + self.block_size - 1] + self.same_slot_bias[:, None, None] * same

    def forward(
        self,
        token_embeddings: Tensor,
        log_probs: Tensor,
        hidden: Tensor,
        anchor: Tensor,
        anchor_valid: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Score a lattice; candidates must be sorted by falling log-probability.

        Args:
            token_embeddings: (N, S, K, H) target input embeddings of the candidates (detached from the table).
            log_probs: (N, S, K) full-vocabulary log-softmax values of the candidates.
            hidden: (N, S, H) the drafter's final normed hidden rows of the slots.
            anchor: (N, H) fused context row of the position before the anchor.
            anchor_valid: (N,) bool, False where there is no such row and `anchor` may hold anything; None means all valid.

        Returns:
            start (N, K), pair (N, S-1, K, K): fp32, logit_scale times a cosine.

        Raises:
            ValueError: more slots than block_size - 1 or more candidates than candidate_topk, or none.
        """
        n, slots, topk, _ = token_embeddings.shape
        if not 1 <= slots <= self.block_size - 1:
            raise ValueError(f"{slots} slots, expected 1 to {self.block_size - 1} (block_size - 1)")
        if not 1 <= topk <= self.candidate_topk:
            raise ValueError(f"{topk} candidates, expected 1 to {self.candidate_topk} (candidate_topk)")
        x = self.token_proj(token_embeddings) + self.pass_hidden_proj(hidden)[:, :, None]
        x = x + self.feature_mlp(_features(log_probs).to(x.dtype))
        x = x + self.slot_embedding[0, :, :slots] + self.rank_embedding[0, :, :, :topk]
        x = x.flatten(0, 2)
        bias = self.attention_bias(slots, topk)
        for layer in self.layers:
            x = layer(x, bias)
        x = self.output_norm(x).unflatten(0, (n, -1))
        context = self.context_proj(anchor)
        if anchor_valid is not None:
            context = context.masked_fill(~anchor_valid[:, None], 0.0)  # not a product: 0 · NaN is NaN
        context = self.anchor_norm(context)
        factor = F.silu(self._factor_input(x, context))
        out_vec = self.unit(self.out_head(factor)).view(n, slots, topk, -1)
        in_vec = self.unit(self.in_head(factor)).view(n, slots, topk, -1)
        anchor_vec = self.unit(self.anchor_out_head(context))
        with torch.autocast(x.device.type, enabled=False):  # the scores are an fp32 island
            start = (in_vec[:, 0] @ anchor_vec[:, :, None]).squeeze(-1)
            pair = out_vec[:, :-1] @ in_vec[:, 1:].transpose(-1, -2)
        return self.logit_scale * start, self.logit_scale * pair

    def terms(self, blocks: Blocks, tables: Tables, weights: Weights, stage: Stage) -> tuple[Terms, dict[str, Tensor]]:
        """Drafter terms and lattice terms, on the same logits."""
        picked = pick_blocks(blocks, tables, self.candidate_topk, weights, stage)
        embeddings = embed(tables, tables.to_target(picked.ids)).view(*blocks.gold.shape, self.candidate_topk, -1)
        terms, metrics = lattice_terms(self, picked, embeddings, tables.rows, blocks, weights)
        return base_terms(picked, blocks, weights) | terms, metrics

    def draft(self, hidden: Tensor, anchor_ids: Tensor, anchor_row: Tensor, tables: Tables) -> Tensor:
        logits = at_least_fp32(tables.logits(hidden))
        top = logits.topk(self.candidate_topk, dim=-1)
        ids = tables.to_target(top.indices)
        log_probs = top.values - logits.logsumexp(dim=-1, keepdim=True)
        path = greedy_walk(*self(embed(tables, ids), log_probs, hidden, anchor_row)).long()
        return ids.gather(-1, path[..., None]).squeeze(-1)

    def _factor_input(self, x_NLh: Tensor, context_Nh: Tensor) -> Tensor:
        """factor_input_proj([x ; c ; x*c]) with the weight split in three, so the context part is computed once per block."""
        w_x, w_c, w_xc = self.factor_input_proj.weight.chunk(3, dim=1)
        shared = F.linear(context_Nh, w_c, self.factor_input_proj.bias)
        return F.linear(x_NLh, w_x) + F.linear(x_NLh * context_Nh[:, None], w_xc) + shared[:, None]

    def unit(self, vectors: Tensor) -> Tensor:
        """(..., f) in fp32, of length 1 unless shorter than vector_eps."""
        vectors = at_least_fp32(vectors)
        return vectors / torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min(self.vector_eps)


def _features(log_probs_NSK: Tensor) -> Tensor:
    """(N, S, K, 5) fp32: log p, p, log p - max, rank / (K-1), 1{rank 0}."""
    logp = at_least_fp32(log_probs_NSK)
    topk = logp.shape[-1]
    rank = torch.arange(topk, device=logp.device, dtype=logp.dtype)
    fraction = (rank / max(topk - 1, 1)).expand_as(logp)
    first = (rank == 0).to(logp.dtype).expand_as(logp)
    return torch.stack([logp, logp.exp(), logp - logp.amax(dim=-1, keepdim=True), fraction, first], dim=-1)
