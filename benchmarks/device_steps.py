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
    "install-nvcc": {"cmake": "cmake>=3.22,<5"},
    "install-rtx": {"tensorrt_rtx": "tensorrt-rtx>=1.4,<2"},
}
INSTALL_S = 150
# the compiler, where CUDA is not installed: it has no module to look for
NVCC = (
    "nvidia-cuda-nvcc==13.0.88",
    "nvidia-cuda-crt==13.0.88",
    "nvidia-nvvm==13.0.88",
    "nvidia-cuda-runtime==13.0.88",
    "nvidia-cuda-cccl==13.0.85",
)
# name of a form of the bundle -> what `lilicorr-export build` is given, in order of value
VARIANTS = {
    "fp16": ("--precision", "fp16"),
    "native": ("--precision", "fp16", "--attention", "native"),
    "int8": ("--precision", "fp16", "--weights", "int8", "--weights-block", "64"),
    "int4": ("--precision", "fp16", "--weights", "int4", "--weights-block", "64"),
    "bf16": ("--precision", "bf16"),
}
LIMITS = ("--max-context", "512", "--max-batch", "1")
# `compare` runs graphs in ONNX Runtime, which has no bf16, and gives outputs memory of their own, which native engines do not take
NOT_COMPARED = ("native", "bf16")


@dataclass(frozen=True)
class Step:
    """One line of the record.

    Attributes:
        limit_s: Seconds after which it is stopped.
        command: The first word is "python", "pip", "make" or one of our commands. "{STEP.KEY}" stands for that key of an earlier
            step's result, which must have succeeded and have it.
        needs_gpu: Skipped, with the reason, where there is none.
    """

    name: str
    limit_s: int
    command: tuple[str, ...]
    needs_gpu: bool = True


def steps(out: Path) -> list[Step]:
    """By value: is the kernel right, are the gradients, are the engines of every form; then training and TensorRT-RTX.

    A step that is reached after the whole time is skipped: what stands last is lost first.
    """
    benchmark = "benchmarks/{}.py".format
    *early, last = (Step(name, INSTALL_S, ("pip", *packages)) for name, packages in PACKAGES.items())
    found = [*early, Step("doctor", 60, ("lilicorr-run", "doctor", "--json"), needs_gpu=False)]
    target, drafter = ("--target", "{pair.target}"), ("--drafter", "{pair.drafter}")
    found += [
        Step("kernel", 90, ("python", benchmark("device_kernel"), "--out", str(out))),
        Step("gradients", 120, ("python", benchmark("device_gradients"))),
        Step("round", 60, ("python", benchmark("device_round"))),
        Step("pair", 60, ("python", benchmark("device_pair"), "--out", str(out))),
        Step("bundles", 160, ("python", benchmark("device_bundles"), *target, *drafter, "--out", str(out))),
        Step("plugin", 90, ("make", "plugin")),
    ]
    for form in VARIANTS:
        found += _engine_steps(form, "tensorrt", form)
    large = ("--set", "anchors_per_sequence=256", "--set", "max_length=2048", "--set", "bf16=true")
    throughput = (benchmark("train_throughput"), "recipes/smollm2-135m.yaml", "--repeats", "1")
    found += [
        Step("throughput", 90, ("python", *throughput, *large)),
        Step("train", 120, ("python", benchmark("device_train"), *target, "--out", str(out / "train"))),
        last,
        *_engine_steps("rtx", "tensorrt-rtx", "fp16"),
        Step("rtx-unnamed", 90, ("python", benchmark("device_portable"), "{bundles.fp16}", "--out", str(out))),
    ]
    return found


def _engine_steps(name: str, backend: str, form: str) -> list[Step]:
    """Build the engines of one form, compare their tensors, then their texts, and time them."""
    bundle, engines = f"{{bundles.{form}}}", ("--engines", f"{{engine-{name}.engines}}")
    walk = () if form == "fp16" else ("--no-plugin",)  # one form proves the plugin, the others do without its success
    bench = ("--prompts", "examples/prompts.jsonl", "--limit", "3", "--max-new-tokens", "64", "--json")
    found = [
        Step(f"engine-{name}", 120, ("lilicorr-export", "engine", bundle, "--backend", backend, *walk, "--json")),
        Step(f"texts-{name}", 60, ("python", "benchmarks/device_texts.py", bundle, *engines)),
        Step(f"bench-{name}", 60, ("lilicorr-run", "bench", bundle, *engines, *bench)),
    ]
    if form not in NOT_COMPARED:
        found.insert(1, Step(f"compare-{name}", 60, ("lilicorr-export", "compare", bundle, *engines, "--json")))
    return found
