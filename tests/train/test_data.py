"""Training data: what a response file may hold, where supervision begins, loops, the split, the reduced vocabulary."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from lilicorr.runtime.errors import UserError
from lilicorr.train.chat import ends_in_loop
from lilicorr.train.conversation import Conversation
from lilicorr.train.data import frequent_tokens, read_sequences, split
from tests.fixtures import CHAT_TEMPLATE

ANSWER = "the quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def tokenizer(tiny_target):
    fast = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(tiny_target / "tokenizer.json")),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def read(tmp_path, tokenizer, lines, *, max_length=200, block_size=4, **options):
    path = tmp_path / "responses.jsonl"
    text = "\n".join(line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines)
    path.write_text(text, encoding="utf-8")
    return read_sequences([path], tokenizer, max_length=max_length, block_size=block_size, **options)


def record(**changes):
    return {"id": "a", "turns": ["which fox?"], "response": ANSWER, "finished": True} | changes


def test_prompt_answer_and_end(tmp_path, tokenizer):
    (item,) = read(tmp_path, tokenizer, [record()])
    ((begin, end),) = item.answers
    prompt = "<|im_start|>user\nwhich fox?<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(item.ids[:begin]) == prompt
    assert end == len(item.ids)
    assert tokenizer.decode(item.ids[begin:]) == ANSWER + "<|im_end|>"
    assert item.id == "a"
    (cut,) = read(tmp_path, tokenizer, [record(finished=False)])
    assert cut.ids == item.ids[:-1]


def chat(*answers, **changes):
    """A line with a question before each answer; an answer is a text, or an assistant's message without its role."""
    messages = []
    for answer in answers:
        said = answer if isinstance(answer, dict) else {"content": answer}
        messages += [{"role": "user", "content": "which fox?"}, {"role": "assistant", **said}]
    return {"id": "a", "messages": messages} | changes


@pytest.mark.parametrize("response", [ANSWER, " " + ANSWER + "\n", "<think>\n\n</think>\n\nthe dog<|im_start|>"])
def test_one_answer_in_either_form_is_the_same_sequence(tmp_path, tokenizer, response):
    (old,) = read(tmp_path, tokenizer, [record(response=response)])
    assert read(tmp_path, tokenizer, [chat(response)]) == [old]
    assert read(tmp_path, tokenizer, [chat({"content": response, "finished": True, "name": "x"})]) == [old]
    (cut,) = read(tmp_path, tokenizer, [record(response=response, finished=False)])
    assert read(tmp_path, tokenizer, [chat({"content": response, "finished": False})]) == [cut]
    assert cut != old


def test_answers_without_a_block_stay_as_context(tmp_path, tokenizer):
    """Too short, empty, looping, or begun too late for `max_length`; the ids end with the last answer that counts."""
    line = chat("fox", ANSWER, "", ANSWER + " dog dog dog", "the " + ANSWER, "dog")
    (item,) = read(tmp_path, tokenizer, [line], max_length=400)
    texts = [tokenizer.decode(item.ids[begin:end]) for begin, end in item.answers]
    assert texts == [ANSWER + "<|im_end|>", f"the {ANSWER}<|im_end|>"]
    assert item.answers[-1][1] == len(item.ids)
    (cut,) = read(tmp_path, tokenizer, [line], max_length=item.answers[1][0] + 5)
    assert (len(cut.ids), cut.answers) == (item.answers[1][0] + 5, (item.answers[0], (len(cut.ids) - 5, len(cut.ids))))
    (one,) = read(tmp_path, tokenizer, [line], max_length=item.answers[1][0] + 4)
    assert (one.ids, one.answers) == (item.ids[: item.answers[0][1]], item.answers[:1])


def test_a_chat_that_holds_no_block_is_left_out_and_counted(tmp_path, tokenizer):
    nothing = chat("fox", "", ANSWER + " dog dog dog")
    assert len(read(tmp_path, tokenizer, [nothing, chat(ANSWER)])) == 1
    with pytest.raises(
        UserError, match=r"no usable response .*: 4 answers that do not loop, none of at least 4 tokens"
    ):
        read(tmp_path, tokenizer, [nothing, nothing])


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (chat(messages=[{"role": "user", "content": "which fox?"}]), "no message of the assistant"),
        (chat(messages=[]), "expected `messages`"),
        (
            chat({"content": [{"type": "text", "text": ANSWER}]}),
            "message 2: expected `content` as one text, found a list",
        ),
        (chat({"content": None, "tool_calls": []}), "message 2: expected `content` as one text, found nothing"),
        (chat({"content": ANSWER, "role": "tool"}), 'message 2: expected a `role` .*"tool"'),
        (chat({"content": ANSWER, "finished": "yes"}), r"expected `finished` true or false, found \['yes'\]"),
        ({"conversations": []}, "found `conversations`, expected `messages`"),
        (record(finished="false"), 'expected `finished` true or false, found "false"'),
        ({"text": ANSWER}, "expected `turns` .* or `messages`; found `text`: "),
    ],
)
def test_a_malformed_chat_is_named_with_its_number(tmp_path, tokenizer, line, problem):
    with pytest.raises(UserError, match=rf"responses\.jsonl:2: {problem}"):
        read(tmp_path, tokenizer, [chat(ANSWER), line])


def test_a_chat_that_the_template_refuses_is_named(tmp_path, tokenizer, monkeypatch):
    refusing = "{% if messages | length > 2 %}{{ raise_exception('one question only') }}{% endif %}" + CHAT_TEMPLATE
    monkeypatch.setattr(tokenizer, "chat_template", refusing)
    with pytest.raises(UserError, match=r"responses\.jsonl:2: the target's chat template refuses .* one question only"):
        read(tmp_path, tokenizer, [chat(ANSWER), chat(ANSWER, ANSWER)])


def test_special_tokens_in_the_response_stay_single_tokens(tmp_path, tokenizer):
    (item,) = read(tmp_path, tokenizer, [record(response=ANSWER + "<|im_start|>")])
    assert item.ids[-2:] == (1, 2)


def test_windows_file_with_ids_of_null(tmp_path, tokenizer):
    path = tmp_path / "responses.jsonl"
    text = "".join(json.dumps(line) + "\r\n" for line in (record(id=None), chat(ANSWER, id=None)))
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    one, two = read_sequences([path], tokenizer, max_length=200, block_size=4)
    assert (one.id, two.id) == ("1", "2")
    assert one.ids == two.ids


def test_a_half_last_line_names_what_mends_it(tmp_path, tokenizer):
    half = json.dumps(chat(ANSWER))[:40]
    with pytest.raises(UserError, match=r"responses\.jsonl:2: not a JSON object: ") as caught:
        read(tmp_path, tokenizer, [chat(ANSWER), half])
    assert "cuts off a half last line" in caught.value.hint


def test_a_line_separator_inside_a_response_does_not_end_the_line(tmp_path, tokenizer):
    items = read(tmp_path, tokenizer, [record(response=ANSWER + "\u2028\x85" + ANSWER), record()])
    assert len(items) == 2


def test_long_texts_are_cut_and_short_answers_left_out(tmp_path, tokenizer):
    (whole,) = read(tmp_path, tokenizer, [record(), record(response="fox", finished=False)], block_size=3)
    begin = whole.answers[0][0]
    (short,) = read(tmp_path, tokenizer, [record()], max_length=begin + 5)
    assert (short.ids, short.answers) == (whole.ids[: begin + 5], ((begin, begin + 5),))
    with pytest.raises(UserError, match="no usable response"):
        read(tmp_path, tokenizer, [record()], max_length=begin + 4)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "  ",
        "{}",
        "{",
        "[1]",
        '"text"',
        "7",
        "null",
        "[" * 100_000,
        '{"id": ' + "9" * 5000 + "}",
        '{"turns": ["which fox?"], "response": "\\udd8a"}',
        {"id": "a", "response": ANSWER},
        {"id": "a", "turns": ["x"]},
        record(turns=[]),
        record(turns="which fox?"),
        record(turns=[3]),
        record(response=None),
        record(response=5),
    ],
)
def test_malformed_line_is_named_with_its_number(tmp_path, tokenizer, line):
    with pytest.raises(UserError) as caught:
        read(tmp_path, tokenizer, [record(), record(), line, record()])
    assert "responses.jsonl:3: " in caught.value.what


@pytest.mark.parametrize("text", ["", "\n"], ids=["nothing", "newline"])
def test_a_file_without_responses(tmp_path, tokenizer, text):
    with pytest.raises(UserError, match=r"no usable response|:1: an empty line"):
        read(tmp_path, tokenizer, [text])


def test_one_newline_at_the_end_is_no_line(tmp_path, tokenizer):
    assert len(read(tmp_path, tokenizer, [record(), ""])) == 1


def test_sequences_shorter_than_a_block_are_left_out_and_counted(tmp_path, tokenizer):
    answer = len(tokenizer(ANSWER, add_special_tokens=False).input_ids) + 1
    assert len(read(tmp_path, tokenizer, [record()], block_size=answer)) == 1
    with pytest.raises(UserError, match=rf"2 answers that do not loop, none of at least {answer + 1} tokens"):
        read(tmp_path, tokenizer, [record(), record()], block_size=answer + 1)


def test_unreadable_files_and_no_chat_template(tmp_path, tokenizer):
    with pytest.raises(UserError, match="cannot be read"):
        read_sequences([tmp_path / "absent.jsonl"], tokenizer, max_length=9, block_size=2)
    (tmp_path / "latin1.jsonl").write_bytes(b'{"id": "\xe9"}')
    with pytest.raises(UserError, match="cannot be read"):
        read_sequences([tmp_path / "latin1.jsonl"], tokenizer, max_length=9, block_size=2)
    bare = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(UserError, match="no chat template"):
        read_sequences([], bare, max_length=9, block_size=2)


def test_looping_answers_are_left_out(tmp_path, tokenizer):
    (item,) = read(tmp_path, tokenizer, [record(id="loop", response=ANSWER + " dog dog dog"), record(id="good")])
    assert item.id == "good"


@pytest.mark.parametrize(
    ("ids", "loops"),
    [
        ([1, 2, 3, 4], False),
        ([9, 1, 1], False),
        ([9, 1, 1, 1], True),
        ([9, 1, 2, 1, 2], False),
        ([9, 1, 2, 1, 2, 1, 2], True),
        ([9, 1, 2, 1, 2, 1, 2, 9], False),
        ([9, *range(32), *range(32), *range(32)], True),
        ([9, *range(33), *range(33), *range(33)], False),
        ([9, *range(28), *range(28), *range(28), *range(5)], True),  # cut inside a period
        ([], False),
    ],
)
def test_loop_detection(ids, loops):
    assert ends_in_loop(ids) is loops


def test_split_is_stable_when_the_data_grows():
    items = [Conversation(f"id-{i}", (1, 2), ((1, 2),)) for i in range(400)]
    train, held = split(items[:200], 0.1)
    more_train, more_held = split(list(reversed(items)), 0.1)
    assert len(train) + len(held) == 200
    assert 5 <= len(held) <= 40
    assert {i.id for i in train} < {i.id for i in more_train}
    assert {i.id for i in held} < {i.id for i in more_held}
    assert split(items, 0.0) == (items, [])


def test_frequent_tokens():
    """Only answers count: 7 three times, 4 once, 9 always; the rest is filled with the smallest ids."""
    items = [
        Conversation("a", (50, 7, 50, 50, 7, 50, 4), ((1, 2), (4, 5), (6, 7))),
        Conversation("b", (50, 7), ((1, 2),)),
    ]
    assert frequent_tokens(items, 2, always=[9]) == [7, 9]
    assert frequent_tokens(items, 3, always=[9]) == [4, 7, 9]
    assert frequent_tokens(items, 6, always=[9]) == [0, 1, 2, 4, 7, 9]
    assert frequent_tokens(items, 1, always=[9, 9]) == [9]


def test_a_file_is_tokenised_once(tmp_path, tokenizer):
    """The second reading needs no tokenizer but its identity; a changed text, template or tokenizer is tokenised again."""
    lines = [record(id="ä", response=ANSWER + str(i)) for i in range(3)]
    cache = tmp_path / "deep" / "cache"
    first = read(tmp_path, tokenizer, lines, cache=cache)
    assert len(list(cache.iterdir())) == 1
    assert first == read(tmp_path, tokenizer, lines)

    class Counting:
        chat_template, eos_token_id = tokenizer.chat_template, tokenizer.eos_token_id
        backend_tokenizer = tokenizer.backend_tokenizer
        calls = 0

        def __call__(self, *args, **options):
            self.calls += 1
            return tokenizer(*args, **options)

        def apply_chat_template(self, *args, **options):
            return tokenizer.apply_chat_template(*args, **options)

    counting = Counting()
    assert read(tmp_path, counting, lines, cache=cache) == first
    begin = first[0].answers[0][0]
    cut = read(tmp_path, counting, lines, cache=cache, max_length=begin + 5)
    assert [item.ids for item in cut] == [item.ids[: begin + 5] for item in first]
    assert counting.calls == 0
    read(tmp_path, counting, lines[:2], cache=cache)
    assert counting.calls == 4
    counting.chat_template = "another"
    read(tmp_path, counting, lines[:2], cache=cache)
    assert counting.calls == 8


def test_the_answers_of_chats_are_kept_with_their_tokens(tmp_path, tokenizer):
    lines = [chat(ANSWER, ANSWER), chat(ANSWER + " dog dog dog"), chat("fox", ANSWER, ANSWER)]
    expected = read(tmp_path, tokenizer, lines)
    assert [len(item.answers) for item in expected] == [2, 2]
    for _ in range(2):  # made, then read back
        assert read(tmp_path, tokenizer, lines, cache=tmp_path / "cache") == expected
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_tokens_that_cannot_be_kept(tmp_path, tokenizer):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UserError, match="the tokens of the responses cannot be saved"):
        read(tmp_path, tokenizer, [record()], cache=tmp_path / "file")
