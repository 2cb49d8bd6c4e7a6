"""The memory half of a backend whose graphs compute on a GPU: buffers are `DeviceArray`s, and work is queued on its stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lilicorr.runtime.cuda_device import CudaDevice
from lilicorr.runtime.device_array import DeviceArray, copies, dense_strides
from lilicorr.runtime.dtypes import ITEMSIZE, from_bits, to_bits


class DeviceMemory:
    """Implements `engine.Memory`; a backend adds `bind`."""

    alignment = 256  # bytes; NvInferRuntime.h asks it of every tensor address

    def __init__(self, device: CudaDevice):
        self.device = device

    def buffer(self, shape: Sequence[int], dtype: str) -> DeviceArray:
        owner = self.device.allocate(math.prod(shape) * ITEMSIZE[dtype])
        return DeviceArray(owner.address, tuple(shape), dense_strides(shape, ITEMSIZE[dtype]), dtype, owner)

    def view(self, buffer: DeviceArray, shape: Sequence[int]) -> DeviceArray:
        flat = buffer.reshape(math.prod(buffer.shape))
        return flat[: math.prod(shape)].reshape(*shape)

    def copy(self, target: DeviceArray, source: DeviceArray) -> None:
        for plan in copies(target, source):
            self.device.copy(plan)

    def upload(self, buffer: DeviceArray, values: np.ndarray) -> None:
        if not buffer.is_contiguous or buffer.shape != values.shape:
            raise ValueError(f"{values.shape} uploaded to {buffer}, expected a contiguous buffer of that shape")
        self.device.write(buffer.address, to_bits(values, buffer.dtype))

    def download(self, *buffers: DeviceArray) -> list[np.ndarray]:
        arriving = []
        for buffer in buffers:
            if not buffer.is_contiguous:
                raise ValueError(f"{buffer} downloaded, expected a contiguous buffer")
            arriving.append(self.device.read(buffer.address, buffer.nbytes))
        self.device.synchronize()
        return [
            from_bits(raw, buffer.dtype).reshape(buffer.shape) for raw, buffer in zip(arriving, buffers, strict=True)
        ]
