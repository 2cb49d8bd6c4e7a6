"""regenerate on the tiny target: content, resuming, duplicates, bad files; and on the real target where it is there."""

import json
from pathlib import Path

import pytest
import torch

from lilicorr.runtime.errors import UserError
from lilicorr.train import generate
from lilicorr.train.data import encode_question
from lilicorr.train.regenerate import regenerate, resume, stop_token_ids
from lilicorr.train.target import load_target

REAL_TARGET = Path(__file__).parents[2] / "build" / "smollm2-135m-hf"
QUESTIONS = ["the fox", "a lazy dog over the quick user", "jumps", "while the assistant answers the brown fox"]


def write_prompts(path, ids):
    lines = [{"id": id, "category": "animals", "turns": [QUESTIONS[i % 4]]} for i, id in enumerate(ids)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", "abcd")


def test_each_prompt_gets_the_targets_own_greedy_response(tiny_target, prompts, tmp_path):
    from transformers import AutoTokenizer

    out = tmp_path / "deeper" / "out.jsonl"
    result = regenerate(tiny_target, prompts, out, max_new_tokens=6, batch_size=3)
    assert (result.prompts, result.written, result.already_done, result.too_long) == (4, 4, 0, 0)

    model, tokenizer = load_target(tiny_target), AutoTokenizer.from_pretrained(tiny_target)
    lines = {line["id"]: line for line in read(out)}
    assert sorted(lines) == list("abcd")
    for id, question in zip("abcd", QUESTIONS, strict=True):
        ids = encode_question(tokenizer, question)
        assert tokenizer.decode(ids) == f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
        with torch.inference_mode():
            answer = model.generate(torch.tensor([ids]), max_new_tokens=6, do_sample=False)[0, len(ids) :]
        assert lines[id] == {
            "id": id,
            "category": "animals",
            "turns": [question],
            "response": tokenizer.decode(answer, skip_special_tokens=True),
            "finished": int(answer[-1]) in stop_token_ids(model, tokenizer),
        }


def test_a_stopped_run_goes_on_and_ends_with_the_same_lines(tiny_target, prompts, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole.jsonl", tmp_path / "stopped.jsonl"
    regenerate(tiny_target, prompts, whole, max_new_tokens=5, batch_size=1)

    real, calls = generate.greedy_batch, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(generate, "greedy_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        regenerate(tiny_target, prompts, stopped, max_new_tokens=5, batch_size=1)
    assert len(read(stopped)) == 2
    with stopped.open("a") as file:
        file.write('{"id": "c", "respo')  # killed in the middle of a line
    result = regenerate(tiny_target, prompts, stopped, max_new_tokens=5, batch_size=1)
    assert (result.already_done, result.written) == (2, 2)
    assert sorted(stopped.read_text().splitlines()) == sorted(whole.read_text().splitlines())

    before = stopped.read_bytes()
    assert regenerate(tiny_target, prompts, stopped, max_new_tokens=5).written == 0
    assert stopped.read_bytes() == before


def test_of_equal_ids_the_first_is_answered_once(tiny_target, tmp_path):
    out = tmp_path / "out.jsonl"
    result = regenerate(tiny_target, write_prompts(tmp_path / "p.jsonl", "abaa"), out, max_new_tokens=2)
    assert result.prompts == 2
    assert sorted((line["id"], line["turns"]) for line in read(out)) == [("a", QUESTIONS[:1]), ("b", QUESTIONS[1:2])]


def test_only_the_first_turn_is_answered(tiny_target, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"id": "x", "category": "", "turns": ["the fox", "and the dog?"]}\n')
    regenerate(tiny_target, prompts, out, max_new_tokens=2)
    assert read(out)[0]["turns"] == ["the fox"]


def test_a_prompt_that_does_not_fit_is_skipped_and_counted(tiny_target, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"id": "long", "turns": ["fox " * 600]}) + '\n{"id": "short", "turns": ["fox"]}\n')
    result = regenerate(tiny_target, prompts, out, max_new_tokens=2)
    assert (result.too_long, result.written) == (1, 1)
    assert [line["id"] for line in read(out)] == ["short"]


def test_an_output_that_holds_something_else_is_left_alone(tmp_path):
    out = tmp_path / "notes.txt"
    out.write_text('{"id": "a"}\nnot a response\n')
    with pytest.raises(UserError, match="line 2 is not a response"):
        resume(out)
    assert out.read_text() == '{"id": "a"}\nnot a response\n'


def test_an_output_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        resume(tmp_path / "file" / "out.jsonl")


def test_an_answer_with_unicode_line_separators_stays_one_line(tiny_target, prompts, tmp_path, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", lambda *args, **kwargs: "a\u2028b\x85c")
    out = tmp_path / "out.jsonl"
    regenerate(tiny_target, prompts, out, max_new_tokens=1)
    assert [line["response"] for line in read(out)] == ["a\u2028b\x85c"] * 4


@pytest.mark.smollm2
@pytest.mark.skipif(not REAL_TARGET.is_dir(), reason=f"{REAL_TARGET} is absent: run `make target`")
def test_a_ragged_batch_of_the_real_target_equals_generate():
    from transformers import AutoTokenizer

    model, tokenizer = load_target(REAL_TARGET), AutoTokenizer.from_pretrained(REAL_TARGET)
    prompts = [
        encode_question(tokenizer, text) for text in ("Hi", "What is the capital of France? Answer in one word.")
    ]
    answers = generate.greedy_batch(model, prompts, max_new_tokens=24, stop_ids=stop_token_ids(model, tokenizer))
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
        assert answer == alone.tolist()
