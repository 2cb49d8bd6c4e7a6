"""The walk's kernel on this GPU: resources, results against the host walk, capture in a CUDA graph, and time against torch.

    python benchmarks/device_kernel.py --out build/device_check

Compiles plugins_trt/csrc/kernel.cu with device_walk.cu for this chip (nvcc: CUDACXX, PATH or /usr/local/cuda). Greedy
paths must equal the host's exactly; a sampled path may differ where a uniform number falls within 1e-6 of a boundary, for the two
sides round `exp` differently, and q must agree to 1e-6. With torch, the same walk in its standard operators
(`lilicorr.train.walk`) is timed beside it. Last line of stdout: one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np

from lilicorr.plugins_trt import host_walk

ROOT = Path(__file__).resolve().parents[1]
SIZES = ((1, 5, 8), (1, 15, 8), (4, 15, 8), (32, 15, 8), (1, 63, 32), (256, 7, 4), (3, 1, 1))  # N, S, K
TIMED = ((1, 5, 8), (1, 15, 8), (8, 15, 8), (1, 63, 32))
REPEATS = 200
BOUNDARY = 1e-6


@click.command()
@click.option("--out", type=click.Path(path_type=Path), required=True)
def main(out: Path) -> None:
    compiler = nvcc()
    if compiler is None:
        click.echo(json.dumps({"skipped": "no nvcc: set CUDACXX, or install CUDA or nvidia-cuda-nvcc"}))
        return
    library, resources = build(compiler, out, "native")
    walk = Walk(library)
    report = {
        "resources": resources,
        "greedy": compare_greedy(walk),
        "sampled": compare_sampled(walk),
        "timed": [time_one(walk, *size) for size in TIMED],
    }
    click.echo(json.dumps(report))
    captured = all(line["captured_is_right"] for line in report["timed"])
    if report["greedy"]["different"] or report["sampled"]["different"] or not captured:
        sys.exit("error: the kernel disagrees with the host walk")


def nvcc() -> str | None:
    """`CUDACXX`, the one on PATH, or that of CUDA's usual place."""
    usual = Path("/usr/local/cuda/bin/nvcc")
    return os.environ.get("CUDACXX") or shutil.which("nvcc") or (str(usual) if usual.is_file() else None)


def build(compiler: str, out: Path, arch: str) -> tuple[Path, dict[str, dict[str, int]]]:
    """Compile the library for `arch` ("native", "sm_89"); its path and registers, shared memory and spills per kernel."""
    library = out / f"device_walk-{arch}.so"
    sources = [str(ROOT / "plugins_trt/csrc/kernel.cu"), str(ROOT / "benchmarks/device_walk.cu")]
    command = [compiler, "-std=c++17", "-O2", "-shared", "-Xcompiler", "-fPIC", f"-arch={arch}", "--resource-usage"]
    command += ["-I", str(ROOT / "plugins_trt/csrc"), *sources, "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"error: nvcc failed: {done.stderr.strip()[-600:]}")
    return library, resources_of(done.stdout + done.stderr)


def resources_of(text: str) -> dict[str, dict[str, int]]:
    """From nvcc's report: kernel -> registers, shared bytes, spilled bytes. Kernels are told apart by their template argument."""
    found = {}
    for name, body in re.findall(r"entry function '(\S+)'.*?\n(.*?)(?=Compiling entry|\Z)", text, flags=re.DOTALL):
        if (registers := re.search(r"Used (\d+) registers", body)) is None:
            continue
        shared = re.search(r"(\d+) bytes smem", body)
        spills = re.findall(r"(\d+) bytes spill", body)
        found["sampled" if "Lb1" in name else "greedy"] = {
            "registers": int(registers[1]),
            "shared_bytes": int(shared[1]) if shared else 0,
            "spilled_bytes": sum(map(int, spills)),
        }
    return found


class Walk:
    """The compiled library; raises SystemExit with CUDA's own words."""

    def __init__(self, library: Path):
        self.library = ctypes.CDLL(str(library))
        self.library.lilicorr_error.restype = ctypes.c_char_p

    def check(self, status: int) -> None:
        if status:
            sys.exit(f"error: CUDA answers {status}: {self.library.lilicorr_error(status).decode()}")

    def __call__(
        self,
        start: np.ndarray,
        pair: np.ndarray,
        temperature: np.ndarray | None = None,
        uniforms: np.ndarray | None = None,
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """As `host_walk`, on the device; float32 and contiguous arrays."""
        path, q = _outputs(start, pair, temperature)
        sizes = (len(start), path.shape[1], start.shape[1])
        inputs = [_pointer(array) for array in (start, pair, temperature, uniforms)]
        self.check(self.library.lilicorr_walk(*inputs, *sizes, _pointer(path), _pointer(q)))
        return path, q

    def time(self, start: np.ndarray, pair: np.ndarray, repeats: int) -> tuple[float, float, np.ndarray]:
        """Microseconds of a greedy walk launched and from a CUDA graph, and the graph's path."""
        path, _ = _outputs(start, pair, None)
        sizes = (len(start), path.shape[1], start.shape[1])
        launched, captured = ctypes.c_float(), ctypes.c_float()
        inputs = [_pointer(start), _pointer(pair), None, None]
        times = [ctypes.byref(launched), ctypes.byref(captured)]
        self.check(self.library.lilicorr_time(*inputs, *sizes, repeats, *times, _pointer(path), None))
        return launched.value, captured.value, path


def _outputs(
    start: np.ndarray, pair: np.ndarray, temperature: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray | None]:
    lanes, slots, count = len(start), pair.shape[1] + 1, start.shape[1]
    q = None if temperature is None else np.full((lanes, slots, count), np.nan, np.float32)
    return np.full((lanes, slots), -1, np.int32), q


def _pointer(array: np.ndarray | None) -> ctypes.c_void_p | None:
    return None if array is None else ctypes.c_void_p(array.ctypes.data)


def scores(random: np.random.Generator, lanes: int, slots: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Start and pair scores with what is hard mixed in: ties, NaN, infinities, denormals."""
    start, pair = random.standard_normal((lanes, count)), random.standard_normal((lanes, slots - 1, count, count))
    for array in (start, pair):
        hard = random.random(array.shape)
        array[hard < 0.2] = 0.5
        for limit, value in ((0.02, np.nan), (0.03, np.inf), (0.06, -np.inf), (0.08, 1e-42)):
            array[(hard >= limit - 0.02) & (hard < limit)] = value
    return np.ascontiguousarray(start, np.float32), np.ascontiguousarray(pair, np.float32)


def compare_greedy(walk: Any) -> dict[str, int]:
    random, total, different = np.random.default_rng(0), 0, 0
    for size in SIZES:
        start, pair = scores(random, *size)
        path, _ = walk(start, pair)
        total += path.size
        different += int((path != host_walk(start, pair)[0]).sum())
    return {"choices": total, "different": different}


def compare_sampled(walk: Any) -> dict[str, float]:
    """`boundary` counts lanes that part where a uniform number lies within BOUNDARY of a cumulative sum; `different` the others."""
    random = np.random.default_rng(1)
    total = boundary = different = 0
    worst = 0.0
    for lanes, slots, count in SIZES:
        start, pair = scores(random, lanes, slots, count)
        temperature = np.array([(0.0, 0.3, 1.0, 2.0)[lane % 4] for lane in range(lanes)], np.float32)
        uniforms = random.random((lanes, slots), dtype=np.float32)
        path, q = walk(start, pair, temperature, uniforms)
        wanted, wanted_q = host_walk(start, pair, temperature, uniforms)
        for lane in range(lanes):
            parted = np.flatnonzero(path[lane] != wanted[lane])
            same = parted[0] if len(parted) else slots  # beyond the first difference the rows are others
            error = float(np.abs(q[lane, : same + 1] - wanted_q[lane, : same + 1]).max())
            worst = max(worst, error)
            near = len(parted) > 0 and np.abs(np.cumsum(wanted_q[lane, same]) - uniforms[lane, same]).min() < BOUNDARY
            boundary += int(near and error <= BOUNDARY)
            different += int((len(parted) > 0 and not near) or not error <= BOUNDARY)
            total += 1
    return {"lanes": total, "boundary": boundary, "different": different, "q_max_abs": worst}


def time_one(walk: Walk, lanes: int, slots: int, count: int) -> dict[str, Any]:
    """Microseconds per walk: our kernel launched and captured, torch's operators launched and captured."""
    random = np.random.default_rng(2)
    start = random.standard_normal((lanes, count), np.float32)
    pair = random.standard_normal((lanes, slots - 1, count, count), np.float32)
    launched, captured, path = walk.time(start, pair, REPEATS)
    wanted = host_walk(start, pair)[0]
    report = {"size": [lanes, slots, count], "kernel_us": launched, "kernel_captured_us": captured}
    report["captured_is_right"] = bool((path == wanted).all())
    return report | torch_times(start, pair, wanted)


def torch_times(start: np.ndarray, pair: np.ndarray, wanted: np.ndarray) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return {"torch": "not installed"}
    if not torch.cuda.is_available():
        return {"torch": "sees no GPU"}
    from lilicorr.train.walk import greedy_walk

    on_device = torch.from_numpy(start).cuda(), torch.from_numpy(pair).cuda()
    path = greedy_walk(*on_device)
    report: dict[str, Any] = {"torch_is_right": bool((path.cpu().numpy() == wanted).all())}
    report["torch_us"] = _microseconds(lambda: greedy_walk(*on_device))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        greedy_walk(*on_device)
    report["torch_captured_us"] = _microseconds(graph.replay)
    return report


def _microseconds(call: Any) -> float:
    import torch

    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for _ in range(10):
        call()
    begin.record()
    for _ in range(REPEATS):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / REPEATS


if __name__ == "__main__":
    main()
