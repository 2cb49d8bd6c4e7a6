"""A CUDA driver in host memory, strict where a GPU is silent: the functions `cuda_device` calls, on `SimulatedDriver`.

Work is queued and done only at a synchronize, so that whatever is read or reused too early is wrong. Every access must lie inside
one live allocation, and copies within the device must not overlap. New memory holds garbage until it is set.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np

ALIGNMENT = 256


class CUresult(Enum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901


OK = CUresult.CUDA_SUCCESS


class SimulatedDriver:
    """Args:
        limit: Bytes of the GPU.

    Attributes:
        synchronizations: How often the host waited.
        launches: Graphs launched.
        live: Address -> size of every allocation.
    """

    CUresult = CUresult
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)
    CUmemorytype = SimpleNamespace(CU_MEMORYTYPE_DEVICE=2)
    CUDA_MEMCPY3D = SimpleNamespace

    def __init__(self, limit: int = 1 << 30):
        self.limit, self.synchronizations, self.launches = limit, 0, 0
        self.live: dict[int, int] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.events: dict[int, bool] = {}  # recorded?
        self.released = False
        self._memory: dict[int, Any] = {}
        self._queue: list[Callable[[], None]] = []
        self._captured: list[Callable[[], None]] | None = None
        self._invalid = False
        self._numbers = itertools.count(1)

    # what a simulated engine needs beyond the driver's functions

    def enqueue(self, work: Callable[[], None]) -> None:
        (self._queue if self._captured is None else self._captured).append(work)

    def invalidate_capture(self) -> None:
        """What a call that cannot be captured does."""
        self._invalid = self._captured is not None

    def array(self, address: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """The memory at `address`, which must be inside one allocation."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self._inside(address, size)
        return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address)).view(dtype).reshape(shape)

    # the driver's functions

    def cuInit(self, flags):
        return (OK,)

    def cuDeviceGet(self, ordinal):
        return OK, 0

    def cuDevicePrimaryCtxRetain(self, device):
        return OK, "context"

    def cuDevicePrimaryCtxRelease(self, device):
        self.released = True
        return (OK,)

    def cuCtxSetCurrent(self, context):
        assert context == "context"
        return (OK,)

    def cuStreamCreate(self, flags):
        return OK, 7

    def cuStreamDestroy(self, stream):
        return (OK,)

    def cuStreamSynchronize(self, stream):
        assert self._captured is None, "synchronized while capturing"
        self.synchronizations += 1
        queue, self._queue = self._queue, []
        for work in queue:
            work()
        return (OK,)

    def cuMemAlloc(self, size):
        assert self._captured is None, "allocated while capturing"
        if sum(self.live.values()) + size > self.limit:
            return CUresult.CUDA_ERROR_OUT_OF_MEMORY, None
        memory = np.full(size + ALIGNMENT, 0xAB, dtype=np.uint8)
        address = -(-memory.ctypes.data // ALIGNMENT) * ALIGNMENT
        self._memory[address], self.live[address] = memory, size
        return OK, address

    def cuMemFree(self, address):
        del self.live[address], self._memory[address]
        return (OK,)

    def cuMemHostAlloc(self, size, flags):
        self._pinned = np.zeros(size, dtype=np.uint8)
        return OK, self._pinned.ctypes.data

    def cuMemFreeHost(self, address):
        del self._pinned
        return (OK,)

    def cuMemsetD8Async(self, address, value, size, stream):
        self._inside(address, size)
        self.enqueue(lambda: ctypes.memset(address, value, size))
        return (OK,)

    def cuMemcpyHtoDAsync(self, address, host, size, stream):
        self._inside(address, size)
        self.enqueue(lambda: ctypes.memmove(address, host, size))
        return (OK,)

    def cuMemcpyDtoHAsync(self, host, address, size, stream):
        self._inside(address, size)
        self.enqueue(lambda: ctypes.memmove(host, address, size))
        return (OK,)

    def cuMemcpy3DAsync(self, plan, stream):
        assert plan.srcMemoryType == plan.dstMemoryType == self.CUmemorytype.CU_MEMORYTYPE_DEVICE
        width, height, depth = plan.WidthInBytes, plan.Height, plan.Depth
        assert min(width, height, depth) > 0
        views = []
        for address, pitch, rows in (
            (plan.dstDevice, plan.dstPitch, plan.dstHeight),
            (plan.srcDevice, plan.srcPitch, plan.srcHeight),
        ):
            assert pitch >= width
            assert rows >= height
            extent = pitch * (rows * (depth - 1) + height - 1) + width
            flat = self.array(address, (extent,), "uint8")
            strides = (pitch * rows, pitch, 1)
            views.append(np.lib.stride_tricks.as_strided(flat, (depth, height, width), strides))
        assert not np.shares_memory(*views), "source and destination overlap"
        self.enqueue(lambda: np.copyto(*views))
        return (OK,)

    def cuStreamBeginCapture(self, stream, mode):
        assert self._captured is None
        self._captured, self._invalid = [], False
        return (OK,)

    def cuStreamEndCapture(self, stream):
        captured, self._captured = self._captured, None
        if self._invalid:
            return CUresult.CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, None
        return OK, captured

    def cuGraphInstantiate(self, captured, flags):
        number = next(self._numbers)
        self.graphs[number] = list(captured)
        return OK, number

    def cuGraphDestroy(self, captured):
        return (OK,)

    def cuGraphLaunch(self, number, stream):
        self.launches += 1
        for work in self.graphs[number]:
            self.enqueue(work)
        return (OK,)

    def cuGraphExecDestroy(self, number):
        assert not self._queue, "destroyed a graph that may be running"
        del self.graphs[number]
        return (OK,)

    def cuEventCreate(self, flags):
        number = next(self._numbers)
        self.events[number] = False
        return OK, number

    def cuEventRecord(self, event, stream):
        self.events[event] = False
        self.enqueue(lambda: self.events.__setitem__(event, True))
        return (OK,)

    def cuEventElapsedTime(self, start, end):
        assert self.events[start]
        assert self.events[end], "asked for a time before it was recorded"
        return OK, 0.5

    def cuEventDestroy(self, event):
        del self.events[event]
        return (OK,)

    def _inside(self, address: int, size: int) -> None:
        inside = any(begin <= address and address + size <= begin + have for begin, have in self.live.items())
        assert inside, f"{size} bytes at {address:#x} are in no allocation"
