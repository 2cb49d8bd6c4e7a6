"""Is an engine that is already there still the right one? Compared fact by fact, so that a rebuild can say why.

Knows facts and digests; builds nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json

from lilicorr.runtime.engine_set import Engine, Profile
from lilicorr.runtime.manifest import Manifest


def facts(
    manifest: Manifest, component: str, profiles: tuple[Profile, ...], machine: dict[str, str], config: dict[str, str]
) -> dict[str, str]:
    """Everything the engine of `component` depends on.

    Args:
        machine: Backend, TensorRT version, compute capabilities, plugin.
        config: Builder settings.
    """
    hashes = {record.path: record.sha256 for record in manifest.files}
    parts = manifest.components[component]
    return {
        "graph": hashes[parts.file],
        "weights": _digest([hashes[path] for path in sorted(parts.weights)]),
        "profiles": _digest([dataclasses.asdict(profile) for profile in profiles]),
        **machine,
        **config,
    }


def reason_to_build(old: Engine | None, wanted: dict[str, str], *, force: bool, whole: bool) -> str | None:
    """Why the engine must be built, in words for people; None when `old` serves.

    Args:
        whole: The file of `old` is there with the recorded hash.
    """
    if force:
        return "--force"
    if old is None:
        return "not built yet"
    changes = [
        _change(name, old.built_from.get(name), wanted.get(name))
        for name in dict.fromkeys([*wanted, *old.built_from])
        if old.built_from.get(name) != wanted.get(name)
    ]
    if changes:
        return ", ".join(changes)
    return None if whole else f"`{old.file}` is missing or damaged"


def _change(name: str, before: str | None, now: str | None) -> str:
    if before is not None and now is not None and max(len(before), len(now)) < 32:
        return f"{name} was {before}, is {now}"
    return f"{name} changed"


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
