"""The host side of a report: processor, memory and swap, container, and what a Jetson says of itself."""

from __future__ import annotations

import platform
import re
from typing import Any

from lilicorr.runtime.doctor_probe import Probe

# NVIDIA's JetPack archive; a release that is not here is reported by its L4T version alone.
JETPACK = {
    "36.4.0": "6.1",
    "36.4.3": "6.2",
    "36.4.4": "6.2.1",
    "36.5.0": "6.2.2",
    "38.2.0": "7.0",
    "38.2.1": "7.0",
    "38.4.0": "7.1",
    "39.2.0": "7.2",
    "39.2.1": "7.2.1",
}


def host_facts(probe: Probe) -> dict[str, Any]:
    """`cpu`, `container`, memory in MB (`ram_mb`, `ram_free_mb`, `swap_mb`; None where unknown) and `swap` devices."""
    return {
        "cpu": _cpu(probe),
        "container": "docker" if probe.text("/.dockerenv") is not None else None,
        **_memory(probe),
        "swap": _swap(probe),
    }


def jetson_facts(probe: Probe) -> dict[str, Any] | None:
    """`model`, `l4t`, `jetpack` and `power_mode` of a Jetson; None on any other machine."""
    # "# R36 (release), REVISION: 4.3, GCID: …"
    release = re.search(r"R(\d+) \(release\), REVISION: ([\d.]+)", probe.text("/etc/nv_tegra_release") or "")
    if release is None:
        return None
    l4t = f"{release[1]}.{release[2]}"
    package = probe.output(
        "dpkg-query", "-W", "-f", "${Version}", "nvidia-jetpack"
    )  # a meta package many images leave out
    mode = re.search(r"NV Power Mode:\s*(\S+)", probe.output("nvpmodel", "-q") or "")
    return {
        "model": (probe.text("/proc/device-tree/model") or "").strip("\0\n") or None,
        "l4t": l4t,
        "jetpack": package.strip() if package else JETPACK.get(l4t),
        "power_mode": mode[1] if mode else None,
    }


def _cpu(probe: Probe) -> str | None:
    lines = (probe.text("/proc/cpuinfo") or "").splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.processor() or None


def _memory(probe: Probe) -> dict[str, int | None]:
    sizes = re.findall(r"^(\w+):\s+(\d+) kB$", probe.text("/proc/meminfo") or "", flags=re.MULTILINE)
    mb = {name: int(size) // 1024 for name, size in sizes}
    return {"ram_mb": mb.get("MemTotal"), "ram_free_mb": mb.get("MemAvailable"), "swap_mb": mb.get("SwapTotal")}


def _swap(probe: Probe) -> list[str]:
    """One "/dev/zram0 partition 634 MB" per swap device: a Jetson's own, zram, is memory again and helps no engine build."""
    rows = [line.split() for line in (probe.text("/proc/swaps") or "").splitlines()[1:]]
    return [f"{row[0]} {row[1]} {int(row[2]) // 1024} MB" for row in rows if len(row) == 5 and row[2].isdigit()]
