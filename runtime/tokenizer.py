"""Tokenizer and chat template of a bundle: messages or plain text to ids, ids to text. Uses `tokenizers` and sandboxed jinja2.

Renders templates as transformers does; transformers itself is not needed.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from lilicorr.runtime.bundle import REBUILD, TEMPLATE_NAME
from lilicorr.runtime.errors import UserError

Message = Mapping[str, str]  # {"role": "system" | "user" | "assistant", "content": …}
Prompt = str | Sequence[Message]  # plain text to continue, or a conversation to answer


def user_message(text: str) -> Message:
    return {"role": "user", "content": text}


class ChatTokenizer:
    """Args:
        folder: Holds `tokenizer.json` and, for chat models, `chat_template.jinja`.
        bos_token: Text of the token, as templates use it; None when the model has none.
        eos_token: The same for the end token.

    Raises:
        UserError: a file is missing or unreadable.
    """

    def __init__(self, folder: Path, bos_token: str | None, eos_token: str | None):
        from tokenizers import Tokenizer

        try:
            self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        except Exception as error:  # tokenizers raises bare Exception
            raise UserError(f"`{folder / 'tokenizer.json'}` cannot be read: {error}", hint=REBUILD) from None
        self._folder = folder
        self._variables = {"bos_token": bos_token or "", "eos_token": eos_token or ""}
        path = folder / TEMPLATE_NAME
        self._template = _compile(path) if path.is_file() else None

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def as_prompt(self, messages: Sequence[Message]) -> Prompt:
        """The conversation itself; without a chat template, its last message as plain text to continue."""
        return messages if self.has_template else messages[-1]["content"]

    def encode(self, prompt: Prompt) -> list[int]:
        """Ids of a prompt of either kind; errors as in `encode_text` and `encode_chat`."""
        return self.encode_text(prompt) if isinstance(prompt, str) else self.encode_chat(prompt)

    def encode_text(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the special tokens that the tokenizer itself adds (some add BOS)."""
        if not text.strip():
            raise UserError("the prompt is empty", hint="give at least one word")
        return self._ids(text, special=True)

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a conversation, ready for the assistant's turn. The template writes BOS where the model wants one.

        Raises:
            UserError: no template, no or empty messages, or the template refuses them.
        """
        return self._ids(self.render(messages), special=False)

    def render(self, messages: Sequence[Message]) -> str:
        """The text of a conversation as the model reads it, with the assistant's opening."""
        if self._template is None:
            raise UserError(
                f"`{self._folder}` has no chat template, so it answers plain text only",
                hint="lilicorr-run generate BUNDLE PROMPT --raw",
            )
        for message in messages:
            fields = [message.get(key) for key in ("role", "content")] if isinstance(message, Mapping) else [None]
            if not all(isinstance(field, str) for field in fields):
                raise UserError(
                    f"a message is a mapping with `role` and `content`, found {message!r}",
                    hint='[{"role": "user", "content": "Why is the sky blue?"}]',
                )
        if not messages or not messages[-1]["content"].strip():
            raise UserError("the prompt is empty", hint="give at least one word")
        from jinja2 import TemplateError

        try:
            return self._template.render(messages=list(messages), add_generation_prompt=True, **self._variables)
        except TemplateError as error:
            raise UserError(
                f"the chat template refuses this conversation: {error}",
                hint="leave out the system message, or lilicorr-run generate BUNDLE PROMPT --raw",
            ) from None

    def _ids(self, text: str, *, special: bool) -> list[int]:
        try:
            text.encode()  # bytes that are no UTF-8 arrive from a command line as lone surrogates
        except UnicodeEncodeError as error:
            raise UserError(
                f"the prompt is not UTF-8: found {text[error.start]!r} at character {error.start + 1}",
                hint="iconv -t UTF-8",
            ) from None
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def _compile(path: Path) -> Any:
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    def to_json(value: Any, indent: int | None = None) -> str:
        return json.dumps(value, ensure_ascii=False, indent=indent)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = to_json
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TemplateError) as error:
        raise UserError(f"`{path}` is not a chat template: {error}", hint=REBUILD) from None
