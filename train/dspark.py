"""The DSpark head (arXiv 2607.05147): a low-rank bias from the previous token (and the hidden row), and a confidence per slot.

Legend: N blocks, S slots, H width, r rank, V target vocabulary, Vd draft vocabulary. Slot k (0-based) is read from block row k, the
anchor's first, and predicts anchor + 1 + k; its previous token is the one at anchor + k. Parameter names are ModelOpt's flat ones;
checkpoints are written with the nested names of SpecForge and DeepSpec (`tensor_names`).
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.config import DrafterConfig, DSparkConfig
from lilicorr.train.heads import DraftHead, Stage, Tables, first_best, soft_distribution
from lilicorr.train.norm import at_least_fp32
from lilicorr.train.objective import (
    Blocks,
    Terms,
    Weights,
    left_to_right_terms,
    prefix_mean,
    slot_weights,
    weighted_mean,
)
from lilicorr.train.vocabulary import in_chunks


class DSparkHead(DraftHead):
    """Logits = base + W2 m, where m (r wide) comes from the previous token's row e of W1:

    vanilla m = e; gated m = sigmoid(Wg [h;e] + b) · e; rnn (g,c,o) = Wj [s;e;h] + b, s' = σ(g) s + (1-σ(g)) tanh(c), m = tanh(o).
    """

    def __init__(self, config: DrafterConfig):
        super().__init__()
        head = config.head
        assert isinstance(head, DSparkConfig)
        H, r = config.hidden_size, head.markov_rank
        self.kind, self.confidence_with_markov = head.markov_head_type, head.confidence_with_markov
        self.markov_w1 = nn.Embedding(config.vocab_size, r)
        self.markov_w2 = nn.Linear(r, config.output_size, bias=False)
        self.gate_proj = nn.Linear(H + r, r) if self.kind == "gated" else None
        self.joint_proj = nn.Linear(2 * r + H, 3 * r) if self.kind == "rnn" else None
        self.confidence_proj = nn.Linear(H + r * head.confidence_with_markov, 1) if head.confidence else None
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=config.initializer_range)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    def step(self, hidden: Tensor, embedding: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One slot: hidden (..., H), previous token's row (..., r), state (..., r) → m (..., r), next state."""
        if self.gate_proj is not None:
            return torch.sigmoid(self.gate_proj(torch.cat([hidden, embedding], dim=-1))) * embedding, state
        if self.joint_proj is not None:
            joint = self.joint_proj(torch.cat([state.to(hidden.dtype), embedding.to(hidden.dtype), hidden], dim=-1))
            g, c, o = joint.chunk(3, dim=-1)
            keep = torch.sigmoid(g)
            return torch.tanh(o), keep * state + (1 - keep) * torch.tanh(c)
        return embedding, state

    def _steps(self, hidden: Tensor, embeddings: Tensor) -> Iterator[Tensor]:
        """m of each slot, (N, r), all previous tokens known."""
        state = torch.zeros_like(embeddings[:, 0])
        for slot in range(hidden.shape[1]):
            m, state = self.step(hidden[:, slot], embeddings[:, slot], state)
            yield m

    def confidence(self, hidden: Tensor, embedding: Tensor) -> Tensor:
        """(...) logit of the probability that the draft is accepted."""
        assert self.confidence_proj is not None
        parts = [hidden, embedding.to(hidden.dtype)] if self.confidence_with_markov else [hidden]
        return at_least_fp32(self.confidence_proj(torch.cat(parts, dim=-1))).squeeze(-1)

    def terms(self, blocks: Blocks, tables: Tables, weights: Weights, stage: Stage) -> tuple[Terms, dict[str, Tensor]]:
        """`drafter` (cross-entropy), `l1` = Σ|p_d - p_t|, `confidence` (label 1 - L1/2, detached), and left-to-right terms.

        The target's distribution is taken over the draft vocabulary; slots without gold token there still have L1 and confidence.
        """
        embeddings = self.markov_w1(blocks.previous)
        m = torch.stack(list(self._steps(blocks.hidden, embeddings)), dim=1)

        def rows(hidden: Tensor, m: Tensor, gold: Tensor, teacher: Tensor) -> tuple[Tensor, ...]:
            logits = at_least_fp32(F.linear(hidden, tables.rows)) + at_least_fp32(self.markov_w2(m))
            log_q = logits.log_softmax(-1)
            distance = (log_q.exp() - soft_distribution(teacher, tables)).abs().sum(-1)
            return log_q.gather(-1, gold.clamp_min(0)[:, None]).squeeze(-1), logits.argmax(-1) == gold, distance

        flat = (t.flatten(0, 1) for t in (blocks.hidden, m, blocks.gold, blocks.target_hidden))
        log_q, hit, distance = (t.view(blocks.gold.shape) for t in in_chunks(rows, stage.chunk, *flat))
        everywhere = slot_weights(log_q, blocks.supervised, weights)
        terms: Terms = {
            "drafter": (weights.token_ce, weighted_mean(-log_q, slot_weights(log_q, blocks.labelled, weights))),
            "l1": (weights.token_l1, weighted_mean(distance, everywhere)),
        }
        if self.confidence_proj is not None:
            label = (1 - distance.detach() / 2).clamp(0, 1)
            error = F.binary_cross_entropy_with_logits(
                self.confidence(blocks.hidden, embeddings), label, reduction="none"
            )
            terms["confidence"] = weights.confidence, weighted_mean(error, everywhere)
        terms |= left_to_right_terms(log_q, hit, blocks, weights)
        return terms, {"selected_prefix": prefix_mean(hit, blocks.supervised.all(-1, keepdim=True))}

    def draft(self, hidden: Tensor, anchor_ids: Tensor, anchor_row: Tensor, tables: Tables) -> Tensor:
        base = at_least_fp32(tables.logits(hidden))
        token, drafts = anchor_ids, []
        state = torch.zeros(len(token), self.markov_w1.embedding_dim, device=hidden.device, dtype=hidden.dtype)
        for slot in range(hidden.shape[1]):
            m, state = self.step(hidden[:, slot], self.markov_w1(token), state)
            token = tables.to_target(first_best(base[:, slot] + self.markov_w2(m)))
            drafts.append(token)
        return torch.stack(drafts, dim=1)
