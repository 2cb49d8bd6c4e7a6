"""Round-to-nearest: what it promises per block, and that its numbers are those numpy gets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lilicorr.export.block_weights import BlockWeight, round_to_nearest

TYPES = [torch.float32, torch.float16, torch.bfloat16]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("block", [32, 64])
@pytest.mark.parametrize("bits", [4, 8])
def test_values_are_the_nearest_and_scales_positive(bits, block, dtype):
    weight = torch.randn(24, 128, generator=torch.Generator().manual_seed(bits + block))
    made = round_to_nearest(weight, bits, block, dtype)
    assert made.block == block
    assert (made.values.dtype, made.scales.dtype) == (torch.int8, dtype)
    assert int(made.values.min()) >= -(2 ** (bits - 1))
    assert int(made.values.max()) < 2 ** (bits - 1)
    assert (made.scales > 0).all()
    wide = np.repeat(made.scales.float().numpy(), block, axis=1)
    nearest = np.clip(np.rint(weight.numpy() / wide), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    assert np.array_equal(made.values.numpy(), nearest)
    assert np.array_equal(made.dequantised(torch.float32).numpy(), nearest * wide)


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_miss_by_at_most_half_a_step(bits):
    weight = torch.randn(8, 64, generator=torch.Generator().manual_seed(bits))
    made = round_to_nearest(weight, bits, 32, torch.float32)
    error = (made.dequantised(torch.float32) - weight).abs().unflatten(1, (-1, 32)).amax(dim=2)
    assert (error <= made.scales * 0.5001).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_zeros_and_weights_below_the_smallest_scale(dtype):
    weight = torch.zeros(2, 64)
    weight[1, :32] = 1e-30
    made = round_to_nearest(weight, 4, 32, dtype)
    assert (made.scales > 0).all()
    assert torch.isfinite(made.dequantised(dtype)).all()
    assert not made.values[0].any()


def test_a_value_is_rounded_to_the_graph_dtype_once():
    values = torch.tensor([[127, -128] * 16], dtype=torch.int8)
    scales = torch.tensor([[0.0123]], dtype=torch.float16)
    once = (values.numpy().astype(np.float32) * np.float32(scales.numpy())).astype(np.float16)
    assert BlockWeight(values, scales, 8).dequantised(torch.float16).numpy().tobytes() == once.tobytes()
