"""csrc/kernel.cu compiled for every served chip; runs nothing. Its arithmetic is tested by test_host.py."""

from __future__ import annotations

import re
import subprocess

import pytest

from lilicorr.plugins_trt.paths import SOURCES
from tests.plugins_trt.tools import nvcc

CHIPS = (87, 89, 90, 110, 120)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The resource report of one compilation for all chips and PTX."""
    if (compiler := nvcc()) is None:
        pytest.skip("no nvcc: install CUDA or `pip install nvidia-cuda-nvcc`, or set CUDACXX")
    out = tmp_path_factory.mktemp("kernel") / "kernel.fatbin"
    targets = [f"-gencode=arch=compute_{chip},code=sm_{chip}" for chip in CHIPS]
    targets.append("-gencode=arch=compute_80,code=compute_80")
    command = [compiler, "-std=c++17", "--fatbin", "--resource-usage", "-Werror=all-warnings", *targets]
    done = subprocess.run([*command, str(SOURCES / "kernel.cu"), "-o", str(out)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert b"walkKernel" in out.read_bytes()
    return done.stdout + done.stderr


@pytest.mark.parametrize("chip", CHIPS)
def test_both_kernels_stay_in_registers(report, chip):
    kernels = re.findall(rf"entry function '(\S+)' for 'sm_{chip}'\n(.*?)Compile time", report, flags=re.DOTALL)
    assert len(kernels) == 2  # greedy, sampled
    for name, resources in kernels:
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in resources, name
        assert int(re.search(r"Used (\d+) registers", resources)[1]) <= 64
        assert int(re.search(r"(\d+) bytes smem", resources)[1]) <= 256
