"""The manifest: what a bundle is, as frozen dataclasses, written by the export and read (strictly) by the runtime.

Does not touch graph files; `lilicorr.runtime.bundle` opens and verifies them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError

SCHEMA_VERSION = 2
FILE_NAME = "manifest.json"


@dataclass(frozen=True)
class FileRecord:
    """One file of the bundle; `path` is relative to the bundle, with forward slashes."""

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class Tensor:
    """One graph input or output. A dimension is a number or a symbol ("N", "T", "C", "M")."""

    name: str
    dtype: str  # numpy name: "float32", "float16", "int32"; "bfloat16" for bf16 bundles
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class Component:
    """One graph: its file, the weight files it refers to, and its interface."""

    file: str
    weights: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    opset: int
    ir_version: int


@dataclass(frozen=True)
class Cache:
    """Geometry of one K/V cache: per layer K and V of (N, kv_heads, C, head_dim)."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: str


@dataclass(frozen=True)
class Quantisation:
    """The target's products read integers with a scale per block of their input width; everything else is a float."""

    bits: int  # 4 or 8
    block: int
    source: str  # "round-to-nearest", or the pre-quantised format that they come from


@dataclass(frozen=True)
class Target:
    name: str
    architecture: str
    hidden_size: int
    vocab_size: int
    max_context: int  # of the model itself; Limits.max_context is what this bundle serves
    stop_token_ids: tuple[int, ...]
    bos_token: str | None
    eos_token: str | None
    cache: Cache
    quantisation: Quantisation | None = None


@dataclass(frozen=True)
class Drafter:
    name: str
    architecture: str
    block_size: int  # served: anchor + slots
    trained_block_size: int
    candidate_topk: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    draft_vocab_size: int | None
    rope: dict[str, Any]
    cache: Cache


@dataclass(frozen=True)
class Head:
    kind: str  # "lilicorr"
    logit_scale: float
    vector_eps: float


@dataclass(frozen=True)
class Limits:
    max_context: int  # tokens, prompt and answer together
    max_batch: int
    prefill_chunk: int  # tokens per prefill call


@dataclass(frozen=True)
class Plugin:
    name: str
    namespace: str
    version: str


@dataclass(frozen=True)
class Manifest:
    schema_version: int
    lilicorr_version: str
    created: str  # ISO 8601, UTC
    command: tuple[str, ...]
    precision: str  # "fp32" | "fp16" | "bf16"
    attention: str  # "two-part" | "native": the form of attention in target and drafter (docs/attention.md)
    target: Target
    drafter: Drafter
    head: Head | None
    limits: Limits
    components: dict[str, Component]  # "target", "drafter" and, with a head, "scorer"
    files: tuple[FileRecord, ...]  # every file but manifest.json and parity.*
    plugin: Plugin | None
    environment: dict[str, str]  # package name -> version, plus python, platform

    @property
    def total_bytes(self) -> int:
        """Size of every recorded file together."""
        return sum(record.bytes for record in self.files)

    def to_json(self) -> str:
        return json.dumps(seal(dataclasses.asdict(self)), indent=1) + "\n"


def seal(data: dict[str, Any]) -> dict[str, Any]:
    """`data` with `sha256`, the hash of everything else in it: what tells a damaged manifest from a whole one."""
    rest = {key: value for key, value in data.items() if key != "sha256"}
    canonical = json.dumps(rest, sort_keys=True, separators=(",", ":"))
    return rest | {"sha256": hashlib.sha256(canonical.encode()).hexdigest()}


def read_manifest(folder: Path) -> Manifest:
    """Read and validate `folder/manifest.json`.

    Raises:
        UserError: no manifest, not JSON, another schema version, content that does not match its own hash, or fields
            missing, unknown or of the wrong type (all listed at once).
    """
    path = folder / FILE_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"`{folder}` is not a bundle: it has no `{FILE_NAME}`",
            hint=f"lilicorr-export build --target DIR --drafter DIR --out {folder}",
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"`{path}` cannot be read: {error}", hint="build the bundle again") from None
    found = data.get("schema_version") if isinstance(data, dict) else None
    if found != SCHEMA_VERSION:
        raise UserError(
            f"`{path}` has schema_version {found!r}, this lilicorr reads {SCHEMA_VERSION}",
            hint="build the bundle again with this version",
        )
    if data.pop("sha256", None) != seal(data)["sha256"]:
        raise UserError(
            f"`{path}` is damaged or was edited: its content does not match the sha256 it records",
            hint="build the bundle again",
        )
    problems: list[str] = []
    manifest = parse(Manifest, data, "", problems)
    if problems:
        raise UserError(f"`{path}` is not valid:\n  " + "\n  ".join(problems), hint="build the bundle again")
    return manifest


def parse(kind: Any, value: Any, where: str, problems: list[str]) -> Any:
    """Convert JSON `value` to the annotated type `kind` (dataclass, tuple, dict, plain), appending what is wrong to `problems`."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return value
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            problems.append(f"{where or 'the manifest'}: expected an object, found {type(value).__name__}")
            return None
        hints = typing.get_type_hints(kind)
        prefix = where + "." if where else ""
        problems.extend(f"{prefix}{name}: missing" for name in hints if name not in value)
        problems.extend(f"{prefix}{name}: unknown field" for name in value if name not in hints)
        known = {n: parse(hints[n], v, prefix + n, problems) for n, v in value.items() if n in hints}
        return kind(**known) if len(known) == len(hints) else None
    if origin in (typing.Union, types.UnionType):
        for option in args:
            trial: list[str] = []
            parsed = parse(option, value, where, trial)
            if not trial:
                return parsed
        problems.append(f"{where}: expected {kind}, found {value!r}")
        return None
    if origin is tuple and isinstance(value, list):
        return tuple(parse(args[0], item, f"{where}[{i}]", problems) for i, item in enumerate(value))
    if origin is dict and isinstance(value, dict):
        return {key: parse(args[1], item, f"{where}.{key}", problems) for key, item in value.items()}
    plain = origin or kind
    accepted = (int, float) if plain is float else plain
    if plain is types.NoneType:
        accepted = types.NoneType
    if not isinstance(value, accepted) or (isinstance(value, bool) and plain is not bool):
        problems.append(f"{where}: expected {getattr(kind, '__name__', kind)}, found {value!r}")
    return value
