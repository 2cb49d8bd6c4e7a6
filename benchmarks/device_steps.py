"""The steps of the device check, in order: what each one runs, for how long at most, and what it needs. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# module -> what pip is asked for where it is missing; by the step that installs it
PACKAGES = {
    "install": {
        "click": "click>=8.2,<9",
        "jinja2": "jinja2>=3.1,<4",
        "numpy": "numpy>=1.26,<3",
        "tokenizers": "tokenizers>=0.20,<1",
        "onnx": "onnx>=1.18,<2",
        "onnxruntime": "onnxruntime>=1.20,<2",
        "polygraphy": "polygraphy>=0.53,<1",
        "cuda.bindings": "cuda-bindings>=12.8,<13",
    },
    "install-torch": {
        "torch": "torch>=2.9,<2.14",
        "transformers": "transformers>=5.0,<6",
        "safetensors": "safetensors>=0.5,<1",
        "accelerate": "accelerate>=1.1,<2",
        "yaml": "pyyaml>=6,<7",
        "gguf": "gguf>=0.10,<1",
        "onnxscript": "onnxscript>=0.5,<1",
    },
    "install-tensorrt": {"tensorrt": "tensorrt>=10.3,<12"},
    "install-rtx": {"tensorrt_rtx": "tensorrt-rtx>=1.4,<2"},
    "install-nvcc": {"cmake": "cmake>=3.22,<5"},
}
# the compiler, where CUDA is not installed: it has no module to look for
NVCC = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
)


@dataclass(frozen=True)
class Step:
    """One line of the record.

    Attributes:
        limit_s: Seconds after which it is stopped.
        command: The first word is "python", "pip", "make" or one of our commands. "{STEP.KEY}" stands for that key of an earlier
            step's result, which must have succeeded.
        after: Further steps that must have succeeded.
        needs_gpu: Skipped, with the reason, where there is none.
    """

    name: str
    limit_s: int
    command: tuple[str, ...]
    after: tuple[str, ...] = ()
    needs_gpu: bool = True


def steps(out: Path) -> list[Step]:
    """Cheap and independent ones first, so that a short lease still shows the kernel."""
    bundle, benchmark = str(out / "bundle"), "benchmarks/{}.py".format
    found = [Step(name, 240, ("pip", *PACKAGES[name])) for name in PACKAGES]
    found.append(Step("doctor", 60, ("lilicorr-run", "doctor", "--json"), needs_gpu=False))
    large = ("--set", "anchors_per_sequence=256", "--set", "max_length=2048", "--set", "bf16=true")
    target, drafter = ("--target", "{pair.target}"), ("--drafter", "{pair.drafter}")
    sizes = ("--precision", "fp16", "--max-context", "512", "--max-batch", "1")
    found += [
        Step("kernel", 150, ("python", benchmark("device_kernel"), "--out", str(out))),
        Step("round", 150, ("python", benchmark("device_round"))),
        Step(
            "throughput",
            150,
            ("python", benchmark("train_throughput"), "recipes/smollm2-135m.yaml", "--repeats", "1", *large),
        ),
        Step("pair", 150, ("python", benchmark("device_pair"), "--out", str(out))),
        Step("train", 150, ("python", benchmark("device_train"), *target, "--out", str(out / "train"))),
        Step("bundle", 200, ("lilicorr-export", "build", *target, *drafter, *sizes, "--out", bundle, "--json")),
        Step("plugin", 150, ("make", "plugin")),
    ]
    for backend in ("tensorrt", "tensorrt-rtx"):
        engines = f"{{engine-{backend}.engines}}"
        bench = ("--prompts", "examples/prompts.jsonl", "--limit", "3", "--max-new-tokens", "64", "--json")
        found += [
            Step(
                f"engine-{backend}",
                240,
                ("lilicorr-export", "engine", "{bundle.bundle}", "--backend", backend, "--json"),
            ),
            Step(
                f"compare-{backend}",
                90,
                ("lilicorr-export", "compare", "{bundle.bundle}", "--engines", engines, "--json"),
            ),
            # --backend takes the engine folder that fits this machine, so it needs the engines as `compare` does
            Step(
                f"bench-{backend}",
                120,
                ("lilicorr-run", "bench", "{bundle.bundle}", "--backend", backend, *bench),
                after=(f"engine-{backend}",),
            ),
        ]
    found.append(
        Step("rtx-unnamed", 150, ("python", benchmark("device_portable"), "{bundle.bundle}", "--out", str(out)))
    )
    return found
