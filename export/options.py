"""What can be chosen in an export, and the defaults: their only home."""

from __future__ import annotations

from dataclasses import dataclass

from lilicorr.runtime.contract import TWO_PART

ELEMENT_BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
INTEGER_WEIGHTS = {"int8": 8, "int4": 4}
BLOCKS = (32, 64, 128)  # neighbours along a weight's input width that share a scale
CONTEXT_CAP = 2048  # tokens served when nothing is asked and the target allows more


@dataclass(frozen=True)
class BuildOptions:
    """The choices of `lilicorr-export build` and `plan`."""

    precision: str = "fp32"
    attention: str = TWO_PART
    max_context: int | None = None  # None: the smaller of CONTEXT_CAP and the models' own limit
    max_batch: int = 4
    prefill_chunk: int = 128  # tokens: long enough to amortise a prefill call, short enough to bound its memory
    block_size: int | None = None  # None: the trained one
    weights: str | None = None  # of INTEGER_WEIGHTS, for the target's products; None: as its folder has them
    weights_block: int = 64  # of BLOCKS; divides more widths than 128, and TensorRT documents only 64 and 128 for int4

    def context(self, limit: int) -> int:
        """Tokens to serve for models that were made for at most `limit`."""
        return min(CONTEXT_CAP, limit) if self.max_context is None else self.max_context


@dataclass(frozen=True)
class EngineOptions:
    """The choices of `lilicorr-export engine`."""

    backend: str = "tensorrt"
    compute_capabilities: tuple[str, ...] = ()  # empty: that of the GPU here
    precision: str | None = None  # None: the bundle's; anything else is checked and refused with the reason
    workspace_mib: int | None = None  # None: all of the device's memory, TensorRT's own choice
    optimization_level: int = 3  # TensorRT's own default; lower builds faster and in less memory
    plugin: bool = True  # `tensorrt` only: the walk as a plugin; otherwise as standard operators
    force: bool = False
