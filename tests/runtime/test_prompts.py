from __future__ import annotations

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


def test_windows_file(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes(b'\xef\xbb\xbf{"turns": ["a"]}\r\n\r\n{"turns": ["b"]}\r\n')
    assert read_prompts(tmp_path / "p.jsonl") == [Prompt("1", "", ("a",)), Prompt("3", "", ("b",))]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"turns": ["a"]', r"p\.jsonl:2: not JSON"),
        ("[" * 100_000, r"p\.jsonl:2: not JSON: maximum recursion depth"),
        ("[1]", r"p\.jsonl:2: expected an object, found list"),
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
