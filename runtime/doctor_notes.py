"""What stands out in a report: one line per thing that will stop or slow the person who pastes it. Judges facts, reads nothing."""

from __future__ import annotations

from typing import Any


def notes(facts: dict[str, Any]) -> list[str]:
    """Lines on `facts`, as `doctor.diagnose` gathers them."""
    found = []
    tensorrt, jetson = facts["tensorrt"], facts["jetson"]
    if (tensorrt["system"] or tensorrt["libraries"]) and tensorrt["module"] is None:
        found.append(
            "TensorRT is installed on the system, but this Python does not see it:"
            " sudo apt install python3-libnvinfer, and make the virtual environment with --system-site-packages"
        )
    elif facts["gpus"] and tensorrt["module"] is None and tensorrt["rtx_module"] is None:
        found.append("there is a GPU but no TensorRT for this Python: pip install 'lilicorr[tensorrt]'")
    if facts["gpus"] and facts["plugin"]["library"] is None:
        found.append("the TensorRT plugin is not ready, see plugin.problem: make plugin")
    if jetson and all(device.startswith("/dev/zram") for device in facts["swap"]):
        found.append("no swap outside memory: an engine build that outgrows it is killed (docs/jetson.md, Memory)")
    if jetson and jetson["power_mode"] and not jetson["power_mode"].startswith("MAXN"):
        found.append(
            f"power mode {jetson['power_mode']} limits the clocks: sudo nvpmodel -q, then -m with the number of MAXN"
        )
    return found
