from __future__ import annotations

import json
from pathlib import Path

import pytest

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.prompts import Prompt, read_prompts


def test_reads_and_fills_in(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["a", "b"]}\n\n{"id": "x", "category": "c", "turns": ["é\\u2028"]}\n', encoding="utf-8")
    prompts = [Prompt("1", "", ("a", "b")), Prompt("x", "c", ("é\u2028",))]
    assert read_prompts(path) == prompts
    assert read_prompts(path, limit=1) == prompts[:1]


def test_an_id_of_null_is_none(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"id": null, "turns": ["a"]}\n{"id": null, "turns": ["b"]}\n')
    assert [prompt.id for prompt in read_prompts(tmp_path / "p.jsonl")] == ["1", "2"]


def test_windows_file(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b'\xef\xbb\xbf{"turns": ["a"]}\r\n\r\n{"turns": ["b"]}\r\n')
    assert read_prompts(tmp_path / "p.jsonl") == [Prompt("1", "", ("a",)), Prompt("3", "", ("b",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"turns": ["a"]', r"p\.jsonl:2: not a JSON object: Expecting"),
        ("[" * 100_000, r"p\.jsonl:2: not a JSON object: maximum recursion depth"),
        ("[1]", r"p\.jsonl:2: expected a JSON object, found list"),
        ('{"id": ' + "9" * 5000 + "}", r"p\.jsonl:2: not a JSON object: Exceeds the limit"),
        ('{"turns": ["\\ud800"]}', r"p\.jsonl:2: found '\\ud800', half of a surrogate pair"),
        ('{"prompt": "a"}', r"p\.jsonl:2: expected `turns` .* found nothing"),
        ('{"turns": []}', r"p\.jsonl:2: expected `turns` .* found \[\]"),
        ('{"turns": ["a", 3]}', r'p\.jsonl:2: expected `turns` .* found \["a", 3\]'),
        ('{"turns": ["  "]}', r"p\.jsonl:2: expected `turns`"),
        ('{"turns": "a"}', r"p\.jsonl:2: expected `turns`"),
    ],
)
def test_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["ok"]}\n' + line + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_prompts(path)


def test_empty_missing_and_binary_files(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="holds no prompts"):
        read_prompts(tmp_path / "empty")
    for name in ("none", "binary"):
        with pytest.raises(UserError, match="cannot be read"):
            read_prompts(tmp_path / name)


def test_a_chats_messages_are_its_turns(tmp_path: Path) -> None:
    """What the assistant said there is asked again; the system message stays."""
    chat = [("system", "Be brief."), ("user", "a"), ("assistant", "not kept"), ("user", "b"), ("assistant", "nor this")]
    messages = [{"role": role, "content": content} for role, content in chat]
    lines = [{"id": "x", "messages": messages}, {"messages": messages[1:2]}, {"turns": ["c"], "messages": messages}]
    (tmp_path / "p.jsonl").write_text("\n".join(map(json.dumps, lines)))
    expected = [
        Prompt("x", "", ("a", "b"), "Be brief."),
        Prompt("2", "", ("a",)),
        Prompt("3", "", ("a", "b"), "Be brief."),
    ]
    assert read_prompts(tmp_path / "p.jsonl") == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"messages": [{"role": "user", "content": " "}]}', r'p\.jsonl:1: expected user messages .* found \[" "\]'),
        ('{"messages": [{"role": "system", "content": "s"}]}', r"p\.jsonl:1: expected user messages .* found \[\]"),
        ('{"messages": [{"role": "bot", "content": "a"}]}', r"p\.jsonl:1: message 1: expected a `role`"),
        ('{"conversations": []}', r"p\.jsonl:1: found `conversations`, expected `messages`"),
    ],
)
def test_malformed_chat_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "p.jsonl").write_text(line)
    with pytest.raises(UserError, match=message):
        read_prompts(tmp_path / "p.jsonl")


def test_a_conversation_grows_by_its_answers() -> None:
    prompt = Prompt("x", "", ("a", "b"), "s")
    chat = [("system", "s"), ("user", "a"), ("assistant", "A"), ("user", "b"), ("assistant", "B")]
    messages = [{"role": role, "content": content} for role, content in chat]
    grown = [prompt.conversation(["A", "B"][:answered]) for answered in range(3)]
    assert grown == [messages[:2], messages[:4], messages]
    assert Prompt("x", "", ("a",)).conversation() == messages[1:2]
