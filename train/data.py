"""Training sequences: the target's responses as token ids with the position where supervision begins."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.train.conversation import Conversation
from lilicorr.train.token_cache import tokenised

_REGENERATE = "lilicorr-train regenerate --help"


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
    files: Iterable[Path | str], tokenizer: Any, *, max_length: int, block_size: int, cache: Path | None = None
) -> list[Conversation]:
    """Read `lilicorr-train regenerate` output; looping answers and answers shorter than a block are left out.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        max_length: longer sequences are cut at the end, in tokens.
        cache: folder of tokens made before; None keeps none.

    Raises:
        UserError: a missing file, an empty or malformed line (with its number), no chat template, or nothing left to train on.
    """
    if not getattr(tokenizer, "chat_template", None):
        raise UserError(
            "the target's tokenizer has no chat template, the responses cannot be put in context",
            hint="train for a chat model: its folder holds `chat_template.jinja`",
        )
    paths = [Path(file) for file in files]
    whole = [item for path in paths for item in tokenised(path, tokenizer, partial(_encode, tokenizer), cache)]
    sequences = [
        replace(item, ids=item.ids[:max_length])
        for item in whole
        if len(item.ids) - item.answer >= block_size and item.answer + block_size < max_length
    ]
    if not sequences:
        raise UserError(
            f"no usable response in {[str(path) for path in paths]}: {len(whole)} answers that do not loop, none of at least "
            f"{block_size} tokens (`block_size`) that begins in the first {max_length - block_size} (`max_length`)",
            hint=_REGENERATE,
        )
    return sequences


def _encode(tokenizer: Any, file: Path) -> list[Conversation]:
    """All answers of a file but the looping ones, whole."""
    sequences = []
    for number, record in _records(file):
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
        sequences.append(Conversation(str(record.get("id", number)), tuple(prompt + answer), len(prompt)))
    return sequences


def _records(file: Path) -> Iterable[tuple[int, dict[str, Any]]]:
    try:
        lines = file.read_text(encoding="utf-8").split("\n")  # not splitlines: JSON strings may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`{file}` cannot be read: {error}", hint=_REGENERATE) from None
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        try:
            yield number, json.loads(line)
        except json.JSONDecodeError as error:
            what = f"not a JSON object: {error}" if line.strip() else "an empty line, expected a JSON object"
            raise UserError(f"{file}:{number}: {what}", hint=_REGENERATE) from None


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
