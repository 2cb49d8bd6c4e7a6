"""Which engine folder of a bundle to run here: the newest of those that fit, by their descriptions alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from lilicorr.runtime.engine_check import Here, differences
from lilicorr.runtime.engine_set import FILE_NAME, EngineSet, read_engine_set, rebuild_command
from lilicorr.runtime.errors import UserError

FOLDER = "engines"  # below the bundle


def engine_folders(bundle: Path) -> dict[Path, EngineSet]:
    """Engine folder -> description, of every one below `bundle`.

    Raises:
        UserError: a description cannot be read.
    """
    return {path.parent: read_engine_set(path.parent) for path in sorted((bundle / FOLDER).glob(f"*/{FILE_NAME}"))}


def choose_engines(bundle: Path, machine: Here) -> Path:
    """The folder of `machine.backend` to run: the newest that fits, else the newest, whose check will say what does not.

    The plugin is left out of account: it is found only for the engines that are chosen.

    Raises:
        UserError: there is none for this backend.
    """
    candidates = {f: e for f, e in engine_folders(bundle).items() if e.backend == machine.backend}
    if not candidates:
        raise UserError(
            f"no {machine.backend} engines in `{bundle / FOLDER}`",
            hint=rebuild_command(machine.backend, bundle, (machine.compute_capability,)),
        )
    fitting = {f: e for f, e in candidates.items() if not differences(dataclasses.replace(e, plugin=None), machine)}
    return max(fitting or candidates, key=lambda folder: candidates[folder].created)
