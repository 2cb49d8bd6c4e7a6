"""The memory half of a backend whose graphs compute in host memory: buffers are numpy arrays, and nothing is queued."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


class HostMemory:
    """Implements `engine.Memory`; a backend adds `bind`."""

    alignment = 1

    def buffer(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        return np.zeros(shape, dtype=dtype)

    def view(self, buffer: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        flat = buffer.reshape(-1)
        return flat[: int(np.prod(shape))].reshape(shape)

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        target[...] = source

    def upload(self, buffer: np.ndarray, values: np.ndarray) -> None:
        buffer[...] = values

    def download(self, *buffers: np.ndarray) -> list[np.ndarray]:
        return list(buffers)
