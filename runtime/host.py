"""The memory half of a backend whose graphs compute in host memory: buffers and arenas are numpy arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lilicorr.runtime.arena import HostArena
from lilicorr.runtime.manifest import Cache


class HostMemory:
    """Implements the memory methods of `engine.Backend`; a subclass adds `bind`."""

    def buffer(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros(shape, dtype=dtype)

    def view(self, buffer: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        flat = buffer.reshape(-1)
        return flat[: int(np.prod(shape))].reshape(shape)

    def upload(self, buffer: np.ndarray, values: np.ndarray) -> None:
        buffer[...] = values

    def download(self, buffer: np.ndarray) -> np.ndarray:
        return buffer

    def take_lanes(self, buffer: np.ndarray, lanes: Sequence[int]) -> None:
        for position, lane in enumerate(lanes):
            if position != lane:
                buffer[position] = buffer[lane]

    def arena(self, cache: Cache, *, lanes: int, rows: int, width: int) -> HostArena:
        return HostArena(cache, lanes=lanes, rows=rows, width=width)
