"""The NVIDIA side of a report: GPUs, driver, CUDA, and every TensorRT that is there. Imports none of them."""

from __future__ import annotations

import json
import re
from typing import Any

from lilicorr.runtime.doctor_probe import Probe

QUERY = "name,driver_version,compute_cap,memory.total"
DISTRIBUTIONS = ("tensorrt", "tensorrt-rtx", "tensorrt-lean")
_SYSTEM_PACKAGE = re.compile(r"libnvinfer\d+|python3-libnvinfer|libnvinfer-headers-dev|tensorrt")


def gpu_facts(probe: Probe) -> dict[str, Any]:
    """GPUs and driver; None where there is none.

    Returns:
        `gpus`: one "NVIDIA L4, compute capability 8.9, 23034 MiB" per GPU; `driver`; `cuda`: `driver` (newest CUDA it
        serves) and `toolkit` (installed; None on a machine that only runs).
    """
    rows = _rows(probe.output("nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader") or "")
    capability = probe.compute_capability()
    gpus = [_gpu(name, _number(cap) or capability, memory) for name, _, cap, memory in rows]
    if not gpus and capability is not None:
        gpus = [_gpu("GPU", capability, "")]
    banner = probe.output("nvidia-smi") or ""
    return {
        "gpus": gpus,
        "driver": rows[0][1] if rows else _kernel_module(probe),
        "cuda": {"driver": _found(r"CUDA Version:\s*([\d.]+)", banner), "toolkit": _toolkit(probe)},
    }


def tensorrt_facts(probe: Probe) -> dict[str, Any]:
    """Every TensorRT: `system` packages, `libraries` of the loader, Python `distributions`, and the `module` an import finds."""
    installed = probe.output("dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package} ${Version}\n") or ""
    packages = [line.split()[1:] for line in installed.splitlines() if line.startswith("ii") and len(line.split()) == 3]
    cache = probe.output("ldconfig", "-p") or probe.output("/sbin/ldconfig", "-p") or ""
    versions = {name: probe.package(name) for name in DISTRIBUTIONS}
    return {
        "system": [f"{name} {version}" for name, version in packages if _SYSTEM_PACKAGE.fullmatch(name)],
        "libraries": sorted(set(re.findall(r"libnvinfer\.so\.\d+ .*=> (\S+)", cache))),
        "distributions": [f"{name} {version}" for name, version in versions.items() if version],
        "module": probe.module_folder("tensorrt"),
        "rtx_module": probe.module_folder("tensorrt_rtx"),
    }


def _rows(text: str) -> list[list[str]]:
    """Name, driver, compute capability and memory per GPU."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [row for row in rows if len(row) == len(QUERY.split(","))]


def _gpu(name: str, capability: str | None, memory: str) -> str:
    # Jetsons answer "[N/A]" or "[Not Supported]": the GPU has no memory of its own
    size = f", {memory}" if _number(memory) else ""
    return f"{name}, compute capability {capability or 'unknown'}{size}"


def _number(text: str) -> str | None:
    return text if re.match(r"\d", text) else None


def _kernel_module(probe: Probe) -> str | None:
    return _found(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", probe.text("/proc/driver/nvidia/version") or "")


def _toolkit(probe: Probe) -> str | None:
    try:
        return str(json.loads(probe.text("/usr/local/cuda/version.json") or "")["cuda"]["version"])
    except (ValueError, KeyError, TypeError):
        return _found(r"release ([\d.]+)", probe.output("nvcc", "--version") or "")


def _found(pattern: str, text: str) -> str | None:
    match = re.search(pattern, text)
    return match[1] if match else None
