"""The kernel's comparison with the host walk in the device's place, and its build; nothing is launched without a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lilicorr.plugins_trt import host_walk

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def kernel(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import device_kernel

    return device_kernel


def test_the_host_walk_agrees_with_itself(kernel):
    assert kernel.compare_greedy(host_walk)["different"] == 0
    assert kernel.compare_sampled(host_walk) == {"lanes": 298, "boundary": 0, "different": 0, "q_max_abs": 0.0}


def test_a_wrong_kernel_is_caught(kernel):
    def last_wins(start, pair, *sampling):
        path, q = host_walk(start, pair, *sampling)
        path[:, 0] = len(start[0]) - 1
        return path, q

    def soft(start, pair, *sampling):
        path, q = host_walk(start, pair, *sampling)
        return path, q + 1e-5

    assert kernel.compare_greedy(last_wins)["different"] > 0
    assert kernel.compare_sampled(last_wins)["different"] > 0
    assert kernel.compare_sampled(soft)["different"] > 0


def test_a_draw_at_a_boundary_is_no_difference(kernel, monkeypatch):
    """Both sides may round a cumulative sum to either side of the uniform number."""
    monkeypatch.setattr(kernel, "SIZES", ((1, 1, 2),))
    uniform = np.float32(0.5)
    monkeypatch.setattr(kernel, "scores", lambda *_: (np.zeros((1, 2), np.float32), np.zeros((1, 0, 2, 2), np.float32)))
    monkeypatch.setattr(kernel.np.random, "default_rng", lambda seed: Fixed(uniform))

    def other(start, pair, temperature, uniforms):
        path, q = host_walk(start, pair, np.ones(1, np.float32), uniforms)
        return 1 - path, q

    monkeypatch.setattr(kernel, "host_walk", lambda s, p, t, u: host_walk(s, p, np.ones(1, np.float32), u))
    assert kernel.compare_sampled(other)["boundary"] == 1
    assert kernel.compare_sampled(other)["different"] == 0


class Fixed:
    def __init__(self, value):
        self.value = value

    def random(self, shape, dtype):
        return np.full(shape, self.value, dtype)


def test_resources_are_read_from_the_compilers_report(kernel):
    text = (
        "ptxas info    : Compiling entry function '_ZN10walkKernelILb1EEEv' for 'sm_90'\n"
        "    0 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n"
        "ptxas info    : Used 42 registers, used 0 barriers, 256 bytes smem, 416 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function '_ZN10walkKernelILb0EEEv' for 'sm_90'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 36 registers, used 0 barriers\n"
    )
    assert kernel.resources_of(text) == {
        "sampled": {"registers": 42, "shared_bytes": 256, "spilled_bytes": 12},
        "greedy": {"registers": 36, "shared_bytes": 0, "spilled_bytes": 0},
    }


def test_it_builds_and_without_a_gpu_says_what_cuda_says(kernel, tmp_path):
    if (compiler := kernel.nvcc()) is None:
        pytest.skip("no nvcc: set CUDACXX, or install CUDA or nvidia-cuda-nvcc")
    library, resources = kernel.build(compiler, tmp_path, "sm_89")
    assert {name: kernel["spilled_bytes"] for name, kernel in resources.items()} == {"greedy": 0, "sampled": 0}
    code = f"import sys; sys.path.insert(0, {str(BENCHMARKS)!r})\n"
    code += f"import device_kernel as d, pathlib; d.compare_greedy(d.Walk(pathlib.Path({str(library)!r})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if done.returncode != 0:  # a GPU of another chip answers so too
        assert done.stderr.startswith("error: CUDA answers ")
