"""Tensor names of published checkpoints ↔ those of our modules, and the two shapes of LiLiCorr's slot and rank embeddings.

Read: with or without a leading `model.`; LiLiCorr with sequential and named MLPs; Domino bare or under `logit_head.`; DSpark flat
(ModelOpt) and nested (SpecForge, DeepSpec). Written: sequential, bare, and nested.
"""

from __future__ import annotations

import re

from torch import Tensor

_READ = [
    (re.compile(r"^lilicorr\.feature_norm\."), "lilicorr.feature_mlp.0."),
    (re.compile(r"^lilicorr\.feature_mlp\.up_proj\."), "lilicorr.feature_mlp.1."),
    (re.compile(r"^lilicorr\.feature_mlp\.down_proj\."), "lilicorr.feature_mlp.3."),
    (re.compile(r"^(lilicorr\.layers\.\d+\.mlp)\.up_proj\."), r"\1.0."),
    (re.compile(r"^(lilicorr\.layers\.\d+\.mlp)\.down_proj\."), r"\1.2."),
    (re.compile(r"^(?:logit_head\.)?(prefix_gru|embed_proj)\."), r"domino.\1."),
    (re.compile(r"^(?:markov_head\.)?(markov_w1|markov_w2|gate_proj|joint_proj)\."), r"dspark.\1."),
    (re.compile(r"^(?:confidence_proj|confidence_head\.proj)\."), "dspark.confidence_proj."),
]
_WRITTEN = [
    (re.compile(r"^domino\."), ""),
    (re.compile(r"^dspark\.confidence_proj\."), "confidence_head.proj."),
    (re.compile(r"^dspark\."), "markov_head."),
]
_UNSQUEEZED = {"lilicorr.slot_embedding": (1, 1, -1, 1), "lilicorr.rank_embedding": (1, 1, 1, -1)}


def our_name(stored: str) -> str:
    """Name in `Drafter.state_dict()` of a tensor of a published checkpoint; unknown names stay as they are."""
    return _replaced(stored.removeprefix("model."), _READ)


def published_name(ours: str) -> str:
    """The name under which a tensor of `Drafter.state_dict()` is written."""
    return _replaced(ours, _WRITTEN)


def five_dimensional(name: str, tensor: Tensor) -> Tensor:
    """Slot and rank embeddings are stored 5-D, (1,1,S,1,h) and (1,1,1,K,h), or 4-D by exporters that squeeze one."""
    lead = _UNSQUEEZED.get(name)
    return tensor if lead is None or tensor.dim() != 4 else tensor.reshape(*lead, tensor.shape[-1])


def _replaced(name: str, rules: list[tuple[re.Pattern[str], str]]) -> str:
    for pattern, replacement in rules:
        name = pattern.sub(replacement, name)
    return name
