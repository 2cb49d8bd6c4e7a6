"""Attention of a sequence's blocks: every row reads the context before its anchor and its own block, under one softmax.

No form ever holds an (A·B) × (C + A·B) mask or score matrix. On a CPU a block's own keys are multiplied block by block, and the
scores of many blocks are made again in the backward pass. On a GPU flex_attention reads only the tiles with a visible pair, which
are found from the anchors; its mask of tiles is (A·B / 128) × ((C + A·B) / 128).

Legend: R sequences, A blocks (anchors) per sequence, B block size, C context rows, g K/V heads, r query heads per K/V head,
D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from lilicorr.train.norm import at_least_fp32

Attention = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(k and v of the context (R,g,C,D), q (R,A,g*r,B,D), k and v of the blocks (R,A,g,B,D)) → (R,A,g*r,B,D)."""

TILE = 128  # rows and keys of a tile, flex_attention's own
ANCHORS_AT_ONCE = 64  # on a CPU; with more, scores are not kept for the backward pass


def block_attention(anchors: Tensor, block: int, context: int, window: int | None, causal: bool) -> Attention:
    """What is the same for every layer with this window.

    Args:
        anchors: (R, A) absolute position of each block's anchor, at most `context`.
        block, context: B and C.
        window: Context keys at a row's position - window or before are not seen. None: all are.
        causal: Inside its block, a row sees none after it.
    """
    if anchors.device.type == "cuda" and anchors.shape[1] > 1:  # one block alone has one row of masks
        return tiled(anchors, block, context, window, causal, _compiled())
    return block_local(anchors, block, context, window, causal)


def block_local(anchors: Tensor, block: int, context: int, window: int | None, causal: bool) -> Attention:
    """Scores against the context, as one product per K/V head, and against each block's own keys."""
    row = torch.arange(context, device=anchors.device)
    positions = anchors[..., None] + torch.arange(block, device=anchors.device)
    visible = (row < anchors[..., None])[:, :, None].expand(*positions.shape, context)  # (R,A,B,C)
    if window is not None:
        visible = visible & (row > positions[..., None] - window)
    future = torch.ones(block, block, dtype=torch.bool, device=anchors.device).triu(1) if causal else None

    def attend(k_context: Tensor, v_context: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if q.shape[1] <= ANCHORS_AT_ONCE:
            return _attend(k_context, v_context, q, k, v, visible, future)
        parts = zip(*(t.split(ANCHORS_AT_ONCE, dim=1) for t in (q, k, v, visible)), strict=True)
        results = [
            checkpoint(
                _attend, k_context, v_context, q, k, v, seen, future, use_reentrant=False, preserve_rng_state=False
            )
            for q, k, v, seen in parts
        ]
        return torch.cat(results, dim=1)

    return attend


def _attend(
    k_context: Tensor, v_context: Tensor, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, future: Tensor | None
) -> Tensor:
    R, A, heads, B, D = q.shape
    g, C = k_context.shape[1], k_context.shape[2]
    q = q.unflatten(2, (g, heads // g)) * D**-0.5  # (R,A,g,r,B,D)
    rows = q.permute(0, 2, 1, 3, 4, 5).reshape(R, g, -1, D)  # one large product per K/V head
    s_ctx = (rows @ k_context.transpose(-1, -2)).view(R, g, A, -1, B, C).permute(0, 2, 1, 3, 4, 5)
    s_ctx = at_least_fp32(s_ctx).masked_fill(~visible[:, :, None, None], float("-inf"))
    s_blk = at_least_fp32(q @ k.unsqueeze(3).transpose(-1, -2))  # (R,A,g,r,B,B)
    if future is not None:
        s_blk = s_blk.masked_fill(future, float("-inf"))
    weights = torch.softmax(torch.cat([s_ctx, s_blk], dim=-1), dim=-1).to(v.dtype)
    w_ctx = weights[..., :C].permute(0, 2, 1, 3, 4, 5).reshape(R, g, -1, C)
    out = (w_ctx @ v_context).view(R, g, A, -1, B, D).permute(0, 2, 1, 3, 4, 5) + weights[..., C:] @ v.unsqueeze(3)
    return out.reshape(R, A, heads, B, D)


def tiled(
    anchors: Tensor, block: int, context: int, window: int | None, causal: bool, flex: Callable[..., Any]
) -> Attention:
    """`flex_attention` over the keys [context, all blocks] of a sequence."""
    blocks = anchors.shape[1]
    begin = torch.tensor(
        context, device=anchors.device
    )  # a tensor: a number would be compiled in, one graph per length

    def seen(r: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        anchor = anchors[r, q // block]
        before = (k < begin) & (k < anchor)
        if window is not None:
            before = before & (k > anchor + q % block - window)
        own = (k >= begin) & ((k - begin) // block == q // block)
        return before | (own & (k - begin <= q) if causal else own)

    mask = _tiles(anchors, block, context, window, seen)

    def attend(k_context: Tensor, v_context: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (t.transpose(1, 2).flatten(2, 3) for t in (q * q.shape[-1] ** -0.5, k, v))  # (R, heads, A*B, D)
        keys, values = torch.cat([k_context, k], dim=2), torch.cat([v_context, v], dim=2)
        out = flex(q.to(v.dtype), keys.to(v.dtype), values, block_mask=mask, scale=1.0, enable_gqa=True)
        return out.unflatten(2, (blocks, block)).transpose(1, 2)

    return attend


def _tiles(anchors: Tensor, block: int, context: int, window: int | None, seen: Callable[..., Tensor]) -> Any:
    """The tiles that hold a visible pair, from the first and last anchor and block of each tile of rows (a BlockMask)."""
    from torch.nn.attention.flex_attention import BlockMask

    rows, keys = anchors.shape[1] * block, context + anchors.shape[1] * block
    row = torch.arange(-(-rows // TILE) * TILE, device=anchors.device).clamp_max(rows - 1).view(-1, TILE)
    low = torch.arange(0, keys, TILE, device=anchors.device)  # first key of each tile of keys
    high = low + TILE - 1
    anchor = anchors[:, row // block]  # (R, tiles, TILE)
    some = low < anchor.amax(-1, keepdim=True).clamp_max(context)
    every = high < anchor.amin(-1, keepdim=True)
    if window is not None:
        first = anchor + row % block - window  # the last key that is out of reach
        some = some & (high > first.amin(-1, keepdim=True))
        every = every & (low > first.amax(-1, keepdim=True))
    own = context + row // block * block  # first key of the row's block
    some = some | ((low <= own.amax(-1, keepdim=True) + block - 1) & (high >= own.amin(-1, keepdim=True)))
    return BlockMask.from_kv_blocks(
        *_listed(some & ~every), *_listed(every), BLOCK_SIZE=TILE, mask_mod=seen, seq_lengths=(rows, keys)
    )


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """(R, rows, keys) bool → number (R, 1, rows) and indices (R, 1, rows, keys) of the true ones, first in each row."""
    order = tiles.int().argsort(dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32)[:, None], order.int()[:, None]


@cache
def _compiled() -> Callable[..., Any]:
    """Without compilation flex_attention would hold the whole score matrix, so falling back to that is an error (`fullgraph`)."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, fullgraph=True)
