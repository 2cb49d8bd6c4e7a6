"""Unpack the integers of pre-quantised checkpoints: GPTQ, AWQ and compressed-tensors. Layouts as those projects write them:

| format | tensor | dtype, shape | meaning |
|---|---|---|---|
| gptq | qweight | i32 (I/p, O) | p = 32/bits values of one column per word, lowest bits first |
| | qzeros | i32 (I/block, O/p) | zero points, packed along O; "gptq" stores them minus one, "gptq_v2" as they are |
| | scales | f16 (I/block, O) | |
| awq | qweight | i32 (I, O/8) | 8 columns per word, nibble n holds column AWQ_ORDER[n] |
| | qzeros | i32 (I/block, O/8) | packed alike |
| | scales | f16 (I/block, O) | |
| compressed-tensors | weight_packed | i32 (O, I/p) | p values of one row per word, lowest bits first, offset by half the range |
| | weight_scale | (O, I/block) | |
| | weight_zero_point | i32 (O/p, I/block) | packed along O, offset alike; absent when symmetric |

All are weight = (value - zero point) · scale with unsigned values; the difference is what a `BlockWeight` holds.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from lilicorr.export.block_weights import BlockWeight
from lilicorr.export.quantised_config import Stored
from lilicorr.runtime.errors import UserError

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_AGAIN = "its config.json and its weights do not belong together: download the whole folder again"


def block_weight(layer: str, tensors: Mapping[str, Tensor], stored: Stored, dtype: torch.dtype) -> BlockWeight:
    """The integers of one layer.

    Args:
        layer: Its name, for messages.
        tensors: Its tensors by the names above.
        stored: What the folder's config.json says.
        dtype: Of the scales.

    Raises:
        UserError: a tensor is missing or does not fit the others, values do not fit the bits, or a block is no run of neighbours.
    """
    unpack = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors}[stored.source]
    try:
        values, zeros, scales = unpack(tensors, stored.bits)
    except KeyError as missing:
        raise UserError(f"`{layer}` has no tensor {missing}", hint=_AGAIN) from None
    wanted = (len(values), values.shape[1] // stored.block)
    if values.shape[1] % stored.block or scales.shape != wanted or (zeros is not None and zeros.shape != wanted):
        raise UserError(
            f"`{layer}`: weights of {len(values)} × {values.shape[1]} with {tuple(scales.shape)} scales, "
            f"expected {wanted} for blocks of {stored.block}",
            hint=_AGAIN,
        )
    neighbours = torch.arange(values.shape[1], dtype=torch.int32) // stored.block
    if "g_idx" in tensors and not torch.equal(tensors["g_idx"], neighbours):
        raise UserError(
            f"`{layer}`: its blocks are not runs of neighbours (g_idx), which no engine here reads",
            hint="take a checkpoint that was made without desc_act",
        )
    offsets = torch.full(wanted, 2 ** (stored.bits - 1)) if zeros is None else zeros + stored.zero_shift
    signed = (values.unflatten(1, (-1, stored.block)) - offsets[:, :, None]).flatten(1)
    bits = stored.quantisation.bits
    least, most = int(signed.min()), int(signed.max())
    if least < -(2 ** (bits - 1)) or most >= 2 ** (bits - 1):
        raise UserError(
            f"`{layer}` has zero points, which its config.json denies: values of {least} to {most} are no int{bits}",
            hint=_AGAIN,
        )
    return BlockWeight(signed.to(torch.int8), scales.to(dtype).contiguous(), bits)


def _gptq(tensors: Mapping[str, Tensor], bits: int) -> tuple[Tensor, Tensor, Tensor]:
    values = _unpack(tensors["qweight"].T, bits)  # (O, I)
    return values, _unpack(tensors["qzeros"], bits).T, tensors["scales"].T


def _awq(tensors: Mapping[str, Tensor], bits: int) -> tuple[Tensor, Tensor | None, Tensor]:
    def columns(packed: Tensor) -> Tensor:
        nibbles = _unpack(packed, bits).unflatten(1, (-1, len(AWQ_ORDER)))
        ordered = torch.empty_like(nibbles)
        ordered[:, :, list(AWQ_ORDER)] = nibbles
        return ordered.flatten(1).T

    return columns(tensors["qweight"]), columns(tensors["qzeros"]), tensors["scales"].T


def _compressed_tensors(tensors: Mapping[str, Tensor], bits: int) -> tuple[Tensor, Tensor | None, Tensor]:
    outer, inner = tensors["weight_shape"].tolist()
    values = _unpack(tensors["weight_packed"], bits)[:, :inner]
    packed = tensors.get("weight_zero_point")
    return values[:outer], None if packed is None else _unpack(packed.T, bits).T[:outer], tensors["weight_scale"]


def _unpack(packed: Tensor, bits: int) -> Tensor:
    """(R, W) int32 words -> (R, W · 32/bits) int16, lowest bits of a word first."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    return ((packed[:, :, None] >> shifts) & (2**bits - 1)).flatten(1).to(torch.int16)
