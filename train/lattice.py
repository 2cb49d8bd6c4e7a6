"""The lattice transformer of the LiLiCorr head: pre-norm layers, bidirectional over all candidates of a block.

The candidates of all blocks are the rows of one matrix; the bias says how many belong to a block.
Legend of shape suffixes: N blocks, h head width, g attention heads, L = S*K lattice, M = N*L.
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

    def forward(self, x_Mh: Tensor, bias_gLL: Tensor) -> Tensor:
        width, length = x_Mh.shape[-1], bias_gLL.shape[-1]
        packed = F.linear(x_Mh, self.in_proj_weight, self.in_proj_bias)
        heads = packed.view(-1, length, 3 * self.heads, width // self.heads).transpose(1, 2)
        q, k, v = heads.split(self.heads, dim=1)  # each (N, g, L, h/g)
        scores = (q * (width // self.heads) ** -0.5) @ k.transpose(-1, -2)
        weights = torch.softmax(at_least_fp32(scores) + at_least_fp32(bias_gLL), dim=-1).to(v.dtype)
        return self.out_proj((weights @ v).transpose(1, 2).reshape(-1, width))


class LatticeLayer(nn.Module):
    """x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(self, width: int, heads: int, mlp_ratio: float, eps: float):
        super().__init__()
        inner = int(width * mlp_ratio)
        self.attn_norm = RMSNorm(width, eps)
        self.attn = LatticeAttention(width, heads)
        self.mlp_norm = RMSNorm(width, eps)
        self.mlp = nn.Sequential(nn.Linear(width, inner), nn.SiLU(), nn.Linear(inner, width))

    def forward(self, x_Mh: Tensor, bias_gLL: Tensor) -> Tensor:
        x_Mh = x_Mh + self.attn(self.attn_norm(x_Mh), bias_gLL)
        return x_Mh + self.mlp(self.mlp_norm(x_Mh))
