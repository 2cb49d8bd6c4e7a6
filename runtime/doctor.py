"""Facts about this machine and installation, to paste into a report. Changes nothing."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.ort import default_threads

PACKAGES = ("lilicorr", "numpy", "tokenizers", "jinja2", "click", "onnxruntime", "onnxruntime-gpu", "tensorrt")


def diagnose(bundle: str | None = None) -> dict[str, Any]:
    """Machine, packages, backends, and whether `bundle` is sound. A missing package is None."""
    facts: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "cores": default_threads(),
        **_memory(),
        "packages": {name: _version(name) for name in PACKAGES},
        "onnxruntime_providers": _providers(),
    }
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
        return ", ".join(map(str, value)) or "none"
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


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _providers() -> list[str]:
    try:
        import onnxruntime
    except ImportError:
        return []
    return list(onnxruntime.get_available_providers())


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or None
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or None


def _memory() -> dict[str, Any]:
    """Megabytes; None where /proc/meminfo is missing."""
    try:
        pairs = (line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        sizes = {name: int(value.split()[0]) // 1024 for name, value in pairs if value.split()}
    except (OSError, ValueError):
        pages = os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
        return {"ram_mb": pages * os.sysconf("SC_PAGE_SIZE") >> 20 if pages else None, "swap_mb": None}
    return {
        "ram_mb": sizes.get("MemTotal"),
        "ram_free_mb": sizes.get("MemAvailable"),
        "swap_mb": sizes.get("SwapTotal"),
    }
