"""The PyTorch side of the parity ladder: transformers' target and our drafter and head, fp32, without caches or graphs.

Arrays out are numpy, batch 1 without the batch axis. L tokens, F·H feature width, V vocabulary, S slots, K candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from lilicorr.train.drafter import Drafter
from lilicorr.train.target import embedding_table, lm_head_table
from lilicorr.train.walk import greedy_walk


@dataclass(frozen=True)
class TargetRows:
    """One forward over a whole text."""

    logits: np.ndarray  # (L, V)
    features: np.ndarray  # (L, F·H)
    keys_values: dict[str, np.ndarray]  # `k_{i}`, `v_{i}` -> (Hkv, L, D)


@dataclass(frozen=True)
class Block:
    """One block drafted after an anchor."""

    hidden: np.ndarray  # (S, H)
    anchor_row: np.ndarray  # (H,)
    vocabulary_log_probs: np.ndarray  # (S, V) over target ids, -inf for ids the drafter cannot propose
    candidate_ids: np.ndarray  # (S, K), best first


class Reference:
    """Target, drafter and head in plain PyTorch.

    Args:
        model: A transformers causal language model in eval mode, fp32.
        block_size: Served, anchor and slots.
    """

    def __init__(self, model: Any, drafter: Drafter, block_size: int):
        self.model, self.drafter, self._slots = model, drafter, block_size - 1

    @torch.inference_mode()
    def target(self, ids: Sequence[int]) -> TargetRows:
        """Forward `ids` (L) at once."""
        out = self.model(torch.tensor([ids]), output_hidden_states=True, use_cache=True)
        features = torch.cat([out.hidden_states[i + 1] for i in self.drafter.config.target_layer_ids], dim=-1)
        rows: dict[str, np.ndarray] = {}
        for i, layer in enumerate(out.past_key_values.layers):
            rows |= {f"k_{i}": layer.keys[0].float().numpy(), f"v_{i}": layer.values[0].float().numpy()}
        return TargetRows(out.logits[0].float().numpy(), features[0].float().numpy(), rows)

    @torch.inference_mode()
    def block(self, features: np.ndarray, anchor: int) -> Block:
        """Draft after token `anchor`, given the features (C, F·H) of every row before it, C ≥ 1."""
        context = torch.from_numpy(features)[None]
        ids = torch.tensor([[anchor] + [self.drafter.config.mask_token_id] * self._slots])
        hidden = self.drafter.block_hidden(F.embedding(ids, embedding_table(self.model)), context)[:, 1:]
        lm_head = lm_head_table(self.model)
        log_probs = F.linear(hidden, self.drafter.output_rows(lm_head)).float().log_softmax(-1)[0]
        spread = torch.full((self._slots, len(lm_head)), float("-inf"))
        spread[:, self.drafter.target_ids(torch.arange(log_probs.shape[1]))] = log_probs
        return Block(
            hidden=hidden[0].numpy(),
            anchor_row=self.drafter.context(context[:, -1])[0].numpy(),
            vocabulary_log_probs=spread.numpy(),
            candidate_ids=self.drafter.candidates(hidden, lm_head)[0][0].numpy(),
        )

    @torch.inference_mode()
    def scores(
        self, candidate_ids: np.ndarray, log_probs: np.ndarray, hidden: np.ndarray, anchor_row: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The head's start (N, K) and pair (N, S-1, K, K) for a batch of the scorer graph's own inputs."""
        assert self.drafter.head is not None
        embeddings = F.embedding(torch.from_numpy(candidate_ids).long(), embedding_table(self.model))
        rest = [torch.from_numpy(array).float() for array in (log_probs, hidden, anchor_row)]
        start, pair = self.drafter.head(embeddings, *rest)
        return start.numpy(), pair.numpy()


def walk(start: np.ndarray, pair: np.ndarray) -> np.ndarray:
    """The reference walk over a graph's own scores: path (N, S)."""
    return greedy_walk(torch.from_numpy(start), torch.from_numpy(pair)).numpy()
