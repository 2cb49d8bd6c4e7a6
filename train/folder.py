"""A Hugging Face style folder as files: its JSON objects and the names of its safetensors files. Reads no weight, no torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_AGAIN = "copy or download the whole folder again"


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        UserError: no such file, not JSON, or not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"`{path}` does not exist, expected a Hugging Face style folder there", hint=_AGAIN) from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"`{path}` cannot be read: {error}", hint=_AGAIN) from None
    if not isinstance(data, dict):
        raise UserError(f"`{path}`: expected a JSON object, found {type(data).__name__}", hint=_AGAIN)
    return data


def model_files(folder: Path) -> list[str]:
    """Names of the safetensors files that hold the model: the index's shards, or the one file. Shards may be missing.

    Raises:
        UserError: neither is there, or the index does not name files of the folder.
    """
    if (folder / INDEX).is_file():
        weight_map = read_json(folder / INDEX).get("weight_map")
        names: list[Any] = list(weight_map.values()) if isinstance(weight_map, dict) else [weight_map]
        foreign = [name for name in names if not isinstance(name, str) or Path(name).name != name]
        if foreign:
            raise UserError(
                f"`{folder / INDEX}`: `weight_map` must name files of this folder, found {foreign[0]!r}", hint=_AGAIN
            )
        return sorted(set(names))
    if not (folder / WEIGHTS).is_file():
        raise UserError(
            f"`{folder}` holds no safetensors file: neither `{WEIGHTS}` nor `{INDEX}`",
            hint="copy the whole checkpoint folder; only safetensors is read",
        )
    return [WEIGHTS]
