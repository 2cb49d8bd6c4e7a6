"""TensorRT and TensorRT-RTX backend: engines of one bundle on GPU 0, calls planned, captured and timed. Opens nothing by itself
(`backends` does); everything about a call that is not TensorRT or CUDA is in `trt_plan`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from lilicorr.runtime.bundle import Bundle
from lilicorr.runtime.call_times import CallTimes
from lilicorr.runtime.cuda_device import Allocation, CudaDevice
from lilicorr.runtime.device_array import DeviceArray
from lilicorr.runtime.device_memory import DeviceMemory
from lilicorr.runtime.engine import Call
from lilicorr.runtime.engine_set import EngineSet, rebuild_command
from lilicorr.runtime.manifest import Tensor
from lilicorr.runtime.trt_bindings import RTX
from lilicorr.runtime.trt_call import PassingCall, RecurringCall
from lilicorr.runtime.trt_engine import TrtContext, TrtEngine, TrtRuntime
from lilicorr.runtime.trt_plan import plan_call

SMALLEST_BUCKET = 256


class TrtBackend(DeviceMemory, CallTimes):
    """Implements `engine.Backend` on a GPU.

    Args:
        trt: The bindings of `engines.backend`.
        device: The GPU; closed with the backend.
        bundle: A verified bundle.
        folder: Engine folder, checked against bundle and machine.
        engines: Its description.

    Raises:
        UserError: exit code 4: an engine cannot be read or is not the one described.
        MemoryError: the GPU has no room.
    """

    def __init__(self, trt: Any, device: CudaDevice, bundle: Bundle, folder: Path, engines: EngineSet):
        DeviceMemory.__init__(self, device)
        CallTimes.__init__(self)
        self.name, self._manifest, self._described = engines.backend, bundle.manifest, engines.engines
        self._rebuild = rebuild_command(engines.backend, bundle.folder, engines.compute_capabilities)
        runtime = TrtRuntime(trt, engines.backend, self._rebuild)
        self._engines = {
            name: TrtEngine(runtime, folder / self._described[name].file, name, component, self._described[name])
            for name, component in bundle.manifest.components.items()
        }
        # Calls follow one another on one stream, so one scratch area serves all contexts of all engines.
        self._scratch: Allocation | None = device.allocate(max(e.scratch_bytes for e in self._engines.values()))
        self.notes: list[str] = []
        self._unread: dict[tuple[str, str], Allocation] = {}
        self._passing: dict[tuple[str, int], TrtContext] = {}
        self._marks: list[tuple[str, Any, Any]] = []  # graph, before, after; of calls that nobody has waited for yet

    def __enter__(self) -> TrtBackend:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._passing.clear()
        self._engines.clear()
        self._unread.clear()
        self._scratch = None
        self.device.close()

    def capacity_for(self, rows: int, limit: int) -> int:
        """Powers of two from 256: each bucket costs an execution context and a captured graph per engine, so there are few."""
        return min(limit, max(SMALLEST_BUCKET, 1 << max(0, rows - 1).bit_length()))

    def bind(self, graph: str, inputs: Mapping[str, DeviceArray], outputs: Mapping[str, DeviceArray]) -> Call:
        unread: list[Allocation] = []

        def discard(tensor: Tensor, size: int) -> int:
            unread.append(self._discard(graph, tensor, size))
            return unread[-1].address

        plan = plan_call(
            graph,
            self._manifest.components[graph],
            self._described[graph],
            inputs,
            outputs,
            unread=discard,
            rebuild=self._rebuild,
            alignment=self.alignment,
        )
        call: Call
        if plan.recurs:
            context = self._context(graph, plan.profile, True)
            call = RecurringCall(self.device, context, plan, capture=self.name != RTX, refused=self._note(graph))
        else:
            key = (graph, plan.profile)
            if key not in self._passing:
                self._passing[key] = self._context(*key, False)
            call = PassingCall(self.device, self._passing[key], plan)
        return _TimedCall(self, graph, call, (dict(inputs), dict(outputs), unread))

    def download(self, *buffers: DeviceArray) -> list[np.ndarray]:
        arrays = super().download(*buffers)
        for graph, before, after in self._marks:
            self.add(graph, self.device.seconds_between(before, after))
        self._marks.clear()
        return arrays

    def run(self, graph: str, call: Call) -> None:
        """Queue `call` between two marks of the time."""
        before = self.device.mark()
        call()
        self._marks.append((graph, before, self.device.mark()))

    def _context(self, graph: str, profile: int, recurs: bool) -> TrtContext:
        assert self._scratch is not None
        return self._engines[graph].context(profile, self._scratch.address, self.device.stream, recurs=recurs)

    def _note(self, graph: str) -> Callable[[str], None]:
        def note(why: str) -> None:
            line = f"no CUDA graph of {graph}: {why}"
            if line not in self.notes:  # every shape of the graph is refused alike
                self.notes.append(line)

        return note

    def _discard(self, graph: str, tensor: Tensor, size: int) -> Allocation:
        """Memory for an output nobody reads, shared by the calls of its graph; one call that needs more gets more."""
        have = self._unread.get((graph, tensor.name))
        if have is None or have.size < size:
            have = self._unread[graph, tensor.name] = self.device.allocate(size)
        return have


class _TimedCall:
    """A call that keeps its buffers alive and is timed on the GPU."""

    def __init__(self, backend: TrtBackend, graph: str, call: Call, alive: object):
        self._backend, self._graph, self._call, self._alive = backend, graph, call, alive

    def __call__(self) -> None:
        self._backend.run(self._graph, self._call)
