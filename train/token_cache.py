"""Tokenised response files, kept so that another run or process reads token ids instead of text.

One file per response file, its name a hash of everything the tokens depend on: a changed text, tokenizer or template misses.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from lilicorr.runtime.bundle import file_sha256
from lilicorr.train.conversation import Conversation
from lilicorr.train.tensor_file import write_tensors

FORMAT = 2  # raised when what `data` makes of a line changes


def tokenised(
    file: Path, tokenizer: Any, encode: Callable[[Path], list[Conversation]], folder: Path | None
) -> list[Conversation]:
    """`encode(file)`, from `folder` when it was made there before; None keeps nothing.

    Raises:
        UserError: those of `encode`, or `folder` cannot be written.
    """
    if folder is None or not file.is_file():
        return encode(file)
    path = folder / f"tokens-{_key(file, tokenizer)}.safetensors"
    if path.is_file():
        return _read(path)
    sequences = encode(file)
    _write(path, sequences)
    return sequences


def _key(file: Path, tokenizer: Any) -> str:
    tokens = (tokenizer.backend_tokenizer.to_str(), tokenizer.chat_template, tokenizer.eos_token_id)
    parts = (FORMAT, file_sha256(file), *tokens)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def _write(path: Path, sequences: list[Conversation]) -> None:
    import torch

    tensors = {
        "ids": torch.tensor([id for item in sequences for id in item.ids], dtype=torch.int32),
        "ends": torch.tensor([*accumulate(len(item.ids) for item in sequences)], dtype=torch.int64),
        "answers": torch.tensor([span for item in sequences for span in item.answers], dtype=torch.int32).view(-1, 2),
        "answer_ends": torch.tensor([*accumulate(len(item.answers) for item in sequences)], dtype=torch.int64),
    }
    metadata = {"names": json.dumps([item.id for item in sequences])}
    write_tensors(path, tensors, "the tokens of the responses", metadata=metadata)


def _read(path: Path) -> list[Conversation]:
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        names = json.loads(file.metadata()["names"])
        ids, ends = file.get_tensor("ids").tolist(), file.get_tensor("ends").tolist()
        answers = [tuple(span) for span in file.get_tensor("answers").tolist()]
        answer_ends = file.get_tensor("answer_ends").tolist()
    return [
        Conversation(name, tuple(ids[begin:end]), tuple(answers[first:last]))
        for name, (begin, end), (first, last) in zip(
            names, pairwise([0, *ends]), pairwise([0, *answer_ends]), strict=True
        )
    ]
