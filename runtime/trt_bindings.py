"""TensorRT's Python bindings: which module a backend is, which versions serve, and how to install it on this platform."""

from __future__ import annotations

import importlib
import platform
import re
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError

TENSORRT, RTX = "tensorrt", "tensorrt-rtx"  # the backends; engines of one run on no other
MODULES = {TENSORRT: ("tensorrt", "tensorrt_bindings"), RTX: ("tensorrt_rtx", "tensorrt_rtx_bindings")}
OLDEST, BEYOND = (10, 3), (12,)  # of `tensorrt`: JetPack 6.2 has 10.3; 12 is unknown
SYSTEM_INSTALL = "sudo apt install python3-libnvinfer, and make the virtual environment with --system-site-packages"
_JETSON = Path("/etc/nv_tegra_release")


def import_tensorrt(backend: str) -> Any:
    """Import the Python bindings of `backend`.

    Raises:
        UserError: not installed (with the install command for this platform), not loadable, or a version out of range.
    """
    failure = ""
    for name in MODULES[backend]:
        try:
            trt = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != name:
                failure = f": {error}"
            continue
        except ImportError as error:  # a shared library of it is missing
            failure = f": {error}"
            continue
        _require_version(backend, trt.__version__)
        return trt
    raise UserError(
        f"`{backend}` cannot be imported here{failure or ': it is not installed'}", hint=install_command(backend)
    )


def install_command(backend: str, *, machine: str | None = None, jetson: bool | None = None) -> str:
    """One line that installs `backend` on this platform (or the one described)."""
    if backend == RTX:
        return 'pip install "lilicorr[tensorrt-rtx]"'
    jetson = _JETSON.exists() if jetson is None else jetson
    if jetson or (machine or platform.machine()) == "aarch64":
        return SYSTEM_INSTALL
    return 'pip install "lilicorr[tensorrt]"'


def error_logger(trt: Any, messages: list[str]) -> Any:
    """A logger that keeps errors in `messages`, to be quoted when a call fails, and drops the rest."""

    class Logger(trt.ILogger):
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, text: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                messages.append(text)

    return Logger()


def _require_version(backend: str, version: str) -> None:
    found = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if backend == TENSORRT and not OLDEST <= found < BEYOND:
        raise UserError(f"TensorRT {version} is not supported, expected 10.3 to 11.x", hint=install_command(backend))
