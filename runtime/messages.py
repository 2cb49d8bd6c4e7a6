"""Chats as JSON lines hold them: `messages`, each with `role` (system, user or assistant) and `content` (a text)."""

from __future__ import annotations

import json
from typing import Any

from lilicorr.runtime.errors import UserError

ROLES = ("system", "user", "assistant")
EXAMPLE = (
    'a line like {"messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4"}]}'
)
_RENAME = (
    'jq -c \'. + {messages: [.conversations[] | {role: ({human: "user", gpt: "assistant"}[.from // .role] '
    "// .from // .role), content: (.value // .content)}]} | del(.conversations)' OLD.jsonl > NEW.jsonl"
)


def read_messages(line: dict[str, Any]) -> list[dict[str, Any]]:
    """The checked `messages` of a line; further keys are left in them.

    Raises:
        UserError: they are missing or malformed, an assistant speaks before any user, or a system message is not the first.
    """
    if "messages" not in line and "conversations" in line:
        raise UserError("found `conversations`, expected `messages` with `role` and `content`", hint=_RENAME)
    messages = line.get("messages")
    if not isinstance(messages, list) or not messages:
        raise UserError(f"expected `messages` as a list of messages, found {_shown(messages)}", hint=EXAMPLE)
    for number, message in enumerate(messages, start=1):
        problem = _problem(message) or _misplaced(message["role"], [m["role"] for m in messages[: number - 1]])
        if problem:
            raise UserError(f"message {number}: {problem}", hint=EXAMPLE)
    return messages


def _problem(message: Any) -> str | None:
    if not isinstance(message, dict):
        return f"expected an object with `role` and `content`, found {_shown(message)}"
    if message.get("role") not in ROLES:
        return f"expected a `role` of {', '.join(ROLES)}, found {_shown(message.get('role'))}"
    if not isinstance(message.get("content"), str):
        return f"expected `content` as one text, found {_shown(message.get('content'))}"
    return None


def _misplaced(role: str, before: list[str]) -> str | None:
    if role == "system" and before:
        return "a system message comes first or not at all"
    if role == "assistant" and "user" not in before:
        return "the assistant speaks before any user: there is nothing it answers"
    return None


def _shown(value: Any) -> str:
    """JSON of what was found, shortened, with its kind where that is the mistake."""
    if value is None:
        return "nothing"
    kind = "a list: " if isinstance(value, list) else "an object: " if isinstance(value, dict) else ""
    return kind + json.dumps(value)[:80]
