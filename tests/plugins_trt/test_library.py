"""The built library: what it exports and needs, and its methods driven as TensorRT drives them (harness.cpp), without a GPU."""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from lilicorr.plugins_trt import paths
from tests.plugins_trt.tools import LEAN_VERSIONS, headers, nvcc, wheel

SYSTEM_LIBRARIES = (
    "libc.so",
    "libdl.so",
    "libgcc_s.so",
    "libm.so",
    "libpthread.so",
    "librt.so",
    "libstdc++.so",
    "ld-linux",
)

# An object whose every method ends the process, in a library of some version of TensorRT.
FINDER = """
#include <stdlib.h>
static void called(void) { abort(); }
static void (*const methods[])(void) = {called, called, called, called, called, called, called, called};
static void (*const *finder)(void) = methods;
void *getFinder(void) { return &finder; }
int getInferLibVersion(void) { return 10000 * MAJOR + 400; }
"""


def output(*command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}: install binutils")
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_cmake_and_python_hash_the_same_sources():
    """Else every library built is taken for stale, and the tests below skip."""
    cmake = (paths.PACKAGE / "CMakeLists.txt").read_text()
    assert tuple(re.search(r"set\(SOURCES (.*?)\)", cmake)[1].split()) == paths.DEVICE_SOURCES
    assert {path.name for path in paths.SOURCES.iterdir()} == {
        *paths.DEVICE_SOURCES,
        *paths.HOST_SOURCES,
        "exports.map",
    }


def test_exports_the_two_entry_points_only(library):
    names = {line.split()[-1] for line in output("nm", "-D", "--defined-only", str(library)).splitlines()}
    assert names == {"getCreators", "setLoggerFinder"}


def test_needs_nothing_but_the_system(library):
    undefined = [line.split() for line in output("nm", "-D", "--undefined-only", str(library)).splitlines()]
    versioned = ("@GLIBC", "@CXXABI", "@GCC")  # GLIBCXX begins with GLIBC
    assert [name for kind, name in undefined if kind == "U" and not any(v in name for v in versioned)] == []
    needed = [line for line in output("readelf", "-d", str(library)).splitlines() if "(NEEDED)" in line]
    assert [line for line in needed if not any(name in line for name in SYSTEM_LIBRARIES)] == []


@pytest.fixture(scope="module")
def harness(tmp_path_factory):
    """harness.cpp compiled; nvcc passes it to the C++ compiler and adds the CUDA headers."""
    if (compiler := nvcc()) is None:
        pytest.skip("no nvcc: install CUDA or `pip install nvidia-cuda-nvcc`, or set CUDACXX")
    if (include := headers()) is None:
        pytest.skip("no NvInferRuntime.h: set TENSORRT_INCLUDE_DIR or run `make plugin`")
    out = tmp_path_factory.mktemp("harness") / "harness"
    command = [
        compiler,
        "-std=c++17",
        "-cudart",
        "none",
        "-isystem",
        str(include),
        "-Xcompiler",
        "-Wno-deprecated-declarations",
    ]
    done = subprocess.run(
        [*command, str(Path(__file__).with_name("harness.cpp")), "-o", str(out), "-ldl"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return out


def test_driven_without_tensorrt(harness, library):
    done = subprocess.run([harness, library], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("major", "code"), [("NV_TENSORRT_MAJOR", -signal.SIGABRT), ("99", 0)])
def test_a_logger_of_another_major_version_is_not_called(harness, library, tmp_path, major, code):
    """Its methods are elsewhere in the vtable. The first case shows that the finder is called where the version is ours."""
    if (compiler := shutil.which("cc")) is None:
        pytest.skip("no C compiler for the stand-in of TensorRT: install gcc")
    source, stand_in = tmp_path / "finder.c", tmp_path / "libfinder.so"
    source.write_text(FINDER)
    command = [compiler, "-shared", "-fPIC", f"-DMAJOR={major}", "-include", headers() / "NvInferVersion.h"]
    subprocess.run([*command, source, "-o", stand_in], check=True)
    done = subprocess.run([harness, library, stand_in], capture_output=True, text=True)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("attribute sampled is 2, expected 0 or 1" in done.stderr) == (code == 0)


@pytest.mark.parametrize("version", LEAN_VERSIONS)
def test_driven_through_a_real_registry(harness, library, version):
    if (folder := wheel(f"lean-{version}")) is None:
        pytest.skip(f"no tensorrt-lean {version}: run `make tensorrt-wheels`")
    (nvinfer,) = folder.glob("tensorrt_lean_libs/libnvinfer_lean.so.*")
    done = subprocess.run([harness, library, nvinfer], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
