"""Grouped dynamic convolution: by hand, identity at birth, block boundaries, half precision."""

from __future__ import annotations

import pytest
import torch

from lilicorr.train.conv import BlockConv


def test_by_hand():
    """Width 2, group 2 (one coefficient per tap), two taps, rows (1, 2), (3, 4), the coefficient read off channel 0.

    base side 0: tap 0 (1, 1), tap 1 (10, 20). The projection adds x[0] to tap 1 of side 0 only. Row 0 has no row before it:
    (1, 2). Row 1: (3, 4) + ((10 + 3)·1, (20 + 3)·2) = (16, 50). Side 1 stays at its base (2·x).
    """
    conv = BlockConv(2, taps=2, group=2)
    with torch.no_grad():
        conv.base_kernel.copy_(torch.tensor([[[1.0, 1.0], [10.0, 20.0]], [[2.0, 2.0], [0.0, 0.0]]]))
        conv.kernel_projection.weight.zero_()
        conv.kernel_projection.weight[1, 0] = 1.0  # order of the 4 rows: (side, tap)
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    kernels = conv.kernels(x)
    assert conv.apply_side(x, kernels, 0).tolist() == [[1.0, 2.0], [16.0, 50.0]]
    assert conv.apply_side(x, kernels, 1).tolist() == [[2.0, 4.0], [6.0, 8.0]]


def test_identity_at_birth():
    x = torch.randn(2, 3, 5, 8)
    conv = BlockConv(8, taps=3, group=4)
    kernels = conv.kernels(x)
    for side in (0, 1):
        assert torch.equal(conv.apply_side(x, kernels, side), x)


def test_blocks_do_not_touch_each_other():
    conv = BlockConv(4, taps=2, group=1)
    torch.nn.init.normal_(conv.base_kernel)
    x = torch.randn(2, 3, 4)
    alone = conv.apply_side(x[1], conv.kernels(x[1]), 0)
    assert torch.equal(conv.apply_side(x, conv.kernels(x), 0)[1], alone)


def test_products_beyond_fp16_cancel_in_fp32():
    """Two taps of ±60000 on rows of 2: each product overflows fp16, their sum is 0."""
    conv = BlockConv(1, taps=2, group=1)
    with torch.no_grad():
        conv.base_kernel.copy_(torch.tensor([[[60000.0], [-60000.0]]]).expand(2, 2, 1))
    conv.half()
    x = torch.full((2, 1), 2.0, dtype=torch.float16)
    y = conv.apply_side(x, conv.kernels(x), 0)
    assert y.dtype == torch.float16
    assert y[1].item() == 0.0


def test_group_must_divide_the_width():
    with pytest.raises(ValueError, match="not divisible"):
        BlockConv(6, taps=2, group=4)
