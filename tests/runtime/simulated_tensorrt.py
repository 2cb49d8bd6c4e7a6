"""A `tensorrt` module whose engines run the ONNX files in onnxruntime, on the memory of a `SimulatedDriver`.

It checks what TensorRT asks of its caller: every tensor has an address, aligned and large enough for the shapes; shapes lie in the
profile; the scratch memory is there. An engine "file" is the path of its graph.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
import onnxruntime as ort

from lilicorr.runtime.engine_set import EngineSet
from tests.runtime.simulated_cuda import ALIGNMENT, SimulatedDriver

SCRATCH = 4096
TensorIOMode = Enum("TensorIOMode", "INPUT OUTPUT")
DataType = Enum("DataType", "FLOAT HALF BF16 INT32")
ExecutionContextAllocationStrategy = Enum("ExecutionContextAllocationStrategy", "STATIC USER_MANAGED")
CudaGraphStrategy = Enum("CudaGraphStrategy", "DISABLED WHOLE_GRAPH_CAPTURE")
DTYPES = {
    "tensor(float)": ("FLOAT", "float32"),
    "tensor(float16)": ("HALF", "float16"),
    "tensor(int32)": ("INT32", "int32"),
}


class ILogger:
    ERROR, INTERNAL_ERROR, WARNING = range(3)


class Registry:
    def __init__(self, loads: bool):
        self.loads, self.libraries = loads, list[str]()

    def load_library(self, path: str) -> None:
        self.libraries.append(path)

    def get_creator(self, name: str, version: str, namespace: str) -> Any:
        return object() if self.libraries and self.loads else None


class SimulatedTensorRT:
    """Args:
        driver: Its memory and queue.
        described: Whose profiles the engines have.
        capturable: False: an engine cannot be captured in a CUDA graph.

    Attributes:
        contexts: Every context made.
        runs: (graph, shapes of its inputs) of every run that was done.
    """

    __version__ = "10.3.0"
    ILogger = ILogger
    TensorIOMode, DataType = TensorIOMode, DataType
    ExecutionContextAllocationStrategy, CudaGraphStrategy = ExecutionContextAllocationStrategy, CudaGraphStrategy

    def __init__(self, driver: SimulatedDriver, described: EngineSet, *, capturable: bool = True):
        self.driver, self.described, self.capturable = driver, described, capturable
        self.contexts: list[Context] = []
        self.runs: list[tuple[str, dict[str, tuple[int, ...]]]] = []
        self.registry = Registry(loads=True)

    def get_plugin_registry(self) -> Registry:
        return self.registry

    def Runtime(self, logger: ILogger) -> Runtime:
        return Runtime(self, logger)


class Runtime:
    def __init__(self, module: SimulatedTensorRT, logger: Any):
        self._module, self._logger = module, logger

    def deserialize_cuda_engine(self, plan: Any) -> Engine | None:
        text = bytes(plan)
        if not text.startswith(b"graph "):
            self._logger.log(ILogger.WARNING, "not this")
            self._logger.log(ILogger.ERROR, "magic tag does not match")
            return None
        return Engine(self._module, text.removeprefix(b"graph ").decode())


class Engine:
    device_memory_size_v2 = SCRATCH

    def __init__(self, module: SimulatedTensorRT, path: str):
        self.module, self.name = module, path.rsplit("/", 1)[-1].removesuffix(".onnx")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self.session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = {value.name: value for value in self.session.get_outputs()}
        self.profiles = module.described.engines[self.name].profiles

    @property
    def num_io_tensors(self) -> int:
        return len(self.inputs) + len(self.outputs)

    @property
    def num_optimization_profiles(self) -> int:
        return len(self.profiles)

    def get_tensor_name(self, index: int) -> str:
        return [*self.inputs, *self.outputs][index]

    def get_tensor_mode(self, name: str) -> TensorIOMode:
        return TensorIOMode.INPUT if name in self.inputs else TensorIOMode.OUTPUT

    def get_tensor_dtype(self, name: str) -> DataType:
        return DataType[DTYPES[{**self.inputs, **self.outputs}[name].type][0]]

    def create_runtime_config(self) -> RuntimeConfig:
        return RuntimeConfig()

    def create_execution_context(self, settings: Any) -> Context:
        config = settings if isinstance(settings, RuntimeConfig) else RuntimeConfig(settings)
        assert config.strategy == ExecutionContextAllocationStrategy.USER_MANAGED
        self.module.contexts.append(Context(self, config))
        return self.module.contexts[-1]


class RuntimeConfig:
    cuda_graph_strategy = CudaGraphStrategy.DISABLED

    def __init__(self, strategy: Any = None):
        self.strategy = strategy

    def set_execution_context_allocation_strategy(self, strategy: Any) -> None:
        self.strategy = strategy


class Context:
    def __init__(self, engine: Engine, config: RuntimeConfig):
        self.engine, self.config, self.settled = engine, config, False
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.addresses: dict[str, int] = {}
        self.profile: int | None = None
        self.scratch: tuple[int, int] | None = None

    def set_optimization_profile_async(self, index: int, stream: int) -> bool:
        self.profile = index
        return 0 <= index < len(self.engine.profiles)

    def set_device_memory(self, address: int, size: int) -> None:
        self.engine.module.driver.array(address, (size,), "uint8")
        self.scratch = (address, size)

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        if self.shapes.get(name) != shape:
            self.settled = False
        self.shapes[name] = shape
        allowed = self.engine.profiles[self.profile].shapes[name]
        return all(low <= size <= high for low, size, high in zip(allowed.min, shape, allowed.max, strict=True))

    def set_tensor_address(self, name: str, address: int) -> bool:
        self.addresses[name] = address
        return address % ALIGNMENT == 0

    def execute_async_v3(self, stream: int) -> bool:
        engine, module = self.engine, self.engine.module
        assert set(self.addresses) == {*engine.inputs, *engine.outputs}, "a tensor has no address"
        assert self.scratch is not None
        assert self.scratch[1] >= SCRATCH
        capturing = module.driver._captured is not None
        if capturing and not module.capturable:
            module.driver.invalidate_capture()
            return False
        assert self.settled or not capturing, "captured before the shapes have settled"
        self.settled = True
        shapes, addresses = dict(self.shapes), dict(self.addresses)  # a graph keeps what it was captured with
        module.driver.enqueue(lambda: engine_run(engine, shapes, addresses))
        return True


def engine_run(engine: Engine, shapes: dict[str, tuple[int, ...]], addresses: dict[str, int]) -> None:
    driver = engine.module.driver
    feeds = {
        name: driver.array(addresses[name], shapes[name], DTYPES[value.type][1])
        for name, value in engine.inputs.items()
    }
    engine.module.runs.append((engine.name, shapes))
    spans = []
    results = engine.session.run(list(engine.outputs), {name: array.copy() for name, array in feeds.items()})
    for name, result in zip(engine.outputs, results, strict=True):
        driver.array(addresses[name], result.shape, str(result.dtype))[...] = result
        spans.append((addresses[name], addresses[name] + result.nbytes))
    for (_, end), (begin, _) in zip(sorted(spans), sorted(spans)[1:], strict=False):
        assert end <= begin, "two outputs share memory"
    assert all(np.isfinite(array).all() for name, array in feeds.items() if array.dtype.kind == "f"), "garbage was read"
