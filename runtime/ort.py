"""ONNX Runtime backend, CPU provider: host buffers, three sessions over shared weight files, calls bound by pointer.

onnxruntime is imported when a backend is opened, not before.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import numpy as np

from lilicorr.runtime.arena import capacity_for
from lilicorr.runtime.bundle import REBUILD, Bundle
from lilicorr.runtime.call_times import CallTimes
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.host import HostMemory
from lilicorr.runtime.manifest import Component
from lilicorr.runtime.pages import page_out

_NUMPY_NAMES = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(int32)": "int32"}


def default_threads() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OrtBackend(HostMemory, CallTimes):
    """Implements `engine.Backend` on the host.

    Args:
        bundle: A verified bundle.
        threads: Threads per graph call; None takes every core this process may use.

    Raises:
        UserError: onnxruntime is missing, the precision has no CPU kernels, a graph differs from its manifest entry, or there
            are more threads than cores.
    """

    name = "ort"
    notes = ()

    def __init__(self, bundle: Bundle, threads: int | None = None):
        super().__init__()
        if bundle.manifest.precision == "bf16":
            raise UserError(
                "the bundle is bf16, which ONNX Runtime cannot run on a CPU; expected fp32 or fp16",
                hint="lilicorr-export build … --precision fp32",
                exit_code=EXIT_ENGINE,
            )
        cores = default_threads()
        # More threads than cores spin against each other: 64 on 2 cores ran 100 times slower.
        if threads is not None and not 1 <= threads <= cores:
            raise UserError(f"{threads} threads, this process may use 1 to {cores}", hint=f"--threads {cores}")
        self.threads = threads or cores
        self._sessions = {
            name: _open_session(bundle, name, component, self.threads)
            for name, component in bundle.manifest.components.items()
        }
        page_out(bundle.folder)

    def __enter__(self) -> OrtBackend:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._sessions.clear()

    def bind(self, graph: str, inputs: Mapping[str, np.ndarray], outputs: Mapping[str, np.ndarray]) -> _BoundCall:
        return _BoundCall(self._sessions[graph], inputs, outputs, lambda seconds: self.add(graph, seconds))

    def capacity_for(self, rows: int, limit: int) -> int:
        return capacity_for(rows, limit)


class _BoundCall:
    """A session with an IO binding that points at numpy memory; keeps the arrays alive."""

    def __init__(
        self,
        session: Any,
        inputs: Mapping[str, np.ndarray],
        outputs: Mapping[str, np.ndarray],
        took: Callable[[float], None],
    ):
        self._session, self._binding, self._alive = session, session.io_binding(), (dict(inputs), dict(outputs))
        self._took = took
        for arrays, bind in ((inputs, self._binding.bind_input), (outputs, self._binding.bind_output)):
            for name, array in arrays.items():
                assert array.flags.c_contiguous, name
                bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)

    def __call__(self) -> None:
        start = time.perf_counter()
        self._session.run_with_iobinding(self._binding)
        self._took(time.perf_counter() - start)


def _open_session(bundle: Bundle, name: str, component: Component, threads: int) -> Any:
    try:
        import onnxruntime as ort
    except ImportError as error:
        raise UserError(f"onnxruntime cannot be imported: {error}", hint="pip install 'lilicorr[cpu]'") from None
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.log_severity_level = 3
    # The three sessions take turns: threads of one that spin after its run would steal the cores of the next.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    # Integer weights become the floats they stand for, once. Left to itself ONNX Runtime fuses them to MatMulNBits, which is faster
    # but rounds activations to 8 bits: that turns the last bit, in which a block and a single step differ, into other tokens (one
    # answer in three of SmolLM2-135M, int4). With float activations the same operator is slower than floats.
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    try:
        session = ort.InferenceSession(bundle.path(component.file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a dozen unrelated classes for a graph that it cannot load
        raise UserError(
            f"onnxruntime {ort.__version__} cannot load `{component.file}`: {error}", hint=REBUILD
        ) from error
    for kind, found, recorded in (
        ("inputs", session.get_inputs(), component.inputs),
        ("outputs", session.get_outputs(), component.outputs),
    ):
        have = {(value.name, _NUMPY_NAMES.get(value.type, value.type)) for value in found}
        want = {(tensor.name, tensor.dtype) for tensor in recorded}
        if have != want:
            raise UserError(
                f"`{component.file}` and the manifest disagree on the {kind} of `{name}`: {sorted(have ^ want)}",
                hint=REBUILD,
            )
    return session
