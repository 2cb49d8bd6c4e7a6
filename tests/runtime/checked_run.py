"""One engine read, bound and run over a TensorRT module that allows exactly what the real bindings declare (`checked_bindings`).

    python -m tests.runtime.checked_run MODULE BACKEND ENGINE SCENARIO      (MODULE importable, with stub libraries)

prints what came of it and the calls that were made as JSON. The GPU is simulated; no TensorRT runs.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from lilicorr.runtime.cuda_device import CudaDevice
from lilicorr.runtime.engine_set import Engine, Profile, Range
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Component, Tensor
from lilicorr.runtime.trt_call import PassingCall, RecurringCall
from lilicorr.runtime.trt_engine import TrtEngine, TrtRuntime
from lilicorr.runtime.trt_plan import Plan
from tests.export.checked_bindings import Module, calls
from tests.runtime.simulated_cuda import SimulatedDriver

REFUSALS = {
    "runs": {},
    "unread": {("Runtime", "deserialize_cuda_engine"): None},
    "no context": {("ICudaEngine", "create_execution_context"): None},
    "bad shape": {("IExecutionContext", "set_input_shape"): False},
    "not enqueued": {("IExecutionContext", "execute_async_v3"): False},
}


def main(module: str, backend: str, path: str, scenario: str) -> None:
    real = importlib.import_module(module)
    answers = {
        ("ICudaEngine", "num_io_tensors"): 1,
        ("ICudaEngine", "num_optimization_profiles"): 1,
        ("ICudaEngine", "device_memory_size_v2"): 4096,
        ("ICudaEngine", "get_tensor_name"): "x",
        ("ICudaEngine", "get_tensor_mode"): real.TensorIOMode.INPUT,
        ("ICudaEngine", "get_tensor_dtype"): real.DataType.HALF if scenario == "other dtype" else real.DataType.FLOAT,
    }
    trt = Module(real, answers | REFUSALS.get(scenario, {}))
    device = CudaDevice(SimulatedDriver())
    memory = device.allocate(4096)
    component = Component("g.onnx", (), (Tensor("x", "float32", ("N", 4)),), (), 20, 10)
    described = Engine(Path(path).name, "", 0, (Profile("verify", {"x": Range((1, 4), (1, 4), (4, 4))}),), {})
    plan = Plan(0, True, {"x": (1, 4)}, {"x": memory.address})
    try:
        engine = TrtEngine(TrtRuntime(trt, backend, "rebuild"), Path(path), "target", component, described)
        for recurs in (False, True):
            context = engine.context(0, memory.address, device.stream, recurs=recurs)
            recurring = RecurringCall(device, context, plan, capture=True, refused=print)
            call = recurring if recurs else PassingCall(device, context, plan)
            for _ in range(3):
                call()
        result = "ran"
    except (UserError, RuntimeError) as error:
        result = str(error)
    print(json.dumps([result, sorted(set(calls))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
