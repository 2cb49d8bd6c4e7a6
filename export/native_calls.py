"""A native bundle's graphs called as if they were two-part: caches of any capacity in, the rows of the call out. For comparing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from lilicorr.runtime.contract import NATIVE, UPDATED, native_rows
from lilicorr.runtime.manifest import Manifest

if TYPE_CHECKING:
    from lilicorr.export.ragged_calls import RunGraph


def as_two_part(run: RunGraph, manifest: Manifest) -> RunGraph:
    """`run` itself for a two-part bundle; otherwise caches are filled up to the static capacity with their last row, and
    `updated_k_cache_{i}` (N,Hkv,C,D) becomes `new_k_{i}` (N,Hkv,T,D), the rows written after `lengths`."""
    if manifest.attention != NATIVE:
        return run
    capacity = native_rows(manifest)

    def call(graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        caches = {name: _filled(array, capacity) for name, array in inputs.items() if "_cache_" in name}
        out = run(graph, {**inputs, **caches})
        width = inputs["tokens" if graph == "target" else "features"].shape[1] if caches else 0
        for name in caches:
            updated = out.pop(UPDATED + name)
            rows = [lane[:, start : start + width] for lane, start in zip(updated, inputs["lengths"], strict=True)]
            out["new_" + name.replace("cache_", "")] = np.stack(rows)
        return out

    return call


def _filled(cache: np.ndarray, capacity: int) -> np.ndarray:
    return np.pad(cache, ((0, 0), (0, 0), (0, capacity - cache.shape[2]), (0, 0)), mode="edge")
