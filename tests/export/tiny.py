"""Random tiny drafters for graph tests, with every parameter away from its initial zeros and ones."""

from __future__ import annotations

from typing import Any

import torch

from lilicorr.train.config import DrafterConfig, HeadConfig
from lilicorr.train.drafter import Drafter

VOCAB, HIDDEN, FEATURES = 90, 32, 64

HEAD = HeadConfig(
    candidate_topk=4,
    hidden_size=24,
    num_layers=2,
    num_heads=4,
    mlp_ratio=2.0,
    factor_dim=16,
    vector_eps=1e-4,
    logit_scale=8.0,
)


def random_drafter(**changes: Any) -> Drafter:
    """Block of 6, two layers, two captured target layers, LiLiCorr head; `changes` to DrafterConfig fields."""
    fields: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "intermediate_size": 48,
        "rms_norm_eps": 1e-6,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rope": {"rope_theta": 1e4, "rope_type": "default"},
        "block_size": 6,
        "mask_token_id": 7,
        "target_layer_ids": (0, 2),
        "num_target_layers": 4,
        "head": HEAD,
    }
    torch.manual_seed(0)
    drafter = Drafter(DrafterConfig(**{**fields, **changes})).eval()
    with torch.no_grad():
        for name, parameter in drafter.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.1 * noise if "norm" in name else parameter + 0.2 * noise)
        if drafter.d2t is not None:
            kept = torch.randperm(VOCAB)[: len(drafter.d2t)].sort().values
            drafter.d2t.copy_(kept - torch.arange(len(kept)))
    return drafter


def random_table(seed: int = 5) -> torch.Tensor:
    """(VOCAB, HIDDEN)."""
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(seed))
