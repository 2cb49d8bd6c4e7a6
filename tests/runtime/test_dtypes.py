"""bfloat16 on a host without it, against PyTorch's rounding."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lilicorr.runtime.dtypes import from_bits, to_bits


def test_bfloat16_rounds_as_pytorch_does() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 32, 100_000, dtype=np.uint64).astype(np.uint32)
    halfway = (rng.integers(0, 1 << 16, 1000, dtype=np.uint64).astype(np.uint32) << 16) | np.uint32(0x8000)
    special = np.array([0x00000000, 0x80000000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0x00000001], dtype=np.uint32)
    values = np.concatenate([bits, halfway, special]).view(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values).to(torch.bfloat16)
    found = to_bits(values, "bfloat16")
    np.testing.assert_array_equal(found, expected.view(torch.int16).numpy().view(np.uint16))
    np.testing.assert_array_equal(from_bits(found.view(np.uint8), "bfloat16"), expected.float().numpy())


def test_not_a_number_stays_one() -> None:
    nans = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000], dtype=np.uint32).view(np.float32)
    assert np.isnan(from_bits(to_bits(nans, "bfloat16").view(np.uint8), "bfloat16")).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_other_dtypes_are_numpys(dtype: str) -> None:
    values = np.arange(6, dtype=np.float64).reshape(2, 3).T
    bits = to_bits(values, dtype)
    assert bits.flags.c_contiguous
    np.testing.assert_array_equal(from_bits(bits.reshape(-1).view(np.uint8), dtype).reshape(3, 2), values)
