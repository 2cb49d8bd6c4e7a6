"""The dtypes of graph tensors by their manifest names, and how the host holds them: numpy has no bfloat16, its bits are uint16."""

from __future__ import annotations

import numpy as np

ITEMSIZE = {"float32": 4, "float16": 2, "bfloat16": 2, "int32": 4}


def to_bits(values: np.ndarray, dtype: str) -> np.ndarray:
    """`values` as contiguous elements of `dtype`, float32 rounded to nearest even; bfloat16 as uint16."""
    if dtype != "bfloat16":
        return np.ascontiguousarray(values, dtype=dtype)
    wide = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (wide + np.uint32(0x7FFF) + (wide >> 16 & np.uint32(1))) >> 16
    # Rounding up could carry a NaN's low bits into the sign or clear them into an infinity: NaN keeps its top bits, made quiet.
    return np.where(np.isnan(values), wide >> 16 | np.uint32(0x40), rounded).astype(np.uint16)


def from_bits(raw: np.ndarray, dtype: str) -> np.ndarray:
    """The values of `raw` (uint8, contiguous) as `dtype`; bfloat16 exactly as float32."""
    if dtype != "bfloat16":
        return raw.view(dtype)
    return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
