"""K/V arena of one cache in any memory: one flat allocation, contiguous tensors, commit of accepted rows only.

A call of capacity C reads (N, Hkv, C, D) per tensor. C follows the longest lane in buckets, so that attention cost follows
the length and not the context limit. Rows at and beyond a lane's length hold anything finite (zeros or old rows): the engines
mask them.

    flat memory   plane 0: K of layer 0      plane 1: V of layer 0     …    plane 2·layers-1
    a plane       lane 0: head 0 (C·D), head 1, …    lane 1: …    unused heads up to an aligned address
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lilicorr.runtime.dtypes import ITEMSIZE
from lilicorr.runtime.engine import Backend, Buffer
from lilicorr.runtime.manifest import Cache

SMALLEST_STEP = 64


def capacity_for(rows: int, limit: int) -> int:
    """Smallest bucket holding `rows`: multiples of 64, and above 512 of an eighth to a quarter of the size; never above `limit`."""
    step = max(SMALLEST_STEP, 1 << max(0, rows.bit_length() - 3))
    return min(limit, max(1, -(-rows // step)) * step)


class Arena:
    """K and V of every layer for all lanes, allocated once at the context limit.

    Args:
        backend: Whose memory, and whose buckets.
        cache: Geometry and dtype.
        lanes: Most lanes at once.
        rows: Most rows per lane (the context limit).
        width: Most new rows per call.

    Attributes:
        lengths: (N,) int32 committed rows per active lane, in host memory.
        capacity: C, rows per head of the current tensors, at least `max(lengths)`.
    """

    def __init__(self, backend: Backend, cache: Cache, *, lanes: int, rows: int, width: int):
        self._backend, self._planes, self._heads, self._dim = backend, 2 * cache.layers, cache.kv_heads, cache.head_dim
        self._max_lanes, self._limit = lanes, rows
        row_bytes = cache.head_dim * ITEMSIZE[cache.dtype]
        self._heads_step = backend.alignment // math.gcd(backend.alignment, row_bytes)
        # Zeroed, because 0 · NaN is NaN: a masked row must still be finite. Host pages stay untouched until they are used.
        row = self._planes * self._heads_of_plane(lanes) * self._dim
        self._flat = backend.buffer((row * rows,), cache.dtype)
        self._new = backend.buffer((row * width,), cache.dtype)
        self._moving = backend.buffer((lanes * self._heads * rows * self._dim,), cache.dtype)
        self.lengths = np.zeros(0, dtype=np.int32)
        self.capacity = 0

    def reset(self, lanes: int) -> None:
        """Make `lanes` lanes active and empty."""
        if not 1 <= lanes <= self._max_lanes:
            raise ValueError(f"{lanes} lanes, the arena holds 1 to {self._max_lanes}")
        self.lengths = np.zeros(lanes, dtype=np.int32)
        self.capacity = self._backend.capacity_for(0, self._limit)

    def caches(self) -> dict[str, Buffer]:
        """`k_cache_{i}`, `v_cache_{i}` -> (N, Hkv, C, D). Valid until `commit`, `keep` or `reset` changes N or C."""
        return self._named(self._view(self._flat, len(self.lengths), self.capacity), "k_cache_{}", "v_cache_{}")

    def fresh(self, width: int) -> dict[str, Buffer]:
        """`new_k_{i}`, `new_v_{i}` -> (N, Hkv, width, D): where a call writes the rows that `commit` reads."""
        return self._named(self._view(self._new, len(self.lengths), width), "new_k_{}", "new_v_{}")

    def commit(self, width: int, counts: np.ndarray) -> None:
        """Append rows 0…counts[n]-1 of `fresh(width)` to lane n; grows C when a lane outgrows it."""
        ends = self.lengths + counts
        longest = int(ends.max())
        if longest > self._limit:
            raise ValueError(f"{longest} rows, the arena holds {self._limit}")
        if longest > self.capacity:
            self._move(range(len(self.lengths)), self._backend.capacity_for(longest, self._limit))
        lanes = len(self.lengths)
        cache, new = self._view(self._flat, lanes, self.capacity), self._view(self._new, lanes, width)
        for lane, (start, end) in enumerate(zip(self.lengths.tolist(), ends.tolist(), strict=True)):
            if end > start:
                self._backend.copy(cache[:, lane, :, start:end], new[:, lane, :, : end - start])
        self.lengths[:] = ends

    def truncate(self, lane: int, rows: int) -> None:
        """Forget the rows of `lane` from `rows` on."""
        self.lengths[lane] = min(rows, int(self.lengths[lane]))

    def keep(self, lanes: Sequence[int]) -> None:
        """Drop every lane but these (ascending); they become lanes 0…len-1."""
        self._move(lanes, self.capacity)

    def _move(self, lanes: Sequence[int], capacity: int) -> None:
        """Lay the planes out anew for `lanes` and `capacity`, in place: plane by plane through memory of one plane."""
        rows = int(self.lengths[list(lanes)].max())
        old = self._view(self._flat, len(self.lengths), self.capacity)
        new = self._view(self._flat, len(lanes), capacity)
        moving = self._backend.view(self._moving, (len(lanes), self._heads, rows, self._dim))
        # Planes become larger or smaller, never both: in this order none is overwritten before it has moved.
        order = range(self._planes) if capacity == self.capacity else range(self._planes - 1, -1, -1)
        for plane in order if rows else ():
            for position, lane in enumerate(lanes):
                self._backend.copy(moving[position], old[plane, lane, :, :rows])
            self._backend.copy(new[plane, :, :, :rows], moving)
        self.lengths = self.lengths[list(lanes)].copy()
        self.capacity = capacity

    def _heads_of_plane(self, lanes: int) -> int:
        """Heads from one plane to the next: so many that every plane begins at an aligned address, whatever C is."""
        return -(-lanes * self._heads // self._heads_step) * self._heads_step

    def _view(self, flat: Buffer, lanes: int, rows: int) -> Buffer:
        """(planes, lanes, Hkv, rows, D)"""
        planes = self._backend.view(flat, (self._planes, self._heads_of_plane(lanes), rows, self._dim))
        return planes[:, : lanes * self._heads].reshape(self._planes, lanes, self._heads, rows, self._dim)

    def _named(self, planes: Buffer, key: str, value: str) -> dict[str, Buffer]:
        """Planes 2i and 2i+1 are K and V of layer i."""
        return {(value if p % 2 else key).format(p // 2): planes[p] for p in range(self._planes)}
