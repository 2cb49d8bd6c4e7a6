"""One GPU through the CUDA driver API: memory, copies, one stream, graphs, times. The only module that calls CUDA.

The driver's own library is enough: there is no CUDA runtime whose version must fit it. Everything is queued on one stream; host
data goes through page-locked memory, so that nothing but `synchronize` waits for the GPU.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from lilicorr.runtime.device_array import Copy
from lilicorr.runtime.errors import UserError

STAGING = 1 << 20  # bytes of page-locked memory: a round's ids and lengths are a few hundred
_GRAIN = 16  # what is staged begins at a multiple, aligned for any dtype

INSTALL = 'pip install "cuda-bindings>=12.8,<13"'  # serves drivers of 13 too


def open_device() -> CudaDevice:
    """GPU 0.

    Raises:
        UserError: the package cuda-bindings is not there.
    """
    try:
        from cuda.bindings import driver
    except ImportError as error:
        raise UserError(f"cuda-bindings cannot be imported: {error}", hint=INSTALL) from None
    return CudaDevice(driver)


class CudaError(RuntimeError):
    """A CUDA call failed; running out of memory is a MemoryError instead."""


class CudaDevice:
    """Args:
    driver: `cuda.bindings.driver`.

    Attributes:
        stream: Handle of the stream that everything is queued on.
    """

    def __init__(self, driver: Any):
        self._driver, self._thread, self._open = driver, 0, True
        self._call("cuInit", 0)
        self._device = self._call("cuDeviceGet", 0)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._device)  # the one that TensorRT uses too
        self._use()
        self._stream = self._call("cuStreamCreate", driver.CUstream_flags.CU_STREAM_NON_BLOCKING)
        self.stream = int(self._stream)
        self._pinned = int(self._call("cuMemHostAlloc", STAGING, 0))
        self._staging = np.ctypeslib.as_array((ctypes.c_uint8 * STAGING).from_address(self._pinned))
        self._staged = 0  # bytes in use until the next synchronize
        self._arriving: list[tuple[np.ndarray, np.ndarray]] = []  # destination, staged bytes
        self._idle_events: list[Any] = []
        self._live: set[int] = set()

    def close(self) -> None:
        """Free everything and let the GPU go; what is still held of its memory and graphs is void."""
        if not self._open:
            return
        self.synchronize()
        for address in self._live:
            self._call("cuMemFree", address)
        for event in self._idle_events:
            self._call("cuEventDestroy", event)
        self._call("cuStreamDestroy", self._stream)
        self._call("cuMemFreeHost", self._pinned)
        self._call("cuDevicePrimaryCtxRelease", self._device)
        self._open = False

    def allocate(self, size: int) -> Allocation:
        """`size` zeroed bytes, aligned to 256, freed with the object.

        Raises:
            MemoryError: the GPU has not as much.
        """
        self._use()
        address = int(self._call("cuMemAlloc", max(1, size)))
        self._live.add(address)
        self._call("cuMemsetD8Async", address, 0, max(1, size), self._stream)
        return Allocation(self, address, size)

    def free(self, address: int) -> None:
        """Free once all that was queued is done; after `close` nothing is left to free."""
        if self._open:
            self.synchronize()
            self._live.remove(address)
            self._call("cuMemFree", address)

    def write(self, address: int, values: np.ndarray) -> None:
        """Queue a copy of the contiguous host array `values` to `address`; `values` may change at once."""
        self._use()
        data, start = values.reshape(-1).view(np.uint8), 0
        while start < len(data):
            staged = self._stage(len(data) - start)
            staged[:] = data[start : start + len(staged)]
            self._call("cuMemcpyHtoDAsync", address + start, staged.ctypes.data, len(staged), self._stream)
            start += len(staged)

    def read(self, address: int, size: int) -> np.ndarray:
        """Queue a copy of `size` bytes at `address`; the array (uint8) holds them after the next `synchronize`."""
        self._use()
        data, start = np.empty(size, dtype=np.uint8), 0
        while start < size:
            staged = self._stage(size - start)
            self._call("cuMemcpyDtoHAsync", staged.ctypes.data, address + start, len(staged), self._stream)
            self._arriving.append((data[start : start + len(staged)], staged))
            start += len(staged)
        return data

    def copy(self, plan: Copy) -> None:
        """Queue a strided copy within the device."""
        self._use()
        memory, kind = self._driver.CUDA_MEMCPY3D(), self._driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        memory.srcMemoryType = memory.dstMemoryType = kind
        memory.srcDevice, memory.srcPitch, memory.srcHeight = plan.source, plan.source_pitch, plan.source_rows
        memory.dstDevice, memory.dstPitch, memory.dstHeight = plan.target, plan.target_pitch, plan.target_rows
        memory.WidthInBytes, memory.Height, memory.Depth = plan.width, plan.height, plan.depth
        self._call("cuMemcpy3DAsync", memory, self._stream)

    def synchronize(self) -> None:
        """Wait for everything that was queued."""
        self._use()
        self._call("cuStreamSynchronize", self._stream)
        for data, staged in self._arriving:
            data[:] = staged
        self._arriving.clear()
        self._staged = 0

    def capture(self, enqueue: Callable[[], None]) -> Graph:
        """Record what `enqueue` queues, without running it.

        Raises:
            CudaError: something in it cannot be captured.
        """
        self._use()
        mode = self._driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._call("cuStreamBeginCapture", self._stream, mode)
        try:
            enqueue()
        except BaseException:
            self._driver.cuStreamEndCapture(self._stream)  # the stream must leave its capture; what it caught is void
            raise
        caught = self._call("cuStreamEndCapture", self._stream)
        try:
            return Graph(self, self._call("cuGraphInstantiate", caught, 0))
        finally:
            self._call("cuGraphDestroy", caught)

    def launch(self, graph: Any) -> None:
        self._use()
        self._call("cuGraphLaunch", graph, self._stream)

    def destroy(self, graph: Any) -> None:
        if self._open:
            self.synchronize()
            self._call("cuGraphExecDestroy", graph)

    def mark(self) -> Any:
        """Queue a note of the time."""
        self._use()
        event = self._idle_events.pop() if self._idle_events else self._call("cuEventCreate", 0)
        self._call("cuEventRecord", event, self._stream)
        return event

    def seconds_between(self, start: Any, end: Any) -> float:
        """From one mark to another, after a synchronize; both are used up."""
        milliseconds = self._call("cuEventElapsedTime", start, end)
        self._idle_events += [start, end]
        return float(milliseconds) / 1e3

    def _stage(self, size: int) -> np.ndarray:
        """The next free page-locked bytes, at most `size`; waits for the GPU when all are in use."""
        if self._staged >= STAGING:
            self.synchronize()
        start = self._staged
        end = min(STAGING, start + size)
        self._staged = -(-end // _GRAIN) * _GRAIN
        return self._staging[start:end]

    def _use(self) -> None:
        """Make the GPU current in this thread: a session may move between threads."""
        if self._thread != threading.get_ident():
            self._call("cuCtxSetCurrent", self._context)
            self._thread = threading.get_ident()

    def _call(self, function: str, *given: Any) -> Any:
        status, *results = getattr(self._driver, function)(*given)
        if status != self._driver.CUresult.CUDA_SUCCESS:
            if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise MemoryError(f"{function}{given} found no memory on the GPU")
            raise CudaError(f"{function} failed: {status!r}")
        return results[0] if results else None


class Allocation:
    """Device memory, freed with this object."""

    def __init__(self, device: CudaDevice, address: int, size: int):
        self._device, self.address, self.size = device, address, size

    def __del__(self) -> None:
        self._device.free(self.address)


class Graph:
    """Captured work, to be queued again and again: same addresses, same shapes. Freed with this object."""

    def __init__(self, device: CudaDevice, graph: Any):
        self._device, self._graph = device, graph

    def __call__(self) -> None:
        self._device.launch(self._graph)

    def __del__(self) -> None:
        self._device.destroy(self._graph)
