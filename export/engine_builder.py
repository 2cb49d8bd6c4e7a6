"""One engine from one graph, in this process: parse, read back dtypes, profiles, build. The only module that calls TensorRT.

Runs in a worker process of its own (`engine_worker`), because a builder takes several times the weights in memory and a
failing one may take its process with it. Decides nothing: everything is in `Job`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from lilicorr.export import timing_cache
from lilicorr.export.engine_scan import require_supported
from lilicorr.export.native_check import network_problems
from lilicorr.export.precision import float_tensors, require_precision_of
from lilicorr.export.trt_api import compute_capability_member
from lilicorr.runtime.contract import TENSORRT_DOMAIN
from lilicorr.runtime.engine_set import Profile
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.trt_bindings import error_logger, import_tensorrt

Say = Callable[[str], None]
PROGRESS_S = 5.0  # between two lines: a large build has tens of thousands of steps


@dataclass(frozen=True)
class Job:
    """One engine to build. Paths are absolute."""

    component: str
    graph: str
    engine: str  # where to write
    layers: str  # where to write the dtype of every float tensor, one line each
    precision: str
    profiles: tuple[Profile, ...]
    backend: str
    compute_capabilities: tuple[str, ...]  # ahead of time (TensorRT-RTX); TensorRT builds for the device it is on
    workspace_mib: int | None
    optimization_level: int
    plugin_library: str | None  # the registered plugin takes its nodes; None: the graph's functions do
    plugin_name: str | None
    plugin_namespace: str | None
    timing_cache: str | None


class Cancelled(Exception):
    """The user interrupted the build."""


def build_engine(job: Job, say: Say, cancelled: Callable[[], bool]) -> int:
    """Build the engine of `job` and write it.

    Args:
        say: Takes phases and warnings.
        cancelled: Asked at every step of the builder; true ends the build.

    Returns:
        Number of layers of the parsed network.

    Raises:
        UserError: TensorRT is not there, or refuses graph, profile or device; its own messages are quoted.
        Cancelled: `cancelled` said so.
    """
    trt = import_tensorrt(job.backend)
    model = onnx.load(job.graph, load_external_data=False)
    require_precision_of(model, job.component, job.precision)
    listing = [f"{t.dtype}\t{t.operator}\t{t.node}\t{t.tensor}" for t in float_tensors(model)]
    Path(job.layers).write_text("\n".join(listing) + "\n", encoding="utf-8")
    messages: list[str] = []
    logger = error_logger(trt, messages)
    if job.plugin_library is not None and trt.get_plugin_registry().load_library(job.plugin_library) is None:
        raise UserError(
            f"TensorRT did not load the plugin `{job.plugin_library}` (built for another processor or system?)",
            hint="make plugin",
        )
    _drop_functions(model, job)
    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    parser = trt.OnnxParser(network, logger)
    plugins = [(job.plugin_namespace or "", job.plugin_name or "")] if job.plugin_library is not None else []
    require_supported(model, job.component, parser.supports_operator, plugins)
    say("parse")
    if not parser.parse(model.SerializeToString(), job.graph):  # the path is where external weights are looked for
        errors = [_parser_error(parser.get_error(i)) for i in range(parser.num_errors)]
        raise UserError(f"TensorRT cannot parse {job.component}.onnx:\n  " + "\n  ".join(errors))
    _require_read_back(trt, network, job)
    config = _config(trt, builder, network, job, say)
    monitor = _monitor(trt, say, cancelled)
    config.progress_monitor = monitor
    say("build")
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        if cancelled():
            raise Cancelled
        raise UserError(
            f"TensorRT cannot build {job.component}.onnx:\n  " + "\n  ".join(messages or ["it gave no reason"])
        )
    with open(job.engine, "wb") as file:
        file.write(plan)
    if job.timing_cache is not None:
        timing_cache.store(config, Path(job.timing_cache))
    return int(network.num_layers)


def _config(trt: Any, builder: Any, network: Any, job: Job, say: Say) -> Any:
    config = builder.create_builder_config()
    config.builder_optimization_level = job.optimization_level
    if job.workspace_mib is not None:
        config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, job.workspace_mib << 20)
    if job.backend == "tensorrt-rtx":
        config.num_compute_capabilities = len(job.compute_capabilities)
        for index, capability in enumerate(job.compute_capabilities):
            config.set_compute_capability(compute_capability_member(trt, capability), index)
    if job.timing_cache is not None and (warning := timing_cache.attach(config, Path(job.timing_cache))):
        say(f"warning: {warning}")
    for wanted in job.profiles:
        profile = builder.create_optimization_profile()
        for name, allowed in wanted.shapes.items():
            profile.set_shape(name, allowed.min, allowed.opt, allowed.max)
        if config.add_optimization_profile(profile) < 0:
            raise UserError(f"TensorRT refuses the profile `{wanted.name}` of {job.component}: {wanted.shapes}")
    dynamic = {network.get_input(i).name for i in range(network.num_inputs) if -1 in network.get_input(i).shape}
    if dynamic != set(job.profiles[0].shapes):
        raise AssertionError(
            f"{job.component}: dynamic inputs {sorted(dynamic)}, profiles of {sorted(job.profiles[0].shapes)}"
        )
    return config


def _require_read_back(trt: Any, network: Any, job: Job) -> None:
    """What TensorRT understood: softmax and top-k in fp32, products with weights in the asked precision, nothing dropped."""
    wanted = {"fp32": trt.DataType.FLOAT, "fp16": trt.DataType.HALF, "bf16": trt.DataType.BF16}[job.precision]
    fp32_layers = (trt.LayerType.SOFTMAX, trt.LayerType.TOPK)
    # The parser reshapes a weight to broadcast it; integers are dequantised to what the product reads.
    passing = (trt.LayerType.SHUFFLE, trt.LayerType.IDENTITY, trt.LayerType.DEQUANTIZE)
    weights, problems = set(), []
    for index in range(network.num_layers):
        layer = network.get_layer(index)
        if layer.type == trt.LayerType.CONSTANT:
            weights.add(layer.get_output(0).name)
            continue
        inputs = [tensor for i in range(layer.num_inputs) if (tensor := layer.get_input(i)) is not None]
        if layer.type in passing and inputs[0].name in weights:
            weights.add(layer.get_output(0).name)
        if layer.type in fp32_layers and inputs[0].dtype != trt.DataType.FLOAT:
            problems.append(f"`{layer.name}` reads {inputs[0].dtype}, expected {trt.DataType.FLOAT}")
        if layer.type == trt.LayerType.MATRIX_MULTIPLY and any(tensor.name in weights for tensor in inputs):
            problems += [f"`{layer.name}` reads {t.dtype}, expected {wanted}" for t in inputs if t.dtype != wanted]
    if dropped := network_problems(trt, network):
        raise UserError(f"TensorRT did not take all of {job.component}.onnx:\n  " + "\n  ".join(dropped))
    if problems:
        raise UserError(f"TensorRT read other dtypes from {job.component}.onnx than asked:\n  " + "\n  ".join(problems))


def _drop_functions(model: onnx.ModelProto, job: Job) -> None:
    """Take out the functions behind TensorRT's own nodes and the plugin's: parsers differ in which of the two they prefer."""
    plugin = (job.plugin_namespace, job.plugin_name) if job.plugin_library is not None else None
    kept = [f for f in model.functions if f.domain != TENSORRT_DOMAIN and (f.domain, f.name) != plugin]
    del model.functions[:]
    model.functions.extend(kept)


def _parser_error(error: Any) -> str:
    return f"{error.node_operator()} `{error.node_name()}`: {error.desc()}"


def _monitor(trt: Any, say: Say, cancelled: Callable[[], bool]) -> Any:
    """Say where the builder is every few seconds; end the build when `cancelled`."""

    class Monitor(trt.IProgressMonitor):
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)
            self.steps: dict[str, int] = {}
            self.said = time.monotonic()

        def phase_start(self, phase: str, parent: str | None, steps: int) -> None:
            self.steps[phase] = steps

        def step_complete(self, phase: str, step: int) -> bool:
            if time.monotonic() - self.said > PROGRESS_S:
                self.said = time.monotonic()
                say(f"{phase}: {step + 1} of {self.steps[phase]}")
            return not cancelled()

        def phase_finish(self, phase: str) -> None:
            """Nothing to say: the next step names its phase."""

    return Monitor()
