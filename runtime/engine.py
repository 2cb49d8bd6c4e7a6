"""What the loop asks of a backend: buffers, K/V arenas and bound calls. ONNX Runtime on the CPU implements it (`ort.py`).

A backend owns the memory its graphs compute on (host arrays on a CPU, device memory on a GPU), so the loop never copies
a cache or a feature row itself: it names buffers and asks for calls bound to them. This module holds no implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from lilicorr.runtime.manifest import Cache

Buffer = Any  # backend memory with a fixed shape and dtype; a numpy array on the CPU


class Call(Protocol):
    """One graph bound to fixed buffers; returns when the outputs may be read."""

    def __call__(self) -> None: ...


class Arena(Protocol):
    """K and V of every layer for all lanes, allocated once at the context limit."""

    lengths: np.ndarray  # (N,) int32 committed rows per active lane, host memory

    @property
    def capacity(self) -> int:
        """C: rows per head of the current views, at least `max(lengths)`."""

    def reset(self, lanes: int) -> None:
        """Make `lanes` lanes active and empty."""

    def caches(self) -> dict[str, Buffer]:
        """`k_cache_{i}`, `v_cache_{i}` -> (N, Hkv, C, D). Valid until `commit`, `keep` or `reset` changes N or C."""

    def fresh(self, width: int) -> dict[str, Buffer]:
        """`new_k_{i}`, `new_v_{i}` -> (N, Hkv, width, D): where a call writes the rows that `commit` reads."""

    def commit(self, width: int, counts: np.ndarray) -> None:
        """Append rows 0…counts[n]-1 of `fresh(width)` to lane n; grows C when a lane outgrows it."""

    def truncate(self, lane: int, rows: int) -> None:
        """Forget the rows of `lane` from `rows` on."""

    def keep(self, lanes: Sequence[int]) -> None:
        """Drop every lane but these (ascending); they become lanes 0…len-1."""


class Backend(Protocol):
    """The three graphs of one bundle on one device. A context manager: leaving it frees sessions and memory."""

    def __enter__(self) -> Backend: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def buffer(self, shape: Sequence[int], dtype: str) -> Buffer:
        """New zeroed memory."""

    def view(self, buffer: Buffer, shape: Sequence[int]) -> Buffer:
        """The first elements of `buffer` as a contiguous `shape`, sharing memory."""

    def upload(self, buffer: Buffer, values: np.ndarray) -> None:
        """Copy host `values` of the same shape into `buffer`."""

    def download(self, buffer: Buffer) -> np.ndarray:
        """`buffer` as a host array; only valid until the next call that writes the buffer."""

    def take_lanes(self, buffer: Buffer, lanes: Sequence[int]) -> None:
        """Move rows `lanes` (ascending) of axis 0 to the front of `buffer`."""

    def arena(self, cache: Cache, *, lanes: int, rows: int, width: int) -> Arena:
        """An arena of at most `lanes` lanes and `rows` rows, taking at most `width` new rows per call."""

    def bind(self, graph: str, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> Call:
        """Bind graph "target", "drafter" or "scorer". Outputs that are not named are not returned."""
