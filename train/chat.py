"""Chats as token ids: what the target reads before it answers, and what it is trained on, answer by answer.

Every answer follows exactly the ids that would be served: the chat so far in the template, with the assistant's opening.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.tokenizer import Message
from lilicorr.train.conversation import Conversation


def ends_in_loop(ids: Sequence[int], max_period: int = 32, repeats: int = 3) -> bool:
    """True when the tail repeats itself: some period ≤ max_period, `repeats` times over."""
    for period in range(1, max_period + 1):
        tail = ids[-period * repeats :]
        if len(tail) == period * repeats and all(tail[i] == tail[i - period] for i in range(period, len(tail))):
            return True
    return False


def require_template(tokenizer: Any) -> None:
    """Raises UserError: `tokenizer` (transformers) has no chat template."""
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "the target's tokenizer has no chat template, chats and responses cannot be put in context",
            hint="take a chat model: its folder holds `chat_template.jinja`",
        )


def encode_chat(tokenizer: Any, messages: Sequence[Message]) -> list[int]:
    """Token ids of a chat in the target's template (a transformers tokenizer's), ready to be answered.

    Raises:
        UserError: there is no template, or it refuses the messages.
    """
    require_template(tokenizer)
    return tokenizer(_rendered(tokenizer, messages, opening=True), add_special_tokens=False).input_ids


def _rendered(tokenizer: Any, messages: Sequence[Message], *, opening: bool) -> str:
    plain = [{"role": message["role"], "content": message["content"]} for message in messages]
    try:
        return tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=opening)
    except Exception as error:  # a template is somebody's program: it divides, adds and indexes
        roles = ", ".join(message["role"] for message in plain)
        raise UserError(
            f"the target's chat template refuses a chat of {roles}: {error}",
            hint="give it a chat that its template allows (many want no system message, or user and assistant in turns)",
        ) from None


def training_sequences(tokenizer: Any, id: str, messages: Sequence[Mapping[str, Any]]) -> list[Conversation]:
    """A chat with its answers as spans; each ends with the end token, unless the message says `"finished": false`.

    One sequence, as long as the chat up to the next answer begins with the ids so far. Where it does not (templates that drop
    the thoughts of earlier answers, or trim them) a new sequence begins, with that chat as the context of the next answer.
    Looping answers are context only.

    Raises:
        UserError: the template refuses the messages.
    """
    # As a whole: an answer that follows another at the end is in no context below, where the template could refuse it.
    _rendered(tokenizer, messages, opening=False)
    sequences: list[Conversation] = []
    ids: list[int] = []
    answers: list[tuple[int, int]] = []
    for number, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        prompt = encode_chat(tokenizer, messages[:number])
        if answers and prompt[: len(ids)] != ids:
            sequences.append(Conversation(id, tuple(ids), tuple(answers)))
            answers = []
        answer = tokenizer(message["content"], add_special_tokens=False).input_ids
        ended = [tokenizer.eos_token_id] if message.get("finished", True) else []
        ids = prompt + answer + ended
        if not ends_in_loop(answer):
            answers.append((len(prompt), len(ids)))
    if answers:
        sequences.append(Conversation(id, tuple(ids), tuple(answers)))
    return sequences
