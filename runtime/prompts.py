"""Prompt files: JSON lines with `turns` (list of user messages) or a chat's `messages`, optional `id` and `category`.

Reads and validates; knows nothing of tokens or templates.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.json_line import line_id, parse_object
from lilicorr.runtime.messages import read_messages
from lilicorr.runtime.tokenizer import Message, user_message

_EXAMPLE = 'one line per prompt, like {"id": "q-1", "category": "maths", "turns": ["What is 2 + 2?"]}'


@dataclass(frozen=True)
class Prompt:
    """One conversation to answer: the user's messages in order, after a system message where there is one.

    Attributes:
        where: file:line it was read from, for messages.
    """

    id: str
    category: str
    turns: tuple[str, ...]
    system: str | None = None
    where: str = field(default="", compare=False)

    def conversation(self, answers: Sequence[str] = ()) -> list[Message]:
        """The chat with the first turns answered: ready for the next answer, or complete."""
        messages: list[Message] = [] if self.system is None else [{"role": "system", "content": self.system}]
        for turn, answer in zip(self.turns, answers, strict=False):
            messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": answer}]
        if len(answers) < len(self.turns):
            messages.append(user_message(self.turns[len(answers)]))
        return messages


def read_prompts(path: str | Path, limit: int | None = None) -> list[Prompt]:
    """The prompts of a file, at most `limit`. A missing id is the line number, a missing category is "".

    What the assistant says in `messages` is left out: it is asked again.

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
        data = parse_object(line)
        turns, system = _turns(data)
    except UserError as error:
        raise error.at(where, _EXAMPLE) from None
    return Prompt(line_id(data, number), str(data.get("category", "")), turns, system, where)


def _turns(data: dict[str, Any]) -> tuple[tuple[str, ...], str | None]:
    """The user's messages, and the system message if there is one."""
    if not data.keys() & {"messages", "conversations"}:
        turns, system = data.get("turns"), None
        found = "nothing" if "turns" not in data else json.dumps(turns)[:80]
        expected = "`turns` as a list of non-empty strings"
    else:
        messages = read_messages(data)
        turns = [message["content"] for message in messages if message["role"] == "user"]
        system = messages[0]["content"] if messages[0]["role"] == "system" else None
        found, expected = json.dumps(turns)[:80], "user messages that are not empty"
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) and t.strip() for t in turns):
        raise UserError(f"expected {expected}, found {found}")
    return tuple(turns), system
