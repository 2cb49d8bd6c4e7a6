"""An array in device memory as far as the host may know it: address, shape, strides, dtype. Slices and reshapes like numpy.

`copies` turns an assignment between two of them into the strided copies a GPU offers. Touches no device.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lilicorr.runtime.dtypes import ITEMSIZE

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DeviceArray:
    address: int
    shape: Shape
    strides: Shape  # in bytes
    dtype: str
    owner: Any = field(default=None, repr=False, compare=False)  # keeps the memory allocated

    @property
    def itemsize(self) -> int:
        return ITEMSIZE[self.dtype]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize

    @property
    def is_contiguous(self) -> bool:
        dense = dense_strides(self.shape, self.itemsize)
        return all(
            size == 1 or stride == wanted for size, stride, wanted in zip(self.shape, self.strides, dense, strict=True)
        )

    def __getitem__(self, key: int | slice | tuple[int | slice, ...]) -> DeviceArray:
        """Integers and slices of step 1, as numpy reads them."""
        keys = key if isinstance(key, tuple) else (key,)
        address, shape, strides = self.address, list[int](), list[int]()
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            part = keys[axis] if axis < len(keys) else slice(None)
            if isinstance(part, slice):
                start, stop, step = part.indices(size)
                if step != 1:
                    raise IndexError(f"step {step} of axis {axis}, only 1 is supported")
                address += start * stride
                shape.append(max(0, stop - start))
                strides.append(stride)
            else:
                if not -size <= part < size:
                    raise IndexError(f"index {part} of axis {axis} with size {size}")
                address += part % size * stride
        return replace(self, address=address, shape=tuple(shape), strides=tuple(strides))

    def reshape(self, *shape: int) -> DeviceArray:
        """Split axes; a contiguous array takes any shape of as many elements."""
        if math.prod(shape) != math.prod(self.shape):
            raise ValueError(f"{self.shape} has other elements than {shape}")
        if self.is_contiguous:
            return replace(self, shape=shape, strides=dense_strides(shape, self.itemsize))
        strides: list[int] = []
        sizes = list(shape)
        for size, stride in zip(self.shape, self.strides, strict=True):
            parts: list[int] = []
            while sizes and math.prod(parts) < size:
                parts.append(sizes.pop(0))
            if math.prod(parts) != size:
                raise ValueError(f"{self.shape} with strides {self.strides} cannot be split into {shape}")
            strides += dense_strides(parts, stride)
        strides += [self.itemsize] * len(sizes)  # axes of size 1 at the end
        return replace(self, shape=shape, strides=tuple(strides))


@dataclass(frozen=True)
class Copy:
    """`depth` × `height` runs of `width` bytes; run (d, h) begins at address + pitch · (h + rows · d)."""

    target: int
    source: int
    width: int
    height: int
    depth: int
    target_pitch: int
    source_pitch: int
    target_rows: int  # pitches from one layer of runs to the next
    source_rows: int


def dense_strides(shape: Sequence[int], itemsize: int) -> Shape:
    """Byte strides of a contiguous array whose last axis has stride `itemsize`."""
    strides, step = list[int](), itemsize
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def copies(target: DeviceArray, source: DeviceArray) -> Iterator[Copy]:
    """The fewest strided copies that assign `source` to `target`: one, where the axes merge into three.

    Raises:
        ValueError: other shape or dtype.
    """
    if (target.shape, target.dtype) != (source.shape, source.dtype):
        raise ValueError(f"{source.dtype} {source.shape} copied to {target.dtype} {target.shape}")
    if math.prod(target.shape) == 0:
        return
    axes = _merged(target, source)
    width = target.itemsize
    if axes and axes[-1][1:] == (width, width):
        width *= axes.pop()[0]
    yield from _copies(target.address, source.address, axes, width)


def _merged(target: DeviceArray, source: DeviceArray) -> list[tuple[int, int, int]]:
    """(size, target stride, source stride) of the axes, neighbours joined where both arrays step through them evenly."""
    axes: list[tuple[int, int, int]] = []
    for size, to, of in zip(target.shape, target.strides, source.strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1:] == (size * to, size * of):
            axes[-1] = (axes[-1][0] * size, to, of)
        else:
            axes.append((size, to, of))
    return axes


def _copies(target: int, source: int, axes: list[tuple[int, int, int]], width: int) -> Iterator[Copy]:
    (height, to, of) = axes[-1] if axes else (1, width, width)
    if len(axes) < 2:
        yield Copy(target, source, width, height, 1, to, of, height, height)
        return
    (depth, over_to, over_of) = axes[-2]
    if len(axes) == 2 and over_to % to == 0 and over_of % of == 0:
        yield Copy(target, source, width, height, depth, to, of, over_to // to, over_of // of)
        return
    size, step_to, step_of = axes[0]
    for index in range(size):
        yield from _copies(target + index * step_to, source + index * step_of, axes[1:], width)
