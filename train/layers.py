"""The layers of the drafter: Qwen3 blocks whose attention is given as a function of (query, block keys, block values).

Legend: T rows, B block size, H width, g K/V heads, r query heads per K/V head, D head_dim. Parameter names are the published
checkpoint's. The same layers serve training, the reference forward and the exported graph: who holds the context is not their
business.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.config import DrafterConfig
from lilicorr.train.conv import BlockConv
from lilicorr.train.norm import RMSNorm
from lilicorr.train.rope import rotate

Rope = tuple[Tensor, Tensor]
Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q (..., g*r, T, D), k (..., g, T, D), v) of the block rows → attention output (..., g*r, T, D)."""


class Attention(nn.Module):
    """q, k, v and output projections with per-head norms and rotary positions; who is attended to is the caller's `attend`."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        heads, groups, D, bias = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
            config.attention_bias,
        )
        self.head_dim = D
        self.q_proj = nn.Linear(config.hidden_size, heads * D, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, groups * D, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, groups * D, bias=bias)
        self.o_proj = nn.Linear(heads * D, config.hidden_size, bias=bias)
        self.q_norm = RMSNorm(D, config.rms_norm_eps)
        self.k_norm = RMSNorm(D, config.rms_norm_eps)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(-2, -3)

    def keys_values(self, x: Tensor, rope: Rope) -> tuple[Tensor, Tensor]:
        """(..., T, H) → k (normed, rotated), v, each (..., g, T, D); the same weights for context and block rows."""
        return rotate(self.k_norm(self._heads(self.k_proj(x))), rope), self._heads(self.v_proj(x))

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        q = rotate(self.q_norm(self._heads(self.q_proj(x))), rope)
        out = attend(q, *self.keys_values(x, rope))
        return self.o_proj(out.transpose(-2, -3).flatten(-2))


class MLP(nn.Module):
    """down(silu(gate(x)) * up(x)), (..., H) → (..., H)."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DrafterLayer(nn.Module):
    """A Qwen3 block, (..., B, H) → (..., B, H), its two sublayers wrapped in convolutions where the configuration has them."""

    def __init__(self, config: DrafterConfig):
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)
        self.attention_conv: BlockConv | None = None
        self.mlp_conv: BlockConv | None = None
        if config.conv_kernel_size is not None and config.conv_group_size is not None:
            self.attention_conv = BlockConv(config.hidden_size, config.conv_kernel_size, config.conv_group_size)
            self.mlp_conv = BlockConv(config.hidden_size, config.conv_kernel_size, config.conv_group_size)

    def forward(self, x: Tensor, rope: Rope, attend: Attend) -> Tensor:
        x = x + _wrapped(self.attention_conv, self.input_layernorm(x), lambda y: self.self_attn(y, rope, attend))
        return x + _wrapped(self.mlp_conv, self.post_attention_layernorm(x), self.mlp)


def _wrapped(conv: BlockConv | None, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
    if conv is None:
        return sublayer(x)
    kernels = conv.kernels(x)
    return conv.apply_side(sublayer(conv.apply_side(x, kernels, 0)), kernels, 1)
