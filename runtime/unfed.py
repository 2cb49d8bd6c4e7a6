"""The target's features on their way to the drafter's cache: rows of committed tokens that no drafter call has been given.

A call of the target writes (N, width, size), and mostly the next call of the drafter reads just that. When rounds without a
draft lie between, the rows of several calls gather here and are handed over together.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lilicorr.runtime.engine import Backend, Buffer


class Unfed:
    """Feature rows of every lane, in the order of their tokens.

    Args:
        backend: Whose memory.
        lanes: Most lanes at once.
        rows: Most rows per lane.
        size: Features per row.
        dtype: Of a feature.

    Attributes:
        counts: (N,) rows per lane, from the first; all 0 when nothing waits.
    """

    def __init__(self, backend: Backend, *, lanes: int, rows: int, size: int, dtype: str):
        self._backend, self._rows, self._size = backend, rows, size
        self._written = backend.buffer((lanes, rows, size), dtype)
        self._gathered = backend.buffer((lanes, rows, size), dtype)
        self._width, self._gathering = 0, False
        self.counts = np.zeros(0, dtype=np.int32)

    def clear(self, lanes: int) -> None:
        self.counts, self._gathering = np.zeros(lanes, dtype=np.int32), False

    def packed(self, lanes: int, width: int) -> Buffer:
        """(N, width, size): where the target writes; what waits there already must have been moved by `make_room`."""
        return self._backend.view(self._written, (lanes, width, self._size))

    def fits(self, width: int) -> bool:
        """Whether `width` more rows per lane have a place."""
        return int(self.counts.max(initial=0)) + width <= self._rows

    def make_room(self) -> None:
        """Move what waits out of the way of the next call of the target."""
        if self.counts.any() and not self._gathering:
            lanes, width = len(self.counts), self._width
            self._backend.copy(self._gathered[:lanes, :width], self.packed(lanes, width))
            self._gathering = True

    def add(self, width: int, counts: np.ndarray) -> None:
        """Rows 0…counts[n]-1 of the `packed` that the target has just written wait as well."""
        if not self._gathering:
            self._width, self.counts = width, counts.astype(np.int32)
            return
        new = self.packed(len(counts), width)
        for lane, (begin, count) in enumerate(zip(self.counts.tolist(), counts.tolist(), strict=True)):
            self._backend.copy(self._gathered[lane, begin : begin + count], new[lane, :count])
        self.counts = (self.counts + counts).astype(np.int32)

    def take(self) -> tuple[int, np.ndarray]:
        """Width of the `packed` that now holds everything that waits, and rows per lane (N,); nothing waits afterwards."""
        counts, lanes = self.counts, len(self.counts)
        if self._gathering:
            # Powers of two: every width is another binding (and CUDA graph) of the drafter.
            self._width = min(self._rows, 1 << (int(counts.max()) - 1).bit_length())
            self._backend.copy(self.packed(lanes, self._width), self._gathered[:lanes, : self._width])
        self.clear(lanes)
        return self._width, counts

    def keep(self, lanes: Sequence[int]) -> None:
        """Drop every lane but `lanes` (ascending)."""
        rows = self._gathered if self._gathering else self.packed(len(self.counts), self._width)
        for position, lane in enumerate(lanes):
            if position != lane:
                self._backend.copy(rows[position], rows[lane])
        self.counts = self.counts[list(lanes)]
