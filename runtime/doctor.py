"""Facts about this machine and installation, to paste into a report. Changes nothing and never fails."""

from __future__ import annotations

import platform
from typing import Any

from lilicorr.plugins_trt import PluginError, find
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.doctor_gpu import gpu_facts, tensorrt_facts
from lilicorr.runtime.doctor_host import host_facts, jetson_facts
from lilicorr.runtime.doctor_notes import notes
from lilicorr.runtime.doctor_probe import Probe
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.ort import default_threads

PACKAGES = (
    "lilicorr",
    "numpy",
    "tokenizers",
    "jinja2",
    "click",
    "onnxruntime",
    "onnxruntime-gpu",
    "cuda-bindings",
    "torch",
    "onnx",
)


def diagnose(bundle: str | None = None, probe: Probe | None = None) -> dict[str, Any]:
    """Machine, packages, backends, and whether `bundle` is sound. What is not there is None or an empty list."""
    probe = probe or Probe()
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cores": default_threads(),
        **host_facts(probe),
        "jetson": jetson_facts(probe),
        **gpu_facts(probe),
        "tensorrt": tensorrt_facts(probe),
        "plugin": _plugin(),
        "onnxruntime_providers": _providers(),
        "packages": {name: probe.package(name) for name in PACKAGES},
    }
    facts["notes"] = notes(facts)
    if bundle is not None:
        facts["bundle"] = _bundle(bundle)
    return facts


def as_text(facts: dict[str, Any]) -> str:
    """One `key: value` line per fact, nested ones as `key.name`."""
    lines = []
    for key, value in facts.items():
        items = value.items() if isinstance(value, dict) else [("", value)]
        lines += [f"{key}{'.' if name else ''}{name}: {_plain(item)}" for name, item in items]
    return "\n".join(lines)


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return "not found" if value is None else str(value)


def _bundle(folder: str) -> dict[str, Any]:
    try:
        manifest = open_bundle(folder).manifest
    except UserError as error:
        return {"folder": folder, "problem": error.what}
    return {
        "folder": folder,
        "problem": "none",
        "target": manifest.target.name,
        "drafter": manifest.drafter.name,
        "precision": manifest.precision,
        "block_size": manifest.drafter.block_size,
        "max_context": manifest.limits.max_context,
        "bytes": manifest.total_bytes,
        "lilicorr": manifest.lilicorr_version,
    }


def _plugin() -> dict[str, str | None]:
    """The library an engine would be given, or why there is none."""
    try:
        return {"library": str(find()), "problem": "none"}
    except (PluginError, OSError) as error:
        return {"library": None, "problem": " ".join(str(error).split())}


def _providers() -> list[str]:
    try:
        import onnxruntime

        return list(onnxruntime.get_available_providers())
    except Exception as error:  # a broken installation raises what it likes; the report is there to show it
        return [] if isinstance(error, ModuleNotFoundError) else [f"cannot be imported: {error}"]
