"""The headers of the safetensors files of a folder: names, dtypes and shapes, without reading a weight.

A file whose size is not what its header promises is refused here, before anything heavy starts.
"""

from __future__ import annotations

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path

from lilicorr.runtime.errors import UserError
from lilicorr.train.folder import model_files

_MAX_HEADER = 100_000_000  # bytes; the limit of the safetensors format itself


@dataclass(frozen=True)
class TensorHeader:
    """One stored tensor; `dtype` is the safetensors name ("F32", "BF16", "I64")."""

    dtype: str
    shape: tuple[int, ...]
    file: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Read the header of every safetensors file that holds the model in `folder`, sharded or not.

    Raises:
        UserError: no such file, a shard of the index missing, or files cut short or damaged (all listed at once).
    """
    problems: list[str] = []
    tensors: dict[str, TensorHeader] = {}
    for name in model_files(folder):
        try:
            tensors.update(_file_header(folder / name))
        except UserError as error:
            problems.append(error.what)
    if problems:
        raise UserError("\n".join(problems), hint="download or copy the named files again")
    return tensors


def _file_header(path: Path) -> dict[str, TensorHeader]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else _MAX_HEADER + 1
            text = file.read(length) if length <= min(_MAX_HEADER, size) else b""
    except OSError as error:
        raise UserError(f"`{path}` cannot be read: {error.strerror}") from None
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        tensors = {
            name: TensorHeader(entry["dtype"], tuple(entry["shape"]), path.name) for name, entry in header.items()
        }
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(f"`{path}` is damaged or truncated: its safetensors header cannot be read") from None
    if size != 8 + length + end:
        raise UserError(
            f"`{path}` is truncated or damaged: found {size:,} bytes, its header promises {8 + length + end:,}"
        )
    return tensors
