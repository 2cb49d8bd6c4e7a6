"""The messages of a chat line: what is read, and that each mistake says what was found."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.messages import read_messages

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Why?"}
ASSISTANT = {"role": "assistant", "content": "Because.", "finished": False}


def test_a_chat_is_read_as_it_is() -> None:
    messages = [SYSTEM, USER, ASSISTANT, USER]
    assert read_messages({"messages": messages, "id": 3}) == messages


@pytest.mark.parametrize(
    ("messages", "problem"),
    [
        (None, r"expected `messages` .* found nothing"),
        ([], r"expected `messages` .* found a list: \[\]"),
        ("Why?", r'expected `messages` .* found "Why\?"'),
        ([USER, "Because."], r'message 2: expected an object .* found "Because\."'),
        (
            [USER, {"role": "tool", "content": "4"}],
            'message 2: expected a `role` of system, user, assistant, found "tool"',
        ),
        ([USER, {"content": "4"}], "message 2: expected a `role` .* found nothing"),
        ([USER, {"role": ["user"], "content": "4"}], r"message 2: expected a `role` .* found a list: \[\"user\"\]"),
        ([USER, {"role": "assistant"}], "message 2: expected `content` as one text, found nothing"),
        ([USER, {"role": "assistant", "content": None}], "message 2: expected `content` as one text, found nothing"),
        ([{"role": "user", "content": 7}], "message 1: expected `content` as one text, found 7"),
        (
            [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}],
            r'message 1: expected `content` as one text, found a list: \[\{"type": "text"',
        ),
        ([USER, SYSTEM], "message 2: a system message comes first"),
        ([SYSTEM, ASSISTANT], "message 2: the assistant speaks before any user"),
    ],
)
def test_a_mistake_says_what_was_found(messages: object, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        read_messages({"messages": messages})


@pytest.mark.skipif(not shutil.which("jq"), reason="jq is not installed")
def test_the_older_form_is_renamed_by_the_command_of_the_hint(tmp_path: Path) -> None:
    roles = {"system": "system", "human": "user", "gpt": "assistant"}
    old = [{"from": name, "value": f"from {name}"} for name in roles]
    messages = [{"role": role, "content": f"from {name}"} for name, role in roles.items()]
    lines = [{"id": "a", "conversations": old}, {"id": "b", "conversations": messages}]
    (tmp_path / "OLD.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(UserError, match="found `conversations`, expected `messages`") as caught:
        read_messages(lines[0])
    assert caught.value.hint is not None
    subprocess.run(caught.value.hint, shell=True, check=True, cwd=tmp_path)
    made = [json.loads(line) for line in (tmp_path / "NEW.jsonl").read_text().splitlines()]
    assert made == [{"id": name, "messages": messages} for name in "ab"]
