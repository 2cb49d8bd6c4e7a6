"""Where the optional tools of these tests are. What is absent is None, and the test that needs it skips, naming the remedy."""

from __future__ import annotations

import os
import shutil
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[2]
WHEELS = ROOT / "build" / "tensorrt"  # filled by `make tensorrt-wheels`
LEAN_VERSIONS = ("10.15.1.29", "10.16.1.11", "11.4.0.106")  # from the oldest to the newest that can be installed


def nvcc() -> str | None:
    """`CUDACXX`, the one on PATH, or the one of the package nvidia-cuda-nvcc."""
    packaged = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin" / "nvcc"
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or (str(packaged) if packaged.is_file() else None)


def headers() -> Path | None:
    """Folder of NvInferRuntime.h: `TENSORRT_INCLUDE_DIR`, the system's, or the one `make plugin` fetched."""
    named = os.environ.get("TENSORRT_INCLUDE_DIR")
    places = [Path(named)] if named else [*Path("/usr/include").glob("*-linux-gnu"), WHEELS / "include"]
    return next((place for place in places if (place / "NvInferRuntime.h").is_file()), None)


def wheel(name: str) -> Path | None:
    folder = WHEELS / name
    return folder if folder.is_dir() else None
