"""Prompt files: JSON lines with `turns` (list of user messages), optional `id` and `category`.

Reads and validates; knows nothing of tokens or templates.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError

_EXAMPLE = 'one line per prompt, like {"id": "q-1", "category": "maths", "turns": ["What is 2 + 2?"]}'


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer: the user's messages in order."""

    id: str
    category: str
    turns: tuple[str, ...]


def read_prompts(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file, at most `limit`. A missing id is the line number, a missing category is "".

    Raises:
        UserError: no such file, nothing in it, or a malformed line (named as file:line).
    """
    path = Path(path)
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"prompt file `{path}` cannot be read: {error}", hint=_EXAMPLE) from None
    prompts: list[Prompt] = []
    for number, line in enumerate(lines, start=1):
        if limit is not None and len(prompts) >= limit:
            break
        if line.strip():
            prompts.append(_parse(line, f"{path}:{number}", number))
    if not prompts:
        raise UserError(f"prompt file `{path}` holds no prompts", hint=_EXAMPLE)
    return prompts


def _parse(line: str, where: str, number: int) -> Prompt:
    try:
        data: Any = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UserError(f"{where}: not JSON: {error}", hint=_EXAMPLE) from None
    if not isinstance(data, dict):
        raise UserError(f"{where}: expected an object, found {type(data).__name__}", hint=_EXAMPLE)
    turns = data.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        found = "nothing" if "turns" not in data else json.dumps(turns)[:80]
        raise UserError(f"{where}: expected `turns` as a list of non-empty strings, found {found}", hint=_EXAMPLE)
    return Prompt(str(data.get("id", number)), str(data.get("category", "")), tuple(turns))
