"""Does an engine folder fit this machine? Answered from `engine.json` alone, before TensorRT sees a byte of an engine.

TensorRT's own answer to a foreign engine names neither side; this one names both and the command that mends it.
"""

from __future__ import annotations

import ctypes
import platform
from dataclasses import dataclass
from pathlib import Path

from lilicorr.runtime.bundle import file_sha256
from lilicorr.runtime.engine_set import EngineSet, read_engine_set, rebuild_command, require_whole
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.manifest import FILE_NAME as MANIFEST_NAME

NAMES = {"tensorrt": "TensorRT", "tensorrt-rtx": "TensorRT-RTX"}
# CUDA driver API, CUdevice_attribute
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76


@dataclass(frozen=True)
class Here:
    """This machine, as far as an engine depends on it."""

    backend: str
    tensorrt_version: str
    compute_capability: str
    system: str
    machine: str
    plugin_sha256: str | None  # of the library that was loaded; None: none was
    plugin_version: str | None


def here(backend: str, tensorrt_version: str, plugin_version: str | None, plugin_sha256: str | None) -> Here:
    """Describe this machine.

    Raises:
        UserError: no NVIDIA GPU (see `compute_capability`).
    """
    system, machine = platform.system().lower(), platform.machine()
    return Here(backend, tensorrt_version, compute_capability(), system, machine, plugin_sha256, plugin_version)


def compute_capability() -> str:
    """Compute capability of GPU 0 from the CUDA driver, as "8.7".

    Raises:
        UserError: no driver or no device.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        raise UserError("no NVIDIA driver: `libcuda.so.1` was not found", hint="lilicorr-run doctor") from None
    device, parts = ctypes.c_int(), [ctypes.c_int(), ctypes.c_int()]
    status = cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0)
    for attribute, part in zip((_CAPABILITY_MAJOR, _CAPABILITY_MINOR), parts, strict=True):
        status = status or cuda.cuDeviceGetAttribute(ctypes.byref(part), attribute, device)
    if status:
        raise UserError(f"no NVIDIA GPU: the CUDA driver answers with error {status}", hint="lilicorr-run doctor")
    return f"{parts[0].value}.{parts[1].value}"


def open_engines(folder: Path, bundle: Path, machine: Here) -> EngineSet:
    """Read the engine folder `folder` and check it against `bundle` and `machine`, then its files; cheapest check first.

    Raises:
        UserError: not an engine folder; or, with exit code 4, built from another bundle, for another machine, or damaged.
    """
    engines = read_engine_set(folder)
    require_compatible(engines, machine)
    if file_sha256(bundle / MANIFEST_NAME) != engines.bundle_sha256:
        raise UserError(
            f"engines in `{folder}` were built from another bundle than `{bundle}`",
            hint=rebuild_command(engines.backend, bundle, engines.compute_capabilities),
            exit_code=EXIT_ENGINE,
        )
    require_whole(folder, engines)
    return engines


def require_compatible(engines: EngineSet, machine: Here) -> None:
    """Refuse engines of another backend, TensorRT version, GPU generation, system or plugin.

    TensorRT promises to read an engine only with the version that wrote it, hence equal versions to the last digit.

    Raises:
        UserError: exit code 4, naming both sides and every difference.
    """
    problems = differences(engines, machine)
    if problems:
        raise UserError(
            f"engines were built with {_side(engines.backend, engines.tensorrt_version, engines.compute_capabilities)}"
            f" on {engines.system} {engines.machine}; here is"
            f" {_side(machine.backend, machine.tensorrt_version, (machine.compute_capability,))} on {machine.system}"
            f" {machine.machine}:\n  " + "\n  ".join(problems),
            hint=rebuild_command(machine.backend, capabilities=(machine.compute_capability,)),
            exit_code=EXIT_ENGINE,
        )


def differences(engines: EngineSet, machine: Here) -> list[str]:
    """What keeps `engines` from running on `machine`, one line each."""
    pairs = [
        ("backend", engines.backend, machine.backend),
        ("TensorRT version", engines.tensorrt_version, machine.tensorrt_version),
        ("operating system", engines.system, machine.system),
        ("processor", engines.machine, machine.machine),
    ]
    if engines.plugin is not None:
        pairs.append(("plugin version", engines.plugin.version, machine.plugin_version or "none loaded"))
        if machine.plugin_sha256 is not None:
            pairs.append(("plugin sha256", engines.plugin.sha256[:16], machine.plugin_sha256[:16]))
    problems = [f"{what}: {built}, here {found}" for what, built, found in pairs if built != found]
    if machine.compute_capability not in engines.compute_capabilities:
        built = ", ".join(engines.compute_capabilities)
        problems.append(f"compute capability: {built}, here {machine.compute_capability}")
    return problems


def _side(backend: str, version: str, capabilities: tuple[str, ...]) -> str:
    return f"{NAMES.get(backend, backend)} {version} for compute capability {', '.join(capabilities)}"
