"""K/V arena in host memory: one flat allocation per cache, contiguous views, commit of accepted rows only.

A call of capacity C reads (N, Hkv, C, D) per tensor. C follows the longest lane in buckets, so that attention cost follows
the length and not the context limit; growing re-lays the heads in place. Rows at and beyond a lane's length hold anything
finite (zeros or old rows): the engines mask them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lilicorr.runtime.manifest import Cache

SMALLEST_STEP = 64


def capacity_for(rows: int, limit: int) -> int:
    """Smallest bucket holding `rows`: multiples of 64, and above 512 of an eighth to a quarter of the size; never above `limit`."""
    step = max(SMALLEST_STEP, 1 << max(0, rows.bit_length() - 3))
    return min(limit, max(1, -(-rows // step)) * step)


class HostArena:
    """Implements `engine.Arena` with numpy.

    Args:
        cache: Geometry and dtype.
        lanes: Most lanes at once.
        rows: Most rows per lane (the context limit).
        width: Most new rows per call.
    """

    def __init__(self, cache: Cache, *, lanes: int, rows: int, width: int):
        self._planes, self._heads, self._dim = 2 * cache.layers, cache.kv_heads, cache.head_dim
        self._max_lanes, self._limit = lanes, rows
        per_row = self._planes * lanes * self._heads * self._dim
        # Zeroed, because 0 · NaN is NaN: a masked row must still be finite. The pages stay untouched until they are used.
        self._flat = np.zeros(per_row * rows, dtype=cache.dtype)
        self._new = np.zeros(per_row * width, dtype=cache.dtype)
        self.lengths = np.zeros(0, dtype=np.int32)
        self._capacity = 0

    @property
    def capacity(self) -> int:
        return self._capacity

    def reset(self, lanes: int) -> None:
        if not 1 <= lanes <= self._max_lanes:
            raise ValueError(f"{lanes} lanes, the arena holds 1 to {self._max_lanes}")
        self.lengths = np.zeros(lanes, dtype=np.int32)
        self._capacity = capacity_for(0, self._limit)

    def caches(self) -> dict[str, np.ndarray]:
        return self._named(self._view(self._flat, self._capacity), "k_cache_{}", "v_cache_{}")

    def fresh(self, width: int) -> dict[str, np.ndarray]:
        return self._named(self._view(self._new, width), "new_k_{}", "new_v_{}")

    def commit(self, width: int, counts: np.ndarray) -> None:
        ends = self.lengths + counts
        longest = int(ends.max())
        if longest > self._limit:
            raise ValueError(f"{longest} rows, the arena holds {self._limit}")
        if longest > self._capacity:
            self._grow(capacity_for(longest, self._limit))
        cache, new = self._view(self._flat, self._capacity), self._view(self._new, width)
        for lane, (start, end) in enumerate(zip(self.lengths.tolist(), ends.tolist(), strict=True)):
            cache[:, lane, :, start:end] = new[:, lane, :, : end - start]
        self.lengths[:] = ends

    def truncate(self, lane: int, rows: int) -> None:
        self.lengths[lane] = min(rows, int(self.lengths[lane]))

    def keep(self, lanes: Sequence[int]) -> None:
        block = self._heads * self._capacity * self._dim
        old, new = len(self.lengths), len(lanes)
        for plane in range(self._planes):  # forward: a destination is never behind a source still to be read
            for position, lane in enumerate(lanes):
                source, target = (plane * old + lane) * block, (plane * new + position) * block
                if source != target:
                    self._flat[target : target + block] = self._flat[source : source + block]
        self.lengths = self.lengths[list(lanes)].copy()

    def _grow(self, capacity: int) -> None:
        rows = int(self.lengths.max())
        heads = self._planes * len(self.lengths) * self._heads
        old = self._flat[: heads * self._capacity * self._dim].reshape(heads, self._capacity, self._dim)
        new = self._flat[: heads * capacity * self._dim].reshape(heads, capacity, self._dim)
        if rows:
            for head in range(heads - 1, 0, -1):  # last to first: no head is overwritten before it has moved
                new[head, :rows] = old[head, :rows]
        self._capacity = capacity

    def _view(self, flat: np.ndarray, rows: int) -> np.ndarray:
        shape = (self._planes, len(self.lengths), self._heads, rows, self._dim)
        return flat[: int(np.prod(shape))].reshape(shape)

    def _named(self, planes: np.ndarray, key: str, value: str) -> dict[str, np.ndarray]:
        """Planes 2i and 2i+1 are K and V of layer i."""
        return {(value if p % 2 else key).format(p // 2): plane for p, plane in enumerate(planes)}
