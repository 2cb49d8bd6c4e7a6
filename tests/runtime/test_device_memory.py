"""Buffers on a simulated GPU: queued, staged, cast; the arena on them is tested where it is tested on the host."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from lilicorr.runtime.cuda_device import STAGING, CudaDevice, CudaError
from lilicorr.runtime.device_memory import DeviceMemory
from tests.runtime.simulated_cuda import SimulatedDriver


@pytest.fixture
def driver() -> SimulatedDriver:
    return SimulatedDriver()


@pytest.fixture
def memory(driver: SimulatedDriver) -> DeviceMemory:
    return DeviceMemory(CudaDevice(driver))


def test_a_new_buffer_is_zeroed_aligned_and_freed(driver: SimulatedDriver, memory: DeviceMemory) -> None:
    buffer = memory.buffer((3, 5), "float16")
    assert buffer.address % 256 == 0
    assert not memory.download(buffer)[0].any()
    part = buffer[1]
    del buffer
    assert driver.live  # the slice still needs it
    del part
    assert not driver.live


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_what_goes_up_comes_down(memory: DeviceMemory, dtype: str) -> None:
    buffer, values = memory.buffer((4, 6), dtype), np.arange(24).reshape(4, 6)
    memory.upload(buffer[1:3], values[1:3])
    (found,) = memory.download(buffer)
    assert found.dtype == ("float32" if dtype == "bfloat16" else dtype)
    np.testing.assert_array_equal(found[1:3], values[1:3])
    assert not found[0].any()


def test_uploaded_values_may_change_at_once(memory: DeviceMemory) -> None:
    buffer, values = memory.buffer((8,), "int32"), np.arange(8, dtype=np.int32)
    memory.upload(buffer, values)
    values[:] = -1
    np.testing.assert_array_equal(memory.download(buffer)[0], np.arange(8))


def test_more_than_fits_the_staging_memory(driver: SimulatedDriver, memory: DeviceMemory) -> None:
    values = np.random.default_rng(0).integers(0, 1 << 30, STAGING * 5 // 8, dtype=np.int32)  # 2.5 times
    buffer, small = memory.buffer(values.shape, "int32"), memory.buffer((3,), "int32")
    memory.upload(small, np.array([1, 2, 3], np.int32))
    memory.upload(buffer, values)
    found = memory.download(small, buffer)
    np.testing.assert_array_equal(found[0], [1, 2, 3])
    np.testing.assert_array_equal(found[1], values)


def test_many_small_uploads_do_not_overtake_each_other(memory: DeviceMemory) -> None:
    buffers = [memory.buffer((STAGING // 64,), "int32") for _ in range(40)]
    for number, buffer in enumerate(buffers):
        memory.upload(buffer, np.full(buffer.shape, number, np.int32))
    for number, values in enumerate(memory.download(*buffers)):
        assert (values == number).all()


def test_downloads_wait_once(driver: SimulatedDriver, memory: DeviceMemory) -> None:
    buffers = [memory.buffer((4,), "int32") for _ in range(3)]
    before = driver.synchronizations
    memory.download(*buffers)
    assert driver.synchronizations == before + 1


def test_a_strided_buffer_goes_neither_up_nor_down(memory: DeviceMemory) -> None:
    columns = memory.buffer((4, 6), "int32")[:, :2]
    with pytest.raises(ValueError, match="contiguous"):
        memory.download(columns)
    with pytest.raises(ValueError, match="contiguous"):
        memory.upload(columns, np.zeros((4, 2), np.int32))
    with pytest.raises(ValueError, match="of that shape"):
        memory.upload(memory.buffer((4,), "int32"), np.zeros((5,), np.int32))


def test_a_full_gpu_is_a_memory_error(memory: DeviceMemory) -> None:
    with pytest.raises(MemoryError, match="cuMemAlloc"):
        memory.buffer((1 << 30,), "int32")


def test_a_graph_runs_what_was_captured(driver: SimulatedDriver, memory: DeviceMemory) -> None:
    one, two = memory.buffer((4,), "int32"), memory.buffer((4,), "int32")
    memory.upload(one, np.arange(4))
    graph = memory.device.capture(lambda: memory.copy(two, one))
    assert not memory.download(two)[0].any()
    graph()
    np.testing.assert_array_equal(memory.download(two)[0], np.arange(4))
    del graph
    assert not driver.graphs


def test_a_failed_capture_leaves_the_stream_usable(driver: SimulatedDriver, memory: DeviceMemory) -> None:
    with pytest.raises(CudaError, match="cuStreamEndCapture failed"):
        memory.device.capture(driver.invalidate_capture)
    with pytest.raises(RuntimeError, match="not this"):
        memory.device.capture(refuse)
    assert not memory.download(memory.buffer((4,), "int32"))[0].any()


def refuse() -> None:
    raise RuntimeError("not this")


def test_another_thread_makes_the_gpu_current(driver: SimulatedDriver, memory: DeviceMemory) -> None:
    current: list[int] = []
    driver.cuCtxSetCurrent = lambda context: current.append(threading.get_ident()) or (driver.CUresult.CUDA_SUCCESS,)
    thread = threading.Thread(target=lambda: memory.buffer((4,), "int32"))
    thread.start()
    thread.join()
    memory.buffer((4,), "int32")
    assert len(set(current)) == len(current) == 2


def test_closing_frees_what_is_still_held(driver: SimulatedDriver, memory: DeviceMemory) -> None:
    held = memory.buffer((4,), "int32")
    memory.device.close()
    memory.device.close()
    assert driver.released
    assert not driver.live
    del held
