"""Training sequences: the target's responses as token ids with the position where supervision begins."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError

_REGENERATE = "lilicorr-train regenerate --help"


@dataclass(frozen=True)
class Conversation:
    """`ids` are prompt and response, `answer` is the index of the response's first token."""

    id: str
    ids: tuple[int, ...]
    answer: int


def ends_in_loop(ids: Sequence[int], max_period: int = 32, repeats: int = 3) -> bool:
    """True when the tail repeats itself: some period ≤ max_period, `repeats` times over."""
    for period in range(1, max_period + 1):
        tail = ids[-period * repeats :]
        if len(tail) == period * repeats and all(tail[i] == tail[i - period] for i in range(period, len(tail))):
            return True
    return False


def encode_question(tokenizer: Any, message: str) -> list[int]:
    """Token ids of one user message in the target's chat template (a transformers tokenizer's), ready to be answered."""
    messages = [{"role": "user", "content": message}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return tokenizer(text, add_special_tokens=False).input_ids


def read_sequences(
    files: Iterable[Path | str], tokenizer: Any, *, max_length: int, block_size: int
) -> list[Conversation]:
    """Read `lilicorr-train regenerate` output; looping answers and answers shorter than a block are left out.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        max_length: longer sequences are cut at the end, in tokens.

    Raises:
        UserError: a missing file, a malformed line (with its number), no chat template, or nothing left to train on.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "the target's tokenizer has no chat template, the responses cannot be put in context",
            hint="train for a chat model: its folder holds `chat_template.jinja`",
        )
    sequences = []
    for file in files:
        for number, record in _records(Path(file)):
            try:
                question, response = record["turns"][0], record["response"]
                if not (isinstance(record["turns"], list) and isinstance(question, str) and isinstance(response, str)):
                    raise TypeError("`turns` is a list of texts and `response` a text")
                prompt = encode_question(tokenizer, question)
                answer = tokenizer(response, add_special_tokens=False).input_ids
            except (KeyError, IndexError, TypeError) as error:
                raise UserError(
                    f"{file}:{number}: expected `id`, `turns` and `response`: {error!r}", hint=_REGENERATE
                ) from None
            if ends_in_loop(answer):
                continue
            if record.get("finished"):
                answer = [*answer, tokenizer.eos_token_id]
            if len(answer) >= block_size and len(prompt) + block_size < max_length:
                sequences.append(
                    Conversation(str(record.get("id", number)), tuple((prompt + answer)[:max_length]), len(prompt))
                )
    if not sequences:
        raise UserError(f"no usable response in {[str(f) for f in files]}", hint=_REGENERATE)
    return sequences


def _records(file: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON strings may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`{file}` cannot be read: {error}", hint=_REGENERATE) from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except json.JSONDecodeError as error:
                raise UserError(f"{file}:{number}: not a JSON object: {error}", hint=_REGENERATE) from None


def split(sequences: Sequence[Conversation], held_out: float) -> tuple[list[Conversation], list[Conversation]]:
    """(training, development) by a hash of the id, so that a sequence stays on its side when the data grows."""
    train: list[Conversation] = []
    held: list[Conversation] = []
    for item in sequences:
        share = int.from_bytes(hashlib.sha256(item.id.encode()).digest()[:4], "big") / 2**32
        (held if share < held_out else train).append(item)
    return train, held


def frequent_tokens(sequences: Iterable[Conversation], size: int, always: Iterable[int] = ()) -> list[int]:
    """The `size` target ids a reduced draft vocabulary keeps, ascending: `always`, then by frequency in the answers, then by id
    (BPE ids rise as merges get rarer)."""
    counts = Counter(token for item in sequences for token in item.ids[item.answer :])
    ranked = [*always, *(token for token, _ in counts.most_common())]
    kept = list(dict.fromkeys(ranked))[:size]
    seen = set(kept)
    filler = (token for token in range(size + len(seen)) if token not in seen)
    return sorted(kept + [next(filler) for _ in range(size - len(kept))])
