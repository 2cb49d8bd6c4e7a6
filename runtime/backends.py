"""Open the backend that runs a bundle: the one asked for, else the one that is there. An engine is read last, when all fits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lilicorr.runtime.bundle import Bundle, file_sha256
from lilicorr.runtime.engine_check import Here, compute_capability, here, open_engines
from lilicorr.runtime.engine_choice import choose_engines, engine_folders
from lilicorr.runtime.engine_set import PluginBuild, read_engine_set
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.trt_bindings import RTX, TENSORRT, import_tensorrt

if TYPE_CHECKING:
    from lilicorr.runtime.engine import Backend

ORT = "ort"
BACKENDS = (ORT, TENSORRT, RTX)


def open_backend(
    bundle: Bundle, backend: str | None = None, *, engines: Path | None = None, threads: int | None = None
) -> Backend:
    """Open `bundle` on a backend.

    Args:
        backend: One of BACKENDS; None: that of `engines`; without either, TensorRT where there are a GPU and engines below the
            bundle, else ONNX Runtime.
        engines: Engine folder; None: the newest below the bundle that fits this machine.
        threads: Of ONNX Runtime; None takes every core this process may use.

    Raises:
        UserError: a package is missing, there are no engines, or (exit code 4) they do not fit this machine or bundle.
        MemoryError: the engines do not fit the GPU.
    """
    backend = backend or (_default(bundle) if engines is None else read_engine_set(engines).backend)
    if threads is not None and backend != ORT:
        raise UserError(f"threads are ONNX Runtime's, {backend} has none", hint="leave --threads out, or --backend ort")
    if backend == ORT:
        from lilicorr.runtime.ort import OrtBackend

        return OrtBackend(bundle, threads)
    return _open_tensorrt(bundle, backend, engines)


def _default(bundle: Bundle) -> str:
    try:
        compute_capability()
    except UserError:
        return ORT
    built = {described.backend for described in engine_folders(bundle.folder).values()}
    return next((name for name in (TENSORRT, RTX) if name in built), ORT)


def _open_tensorrt(bundle: Bundle, backend: str, folder: Path | None) -> Backend:
    from lilicorr.runtime.cuda_device import open_device
    from lilicorr.runtime.trt_backend import TrtBackend

    trt = import_tensorrt(backend)
    machine = here(backend, trt.__version__, None, None)
    folder = folder or choose_engines(bundle.folder, machine)
    plugin = read_engine_set(folder).plugin
    if plugin is not None:
        machine = _with_plugin(trt, machine, plugin)
    described = open_engines(folder, bundle.folder, machine)
    device = open_device()
    try:
        return TrtBackend(trt, device, bundle, folder, described)
    except BaseException:
        device.close()
        raise


def _with_plugin(trt: Any, machine: Here, plugin: PluginBuild) -> Here:
    """Load the plugin's library, which must be registered before an engine with its layers is read."""
    from lilicorr.plugins_trt import PluginError, load

    try:
        library = load(trt.get_plugin_registry(), version=plugin.version)
    except PluginError as error:
        raise UserError(error.what, hint=error.hint, exit_code=EXIT_ENGINE) from None
    return here(machine.backend, machine.tensorrt_version, plugin.version, file_sha256(library))
