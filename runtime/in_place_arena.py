"""The arena of a bundle with native attention: its graphs write their rows into the caches themselves.

Input and output of a cache are the same memory. Every row of a call is written from a lane's length on, accepted or not; a commit
only moves the length, and the next call writes over what it left out. C is fixed: the context and room for the rows of a call.
"""

from __future__ import annotations

import numpy as np

from lilicorr.runtime.arena import Arena
from lilicorr.runtime.contract import NATIVE, UPDATED, native_rows
from lilicorr.runtime.engine import Backend, Buffer
from lilicorr.runtime.manifest import Cache, Manifest


def arena_for(backend: Backend, manifest: Manifest, cache: Cache, *, width: int) -> Arena:
    """The arena that the bundle's form of attention needs, for calls of at most `width` rows."""
    lanes, context = manifest.limits.max_batch, manifest.limits.max_context
    if manifest.attention == NATIVE:
        return InPlaceArena(backend, cache, lanes=lanes, rows=context, capacity=native_rows(manifest))
    return Arena(backend, cache, lanes=lanes, rows=context, width=width)


class InPlaceArena(Arena):
    """Args:
    rows: Most committed rows per lane (the context limit).
    capacity: C of the graphs.
    """

    def __init__(self, backend: Backend, cache: Cache, *, lanes: int, rows: int, capacity: int):
        super().__init__(backend, cache, lanes=lanes, rows=capacity, width=1)
        self._most, self._rows = rows, capacity

    def reset(self, lanes: int) -> None:
        super().reset(lanes)
        self.capacity = self._rows

    def fresh(self, width: int) -> dict[str, Buffer]:
        """`updated_k_cache_{i}`, `updated_v_cache_{i}`: the caches themselves."""
        return {UPDATED + name: cache for name, cache in self.caches().items()}

    def commit(self, width: int, counts: np.ndarray) -> None:
        """Count rows 0…counts[n]-1 of the last call as lane n's."""
        ends = self.lengths + counts
        if int(ends.max()) > self._most:
            raise ValueError(f"{int(ends.max())} rows, the arena holds {self._most}")
        self.lengths[:] = ends
