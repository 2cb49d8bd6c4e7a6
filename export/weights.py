"""Weight files: every large tensor of all graphs of a bundle exactly once, at page-aligned offsets, streamed.

A tensor that several graphs use (the embedding table, an untied lm_head) is found by its bytes, never by a flag or a name, and
every graph refers to the one copy. Small constants stay inside the graph files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

FOLDER = "weights"
SHARED = "embedding"  # stem of the file that holds embedding tables
PAGE = 4096  # ONNX Runtime maps external data instead of reading it when the offset is page aligned
THRESHOLD = 4096  # bytes; smaller tensors stay inside the graph


def move_weights(
    models: Mapping[str, ir.Model], folder: Path, *, threshold: int = THRESHOLD
) -> dict[str, tuple[str, ...]]:
    """Write all weights of at least `threshold` bytes under `folder`/weights and make the models refer to them.

    Args:
        models: Graph name → model, changed in place: their tensors become external ones.
        folder: The bundle; weight files are `weights/<graph>.bin` and `weights/embedding.bin`.

    Returns:
        Graph name → weight files it refers to, relative to `folder` with forward slashes, sorted.
    """
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    ends: dict[str, int] = {}
    placed: dict[bytes, tuple[str, int, int]] = {}
    files: dict[str, tuple[str, ...]] = {}
    for name, model in models.items():
        used = set()
        for value in model.graph.initializers.values():
            tensor = value.const_value
            if tensor is None or tensor.nbytes < threshold:
                continue
            data = tensor.tobytes()
            key = hashlib.sha256(repr((tensor.dtype, tensor.shape)).encode() + hashlib.sha256(data).digest()).digest()
            if key not in placed:
                file = f"{FOLDER}/{SHARED if is_table(value) else name}.bin"
                placed[key] = (file, _append(folder / file, data, ends), len(data))
            file, offset, length = placed[key]
            used.add(file)
            value.const_value = ir.ExternalTensor(
                file, offset, length, tensor.dtype, shape=tensor.shape, name=value.name or "", base_dir=folder
            )
        files[name] = tuple(sorted(used))
    return files


def is_table(value: ir.Value) -> bool:
    """Whether a weight is looked up by id along its first axis."""
    return any(
        use.node.op_type == "Gather"
        and use.idx == 0
        and ("axis" not in use.node.attributes or use.node.attributes["axis"].as_int() == 0)
        for use in value.uses()
    )


def _append(path: Path, data: bytes, ends: dict[str, int]) -> int:
    """Append `data` at the next page and return its offset; the first append of a run starts the file anew."""
    end = ends.get(path.name, 0)
    offset = -(-end // PAGE) * PAGE
    with path.open("r+b" if end else "wb") as file:
        file.seek(offset)
        file.write(data)
    ends[path.name] = offset + len(data)
    return offset
