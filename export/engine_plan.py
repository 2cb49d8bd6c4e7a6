"""What building the engines of a bundle would do: for which devices, which engines, why each one, and with how much memory.

Refuses here what can be refused without parsing a graph: device, precision, plugin. Starts no builder.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import onnx

from lilicorr.export.device_rules import require_blocks, require_precision
from lilicorr.export.engine_cache import facts, reason_to_build
from lilicorr.export.engine_memory import estimate_bytes
from lilicorr.export.engine_profiles import profiles_for
from lilicorr.export.native_check import require_native
from lilicorr.export.options import EngineOptions
from lilicorr.export.trt_api import compute_capability_member
from lilicorr.plugins_trt import PluginError, find
from lilicorr.runtime.bundle import Bundle, file_sha256
from lilicorr.runtime.engine_check import compute_capability
from lilicorr.runtime.engine_set import SCHEMA_VERSION, Engine, EngineSet, PluginBuild, Profile
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import FILE_NAME as MANIFEST_NAME


@dataclass(frozen=True)
class Planned:
    """One engine of the set, before it is built."""

    component: str
    profiles: tuple[Profile, ...]
    wanted: dict[str, str]  # what it depends on
    reason: str | None  # None: the one that is there serves
    memory_bytes: int

    @property
    def file(self) -> str:
        return f"{self.component}.engine"


def capabilities_for(bundle: Bundle, options: EngineOptions, trt: Any) -> tuple[str, ...]:
    """Compute capabilities to build for, each able to run the bundle's precision, and this TensorRT its form of attention.

    Raises:
        UserError: no GPU and none named, another than the GPU's (TensorRT), unknown to TensorRT-RTX, or without the precision;
            or no native attention in this version.
    """
    require_native(bundle.manifest, options.backend, trt.__version__)
    capabilities = _asked_or_present(options)
    precision = bundle.manifest.precision
    require_precision(options.backend, options.precision or precision, precision, capabilities)
    require_blocks(options.backend, bundle.manifest.target.quantisation)
    if options.backend == "tensorrt-rtx":
        for capability in capabilities:
            compute_capability_member(trt, capability)
    return capabilities


def _asked_or_present(options: EngineOptions) -> tuple[str, ...]:
    """As asked, ahead of time; TensorRT builds for the GPU it runs on and for no other."""
    asked = options.compute_capabilities
    if asked and options.backend == "tensorrt-rtx":
        return asked
    try:
        present = compute_capability()
    except UserError as error:
        if options.backend == "tensorrt-rtx":
            raise UserError(f"{error.what}, so name what to build for", hint="--compute-capability 8.9,12.0") from None
        raise UserError(
            f"{error.what}; TensorRT builds on the device it will run on",
            hint="run this on the device, or ahead of time: --backend tensorrt-rtx --compute-capability 8.9",
        ) from None
    if asked and asked != (present,):
        raise UserError(
            f"TensorRT builds for the GPU it runs on: compute capability {present} here, {', '.join(asked)} asked",
            hint="run this on the device, or leave --compute-capability out",
        )
    return (present,)


def plugin_library(bundle: Bundle, options: EngineOptions) -> Path | None:
    """TensorRT-RTX has no plugin layer: there, and with --no-plugin, the graph's own function is compiled."""
    if bundle.manifest.plugin is None or options.backend == "tensorrt-rtx" or not options.plugin:
        return None
    try:
        return find(version=bundle.manifest.plugin.version)
    except PluginError as error:
        raise UserError(error.what, hint=f"{error.hint} (or --no-plugin: the walk in standard operators)") from None


def describe_engines(
    bundle: Bundle, options: EngineOptions, version: str, capabilities: tuple[str, ...], library: Path | None
) -> EngineSet:
    """The set without its engines."""
    named = bundle.manifest.plugin
    plugin = None
    if library is not None and named is not None:
        plugin = PluginBuild(named.name, named.namespace, named.version, file_sha256(library))
    return EngineSet(
        schema_version=SCHEMA_VERSION,
        lilicorr_version=metadata.version("lilicorr"),
        created=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=tuple(sys.argv),
        backend=options.backend,
        tensorrt_version=version,
        compute_capabilities=capabilities,
        system=platform.system().lower(),
        machine=platform.machine(),
        precision=bundle.manifest.precision,
        attention=bundle.manifest.attention,
        bundle_sha256=file_sha256(bundle.path(MANIFEST_NAME)),
        plugin=plugin,
        engines={},
    )


def plan_engines(
    bundle: Bundle, options: EngineOptions, described: EngineSet, out: Path, old: EngineSet | None
) -> list[Planned]:
    """Every component, smallest weights first, with the reason to build it."""
    machine = {
        "backend": described.backend,
        "TensorRT": described.tensorrt_version,
        "compute capability": ", ".join(described.compute_capabilities),
        "system": f"{described.system} {described.machine}",
        "plugin": described.plugin.sha256 if described.plugin else "none",
    }
    config = {"workspace": str(options.workspace_mib), "optimization level": str(options.optimization_level)}
    planned = []
    for name, component in bundle.manifest.components.items():
        profiles = profiles_for(bundle.manifest, name)
        wanted = facts(bundle.manifest, name, profiles, machine, config)
        before = old.engines.get(name) if old is not None else None
        whole = before is not None and _is_whole(out, before)
        reason = reason_to_build(before, wanted, force=options.force, whole=whole)
        graph = onnx.load(bundle.path(component.file), load_external_data=False).graph
        weights = sum(_weight_bytes(tensor) for tensor in graph.initializer)
        planned.append(Planned(name, profiles, wanted, reason, estimate_bytes(weights, len(graph.node))))
    return sorted(planned, key=lambda item: item.memory_bytes)


def _weight_bytes(tensor: onnx.TensorProto) -> int:
    """Size of one weight from its shape and type; where its data is does not matter."""
    count = 1
    for size in tensor.dims:
        count *= size
    return int(count * onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _is_whole(folder: Path, engine: Engine) -> bool:
    path = folder / engine.file
    return path.is_file() and path.stat().st_size == engine.bytes and file_sha256(path) == engine.sha256
