"""The engine folder: TensorRT engines built from one bundle, described by `engine.json`, written by the export and read strictly.

Compares no device (`engine_check`) and no shape (`engine_shapes`); deserialises nothing.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path

from lilicorr.runtime.bundle import file_sha256
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from lilicorr.runtime.manifest import parse

SCHEMA_VERSION = 1
FILE_NAME = "engine.json"


@dataclass(frozen=True)
class Range:
    """Allowed sizes of every dimension of one input; `opt` is what the engine is tuned for."""

    min: tuple[int, ...]
    opt: tuple[int, ...]
    max: tuple[int, ...]


@dataclass(frozen=True)
class Profile:
    """One optimisation profile; its place in `Engine.profiles` is its index in the engine."""

    name: str  # "prefill" or "verify"
    shapes: dict[str, Range]  # every input with a dynamic dimension


@dataclass(frozen=True)
class Engine:
    """One component's engine. `built_from` is what a rebuild depends on: fact -> value or digest."""

    file: str
    sha256: str
    bytes: int
    profiles: tuple[Profile, ...]
    built_from: dict[str, str]


@dataclass(frozen=True)
class PluginBuild:
    """The plugin library whose layers are inside the engines."""

    name: str
    namespace: str
    version: str
    sha256: str


@dataclass(frozen=True)
class EngineSet:
    """The content of `engine.json`."""

    schema_version: int
    lilicorr_version: str
    created: str  # ISO 8601, UTC
    command: tuple[str, ...]
    backend: str  # "tensorrt" | "tensorrt-rtx"
    tensorrt_version: str
    compute_capabilities: tuple[str, ...]  # "8.7"
    system: str  # platform.system().lower()
    machine: str  # platform.machine()
    precision: str  # of the bundle
    attention: str  # "two-part": form of attention in the graphs
    bundle_sha256: str  # of the bundle's manifest.json
    plugin: PluginBuild | None
    engines: dict[str, Engine]  # component -> engine

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"


def rebuild_command(backend: str, bundle: str | Path = "BUNDLE", capabilities: tuple[str, ...] = ()) -> str:
    """The command that builds the engines again; TensorRT-RTX is told the `capabilities`, TensorRT asks the device."""
    command = f"lilicorr-export engine {bundle} --backend {backend}"
    return f"{command} --compute-capability {','.join(capabilities)}" if backend == "tensorrt-rtx" else command


def read_engine_set(folder: Path) -> EngineSet:
    """Read and validate `folder/engine.json`; the engine files are not opened.

    Raises:
        UserError: no such file, not JSON, another schema version, an engine outside the folder, or wrong fields (all at once).
    """
    path = folder / FILE_NAME
    hint = rebuild_command("tensorrt")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise UserError(
            f"`{folder}` is not an engine folder: `{FILE_NAME}` cannot be read: {error}", hint=hint
        ) from None
    found = data.get("schema_version") if isinstance(data, dict) else None
    if found != SCHEMA_VERSION:
        raise UserError(f"`{path}` has schema_version {found!r}, this lilicorr reads {SCHEMA_VERSION}", hint=hint)
    problems: list[str] = []
    engines: EngineSet = parse(EngineSet, data, "", problems)
    if not problems:
        problems = [
            f"engines.{n}.file: `{e.file}` is a path" for n, e in engines.engines.items() if Path(e.file).name != e.file
        ]
    if problems:
        raise UserError(f"`{path}` is not valid:\n  " + "\n  ".join(problems), hint=hint)
    return engines


def require_whole(folder: Path, engines: EngineSet) -> None:
    """Check size and hash of every engine file, so that a truncated one never reaches TensorRT.

    Raises:
        UserError: exit code 4; lists every missing, truncated or altered file.
    """
    problems = [problem for engine in engines.engines.values() if (problem := _file_problem(folder, engine))]
    if problems:
        raise UserError(
            f"engines in `{folder}` are damaged:\n  " + "\n  ".join(problems),
            hint=rebuild_command(engines.backend, capabilities=engines.compute_capabilities) + " --force",
            exit_code=EXIT_ENGINE,
        )


def _file_problem(folder: Path, engine: Engine) -> str | None:
    path = folder / engine.file
    if not path.is_file():
        return f"`{engine.file}` is missing"
    if (size := path.stat().st_size) != engine.bytes:
        return f"`{engine.file}` has {size} bytes, expected {engine.bytes}"
    found = file_sha256(path)
    return (
        None if found == engine.sha256 else f"`{engine.file}` has sha256 {found[:16]}…, expected {engine.sha256[:16]}…"
    )
