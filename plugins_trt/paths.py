"""Where this folder's sources and built files are, and the hash that ties the two together. Builds and loads nothing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE / "csrc"
LIBRARY = "liblilicorr_plugin.so"
HOST_SOURCES = ("walk.h", "host.cpp")
DEVICE_SOURCES = (
    "creator.cpp",
    "kernel.cu",
    "kernel.h",
    "log.cpp",
    "log.h",
    "plugin.cpp",
    "plugin.h",
    "shapes.cpp",
    "shapes.h",
    "walk.h",
)


def source_hash(names: Iterable[str]) -> str:
    """SHA-256 over the SHA-256 of each source file, in the order given (CMakeLists.txt computes the same)."""
    digests = (hashlib.sha256((SOURCES / name).read_bytes()).hexdigest() for name in names)
    return hashlib.sha256("".join(digests).encode()).hexdigest()


def checkout() -> Path | None:
    """The repository this package is run from, or None when it is installed."""
    root = PACKAGE.parent
    return root if (root / "pyproject.toml").is_file() else None


def cache() -> Path:
    """Folder for what is built at first use: build/plugin of a checkout, else the user's cache folder."""
    if (root := checkout()) is not None:
        return root / "build" / "plugin"
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "lilicorr"
