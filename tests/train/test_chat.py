"""Chats as token ids: every answer follows what would be served, under templates that keep earlier turns and those that do not."""

from __future__ import annotations

import pytest
from transformers import AutoTokenizer

from lilicorr.runtime.errors import UserError
from lilicorr.train.chat import encode_chat, training_sequences
from tests.fixtures import CHAT_TEMPLATE, TEXT

FIRST, SECOND, THIRD = TEXT.strip(), "the lazy dog asks the user", "<think>a fox</think>the answers jump over"
CONTENT = "m['content']"
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}" + CHAT_TEMPLATE
)
TEMPLATES = {
    "plain": CHAT_TEMPLATE,
    "generation tags": CHAT_TEMPLATE.replace("{{ '<|im_start|>'", "{% generation %}{{ '<|im_start|>'", 1).replace(
        "{% endfor %}", "{% endgeneration %}{% endfor %}"
    ),
    "trims": CHAT_TEMPLATE.replace(CONTENT, "m['content'] | trim"),
    "drops thoughts": CHAT_TEMPLATE.replace(CONTENT, "m['content'].split('</think>')[-1]"),
    "another end token": CHAT_TEMPLATE.replace("<|im_end|>", "<|reserved|>"),
    "counts turns": "{{ messages | length }}" + CHAT_TEMPLATE,
    "begins with BOS": "{{ bos_token }}" + CHAT_TEMPLATE,
}


@pytest.fixture
def tokenizer(tiny_target):
    return AutoTokenizer.from_pretrained(tiny_target)


def chat(*answers, system=None, finished=True):
    messages = [] if system is None else [{"role": "system", "content": system}]
    for number, answer in enumerate(answers):
        messages.append({"role": "user", "content": f"question {number}?"})
        messages.append({"role": "assistant", "content": answer, "finished": finished})
    return messages


def spans(tokenizer, item):
    return [tokenizer.decode(item.ids[begin:end]) for begin, end in item.answers]


def test_one_sequence_whose_answers_alone_are_supervised(tokenizer):
    (item,) = training_sequences(tokenizer, "a", chat(FIRST, SECOND, THIRD, system="be kind"))
    text = "<|im_start|>system\nbe kind<|im_end|>\n"
    for number, answer in enumerate((FIRST, SECOND, THIRD)):
        text += f"<|im_start|>user\nquestion {number}?<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
    assert tokenizer.decode(item.ids) == text.removesuffix("\n")
    assert spans(tokenizer, item) == [answer + "<|im_end|>" for answer in (FIRST, SECOND, THIRD)]
    assert item.id == "a"


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("name", TEMPLATES)
def test_every_answer_once_and_after_what_would_be_served(tokenizer, name, finished):
    tokenizer.chat_template = TEMPLATES[name]
    answers = (FIRST, " " + SECOND + "\n", THIRD, SECOND)
    messages = chat(*answers, finished=finished)
    end = "<|im_end|>" if finished else ""
    found = [
        (item.ids[:begin], tokenizer.decode(item.ids[begin:stop]))
        for item in training_sequences(tokenizer, "a", messages)
        for begin, stop in item.answers
    ]
    expected = [
        (tuple(encode_chat(tokenizer, messages[: 2 * number + 1])), answer + end)
        for number, answer in enumerate(answers)
    ]
    assert found == expected


@pytest.mark.parametrize(
    ("name", "sequences"),
    [
        ("plain", 1),
        ("generation tags", 1),
        ("begins with BOS", 1),
        ("trims", 2),
        ("drops thoughts", 2),
        ("counts turns", 4),
        ("another end token", 4),
    ],
)
def test_a_new_sequence_only_where_the_template_changes_what_was_said(tokenizer, name, sequences):
    tokenizer.chat_template = TEMPLATES[name]
    said = {"trims": "a fox ", "drops thoughts": THIRD}.get(name, "a fox")
    made = training_sequences(tokenizer, "a", chat(FIRST, said, SECOND, "the dog"))
    assert len(made) == sequences
    assert {item.id for item in made} == {"a"}


def test_an_unfinished_answer_is_followed_by_an_unsupervised_end(tokenizer):
    messages = chat(FIRST, SECOND)
    messages[1]["finished"] = False
    (item,) = training_sequences(tokenizer, "a", messages)
    assert spans(tokenizer, item) == [FIRST, SECOND + "<|im_end|>"]
    assert item.ids[item.answers[0][1]] == tokenizer.eos_token_id


def test_a_looping_answer_is_context_only(tokenizer):
    loop = "the dog dog dog dog"
    (item,) = training_sequences(tokenizer, "a", chat(loop, SECOND))
    assert spans(tokenizer, item) == [SECOND + "<|im_end|>"]
    assert loop in tokenizer.decode(item.ids[: item.answers[0][0]])
    assert training_sequences(tokenizer, "a", chat(loop, loop)) == []


def test_what_comes_after_the_last_answer_is_left_out(tokenizer):
    messages = chat(FIRST, SECOND)
    assert training_sequences(tokenizer, "a", [*messages, messages[0]]) == training_sequences(tokenizer, "a", messages)


def test_a_template_that_refuses_is_a_user_error(tokenizer):
    tokenizer.chat_template = ALTERNATING
    messages = chat(FIRST, SECOND)
    assert len(training_sequences(tokenizer, "a", messages)) == 1
    with pytest.raises(UserError, match="refuses a chat of user, assistant, assistant: roles must alternate"):
        training_sequences(tokenizer, "a", [*messages[:2], messages[1]])
    with pytest.raises(UserError, match="refuses a chat of system, user: roles must alternate"):
        encode_chat(tokenizer, [{"role": "system", "content": "be kind"}, messages[0]])


def test_two_assistant_messages_in_a_row_are_the_templates_to_refuse(tokenizer):
    messages = chat(FIRST)
    (item,) = training_sequences(tokenizer, "a", [*messages, {"role": "assistant", "content": SECOND}])
    assert spans(tokenizer, item) == [FIRST + "<|im_end|>", SECOND + "<|im_end|>"]
