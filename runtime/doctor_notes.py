"""What stands out in a report: one line per thing that will stop or slow the person who pastes it. Judges facts, reads nothing."""

from __future__ import annotations

from typing import Any

from lilicorr.runtime.trt_bindings import SYSTEM_INSTALL


def notes(facts: dict[str, Any]) -> list[str]:
    """Lines on `facts`, as `doctor.diagnose` gathers them."""
    found = []
    tensorrt, jetson = facts["tensorrt"], facts["jetson"]
    if (tensorrt["system"] or tensorrt["libraries"]) and tensorrt["module"] is None:
        found.append(f"TensorRT is installed on the system, but this Python does not see it: {SYSTEM_INSTALL}")
    elif facts["gpus"] and tensorrt["module"] is None and tensorrt["rtx_module"] is None:
        install = SYSTEM_INSTALL if jetson else "pip install 'lilicorr[tensorrt]'"  # the extra has none for a Jetson
        found.append(f"there is a GPU but no TensorRT for this Python: {install}")
    if facts["gpus"] and facts["plugin"]["library"] is None:
        found.append("the TensorRT plugin is not ready, see plugin.problem: make plugin")
    if jetson and all(device.startswith("/dev/zram") for device in facts["swap"]):
        found.append("no swap outside memory: an engine build that outgrows it is killed (docs/jetson.md, Memory)")
    if jetson and jetson["power_mode"] and not jetson["power_mode"].startswith("MAXN"):
        found.append(
            f"power mode {jetson['power_mode']} limits the clocks: sudo nvpmodel -q, then -m with the number of MAXN"
        )
    return found
