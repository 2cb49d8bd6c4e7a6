"""Open a bundle: read the manifest and verify every file it names before anything is deserialised.

Knows paths, sizes, hashes and the graph contract; starts no backend.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lilicorr.runtime.contract import ATTENTION_FORMS, FLOATS, expected_interfaces, interface_problems
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import FILE_NAME, FileRecord, Manifest, read_manifest

TEMPLATE_NAME = "chat_template.jinja"
REBUILD = "build the bundle again with `lilicorr-export build`"
_READ_BYTES = 1 << 20


@dataclass(frozen=True)
class Bundle:
    """A verified bundle folder."""

    folder: Path
    manifest: Manifest

    def path(self, relative: str) -> Path:
        """Absolute path of a file recorded in the manifest."""
        return self.folder / relative


def open_bundle(folder: str | Path, *, verify: bool = True) -> Bundle:
    """Read the manifest and check the files against it.

    Args:
        folder: The bundle.
        verify: Also hash every file. Paths, sizes and interfaces are checked either way.

    Raises:
        UserError: not a bundle, a path outside it, a missing, resized or altered file, or a component that breaks the contract.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    _check_paths(folder, manifest)
    _check_interfaces(folder, manifest)
    problems = [problem for record in manifest.files if (problem := _size_problem(folder, record))]
    if verify and not problems:
        with ThreadPoolExecutor() as pool:  # hashlib releases the GIL on large blocks
            problems = [p for p in pool.map(lambda record: _hash_problem(folder, record), manifest.files) if p]
    if problems:
        raise UserError(f"bundle `{folder}` is damaged:\n  " + "\n  ".join(problems), hint=REBUILD)
    return Bundle(folder, manifest)


def _check_paths(folder: Path, manifest: Manifest) -> None:
    root = folder.resolve()
    named = [record.path for record in manifest.files]
    used = [path for c in manifest.components.values() for path in (c.file, *c.weights)]
    for path in (*named, *used):
        pure = PurePosixPath(path)
        plain = path and not {"\\", "\0"} & set(path) and not pure.is_absolute() and ".." not in pure.parts
        if not plain or not (root / path).resolve().is_relative_to(root):
            raise UserError(
                f"`{folder / FILE_NAME}` names `{path}`, which is outside the bundle; every path must stay inside it",
                hint=REBUILD,
            )
    templates = {TEMPLATE_NAME} if (folder / TEMPLATE_NAME).exists() else set[str]()
    unlisted = sorted({*used, "tokenizer.json", *templates} - set(named))
    if unlisted:
        raise UserError(f"`{folder / FILE_NAME}` records no hash for: {', '.join(unlisted)}", hint=REBUILD)


def _check_interfaces(folder: Path, manifest: Manifest) -> None:
    for name, value, known in (
        ("precision", manifest.precision, tuple(FLOATS)),
        ("attention", manifest.attention, ATTENTION_FORMS),
    ):
        if value not in known:
            raise UserError(
                f"`{folder / FILE_NAME}`: {name} is {value!r}, expected one of {', '.join(known)}", hint=REBUILD
            )
    expected = expected_interfaces(manifest)
    problems = [f"no component `{name}`" for name in expected if name not in manifest.components]
    problems += [f"unexpected component `{name}`" for name in manifest.components if name not in expected]
    for name, interface in expected.items():
        if name in manifest.components:
            problems += interface_problems(name, manifest.components[name], interface)
    problems += _range_problems(manifest)
    if problems:
        lines = "\n  ".join(problems)
        raise UserError(f"`{folder / FILE_NAME}` describes graphs this runtime cannot run:\n  {lines}", hint=REBUILD)


def _range_problems(manifest: Manifest) -> list[str]:
    """Numbers that no graph's shape shows."""
    limits, most = manifest.limits, 2**31 - 1  # every integer of the graphs is int32
    ranges = [
        ("limits.max_context", limits.max_context, 2, manifest.target.max_context),
        ("limits.max_batch", limits.max_batch, 1, most),
        ("limits.prefill_chunk", limits.prefill_chunk, 1, most),
        ("drafter.block_size", manifest.drafter.block_size, 2, manifest.drafter.trained_block_size),
    ]
    return [
        f"{name} is {value}, expected {low} to {high}" for name, value, low, high in ranges if not low <= value <= high
    ]


def _size_problem(folder: Path, record: FileRecord) -> str | None:
    path = folder / record.path
    if not path.is_file():
        return f"`{record.path}` is missing"
    size = path.stat().st_size
    return None if size == record.bytes else f"`{record.path}` has {size} bytes, expected {record.bytes}"


def _hash_problem(folder: Path, record: FileRecord) -> str | None:
    try:
        found = file_sha256(folder / record.path)
    except OSError as error:
        return f"`{record.path}` cannot be read: {error}"
    if found == record.sha256:
        return None
    return f"`{record.path}` has sha256 {found[:16]}…, expected {record.sha256[:16]}…"


def file_sha256(path: Path) -> str:
    """Hash of a file in hexadecimal, as `FileRecord` holds it."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        while block := file.read(_READ_BYTES):
            digest.update(block)
    return digest.hexdigest()
