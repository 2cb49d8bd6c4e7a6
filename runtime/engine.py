"""What the loop asks of a backend: memory, and calls bound to it. `ort` (on the CPU) and `trt_backend` implement it.

A backend owns the memory its graphs compute on (host arrays on a CPU, device memory on a GPU), so the loop never copies
a cache or a feature row itself: it names buffers and asks for calls bound to them. Work may be queued: it is done in the order
it was asked for, and only `download` waits. This module holds no implementation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Protocol

import numpy as np

# Backend memory with a fixed shape and dtype, sliced and reshaped without a copy as numpy does: a numpy array on the CPU,
# a `device_array.DeviceArray` on a GPU.
Buffer = Any


class Call(Protocol):
    """One graph bound to fixed buffers. Its outputs may be read by what is asked for after it."""

    def __call__(self) -> None: ...


class Memory(Protocol):
    """Buffers of one device."""

    alignment: int  # bytes; what a graph reads or writes begins at a multiple

    def buffer(self, shape: Sequence[int], dtype: str) -> Buffer:
        """New zeroed memory, aligned. `dtype` is a numpy name or "bfloat16"."""

    def view(self, buffer: Buffer, shape: Sequence[int]) -> Buffer:
        """The first elements of `buffer` as a contiguous `shape`, sharing memory."""

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copy between two slices of equal shape that do not overlap."""

    def upload(self, buffer: Buffer, values: np.ndarray) -> None:
        """Copy host `values` of the same shape into a contiguous `buffer`, cast to its dtype; `values` may change afterwards."""

    def download(self, *buffers: Buffer) -> list[np.ndarray]:
        """Contiguous buffers as host arrays ("bfloat16" as float32), once everything asked for is done.

        An array is only valid until its buffer is next written.
        """


class Backend(Memory, Protocol):
    """The three graphs of one bundle on one device. A context manager: leaving it frees engines and memory."""

    name: str  # "ort", "tensorrt" or "tensorrt-rtx"

    @property
    def notes(self) -> Sequence[str]:
        """What makes it slower here than it should be, as far as it has shown."""

    def __enter__(self) -> Backend: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

    def capacity_for(self, rows: int, limit: int) -> int:
        """Cache capacity to run with when `rows` rows are needed: rows ≤ capacity ≤ limit, never less for more rows."""

    def bind(self, graph: str, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer]) -> Call:
        """Bind graph "target", "drafter" or "scorer". Outputs that are not named are not returned."""

    def take_seconds(self) -> dict[str, float]:
        """Graph -> seconds its calls took since this was last asked; calls that are still queued count later."""
