"""regenerate on the tiny target and on a fake server: content, resuming, duplicates, bad files; and on the real target."""

import json
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.tokenizer import user_message
from lilicorr.train import generate, responders
from lilicorr.train.chat import encode_chat
from lilicorr.train.data import read_sequences
from lilicorr.train.regenerate import regenerate, resume
from lilicorr.train.responders import Endpoint, LocalTarget
from lilicorr.train.target import load_target, stop_token_ids
from tests.fixtures import CHAT_TEMPLATE

REAL_TARGET = Path(__file__).parents[2] / "build" / "smollm2-135m-hf"
QUESTIONS = ["the fox", "a lazy dog over the quick user", "jumps", "while the assistant answers the brown fox"]


def write_prompts(path, ids):
    lines = [{"id": id, "category": "animals", "turns": [QUESTIONS[i % 4]]} for i, id in enumerate(ids)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def read(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def local(target, max_new_tokens, temperature=0.0, seed=0):
    return lambda: LocalTarget(target, max_new_tokens=max_new_tokens, temperature=temperature, seed=seed)


@pytest.fixture
def prompts(tmp_path):
    return write_prompts(tmp_path / "prompts.jsonl", "abcd")


def test_each_prompt_gets_the_targets_own_greedy_response(tiny_target, prompts, tmp_path):
    from transformers import AutoTokenizer

    out = tmp_path / "deeper" / "out.jsonl"
    result = regenerate(local(tiny_target, 6), prompts, out, batch_size=3)
    assert (result.prompts, result.written, result.already_done, result.too_long) == (4, 4, 0, 0)

    model, tokenizer = load_target(tiny_target), AutoTokenizer.from_pretrained(tiny_target)
    lines = {line["id"]: line for line in read(out)}
    assert sorted(lines) == list("abcd")
    for id, question in zip("abcd", QUESTIONS, strict=True):
        ids = encode_chat(tokenizer, [user_message(question)])
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
    regenerate(local(tiny_target, 5), prompts, whole, batch_size=1)

    real, calls = generate.greedy_batch, []

    def interrupted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(generate, "greedy_batch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        regenerate(local(tiny_target, 5), prompts, stopped, batch_size=1)
    assert len(read(stopped)) == 2
    with stopped.open("a") as file:
        file.write('{"id": "c", "respo')  # killed in the middle of a line
    result = regenerate(local(tiny_target, 5), prompts, stopped, batch_size=1)
    assert (result.already_done, result.written) == (2, 2)
    assert sorted(stopped.read_text().splitlines()) == sorted(whole.read_text().splitlines())

    before = stopped.read_bytes()
    assert regenerate(local(tiny_target, 5), prompts, stopped).written == 0
    assert stopped.read_bytes() == before


def test_of_equal_ids_the_first_is_answered_once(tiny_target, tmp_path):
    out = tmp_path / "out.jsonl"
    result = regenerate(local(tiny_target, 2), write_prompts(tmp_path / "p.jsonl", "abaa"), out)
    assert (result.prompts, result.repeated) == (2, 2)
    assert sorted((line["id"], line["turns"]) for line in read(out)) == [("a", QUESTIONS[:1]), ("b", QUESTIONS[1:2])]


def asked(model, tokenizer, messages, max_new_tokens):
    """The target's own greedy answer to a chat, as a message."""
    ids = encode_chat(tokenizer, messages)
    with torch.inference_mode():
        answer = model.generate(torch.tensor([ids]), max_new_tokens=max_new_tokens, do_sample=False)[0, len(ids) :]
    text = tokenizer.decode(answer, skip_special_tokens=True)
    return {"role": "assistant", "content": text, "finished": int(answer[-1]) in stop_token_ids(model, tokenizer)}


def test_every_turn_is_answered_after_the_targets_own_answers(tiny_target, tmp_path):
    """Chats of different lengths in one batch; what another assistant said is not kept; `fit` reads what is written."""
    from transformers import AutoTokenizer

    system = {"role": "system", "content": "the quick fox"}
    foreign = [
        user_message(QUESTIONS[1]),
        {"role": "assistant", "content": "another model's"},
        user_message(QUESTIONS[2]),
    ]
    lines = [
        {"id": "three", "category": "c", "turns": QUESTIONS[:3]},
        {"id": "chat", "messages": [system, *foreign, {"role": "assistant", "content": "again"}]},
        {"id": "system", "messages": [system, user_message(QUESTIONS[3])]},
        {"id": "one", "turns": [QUESTIONS[0]]},
    ]
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = regenerate(local(tiny_target, 6), prompts, out, batch_size=4)
    assert (result.written, result.answers, result.too_long, result.cut_short) == (4, 7, 0, 0)

    model, tokenizer = load_target(tiny_target), AutoTokenizer.from_pretrained(tiny_target)
    found = {line["id"]: line for line in read(out)}
    assert sorted(found["one"]) == ["category", "finished", "id", "response", "turns"]
    users = {"three": QUESTIONS[:3], "chat": QUESTIONS[1:3], "system": QUESTIONS[3:]}
    for id, turns in users.items():
        messages = [] if id == "three" else [system]
        for turn in turns:
            messages.append(user_message(turn))
            messages.append(asked(model, tokenizer, messages, 6))
        category = "c" if id == "three" else ""
        assert found[id] == {"id": id, "category": category, "messages": messages}
    sequences = read_sequences([out], tokenizer, max_length=500, block_size=2)
    assert {item.id for item in sequences} == set(found)
    assert regenerate(local(tiny_target, 6), prompts, out).already_done == 4


@pytest.fixture
def own_target(tiny_target, tmp_path):
    """A function that gives the tiny target another chat template."""

    def make(template):
        folder = shutil.copytree(tiny_target, tmp_path / "own")
        (folder / "chat_template.jinja").write_text(template)
        return folder

    return make


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (
            "{% if messages | length > 2 %}{{ raise_exception('one turn') }}{% endif %}" + CHAT_TEMPLATE,
            "refuses a chat of user, assistant, user: one turn",
        ),
        ("{{ 1 // (3 - messages | length) }}" + CHAT_TEMPLATE, "refuses .*: integer division"),
        ("", "no chat template"),
    ],
)
def test_a_prompt_that_the_template_refuses_is_named_before_anything_is_answered(
    own_target, tmp_path, template, problem
):
    """A later turn as well: in the middle of a batch it would take the whole batch with it, every time."""
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"turns": ["fox"]}\n{"turns": ["fox", "dog"]}\n')
    line = 2 if template else 1
    with pytest.raises(UserError, match=rf"p\.jsonl:{line}: .*{problem}"):
        regenerate(local(own_target(template), 2), prompts, out)
    assert out.read_bytes() == b""


def test_a_chat_is_cut_short_where_the_template_refuses_what_was_answered(own_target, tmp_path):
    refusing = "{% if messages | length > 2 and messages[1]['content'] != '…' %}{{ raise_exception('no') }}{% endif %}"
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text('{"id": "x", "turns": ["fox", "dog"]}\n{"id": "y", "turns": ["fox"]}\n')
    result = regenerate(local(own_target(refusing + CHAT_TEMPLATE), 2), prompts, out)
    assert (result.written, result.answers, result.cut_short) == (2, 2, 1)


def test_a_chat_is_cut_short_before_a_turn_that_does_not_fit(tiny_target, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    lines = [{"id": "x", "turns": ["the fox", "and the dog?", "fox " * 600]}, {"id": "y", "turns": ["fox " * 600, "a"]}]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = regenerate(local(tiny_target, 2), prompts, out)
    assert (result.written, result.answers, result.cut_short, result.too_long) == (1, 2, 1, 1)
    (line,) = read(out)
    assert [message["role"] for message in line["messages"]] == ["user", "assistant"] * 2


def test_later_turns_are_sampled_with_seeds_of_their_own(tiny_target, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"id": "x", "turns": [QUESTIONS[0]] * 2}))
    regenerate(local(tiny_target, 8, 1.0), prompts, out)
    messages = read(out)[0]["messages"]
    model = LocalTarget(tiny_target, max_new_tokens=8, temperature=1.0, seed=0)
    (first,), (second,) = model.answer([messages[:1]]), model.answer([messages[:3]])
    assert [first.text, second.text] == [messages[1]["content"], messages[3]["content"]]
    assert responders.chat_seed(0, messages[:1]) != responders.chat_seed(0, messages[:3])


def test_a_prompt_that_does_not_fit_is_skipped_and_counted(tiny_target, tmp_path):
    prompts, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    prompts.write_text(json.dumps({"id": "long", "turns": ["fox " * 600]}) + '\n{"id": "short", "turns": ["fox"]}\n')
    result = regenerate(local(tiny_target, 2), prompts, out)
    assert (result.too_long, result.written) == (1, 1)
    assert [line["id"] for line in read(out)] == ["short"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"id": "a"}\nnot a response\n', 2),
        ("notes in one line, without an end", 1),
        ('{"model_type": "llama"}', 1),
        ('not a response\n{"id": "a", "resp', 1),
        ('{"id": "a"}\n' + "\0" * 9, 2),  # what a power cut can leave
        ("[" * 100_000 + "\n", 1),
        ('{"id": null}\n', 1),
    ],
)
def test_an_output_that_holds_something_else_is_left_alone(tmp_path, text, line):
    out = tmp_path / "notes.txt"
    out.write_text(text)
    with pytest.raises(UserError, match=rf"notes\.txt` line {line} is not a response: expected .* found '"):
        resume(out)
    assert out.read_text() == text


def test_a_last_line_that_only_lacks_its_end_is_kept(tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text('{"id": "a"}\n{"id": 3, "response": "mine"}')
    assert resume(out) == {"a", "3"}
    assert out.read_text() == '{"id": "a"}\n{"id": 3, "response": "mine"}\n'


@pytest.mark.parametrize("half", [b"{", b'{"id": "b", "turns": ["\xf0\x9f'])
def test_a_half_last_line_of_ours_is_cut_off(tmp_path, half):
    out = tmp_path / "out.jsonl"
    out.write_bytes(b'{"id": "a"}\n' + half)
    assert resume(out) == {"a"}
    assert out.read_bytes() == b'{"id": "a"}\n'


def test_an_output_that_cannot_be_written_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        resume(tmp_path / "file" / "out.jsonl")


def test_an_answer_with_unicode_line_separators_stays_one_line(tiny_target, prompts, tmp_path, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.setattr(PreTrainedTokenizerFast, "decode", lambda *args, **kwargs: "a\u2028b\x85c")
    out = tmp_path / "out.jsonl"
    regenerate(local(tiny_target, 1), prompts, out)
    assert [line["response"] for line in read(out)] == ["a\u2028b\x85c"] * 4


def test_sampled_responses_do_not_depend_on_batches_and_differ_by_seed(tiny_target, prompts, tmp_path):
    outs = []
    for name, seed, size in (("a", 1, 4), ("b", 1, 1), ("c", 2, 4)):
        regenerate(local(tiny_target, 8, 1.0, seed), prompts, tmp_path / name, batch_size=size)
        outs.append({line["id"]: line["response"] for line in read(tmp_path / name)})
    assert outs[0] == outs[1]
    assert all(outs[0][id] != outs[2][id] for id in "abcd")


class FakeServer(BaseHTTPRequestHandler):
    """Answers with the question backwards; `script` maps a question to the status codes sent before."""

    script: ClassVar[dict]
    seen: ClassVar[list]

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, body, self.headers.get("Authorization")))
        question = body["messages"][-1]["content"]
        codes = self.script.get(question)
        if codes:
            self.send_error(codes.pop(0), "told to")
            return
        choice = {"message": {"content": question[::-1]}, "finish_reason": "length" if "lazy" in question else "stop"}
        data = json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(responders.time, "sleep", lambda seconds: None)
    handler = type("Handler", (FakeServer,), {"script": {}, "seen": []})
    serving = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    handler.url = f"http://127.0.0.1:{serving.server_port}/v1"
    yield handler
    serving.shutdown()
    serving.server_close()


def endpoint(url, **changes):
    options = {"max_new_tokens": 7, "temperature": 0.5, "seed": 3} | changes
    return lambda: Endpoint(url, "tiny", **options)


def test_a_server_answers(server, prompts, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    server.script |= {QUESTIONS[0]: [503, 429], QUESTIONS[2]: [400]}  # overloaded twice; too long
    out = tmp_path / "out.jsonl"
    result = regenerate(endpoint(server.url + "/"), prompts, out, batch_size=4)
    assert (result.written, result.too_long, result.finished, result.tokens) == (3, 1, 2, 9)
    lines = {line["id"]: line for line in read(out)}
    assert lines["a"]["response"] == QUESTIONS[0][::-1]
    assert (lines["a"]["finished"], lines["b"]["finished"]) == (True, False)
    path, body, key = server.seen[0]
    assert (path, key) == ("/v1/chat/completions", "Bearer secret")
    assert {k: body[k] for k in ("model", "max_tokens", "temperature")} == {
        "model": "tiny",
        "max_tokens": 7,
        "temperature": 0.5,
    }
    again = regenerate(endpoint(server.url), prompts, out, batch_size=4)
    assert (again.already_done, again.written) == (3, 1)  # only what is missing is asked again


def test_a_server_is_sent_the_whole_chat(server, tmp_path):
    """And a later turn that it refuses cuts the chat short, even where nobody else is left."""
    system, prompts, out = {"role": "system", "content": "be kind"}, tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    turns = [user_message(text) for text in ("fox", "dog", "too much")]
    prompts.write_text(json.dumps({"id": "x", "messages": [system, *turns]}))
    server.script["too much"] = [400]
    result = regenerate(endpoint(server.url), prompts, out)
    assert (result.written, result.answers, result.cut_short) == (1, 2, 1)
    answers = [{"role": "assistant", "content": text} for text in ("xof", "god")]
    chat = [system, turns[0], answers[0], turns[1], answers[1], turns[2]]
    assert [body["messages"] for _, body, _ in server.seen] == [chat[:2], chat[:4], chat]
    (line,) = read(out)
    assert line["messages"] == [{**m, "finished": True} if m["role"] == "assistant" else m for m in chat[:5]]


@pytest.mark.parametrize(("codes", "text"), [([400], "refuses every prompt"), ([500] * 4, "500"), ([401], "401")])
def test_a_server_that_does_not_answer(server, tmp_path, codes, text):
    server.script[QUESTIONS[0]] = list(codes)
    out = tmp_path / "out.jsonl"
    with pytest.raises(UserError, match=text):
        regenerate(endpoint(server.url), write_prompts(tmp_path / "p.jsonl", "a"), out)
    assert out.read_bytes() == b""


def test_no_server_at_all(tmp_path, server):
    with pytest.raises(UserError, match="does not answer"):
        regenerate(endpoint("http://127.0.0.1:9/v1"), write_prompts(tmp_path / "p.jsonl", "a"), tmp_path / "out.jsonl")


@pytest.mark.smollm2
@pytest.mark.skipif(not REAL_TARGET.is_dir(), reason=f"{REAL_TARGET} is absent: run `make target`")
def test_a_ragged_batch_of_the_real_target_equals_generate():
    from transformers import AutoTokenizer

    model, tokenizer = load_target(REAL_TARGET), AutoTokenizer.from_pretrained(REAL_TARGET)
    prompts = [
        encode_chat(tokenizer, [user_message(text)])
        for text in ("Hi", "What is the capital of France? Answer in one word.")
    ]
    answers = generate.greedy_batch(model, prompts, max_new_tokens=24, stop_ids=stop_token_ids(model, tokenizer))
    for prompt, answer in zip(prompts, answers, strict=True):
        alone = model.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False)[0, len(prompt) :]
        assert answer == alone.tolist()
