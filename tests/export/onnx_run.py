"""Run one graph file in ONNX Runtime, for tests: numpy in, a dict of numpy out, one thread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort


def run(path: Path, feeds: dict[str, np.ndarray], entries: dict[str, str] | None = None) -> dict[str, np.ndarray]:
    """Feeds that the graph does not declare are an error of ONNX Runtime; so are missing ones. `entries` configure the session."""
    options = ort.SessionOptions()
    for name, value in (entries or {}).items():
        options.add_session_config_entry(name, value)
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def empty_caches(
    layers: int, lanes: int, kv_heads: int, capacity: int, width: int, dtype=np.float32
) -> dict[str, np.ndarray]:
    """Zero caches by graph input name."""
    shape = (lanes, kv_heads, capacity, width)
    return {f"{kind}_cache_{i}": np.zeros(shape, dtype) for kind in "kv" for i in range(layers)}


def commit(caches: dict[str, np.ndarray], outputs: dict[str, np.ndarray], starts: list[int], counts: list[int]) -> None:
    """Write the first `counts` new rows of each lane at `starts`, as the runtime's arena does."""
    for name, cache in caches.items():
        rows = outputs["new_" + name.replace("cache_", "")]
        for lane, (start, count) in enumerate(zip(starts, counts, strict=True)):
            cache[lane, :, start : start + count] = rows[lane, :, :count]
