"""`inspect`: what a bundle holds, from its manifest and parity.json alone. Opens no graph and hashes nothing."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from lilicorr.export.plan import render_tensors
from lilicorr.export.report import COLUMNS, JSON_NAME
from lilicorr.export.tables import human_bytes, table
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import Manifest, Quantisation


def inspect_bundle(folder: Path) -> dict[str, Any]:
    """Return the manifest, the bytes each weight file saves by being shared, and the parity summary, if any, as plain data.

    Raises:
        UserError: `folder` is no bundle, or a file is missing or has changed size.
    """
    manifest = open_bundle(folder, verify=False).manifest
    return {
        "manifest": dataclasses.asdict(manifest),
        "bytes": manifest.total_bytes,
        "shared": {path: list(users) for path, users in _users(manifest).items() if len(users) > 1},
        "parity": _parity(folder),
    }


def render(folder: Path) -> str:
    """Return the bundle as tables for people; errors as in `inspect_bundle`."""
    manifest = open_bundle(folder, verify=False).manifest
    target, drafter, limits, users = manifest.target, manifest.drafter, manifest.limits, _users(manifest)
    head = "none" if manifest.head is None else f"{manifest.head.kind}, logit scale {manifest.head.logit_scale:g}"
    facts = [
        ("target", f"{target.name} ({target.architecture}), {target.vocab_size} tokens, width {target.hidden_size}"),
        ("drafter", f"{drafter.name} ({drafter.architecture}), layers {list(drafter.target_layer_ids)} of the target"),
        ("block", f"{drafter.block_size} of {drafter.trained_block_size} trained, {drafter.candidate_topk} candidates"),
        ("head", head),
        ("precision", manifest.precision),
        ("weights", _weights(target.quantisation)),
        ("attention", manifest.attention),
        ("limits", f"context {limits.max_context}, batch {limits.max_batch}, prefill chunk {limits.prefill_chunk}"),
        ("stop tokens", ", ".join(map(str, target.stop_token_ids)) or "none"),
        ("made", f"{manifest.created} by lilicorr {manifest.lilicorr_version}"),
    ]
    components = [
        (name, part.file, f"opset {part.opset}, IR {part.ir_version}", ", ".join(part.weights))
        for name, part in manifest.components.items()
    ]
    files = [(r.path, human_bytes(r.bytes), r.sha256[:12], ", ".join(users.get(r.path, ()))) for r in manifest.files]
    parts = [
        table(("bundle", str(folder)), facts),
        table(("component", "graph", "format", "weights"), components),
        table(("file", "size", "sha256", "used by"), files),
        f"total {human_bytes(manifest.total_bytes)}",
        *(f"{name}\n{render_tensors(part.inputs, part.outputs)}" for name, part in manifest.components.items()),
        _parity_text(folder),
    ]
    return "\n\n".join(parts)


def _weights(quantisation: Quantisation | None) -> str:
    if quantisation is None:
        return "floats"
    kind = f"int{quantisation.bits} in blocks of {quantisation.block}"
    return f"{kind} ({quantisation.source}) in the layers of the target, floats elsewhere"


def _users(manifest: Manifest) -> dict[str, tuple[str, ...]]:
    """File path -> the components that read it."""
    users: dict[str, tuple[str, ...]] = {}
    for name, part in manifest.components.items():
        for path in (part.file, *part.weights):
            users[path] = (*users.get(path, ()), name)
    return users


def _parity(folder: Path) -> list[dict[str, Any]] | None:
    """The summary of the bundle's check, None when it was not checked. The file has no hash, so its rows are looked at."""
    path = folder / JSON_NAME
    if not path.is_file():
        return None
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))["summary"]
        return [{column: row[column] for column in COLUMNS} for row in rows]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"`{path}` is damaged: {error!r}", hint=f"lilicorr-export check {folder}") from None


def _parity_text(folder: Path) -> str:
    summary = _parity(folder)
    if summary is None:
        return f"parity: not checked yet: lilicorr-export check {folder}"
    return table(("parity", *COLUMNS[1:-1], ""), [list(row.values()) for row in summary])
