"""RMSNorm with fp32 statistics, and the rule of every fp32 island: at least fp32, so that a float64 module stays float64."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def at_least_fp32(x: Tensor) -> Tensor:
    """x widened to fp32; float64 is left alone (reference runs)."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class RMSNorm(nn.Module):
    """x / sqrt(mean(x²) + eps) * weight over the last dimension; statistics in fp32, result in the weight's dtype."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x32 = at_least_fp32(x)
        normed = x32 * torch.rsqrt(x32.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * normed.to(self.weight.dtype)
