"""One training sequence: token ids and where supervision begins; and a hash of many, to tell data apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Conversation:
    """`ids` are prompt and response, `answer` is the index of the response's first token."""

    id: str
    ids: tuple[int, ...]
    answer: int


def sequences_sha256(sequences: Iterable[Conversation]) -> str:
    """Of the token ids, in order."""
    return hashlib.sha256(repr([item.ids for item in sequences]).encode()).hexdigest()
