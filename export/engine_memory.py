"""Will an engine build fit in memory? An estimate before it, and the plain words for it, instead of the kernel's "Killed"."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lilicorr.export.tables import human_bytes
from lilicorr.runtime.errors import UserError

# Fitted to TensorRT-RTX 1.7.1 ahead-of-time builds with float weights, which it meets or exceeds (resident peak, GB: measured,
# estimated): SmolLM2-135M target fp32 2.48, 2.77; fp16 1.67, 1.75; bf16 of fewer nodes for two compute capabilities 1.66, 1.68;
# its drafter fp16 0.62, 0.70; Qwen3-0.6B-shaped fp16 4.5, 5.1. Integer weights were not fitted: the same target int8 1.38, 1.31
# (6 % too little), with native attention 1.26, 1.24; int4 1.12, 1.31.
# TensorRT's own builder is not measured; NVIDIA/TensorRT-Edge-LLM#30 reports 3 to 4 times the weights.
BASE_BYTES, WEIGHT_FACTOR, NODE_BYTES = 300 << 20, 3.8, 200_000


@dataclass(frozen=True)
class Memory:
    """Bytes that can still be had: RAM, then swap. On a Jetson the GPU takes from the same RAM."""

    ram: int
    swap: int

    @property
    def total(self) -> int:
        return self.ram + self.swap


def estimate_bytes(weight_bytes: int, nodes: int) -> int:
    """Resident peak of building one engine from a graph of `nodes` nodes with `weight_bytes` of weights."""
    return int(BASE_BYTES + WEIGHT_FACTOR * weight_bytes + NODE_BYTES * nodes)


def free_memory(source: Path = Path("/proc/meminfo")) -> Memory | None:
    """What Linux says can be had; None where it does not say."""
    try:
        pairs = (line.split(":") for line in source.read_text().splitlines())
        sizes = {name: int(value.split()[0]) << 10 for name, value in pairs}
        return Memory(sizes["MemAvailable"], sizes["SwapFree"])
    except (OSError, ValueError, KeyError):
        return None


def require_memory(component: str, needed: int, memory: Memory | None) -> str | None:
    """Refuse a build that would be killed; return a warning when it would only fit with swap, else None.

    Raises:
        UserError: `needed` exceeds RAM and swap together.
    """
    if memory is None or needed <= memory.ram:
        return None
    numbers = f"about {human_bytes(needed)} to build, {human_bytes(memory.ram)} RAM and {human_bytes(memory.swap)} swap are free"
    if needed > memory.total:
        raise UserError(
            f"the {component} engine does not fit in memory: {numbers}", hint=_advice(needed - memory.total)
        )
    return f"the {component} engine needs {numbers}: it will swap, and take long"


def killed(component: str, needed: int) -> UserError:
    """The error for a builder that the system killed."""
    return UserError(
        f"the system killed the builder of the {component} engine, most likely for want of memory"
        f" (it needs about {human_bytes(needed)})",
        hint=_advice(needed),
    )


def _advice(missing: int) -> str:
    size = -(-missing // (1 << 30))
    return (
        f"close other programs (on a Jetson also the desktop: sudo systemctl isolate multi-user), or add swap: "
        f"sudo fallocate -l {size}G /swap && sudo chmod 600 /swap && sudo mkswap /swap && sudo swapon /swap"
    )
