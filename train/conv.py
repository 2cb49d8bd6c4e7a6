"""Grouped dynamic depthwise convolution of the block rows (DFlash2; optional in LiLiCorr checkpoints).

Wraps a sublayer on both sides: its input and its output are convolved over the block with kernels that are a learned base plus a
per-row, per-group correction predicted from the sublayer's input. Taps never cross the block's start.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lilicorr.train.norm import at_least_fp32


class BlockConv(nn.Module):
    """Args:
        width: H.
        taps: Rows a kernel reaches back, its own included.
        group: Channels per predicted coefficient; divides `width`.

    Raises:
        ValueError: `group` does not divide `width`.
    """

    def __init__(self, width: int, taps: int, group: int):
        super().__init__()
        if width % group:
            raise ValueError(f"width {width} is not divisible by conv_group_size {group}")
        self.taps, self.group = taps, group
        self.base_kernel = nn.Parameter(torch.zeros(2, taps, width))
        self.kernel_projection = nn.Linear(width, 2 * taps * (width // group), bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """The exact identity: tap 0 is one, corrections are zero."""
        with torch.no_grad():
            self.base_kernel.zero_()[:, 0] = 1.0
            self.kernel_projection.weight.zero_()

    def kernels(self, x: Tensor) -> Tensor:
        """(..., B, H) sublayer input → (..., B, 2, taps, H) kernels, side 0 before and side 1 after the sublayer."""
        delta = self.kernel_projection(x).unflatten(-1, (2, self.taps, -1))
        return self.base_kernel + delta.repeat_interleave(self.group, dim=-1)

    def apply_side(self, x: Tensor, kernels: Tensor, side: int) -> Tensor:
        """y_i = Σ_t kernel[i, t] * x_{i-t} over the block dimension (-2), in fp32 (fp16 hardware overflowed: spec DFlash2)."""
        padded = F.pad(at_least_fp32(x), (0, 0, self.taps - 1, 0))
        length = x.shape[-2]
        total = torch.zeros_like(padded[..., :length, :])
        for tap in range(self.taps):
            begin = self.taps - 1 - tap
            total = total + at_least_fp32(kernels[..., side, tap, :]) * padded[..., begin : begin + length, :]
        return total.to(x.dtype)
