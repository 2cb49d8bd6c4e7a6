"""The target and drafter graphs called as the runtime calls them, for comparing: ragged lanes, several calls, committed rows.

A text takes four calls (prefill, prefill, block, single token) over caches whose unused rows hold junk, so that masks, positions
and chunking are part of what is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lilicorr.export.native_calls import as_two_part
from lilicorr.runtime.manifest import Cache, Manifest
from lilicorr.runtime.steps import LATTICE

JUNK = 3.0  # fills cache rows that no call may see
SPARE_ROWS = 5  # capacity beyond the longest text

RunGraph = Callable[
    [str, Mapping[str, np.ndarray]], dict[str, np.ndarray]
]  # a `graph_runner.GraphRunner`, or what stands for it


def target_rows(run: RunGraph, manifest: Manifest, texts: Sequence[Sequence[int]]) -> list[dict[str, np.ndarray]]:
    """All outputs of the target graph, per text, rows of the calls joined: logits (L,V), features (L,F·H), k_{i} (Hkv,L,D) …"""
    run, cache, lengths = as_two_part(run, manifest), manifest.target.cache, np.zeros(len(texts), np.int32)
    caches = _empty_caches(cache, len(texts), max(map(len, texts)))
    pieces: list[dict[str, list[np.ndarray]]] = [{} for _ in texts]
    for counts in zip(*(_calls(len(ids), manifest.drafter.block_size) for ids in texts), strict=True):
        if max(counts) == 0:
            continue
        tokens = np.zeros((len(texts), max(counts)), np.int32)
        for lane, ids in enumerate(texts):
            tokens[lane, : counts[lane]] = ids[lengths[lane] : lengths[lane] + counts[lane]]
        out = run("target", {"tokens": tokens, "lengths": lengths, **caches})
        for lane, count in enumerate(counts):
            for name in ("logits", "next_ids", "features"):
                pieces[lane].setdefault(name, []).append(out[name][lane, :count])
            for name in _kv(cache):
                pieces[lane].setdefault(name, []).append(out[f"new_{name}"][lane, :, :count])
        _commit(caches, out, cache, lengths, counts)
    return [
        {name: np.concatenate(parts, axis=1 if name[1] == "_" else 0) for name, parts in lane.items()}
        for lane in pieces
    ]


def _calls(length: int, block: int) -> tuple[int, int, int, int]:
    """Tokens per call for one text: two prefill chunks, one block, one plain step."""
    half = (length - block - 1) // 2
    return half, length - block - 1 - half, block, 1


def drafter_lattice(
    run: RunGraph, manifest: Manifest, features: np.ndarray, anchors: Sequence[int], tokens: Sequence[int]
) -> dict[str, np.ndarray]:
    """The drafter's lattice for several anchors of one text as lanes, the context handed over in two calls."""
    run, cache, lengths = as_two_part(run, manifest), manifest.drafter.cache, np.zeros(len(anchors), np.int32)
    caches, out = _empty_caches(cache, len(anchors), max(anchors)), {}
    halves = [max(1, anchor // 2) for anchor in anchors]
    for counts in (halves, [anchor - half for anchor, half in zip(anchors, halves, strict=True)]):
        rows = np.full((len(anchors), max(counts), features.shape[1]), JUNK, np.float32)
        for lane, count in enumerate(counts):
            rows[lane, :count] = features[lengths[lane] : lengths[lane] + count]
        given = {"anchor": np.array(tokens, np.int32), "features": rows, "count": np.array(counts, np.int32)}
        out = run("drafter", {**given, "lengths": lengths, **caches})
        _commit(caches, out, cache, lengths, counts)
    return {name: out[name] for name in LATTICE}


def _kv(cache: Cache) -> list[str]:
    return [f"{kind}_{i}" for i in range(cache.layers) for kind in "kv"]


def _empty_caches(cache: Cache, lanes: int, rows: int) -> dict[str, np.ndarray]:
    shape = (lanes, cache.kv_heads, rows + SPARE_ROWS, cache.head_dim)
    return {f"{name[0]}_cache{name[1:]}": np.full(shape, JUNK, np.float32) for name in _kv(cache)}


def _commit(
    caches: dict[str, np.ndarray],
    out: Mapping[str, np.ndarray],
    cache: Cache,
    lengths: np.ndarray,
    counts: Sequence[int],
) -> None:
    """Append the valid new rows of every lane and advance `lengths` in place."""
    for name in _kv(cache):
        rows = caches[f"{name[0]}_cache{name[1:]}"]
        for lane, count in enumerate(counts):
            rows[lane, :, lengths[lane] : lengths[lane] + count] = out[f"new_{name}"][lane, :, :count]
    lengths += np.array(counts, np.int32)
