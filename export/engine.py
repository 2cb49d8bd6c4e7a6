"""Build the TensorRT engines of a bundle into `BUNDLE/engines/NAME/`, on the device or, with TensorRT-RTX, ahead of time.

Everything that can be refused is refused first; then one process per engine, smallest first, reusing what is still right;
then one rename. The folder is described by `engine.json` (`lilicorr.runtime.engine_set`). Loads and runs no engine.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path

from lilicorr.export.engine_builder import Job
from lilicorr.export.engine_memory import free_memory, require_memory
from lilicorr.export.engine_plan import Planned, capabilities_for, describe_engines, plan_engines, plugin_library
from lilicorr.export.engine_process import run_job
from lilicorr.export.options import EngineOptions
from lilicorr.export.progress import Progress
from lilicorr.export.staging import Staging
from lilicorr.export.tables import human_bytes
from lilicorr.export.timing_cache import timing_cache_path
from lilicorr.runtime.bundle import Bundle, file_sha256, open_bundle
from lilicorr.runtime.engine_set import FILE_NAME, Engine, EngineSet, read_engine_set
from lilicorr.runtime.trt_bindings import import_tensorrt


def build_engines(folder: Path, out: Path | None, options: EngineOptions, progress: Progress) -> tuple[Path, EngineSet]:
    """Build what is missing or out of date of the engines of the bundle `folder`.

    Args:
        out: Engine folder to make or replace; None: `folder/engines/BACKEND-smNN-VERSION`.

    Returns:
        The engine folder and its description.

    Raises:
        UserError: bundle, device, precision, TensorRT, plugin, memory or graph do not allow it; nothing is left behind.
    """
    with progress.phase("check the bundle"):
        bundle = open_bundle(folder)
    trt = import_tensorrt(options.backend)
    capabilities = capabilities_for(bundle, options, trt)
    library = plugin_library(bundle, options)
    names = "-".join("sm" + capability.replace(".", "") for capability in capabilities)
    out = out or folder / "engines" / f"{options.backend}-{names}-{trt.__version__}"
    described = describe_engines(bundle, options, trt.__version__, capabilities, library)
    old = read_engine_set(out) if (out / FILE_NAME).is_file() and not options.force else None
    planned = plan_engines(bundle, options, described, out, old)
    for item in planned:
        progress.say(f"{item.component}: {_intent(item)}")
    if old is not None and old.bundle_sha256 == described.bundle_sha256 and all(i.reason is None for i in planned):
        return out, old
    with Staging(out, FILE_NAME) as staging:
        engines = {}
        for item in planned:
            if item.reason is None and old is not None:
                _take_over(out, staging.folder, item.component)
                engines[item.component] = old.engines[item.component]
            else:
                engines[item.component] = _build(bundle, item, staging.folder, options, described, library, progress)
        described = dataclasses.replace(described, engines=engines)
        (staging.folder / FILE_NAME).write_text(described.to_json(), encoding="utf-8")
        staging.publish()
    return out, described


def _intent(item: Planned) -> str:
    if item.reason is None:
        return "up to date"
    return f"to build ({item.reason}), with about {human_bytes(item.memory_bytes)} of memory"


def _take_over(source: Path, target: Path, component: str) -> None:
    """Give the new folder the old engine; a hard link where the file system has them."""
    for name in (f"{component}.engine", f"{component}.layers.tsv"):
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)


def _build(
    bundle: Bundle,
    item: Planned,
    folder: Path,
    options: EngineOptions,
    described: EngineSet,
    library: Path | None,
    progress: Progress,
) -> Engine:
    warning = require_memory(item.component, item.memory_bytes, free_memory())
    if warning is not None:
        progress.say(f"warning: {warning}")
    plugin = described.plugin
    cache = timing_cache_path(described.backend, described.tensorrt_version, described.compute_capabilities[0])
    path = folder / item.file
    job = Job(
        component=item.component,
        graph=str(bundle.path(bundle.manifest.components[item.component].file).resolve()),
        engine=str(path.resolve()),
        layers=str((folder / f"{item.component}.layers.tsv").resolve()),
        precision=bundle.manifest.precision,
        profiles=item.profiles,
        backend=options.backend,
        compute_capabilities=described.compute_capabilities,
        workspace_mib=options.workspace_mib,
        optimization_level=options.optimization_level,
        plugin_library=str(library) if library else None,
        plugin_name=plugin.name if plugin else None,
        plugin_namespace=plugin.namespace if plugin else None,
        timing_cache=str(cache) if cache else None,
    )
    with progress.phase(f"build the {item.component} engine"):
        built = run_job(job, item.memory_bytes, progress)
    progress.say(
        f"{item.component}: {built.layers} layers, peak memory {built.peak_bytes >> 20} MiB"
        f" (estimated {item.memory_bytes >> 20})"
    )
    return Engine(item.file, file_sha256(path), path.stat().st_size, item.profiles, item.wanted)
