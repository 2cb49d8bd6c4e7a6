"""A weight as integers with one scale per block of its input width, and round-to-nearest, which makes one from floats.

Symmetric only, because TensorRT reads no other zero point than 0: weight[o, i] = values[o, i] · scales[o, i // block].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

CLIPS = {8: (1.0,), 4: tuple(1 - step / 20 for step in range(9))}
"""Bits -> shares of a block's largest magnitude that are tried as the largest representable one. At 4 bits cutting off the
largest weights leaves finer steps to the others (benchmarks/quantised.py); at 8 bits it gains nothing."""


@dataclass(frozen=True)
class BlockWeight:
    """The weight of one linear layer."""

    values: Tensor  # (O, I) int8, within the range of `bits`
    scales: Tensor  # (O, I / block) positive, of the graph's dtype
    bits: int  # 4 or 8

    @property
    def block(self) -> int:
        return self.values.shape[1] // self.scales.shape[1]

    def dequantised(self, dtype: torch.dtype) -> Tensor:
        """(O, I) in `dtype`: the product in fp32, rounded once, as DequantizeLinear does."""
        blocks = self.values.unflatten(1, (-1, self.block)).float()
        return (blocks * self.scales.float()[:, :, None]).flatten(1).to(dtype)


def round_to_nearest(weight: Tensor, bits: int, block: int, dtype: torch.dtype) -> BlockWeight:
    """Quantise `weight`, taking per block that one of the clipped scales (CLIPS) with the least squared error.

    Args:
        weight: (O, I) float, I a multiple of `block`.
        bits: 4 or 8.
        dtype: Of the scales; they are rounded to it before the values are, so that the values fit them.
    """
    blocks = weight.float().unflatten(1, (-1, block))
    most = 2 ** (bits - 1) - 1
    largest = blocks.abs().amax(dim=2)
    best_values, best_scales = blocks.new_empty(blocks.shape, dtype=torch.int8), torch.empty_like(largest)
    best_error = torch.full_like(largest, float("inf"))
    for clip in CLIPS[bits]:
        # TensorRT wants positive scales; a block of zeros has any.
        scales = (clip * largest / most).to(dtype).clamp_min(torch.finfo(dtype).tiny).float()
        values = (blocks / scales[:, :, None]).round_().clamp_(-most - 1, most)
        error = (values * scales[:, :, None] - blocks).square_().sum(dim=2)
        better = error < best_error
        best_values[better] = values[better].to(torch.int8)
        best_scales[better], best_error[better] = scales[better], error[better]
    return BlockWeight(best_values.flatten(1), best_scales.to(dtype), bits)
