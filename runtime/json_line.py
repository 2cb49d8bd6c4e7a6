"""One line of a JSON-lines file, as an object whose texts any tokenizer can read."""

from __future__ import annotations

import json
from typing import Any

from lilicorr.runtime.errors import UserError


def parse_object(line: str) -> dict[str, Any]:
    """The object in `line`.

    Raises:
        UserError: no JSON, no object, or a text in it is no Unicode (half of a surrogate pair, which JSON can escape).
    """
    if not line.strip():
        raise UserError("an empty line, expected a JSON object", hint="sed -i '/^[[:space:]]*$/d' FILE")
    try:
        value = json.loads(line)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        found = error.object[error.start]
        raise UserError(
            f"found {found!r}, half of a surrogate pair, expected whole characters",
            hint=r"write the character itself, or both halves, like \ud83e\udd8a",
        ) from None
    except (ValueError, RecursionError) as error:  # ValueError: malformed, or a number of thousands of digits
        raise UserError(f"not a JSON object: {error}") from None
    if not isinstance(value, dict):
        hint = "jq -c '.[]' OLD.json > NEW.jsonl" if isinstance(value, list) else None
        raise UserError(f"expected a JSON object, found {type(value).__name__}", hint=hint)
    return value


def line_id(value: dict[str, Any], number: int) -> str:
    """The `id` of the object on line `number`: that number, where there is none."""
    id = value.get("id")
    return str(number if id is None else id)
