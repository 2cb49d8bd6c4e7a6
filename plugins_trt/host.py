"""The walk on numpy arrays, by the very source the device compiles (csrc/walk.h), built at first use. Needs no CUDA.

For tests, parity checks and hosts without a GPU. The device plugin is loader.py's business.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from lilicorr.plugins_trt import paths
from lilicorr.plugins_trt.errors import PluginError

MAX_CANDIDATES, MAX_SLOTS = 32, 63  # kMaxCandidates and kMaxSlots of csrc/walk.h
FLAGS = ("-std=c++17", "-O2", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")

Floats = npt.NDArray[np.float32]


def host_walk(
    start: npt.ArrayLike,
    pair: npt.ArrayLike,
    temperature: npt.ArrayLike | None = None,
    uniforms: npt.ArrayLike | None = None,
) -> tuple[npt.NDArray[np.int32], Floats | None]:
    """Follow the best candidate from slot to slot, or draw each one; the rules are those of `lilicorr.train.walk`.

    Args:
        start: (N, K) scores of the first slot, compared in float32. 1 ≤ K ≤ 32.
        pair: (N, S-1, K, K) scores of [slot, candidate, next slot's candidate]. 1 ≤ S ≤ 63.
        temperature: (N) finite and ≥ 0; 0 is greedy. Given together with `uniforms`.
        uniforms: (N, S) in [0, 1).

    Returns:
        path (N, S) int32; q (N, S, K) float32, the distribution each candidate was drawn from, or None when greedy.

    Raises:
        ValueError: a shape or value is not as stated.
        PluginError: no C++ compiler, or it failed.
    """
    start, pair = _floats(start), _floats(pair)
    lanes, slots, count = _sizes(start, pair)
    path = np.empty((lanes, slots), np.int32)
    if temperature is None and uniforms is None:
        _library()(_pointer(start), _pointer(pair), None, None, lanes, slots, count, _pointer(path), None)
        return path, None
    if temperature is None or uniforms is None:
        raise ValueError("temperature and uniforms go together: one of them is missing")
    temperature, uniforms = _floats(temperature), _floats(uniforms)
    _expect_shape("temperature", temperature, (lanes,))
    _expect_shape("uniforms", uniforms, (lanes, slots))
    if not (np.isfinite(temperature) & (temperature >= 0)).all():
        raise ValueError("temperature must be finite and at least 0")
    if not ((uniforms >= 0) & (uniforms < 1)).all():
        raise ValueError("uniforms must be in [0, 1)")
    q = np.empty((lanes, slots, count), np.float32)
    inputs = [_pointer(array) for array in (start, pair, temperature, uniforms)]
    _library()(*inputs, lanes, slots, count, _pointer(path), _pointer(q))
    return path, q


def _floats(values: npt.ArrayLike) -> Floats:
    return np.ascontiguousarray(values, dtype=np.float32)


def _pointer(array: npt.NDArray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _sizes(start: Floats, pair: Floats) -> tuple[int, int, int]:
    """(N, S, K) of consistent scores."""
    if start.ndim != 2 or pair.ndim != 4:
        raise ValueError(f"expected start (N,K) and pair (N,S-1,K,K), found {start.shape} and {pair.shape}")
    (lanes, count), slots = start.shape, pair.shape[1] + 1
    _expect_shape("pair", pair, (lanes, slots - 1, count, count))
    if not 1 <= count <= MAX_CANDIDATES:
        raise ValueError(f"K is {count}, expected 1 to {MAX_CANDIDATES} candidates")
    if slots > MAX_SLOTS:
        raise ValueError(f"S is {slots}, expected 1 to {MAX_SLOTS} slots")
    return lanes, slots, count


def _expect_shape(name: str, array: Floats, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")


@functools.cache
def _library() -> ctypes._NamedFuncPointer:
    """The compiled function; the file's name hashes its sources and options, so a stale build is never picked up."""
    key = hashlib.sha256(f"{paths.source_hash(paths.HOST_SOURCES)}{FLAGS}".encode()).hexdigest()
    name = f"host_walk-{platform.machine()}-{key[:16]}.so"
    built = paths.cache() / name
    if not built.is_file():
        _compile(built)
    function = ctypes.CDLL(str(built)).lilicorr_host_walk
    pointer = ctypes.c_void_p
    function.argtypes = [pointer] * 4 + [ctypes.c_int64, ctypes.c_int, ctypes.c_int] + [pointer] * 2
    function.restype = None
    return function


def _compile(out: Path) -> None:
    """Compile to a neighbouring name and rename, so that a second process never opens half a file."""
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        fresh = Path(folder) / out.name
        command = [*_compiler(), *FLAGS, str(paths.SOURCES / "host.cpp"), "-o", str(fresh)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise PluginError(f"the host walk did not compile:\n{done.stderr.strip()}", hint=shlex.join(command))
        fresh.replace(out)


def _compiler() -> list[str]:
    """`CXX` (which may carry options) or the first compiler on PATH."""
    if chosen := shlex.split(os.environ.get("CXX", "")):
        return chosen
    for name in ("c++", "g++", "clang++"):
        if (found := shutil.which(name)) is not None:
            return [found]
    raise PluginError(
        "no C++ compiler: CXX is not set, and c++, g++ and clang++ are not on PATH", hint="sudo apt install g++"
    )
