"""Rotary positions of the drafter, with transformers' own rules for scaled variants (YaRN, linear, …)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    """cos and sin of absolute positions; fp32, half-rotation layout (Llama, Qwen3).

    Args:
        rope: `rope_theta`, `rope_type` and, if scaled, the scaling fields of the checkpoint's config.
        head_dim: width of one head.
        max_position_embeddings: of the checkpoint; some scaled variants need it.
    """

    inv_freq: Tensor

    def __init__(self, rope: dict[str, Any], head_dim: int, max_position_embeddings: int):
        super().__init__()
        if rope["rope_type"] == "default":
            exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device="cpu") / head_dim
            inv_freq, self.scaling = 1.0 / rope["rope_theta"] ** exponent, 1.0
        else:
            from transformers import Qwen3Config
            from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

            config = Qwen3Config(
                head_dim=head_dim, max_position_embeddings=max_position_embeddings, rope_parameters=rope
            )
            inv_freq, self.scaling = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, torch.device("cpu"))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """positions (..., T) integers → cos, sin (..., T, head_dim) fp32."""
        angles = positions[..., None].float() * self.inv_freq
        angles = torch.cat([angles, angles], dim=-1)
        return angles.cos() * self.scaling, angles.sin() * self.scaling


def rotate(x: Tensor, rope: tuple[Tensor, Tensor]) -> Tensor:
    """Apply rotary positions to x (..., heads, T, head_dim); cos and sin broadcast as (..., 1, T, head_dim)."""
    cos, sin = (part.unsqueeze(-3).to(x.dtype) for part in rope)
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin
