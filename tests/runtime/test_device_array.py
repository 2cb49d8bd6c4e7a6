"""Device arrays against numpy: slices, reshapes, and the strided copies an assignment becomes."""

from __future__ import annotations

import numpy as np
import pytest

from lilicorr.runtime.cuda_device import CudaDevice
from lilicorr.runtime.device_array import DeviceArray, copies, dense_strides
from lilicorr.runtime.device_memory import DeviceMemory
from tests.runtime.simulated_cuda import SimulatedDriver


def array(*shape: int, dtype: str = "float32", address: int = 0) -> DeviceArray:
    return DeviceArray(address, shape, dense_strides(shape, {"float32": 4, "float16": 2}[dtype]), dtype)


def twin(of: DeviceArray) -> np.ndarray:
    """A numpy array of the same geometry at "address" 0."""
    return np.lib.stride_tricks.as_strided(np.zeros(1 << 12, np.float32), of.shape, of.strides)


@pytest.mark.parametrize(
    "key",
    [
        0,
        -1,
        slice(1, 3),
        (slice(None), 2),
        (1, slice(0, 2), -1),
        (slice(2, 2),),
        (slice(-2, None), slice(None), slice(1, 9)),
    ],
)
def test_indexing_is_numpys(key) -> None:
    have = array(3, 4, 5)
    whole = twin(have)
    part = whole[key]
    found = have[key]
    assert (found.shape, found.strides) == (part.shape, part.strides)
    if part.size:
        assert found.address == part.ctypes.data - whole.ctypes.data


@pytest.mark.parametrize("key", [3, -4, (0, 4), slice(None, None, 2)])
def test_what_is_out_of_range_is_refused(key) -> None:
    with pytest.raises(IndexError):
        array(3, 4, 5)[key]


def test_axes_split_without_a_copy() -> None:
    have = array(6, 8, 5)[:, :6]
    split = have.reshape(2, 3, 3, 2, 5)
    assert split.strides == twin(have).reshape(2, 3, 3, 2, 5, copy=False).strides
    assert array(6, 8).reshape(3, 16).strides == (64, 4)
    assert array(4, 1, 3)[:2].reshape(2, 1, 1, 3, 1).shape == (2, 1, 1, 3, 1)
    with pytest.raises(ValueError, match="cannot be split"):
        have.reshape(36, 5)
    with pytest.raises(ValueError, match="other elements"):
        have.reshape(6, 6, 6)


@pytest.mark.parametrize(
    ("target", "source", "calls"),
    [
        (array(4, 6), array(4, 6), 1),  # contiguous: one run
        (array(3, 8)[:, 1:], array(3, 9)[:, :7], 1),  # rows of a column block
        (array(5, 4, 100, 8)[:, 1, 20:23], array(5, 4, 7, 8)[:, 1, :3], 1),  # a lane's rows of every plane
        (array(4, 8, 4), array(4, 8, 16)[:, :, :4], 1),
        (array(4, 8), array(4, 8, 16)[:, :, 0], 1),  # one element of each row
        (array(6, 4, 3, 50, 8)[:, 1, :, 10:14], array(6, 4, 3, 5, 8)[:, 1, :, :4], 1),  # commit of one lane
        (array(6, 4, 3, 50, 8)[:, :2, :2, 10:14], array(6, 4, 3, 5, 8)[:, :2, :2, :4], 6),  # more axes than a copy has
        (array(3, 2, 9)[:, :, :4], array(6, 5)[:, :4].reshape(3, 2, 4), 1),
        (array(4, 0), array(4, 0), 0),
    ],
)
def test_an_assignment_is_few_strided_copies(target: DeviceArray, source: DeviceArray, calls: int) -> None:
    assert len(list(copies(target, source))) == calls
    driver = SimulatedDriver()
    memory = DeviceMemory(CudaDevice(driver))
    buffers = [memory.buffer((1 << 15,), "float32") for _ in range(2)]
    values = [np.random.default_rng(i).normal(size=1 << 15).astype(np.float32) for i in range(2)]
    for buffer, value in zip(buffers, values, strict=True):
        memory.upload(buffer, value)
    placed = [
        DeviceArray(buffer.address + array.address, array.shape, array.strides, "float32")
        for buffer, array in zip(buffers, (target, source), strict=True)
    ]
    memory.copy(*placed)
    views = [
        np.lib.stride_tricks.as_strided(value[array.address // 4 :], array.shape, array.strides)
        for value, array in zip(values, (target, source), strict=True)
    ]
    views[0][...] = views[1]
    np.testing.assert_array_equal(memory.download(buffers[0])[0], values[0])


def test_a_copy_between_other_shapes_or_dtypes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"float32 \(3, 2\) copied to float32 \(2, 3\)"):
        list(copies(array(2, 3), array(3, 2)))
    with pytest.raises(ValueError, match="float16"):
        list(copies(array(2, 3), array(2, 3, dtype="float16")))
