"""csrc/kernel.cu run on CPU threads (emulation/) under the thread sanitizer: who reads and writes what, and in which order.

Finds a race or a wrong index in the kernel's text; says nothing about the GPU's arithmetic or speed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lilicorr.plugins_trt import host, paths

EMULATION = Path(__file__).with_name("emulation")


def build(folder, *options):
    out = folder / "emulation"
    sources = ["-x", "c++", paths.SOURCES / "kernel.cu", paths.SOURCES / "host.cpp", EMULATION / "main.cpp"]
    include = ["-I", EMULATION, "-I", paths.SOURCES]
    command = [*host._compiler(), "-std=c++17", "-O1", "-g", "-pthread", *options, *include, *sources, "-o", out]
    return out, subprocess.run(command, capture_output=True, text=True)


def test_the_kernel_on_threads_equals_the_host_build_without_a_race(tmp_path):
    out, built = build(tmp_path, "-fsanitize=thread")
    if "tsan" in built.stderr:
        pytest.skip("the C++ compiler has no thread sanitizer: install libtsan")
    assert built.returncode == 0, built.stderr
    done = subprocess.run([out], capture_output=True, text=True, timeout=300)
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run here: lower vm.mmap_rnd_bits")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
