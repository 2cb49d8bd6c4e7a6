"""lilicorr-run on a fake session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lilicorr.runtime import bench as bench_module
from lilicorr.runtime import session as session_module
from lilicorr.runtime.cli import main
from tests.runtime.fakes import FakeTokenizer, fake_session, plain_answer

ANSWER = FakeTokenizer().decode(plain_answer(FakeTokenizer().encode_text("Why?"), 30))


@pytest.fixture(autouse=True)
def _fake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "load", lambda bundle, **opening: fake_session(max_context=300))


def run(*args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(main, args, input=text)


def test_generate_streams_the_answer() -> None:
    result = run("generate", "b", "Why?", "--max-new-tokens", "30")
    assert result.stdout == ANSWER + "\n"
    assert "acceptance length" in result.stderr
    assert run("generate", "b", "Why?", "--max-new-tokens", "30", "--plain", "--raw").stdout == ANSWER + "\n"


def test_accepted_drafts_are_coloured_only_when_asked() -> None:
    args = ("generate", "b", "Why?", "--max-new-tokens", "30")
    assert "\x1b[32m" in run(*args, "--color").stdout
    assert "\x1b" not in run(*args).stdout  # not a terminal


def test_generate_json() -> None:
    result = run("generate", "b", "-", "--max-new-tokens", "30", "--json", text="Why?")
    data = json.loads(result.stdout)
    assert data["text"] == ANSWER
    assert data["new_tokens"] == len(data["token_ids"])


def test_stop_option() -> None:
    result = run("generate", "b", "Why?", "--max-new-tokens", "30", "--stop", ANSWER[4:6])
    assert result.stdout == ANSWER[: ANSWER.index(ANSWER[4:6])] + "\n"


@pytest.mark.parametrize("prompt", ["", "  \n"])
def test_empty_prompt(prompt: str) -> None:
    result = run("generate", "b", prompt)
    assert result.exit_code == 1
    assert result.stderr.startswith("error: the prompt is empty\n\nhint: ")


def test_prompt_longer_than_the_context() -> None:
    result = run("generate", "b", "x" * 300)
    assert result.exit_code == 1
    assert "300 tokens" in result.stderr
    assert "context is 300" in result.stderr


def test_usage_error() -> None:
    assert run("generate", "b").exit_code == 2
    assert run("generate", "b", "p", "--max-new-tokens", "0").exit_code == 2


def test_chat_keeps_the_conversation_until_reset() -> None:
    result = run("chat", "b", "--max-new-tokens", "9", text="Hello\nMore\n/reset\nHello\n")
    ids, decode = FakeTokenizer().encode_text, FakeTokenizer().decode
    first = decode(plain_answer(ids("Hello"), 9))
    second = decode(plain_answer(ids("Hello" + first + "More"), 9))
    assert result.stdout == f"{first}\n{second}\n{first}\n"
    assert result.exit_code == 0


def test_chat_refuses_a_longer_block_than_served_before_it_begins() -> None:
    result = run("chat", "b", "--block-size", "7", text="Hello\n\n")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: block size 7, the bundle serves 1 to 5\n\nhint: --block-size 5, or ")
    assert "/reset" not in result.stderr


def test_chat_survives_a_full_context() -> None:
    result = run("chat", "b", "--max-new-tokens", "9", text="x" * 300 + "\nHello\n")
    assert "hint: /reset" in result.stderr
    assert result.stdout == FakeTokenizer().decode(plain_answer(FakeTokenizer().encode_text("Hello"), 9)) + "\n"


def test_bench_prints_a_table_and_one_json_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["Why?"]}\n{"turns": ["How?"]}\n')
    result = run("bench", "b", "--prompts", str(path), "--max-new-tokens", "20")
    report = json.loads(result.stdout)  # nothing else on stdout
    assert report["lossless"]["different"] == 0
    assert report["threads"] is None  # ONNX Runtime's alone
    assert (report["backend"], report["notes"]) == ("fake", ["it is a fake"])
    assert "note: it is a fake" in result.stderr
    assert "same text as plain" in result.stderr
    only = run("bench", "b", "--prompts", str(path), "--max-new-tokens", "20", "--limit", "1", "--json")
    assert json.loads(only.stdout)["prompts"] == 1
    assert "same text" not in only.stderr


def test_bench_reports_and_fails_when_a_text_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"turns": ["Why?"]}\n')
    monkeypatch.setattr(bench_module, "run_bench", lambda *_, **__: {"lossless": {"different": 1}})
    result = run("bench", "b", "--prompts", str(path), "--json")
    assert json.loads(result.stdout)["lossless"]["different"] == 1
    assert result.exit_code == 3


def test_bench_without_prompt_file(tmp_path: Path) -> None:
    result = run("bench", "b", "--prompts", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "cannot be read" in result.stderr


def test_doctor(tmp_path: Path) -> None:
    facts = json.loads(run("doctor", "--json").stdout)
    assert facts["packages"]["numpy"]
    assert facts["cores"] >= 1
    assert "python: 3." in run("doctor").stdout
    broken = run("doctor", str(tmp_path))
    assert broken.exit_code == 1
    assert "is not a bundle" in broken.stdout


@pytest.mark.parametrize(("line", "message"), [("doctor >&-", "output is closed"), ("generate b - <&-", "is empty")])
def test_closed_streams(line: str, message: str) -> None:
    command = f"'{sys.executable}' -c 'from lilicorr.runtime.cli import main; main()' {line}"
    done = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
