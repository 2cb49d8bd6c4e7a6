"""What one call of an engine is: its profile, the shape of every input, the address of every tensor. Checked against the manifest.

Plain numbers: no TensorRT, no CUDA. A plan never changes, so a CUDA graph captured from it stays valid as long as its buffers live.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from lilicorr.runtime.device_array import DeviceArray
from lilicorr.runtime.dtypes import ITEMSIZE
from lilicorr.runtime.engine_set import Engine
from lilicorr.runtime.engine_shapes import profile_for
from lilicorr.runtime.manifest import Component, Tensor

PREFILL = "prefill"  # the profile of calls that hardly recur: their width is what is left of a prompt

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    profile: int  # index in the engine
    recurs: bool  # worth an execution context and a CUDA graph of its own
    shapes: dict[str, Shape]  # of the inputs
    addresses: dict[str, int]  # of inputs and outputs


def plan_call(
    name: str,
    component: Component,
    engine: Engine,
    inputs: Mapping[str, DeviceArray],
    outputs: Mapping[str, DeviceArray],
    *,
    unread: Callable[[Tensor, int], int],
    rebuild: str,
    alignment: int,
) -> Plan:
    """Plan a call of `component`.

    Args:
        outputs: Those that are read; an engine writes the others all the same.
        unread: Tensor, bytes -> address where an output that nobody reads goes. No two may share memory, for a later layer may
            read one.
        rebuild: The command that builds the engines again, for the hint.
        alignment: Of addresses, in bytes.

    Raises:
        UserError: exit code 4: no profile allows the shapes (see `engine_shapes`).
        ValueError: a tensor is missing, unknown, of another dtype or rank, not contiguous, not aligned, or its dimensions
            contradict the others: a defect of the caller.
    """
    known = {tensor.name: tensor for tensor in (*component.inputs, *component.outputs)}
    wrong = {tensor.name for tensor in component.inputs} ^ set(inputs) | outputs.keys() - known.keys()
    if wrong:
        raise ValueError(f"{name}: {sorted(wrong)} missing or unknown")
    symbols: dict[str, int] = {}
    for tensor_name, array in (*inputs.items(), *outputs.items()):
        problem = _problem(known[tensor_name], array, symbols, alignment)
        if problem:
            raise ValueError(f"{name}: `{tensor_name}` {problem}")
    shapes = {tensor.name: inputs[tensor.name].shape for tensor in component.inputs}
    dynamic = {key: shape for key, shape in shapes.items() if key in engine.profiles[0].shapes}
    profile = profile_for(name, engine, dynamic, rebuild)
    addresses = {tensor_name: array.address for tensor_name, array in (*inputs.items(), *outputs.items())}
    for tensor in component.outputs:
        if tensor.name not in outputs:
            sizes = (symbols[size] if isinstance(size, str) else size for size in tensor.shape)
            addresses[tensor.name] = unread(tensor, math.prod(sizes) * ITEMSIZE[tensor.dtype])
    return Plan(profile, engine.profiles[profile].name != PREFILL, shapes, addresses)


def _problem(tensor: Tensor, array: DeviceArray, symbols: dict[str, int], alignment: int) -> str | None:
    """What is wrong with `array` as `tensor`; `symbols` gathers the sizes of the dimensions seen so far."""
    if array.dtype != tensor.dtype or len(array.shape) != len(tensor.shape):
        return f"is {array.dtype} {array.shape}, expected {tensor.dtype} {tensor.shape}"
    for wanted, size in zip(tensor.shape, array.shape, strict=True):
        if size != (symbols.setdefault(wanted, size) if isinstance(wanted, str) else wanted):
            return f"is {array.shape}, expected {tensor.shape} with {symbols}"
    if not array.is_contiguous or array.address % alignment:
        return f"at {array.address:#x} with strides {array.strides} is not contiguous and aligned to {alignment} bytes"
    return None
