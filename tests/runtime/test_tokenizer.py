"""Templates and ids must be those of transformers on the real target; the rest uses a tiny word tokenizer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.text import TextStream
from lilicorr.runtime.tokenizer import ChatTokenizer

SMOLLM2 = Path(__file__).parents[2] / "build" / "smollm2-135m-hf"
CONVERSATIONS = [
    [{"role": "user", "content": "Why is the sky blue?"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  2 + 2?\n"}],
    [
        {"role": "user", "content": "Schreib «Grüße» 😀 <|im_end|>"},
        {"role": "assistant", "content": "Grüße!"},
        {"role": "user", "content": "def f(x):\n    return x\n"},
    ],
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    words = {"[BOS]": 0, "[UNK]": 1, "hello": 2, "user": 3, "bot": 4}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.add_special_tokens(["[BOS]"])
    tokenizer.post_processor = TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", 0)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def with_template(folder: Path, template: str) -> ChatTokenizer:
    (folder / "chat_template.jinja").write_text(template)
    return ChatTokenizer(folder, "[BOS]", None)


def test_bos_comes_once(folder: Path) -> None:
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }} {{ m.content }} {% endfor %}"
    tokenizer = with_template(folder, template + "{% if add_generation_prompt %}bot{% endif %}")
    assert tokenizer.encode_text("hello") == [0, 2]
    assert tokenizer.encode_chat([{"role": "user", "content": "hello"}]) == [0, 3, 2, 4]
    assert tokenizer.decode([0, 2]) == "hello"


def test_template_refusal_is_a_user_error(folder: Path) -> None:
    tokenizer = with_template(folder, "{{ raise_exception('roles must alternate') }}")
    with pytest.raises(UserError, match="refuses this conversation: roles must alternate"):
        tokenizer.encode_chat([{"role": "user", "content": "hello"}])


def test_template_is_sandboxed(folder: Path) -> None:
    tokenizer = with_template(folder, "{{ messages.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(UserError, match="refuses"):
        tokenizer.encode_chat([{"role": "user", "content": "hello"}])


def test_broken_files(folder: Path) -> None:
    with pytest.raises(UserError, match="is not a chat template"):
        with_template(folder, "{% for %}")
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match=r"tokenizer\.json` cannot be read"):
        ChatTokenizer(folder, None, None)


def test_base_model_has_no_chat(folder: Path) -> None:
    tokenizer = ChatTokenizer(folder, None, None)
    assert not tokenizer.has_template
    assert (
        tokenizer.as_prompt([{"role": "system", "content": "be kind"}, {"role": "user", "content": "hello"}]) == "hello"
    )
    with pytest.raises(UserError, match="no chat template"):
        tokenizer.encode_chat([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("messages", [[], [{"role": "user", "content": " \n"}]])
def test_empty_prompt(folder: Path, messages: list[dict[str, str]]) -> None:
    tokenizer = with_template(folder, "{{ messages[0].content }}")
    with pytest.raises(UserError, match="the prompt is empty"):
        tokenizer.encode_chat(messages)
    with pytest.raises(UserError, match="the prompt is empty"):
        tokenizer.encode_text("  ")
    with pytest.raises(UserError, match="a message is a mapping with `role` and `content`"):
        tokenizer.encode_chat([{"role": "user"}])


needs_smollm2 = pytest.mark.skipif(not SMOLLM2.is_dir(), reason="build/smollm2-135m-hf is missing: run `make target`")


@pytest.mark.smollm2
@needs_smollm2
def test_same_ids_as_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(SMOLLM2)
    ours = ChatTokenizer(SMOLLM2, theirs.bos_token, theirs.eos_token)
    for messages in CONVERSATIONS:
        expected = theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        assert ours.render(messages) == expected
        ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(messages) == ids
    assert ours.encode_text("Once upon a time") == theirs("Once upon a time")["input_ids"]


@pytest.mark.smollm2
@needs_smollm2
def test_streamed_text_of_real_tokens() -> None:
    tokenizer = ChatTokenizer(SMOLLM2, None, None)
    text = "Grüße 😀👩‍👩‍👧, 你好: naïve café — ∑ x² ≠ 3\n\n  def f():\n\treturn 'ß'"
    stream = TextStream(tokenizer.decode)
    shown = ""
    for token in tokenizer.encode_text(text):
        stream.push([token])
        shown += "".join(piece.text for piece in stream.take())
    stream.finish()
    assert shown + "".join(piece.text for piece in stream.take()) == text


@pytest.mark.parametrize(
    "message", ["hello", {"role": "user"}, {"role": "user", "content": None}, {"role": 1, "content": "hello"}]
)
def test_malformed_message_is_shown(folder: Path, message: object) -> None:
    tokenizer = with_template(folder, "{{ messages }}")
    with pytest.raises(UserError, match="`role` and `content`, found"):
        tokenizer.encode_chat([message])  # type: ignore[list-item]


def test_bytes_that_are_no_text_are_refused(folder: Path) -> None:
    tokenizer = with_template(folder, "{{ messages[0].content }}")
    text = b"caf\xe9".decode("utf-8", "surrogateescape")
    for prompt in (text, [{"role": "user", "content": text}]):
        with pytest.raises(UserError, match=r"not UTF-8: found '\\udce9' at character 4"):
            tokenizer.encode(prompt)
