"""One training sequence: token ids and the spans that are supervised; and a hash of many, to tell data apart."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Conversation:
    """`ids` are a chat as the target reads it, `answers` the spans [begin, end) of what the assistant said, in order."""

    id: str
    ids: tuple[int, ...]
    answers: tuple[tuple[int, int], ...]

    @property
    def anchors(self) -> list[int]:
        """Where a block can start: supervised tokens with a supervised token after them in the same answer."""
        return [index for begin, end in self.answers for index in range(begin, end - 1)]

    @property
    def answer_ids(self) -> list[int]:
        return [token for begin, end in self.answers for token in self.ids[begin:end]]

    def cut(self, max_length: int, block_size: int) -> Conversation | None:
        """At most `max_length` tokens, up to the last answer that holds a block; None when no answer does."""
        kept = tuple(
            (begin, min(end, max_length))
            for begin, end in self.answers
            if end - begin >= block_size and begin + block_size < max_length
        )
        return Conversation(self.id, self.ids[: kept[-1][1]], kept) if kept else None


def sequences_sha256(sequences: Iterable[Conversation]) -> str:
    """Of the token ids, in order, and of the answers where there are several: a single one is where the template puts it."""
    parts = [item.ids if len(item.answers) == 1 else (item.ids, item.answers) for item in sequences]
    return hashlib.sha256(repr(parts).encode()).hexdigest()
