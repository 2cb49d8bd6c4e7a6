"""TensorRT's timing cache as a file per backend, version and device: kept from build to build, never in the way of one.

A cache TensorRT does not take (damaged, or of another driver) is a warning and a fresh start. TensorRT-RTX times nothing
and has none.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Any


def timing_cache_path(backend: str, version: str, capability: str) -> Path | None:
    """Where the cache of such builds is; None for a backend without one."""
    if backend == "tensorrt-rtx":
        return None
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "lilicorr" / "timing" / f"{backend}-{version}-sm{capability.replace('.', '')}.cache"


def attach(config: Any, path: Path) -> str | None:
    """Give `config` (IBuilderConfig) the cache at `path`, or a fresh one; return a warning when the file was not taken."""
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    if content:
        old = config.create_timing_cache(content)
        if old is not None and config.set_timing_cache(old, False):
            return None
    config.set_timing_cache(config.create_timing_cache(b""), False)
    return f"the timing cache `{path}` is stale or damaged; starting a fresh one" if content else None


def store(config: Any, path: Path) -> None:
    """Write the cache of `config` to `path`, whole or not at all, one writer at a time."""
    content = bytes(config.get_timing_cache().serialize())
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        new = path.with_suffix(".new")
        new.write_bytes(content)
        new.replace(path)
