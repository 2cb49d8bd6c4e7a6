"""Bound calls of an engine: one that recurs owns its context and is captured in a CUDA graph, one that does not borrows a context.

A CUDA graph holds the shapes and addresses it was captured with, and the state of its execution context. So it lives and dies with
one bound call, whose plan never changes, and that call's context runs nothing else.
"""

from __future__ import annotations

from collections.abc import Callable

from lilicorr.runtime.cuda_device import CudaDevice, Graph
from lilicorr.runtime.trt_engine import TrtContext
from lilicorr.runtime.trt_plan import Plan


class PassingCall:
    """Args:
    context: Shared by the calls of one profile.
    """

    def __init__(self, device: CudaDevice, context: TrtContext, plan: Plan):
        self._device, self._context, self._plan = device, context, plan

    def __call__(self) -> None:
        self._context.set(self._plan)
        self._context.enqueue(self._device.stream)


class RecurringCall:
    """The first run is an ordinary one, for TensorRT settles into new shapes in it; the second is captured, and from then on the
    graph runs.

    Args:
        context: This call's alone.
        capture: False where the backend captures by itself.
        refused: Told why CUDA or TensorRT would not capture; the call then stays ordinary.
    """

    def __init__(
        self, device: CudaDevice, context: TrtContext, plan: Plan, *, capture: bool, refused: Callable[[str], None]
    ):
        self._device, self._context, self._capture, self._refused = device, context, capture, refused
        self._settled = False
        self._graph: Graph | None = None
        context.set(plan)

    def __call__(self) -> None:
        if self._settled and self._capture:
            self._capture = False
            try:
                self._graph = self._device.capture(self._enqueue)
            except RuntimeError as error:  # CudaError, or TensorRT's refusal to enqueue
                self._refused(str(error))
        (self._graph or self._enqueue)()
        self._settled = True

    def _enqueue(self) -> None:
        self._context.enqueue(self._device.stream)
