"""Optimisation profiles of one graph, from the limits and block size of its bundle: prefill chunk and block verify.

    symbol  prefill (min, opt, max)      verify (min, opt, max)
    N       1, 1, max_batch              the same; batch 1 is the edge case and what is tuned for
    T, M    1, chunk, max(chunk, B)      1, B, B
    C       1, about a quarter, max_context

A graph without T, M and C (the scorer) has `verify` only.
"""

from __future__ import annotations

from lilicorr.runtime.arena import capacity_for
from lilicorr.runtime.engine_set import Profile, Range
from lilicorr.runtime.manifest import Manifest, Tensor

Sizes = tuple[int, int, int]


def profiles_for(manifest: Manifest, component: str) -> tuple[Profile, ...]:
    """Profiles of `component` of the bundle, in the engine's order."""
    inputs = [tensor for tensor in manifest.components[component].inputs if _is_dynamic(tensor)]
    limits, block = manifest.limits, manifest.drafter.block_size
    context, chunk = limits.max_context, limits.prefill_chunk
    common: dict[str, Sizes] = {
        "N": (1, 1, limits.max_batch),
        # the arena's smallest bucket is tuned badly on purpose: attention over a full cache is what takes time
        "C": (1, capacity_for(max(1, context // 4), context), context),
    }
    widths: dict[str, Sizes] = {"prefill": (1, chunk, max(chunk, block)), "verify": (1, block, block)}
    if not any(symbol in tensor.shape for tensor in inputs for symbol in "TM"):
        del widths["prefill"]
    return tuple(
        Profile(name, {tensor.name: _range(tensor, {**common, "T": width, "M": width}) for tensor in inputs})
        for name, width in widths.items()
    )


def _is_dynamic(tensor: Tensor) -> bool:
    return any(isinstance(size, str) for size in tensor.shape)


def _range(tensor: Tensor, sizes: dict[str, Sizes]) -> Range:
    low, best, high = (tuple(sizes[d][i] if isinstance(d, str) else d for d in tensor.shape) for i in range(3))
    return Range(low, best, high)
