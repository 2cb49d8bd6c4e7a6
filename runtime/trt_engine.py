"""One TensorRT engine: read it, compare it with its manifest entry, make execution contexts, enqueue. Nothing else runs TensorRT.

`tensorrt` (10.3 to 11.x) and `tensorrt_rtx` share every name used here but one: TensorRT-RTX compiles kernels while it runs and
captures its CUDA graphs itself, which its context is told through a runtime config.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

from lilicorr.runtime.engine_set import Engine
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.manifest import Component
from lilicorr.runtime.trt_bindings import RTX, error_logger
from lilicorr.runtime.trt_plan import Plan

_DTYPES = {"FLOAT": "float32", "HALF": "float16", "BF16": "bfloat16", "INT32": "int32"}


class TrtRuntime:
    """TensorRT's runtime and what it last complained about; outlives its engines.

    Args:
        trt: The bindings.
        backend: "tensorrt" or "tensorrt-rtx".
        rebuild: The command that builds the engines again, for hints.
    """

    def __init__(self, trt: Any, backend: str, rebuild: str):
        self.trt, self.backend, self.rebuild = trt, backend, rebuild
        self.messages: list[str] = []
        self._logger = error_logger(trt, self.messages)
        self.runtime = trt.Runtime(self._logger)

    def complaint(self) -> str:
        """What TensorRT logged since the last complaint."""
        said = "\n  ".join(self.messages) or "it gave no reason"
        self.messages.clear()
        return said


class TrtEngine:
    """Args:
        runtime: Deserialises it.
        path: The engine file.
        name: Component.
        component: Its tensors by the bundle's manifest.
        described: The engine by `engine.json`.

    Attributes:
        scratch_bytes: Memory a context needs while it runs, whichever its profile.

    Raises:
        UserError: exit code 4: TensorRT does not read the file, or its tensors or profiles are others than described.
    """

    def __init__(self, runtime: TrtRuntime, path: Path, name: str, component: Component, described: Engine):
        self._runtime, self._name = runtime, name
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as plan:
            self._engine = runtime.runtime.deserialize_cuda_engine(plan)  # from the page cache: no second copy in RAM
        if self._engine is None:
            raise self._refused(f"TensorRT cannot read `{path}`:\n  {runtime.complaint()}")
        problems = _differences(runtime.trt, self._engine, component, described)
        if problems:
            raise self._refused(f"`{path}` is not the engine described:\n  " + "\n  ".join(problems))
        self.scratch_bytes = int(self._engine.device_memory_size_v2)

    def context(self, profile: int, scratch: int, stream: int, *, recurs: bool) -> TrtContext:
        """An execution context under `profile`, sharing the memory at `scratch` with all others on `stream`.

        Args:
            recurs: One shape, again and again: TensorRT-RTX may capture a CUDA graph.

        Raises:
            UserError: exit code 4: TensorRT has no room for it.
        """
        trt = self._runtime.trt
        user_managed = trt.ExecutionContextAllocationStrategy.USER_MANAGED
        if self._runtime.backend == RTX:
            settings = self._engine.create_runtime_config()
            settings.set_execution_context_allocation_strategy(user_managed)
            if recurs:
                settings.cuda_graph_strategy = trt.CudaGraphStrategy.WHOLE_GRAPH_CAPTURE
            context = self._engine.create_execution_context(settings)
        else:
            context = self._engine.create_execution_context(user_managed)
        if context is None or not context.set_optimization_profile_async(profile, stream):
            raise self._refused(f"TensorRT cannot run the {self._name} engine:\n  {self._runtime.complaint()}")
        context.set_device_memory(scratch, self.scratch_bytes)
        return TrtContext(self._runtime, self._name, context)

    def _refused(self, what: str) -> UserError:
        return UserError(what, hint=f"{self._runtime.rebuild} --force", exit_code=EXIT_ENGINE)


class TrtContext:
    """An execution context, told a plan and then enqueued."""

    def __init__(self, runtime: TrtRuntime, name: str, context: Any):
        self._runtime, self._name, self._context = runtime, name, context

    def set(self, plan: Plan) -> None:
        """Take over shapes and addresses of `plan`."""
        done = [self._context.set_input_shape(name, shape) for name, shape in plan.shapes.items()]
        done += [self._context.set_tensor_address(name, address) for name, address in plan.addresses.items()]
        if not all(done):
            raise RuntimeError(f"TensorRT refuses {plan} for {self._name}: {self._runtime.complaint()}")

    def enqueue(self, stream: int) -> None:
        """Queue one run."""
        if not self._context.execute_async_v3(stream):
            raise RuntimeError(f"TensorRT cannot enqueue {self._name}: {self._runtime.complaint()}")


def _differences(trt: Any, engine: Any, component: Component, described: Engine) -> list[str]:
    """Tensors (name, direction, dtype) and number of profiles of the engine against manifest and `engine.json`."""
    found = set()
    for index in range(engine.num_io_tensors):
        name = engine.get_tensor_name(index)
        direction = "input" if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT else "output"
        dtype = engine.get_tensor_dtype(name).name
        found.add((name, direction, _DTYPES.get(dtype, dtype)))
    wanted = {(tensor.name, "input", tensor.dtype) for tensor in component.inputs}
    wanted |= {(tensor.name, "output", tensor.dtype) for tensor in component.outputs}
    problems = [
        f"{direction} `{name}` {dtype}: not in the manifest" for name, direction, dtype in sorted(found - wanted)
    ]
    problems += [
        f"{direction} `{name}` {dtype}: not in the engine" for name, direction, dtype in sorted(wanted - found)
    ]
    if engine.num_optimization_profiles != len(described.profiles):
        problems.append(f"{engine.num_optimization_profiles} profiles, expected {len(described.profiles)}")
    return problems
