"""Run one graph of a bundle once, arrays in and arrays out, on any backend of the runtime. For comparing, not for speed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lilicorr.runtime.contract import UPDATED, expected_interfaces
from lilicorr.runtime.engine import Backend
from lilicorr.runtime.manifest import Manifest, Tensor


class GraphRunner:
    """Binds fresh buffers for every call; inputs are cast to the graph's dtypes."""

    def __init__(self, backend: Backend, manifest: Manifest):
        self._backend = backend
        self._interfaces = expected_interfaces(manifest)

    def __call__(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run `graph` ("target", "drafter" or "scorer") and return copies of all its outputs."""
        wanted, produced = self._interfaces[graph]
        symbols: dict[str, int] = {}
        for tensor in wanted:
            for name, size in zip(tensor.shape, inputs[tensor.name].shape, strict=True):
                if isinstance(name, str) and symbols.setdefault(name, size) != size:
                    raise ValueError(f"{graph}: `{tensor.name}` has {name} = {size}, other inputs {symbols[name]}")
        feeds = {tensor.name: self._buffer(tensor, symbols) for tensor in wanted}
        for name, buffer in feeds.items():
            self._backend.upload(buffer, inputs[name])
        outputs = {
            tensor.name: feeds[tensor.name.removeprefix(UPDATED)]
            if tensor.name.startswith(UPDATED)
            else self._buffer(tensor, symbols)
            for tensor in produced
        }
        self._backend.bind(graph, feeds, outputs)()
        arrays = self._backend.download(*outputs.values())
        return {name: np.array(array) for name, array in zip(outputs, arrays, strict=True)}

    def _buffer(self, tensor: Tensor, symbols: Mapping[str, int]) -> object:
        shape = [symbols[size] if isinstance(size, str) else size for size in tensor.shape]
        return self._backend.buffer(shape, tensor.dtype)
