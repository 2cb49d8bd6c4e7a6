"""The lattice transformer of the LiLiCorr head: pre-norm layers, bidirectional over all candidates of a block.

Legend of shape suffixes: N blocks, h head width, g attention heads, L = S*K lattice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.norm import RMSNorm, at_least_fp32


class LatticeAttention(nn.Module):
    """Bidirectional attention over the lattice with an additive bias; parameter names of torch's MultiheadAttention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, x_NLh: Tensor, bias_gLL: Tensor) -> Tensor:
        n, length, width = x_NLh.shape
        packed = F.linear(x_NLh, self.in_proj_weight, self.in_proj_bias)
        q, k, v = packed.view(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2)
        weights = torch.softmax(at_least_fp32(scores) + at_least_fp32(bias_gLL), dim=-1).to(v.dtype)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(n, length, width))


class LatticeLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, eps: float):
        super().__init__()
        inner = int(width * mlp_ratio)
        self.attn_norm = RMSNorm(width, eps)
        self.attn = LatticeAttention(width, heads)
        self.mlp_norm = RMSNorm(width, eps)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, width))

    def forward(self, x_NLh: Tensor, bias_gLL: Tensor) -> Tensor:
        x_NLh = x_NLh + self.attn(self.attn_norm(x_NLh), bias_gLL)
        return x_NLh + self.mlp(self.mlp_norm(x_NLh))
