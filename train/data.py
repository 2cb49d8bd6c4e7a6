"""Training sequences from JSON lines: a question with the target's response, or a chat's `messages`.

    {"id": "q-1", "turns": ["What is 2 + 2?"], "response": "4.", "finished": true}
    {"id": "c-1", "messages": [{"role": "user", "content": "What is 2 + 2?"}, {"role": "assistant", "content": "4."}, …]}

`finished` says whether the end token is part of the answer. Missing, it is false beside `response` and true in a message.
A line with `messages` is a chat whatever else it holds, here and in prompt files.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from lilicorr.runtime.errors import UserError
from lilicorr.runtime.json_line import line_id, parse_object
from lilicorr.runtime.messages import read_messages
from lilicorr.train.chat import require_template, training_sequences
from lilicorr.train.conversation import Conversation
from lilicorr.train.token_cache import tokenised

_REGENERATE = "lilicorr-train regenerate --help"
_CUT_OFF = "run `lilicorr-train regenerate` with this --out again: it cuts off a half last line and goes on"


def read_sequences(
    files: Iterable[Path | str], tokenizer: Any, *, max_length: int, block_size: int, cache: Path | None = None
) -> list[Conversation]:
    """Read JSON lines; looping answers and answers shorter than a block are left out.

    Args:
        tokenizer: a transformers tokenizer with a chat template.
        max_length: longer sequences are cut at the end, in tokens.
        cache: folder of tokens made before; None keeps none.

    Raises:
        UserError: a missing file, an empty or malformed line (with its number), no chat template, or nothing left to train on.
    """
    require_template(tokenizer)
    paths = [Path(file) for file in files]
    whole = [item for path in paths for item in tokenised(path, tokenizer, partial(_encode, tokenizer), cache)]
    cut = (item.cut(max_length, block_size) for item in whole)
    sequences = [item for item in cut if item is not None]
    if not sequences:
        answers = sum(len(item.answers) for item in whole)
        raise UserError(
            f"no usable response in {[str(path) for path in paths]}: {answers} answers that do not loop, none of at least "
            f"{block_size} tokens (`block_size`) that begins in the first {max_length - block_size} (`max_length`)",
            hint=_REGENERATE,
        )
    return sequences


def _encode(tokenizer: Any, file: Path) -> list[Conversation]:
    """All answers of a file but the looping ones, whole."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: JSON strings may hold U+2028
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`{file}` cannot be read: {error}", hint=_REGENERATE) from None
    sequences = []
    for number, line in enumerate(lines if lines[-1] else lines[:-1], 1):
        try:
            record = parse_object(line)
            sequences += training_sequences(tokenizer, line_id(record, number), _messages(record))
        except UserError as error:
            cut_off = number == len(lines) and error.what.startswith("not a JSON")
            raise error.at(f"{file}:{number}", _CUT_OFF if cut_off else _REGENERATE) from None
    return sequences


def _messages(record: dict[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The chat of a line. Raises UserError when it is none, or when nobody answers in it."""
    if record.keys() & {"messages", "conversations"}:
        messages = read_messages(record)
        finished = [message.get("finished", True) for message in messages if message["role"] == "assistant"]
        if not finished:
            raise UserError("no message of the assistant, there is nothing to learn from", hint=_REGENERATE)
        if not all(isinstance(value, bool) for value in finished):
            raise UserError(f"expected `finished` true or false, found {finished}", hint=_REGENERATE)
        return messages
    turns, response = record.get("turns"), record.get("response")
    if not (isinstance(turns, list) and turns and isinstance(turns[0], str) and isinstance(response, str)):
        raise UserError(
            "expected `turns` (a list of texts) and `response` (a text), or `messages`; found "
            + (", ".join(f"`{key}`: {json.dumps(value)[:40]}" for key, value in record.items()) or "nothing"),
            hint=_REGENERATE,
        )
    finished = record.get("finished", False)
    if not isinstance(finished, bool):
        raise UserError(f"expected `finished` true or false, found {json.dumps(finished)[:40]}", hint=_REGENERATE)
    answer = {"role": "assistant", "content": response, "finished": finished}
    return [{"role": "user", "content": turns[0]}, answer]


def split(sequences: Sequence[Conversation], held_out: float) -> tuple[list[Conversation], list[Conversation]]:
    """(training, development) by a hash of the id, so that a sequence stays on its side when the data grows."""
    train: list[Conversation] = []
    held: list[Conversation] = []
    for item in sequences:
        (held if is_held_out(item.id, held_out) else train).append(item)
    return train, held


def is_held_out(item_id: str, share: float) -> bool:
    """Whether a sequence or prompt is among the `share` (0 to 1) that is never trained on, by a hash of its id."""
    return int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:4], "big") / 2**32 < share


def frequent_tokens(sequences: Iterable[Conversation], size: int, always: Iterable[int] = ()) -> list[int]:
    """The `size` target ids a reduced draft vocabulary keeps, ascending: `always`, then by frequency in the answers, then by id
    (BPE ids rise as merges get rarer)."""
    counts = Counter(token for item in sequences for token in item.answer_ids)
    ranked = [*always, *(token for token, _ in counts.most_common())]
    kept = list(dict.fromkeys(ranked))[:size]
    seen = set(kept)
    filler = (token for token in range(size + len(seen)) if token not in seen)
    return sorted(kept + [next(filler) for _ in range(size - len(kept))])
