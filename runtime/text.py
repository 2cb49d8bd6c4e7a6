"""Token stream to text: whole characters only, each once, ending exactly before a stop string.

Works on any `decode(ids) -> str`; knows no tokenizer file and no loop.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple

Decode = Callable[[Sequence[int]], str]


class Detokenizer:
    """Incremental decoding: `push` returns the text a token completes.

    Decodes a short window instead of the whole answer. The window starts one finished piece early, because decoders treat
    the first token of a text specially (a leading space is dropped).
    """

    def __init__(self, decode: Decode):
        self._decode, self._ids = decode, [0][:0]
        self._start = self._done = 0  # ids[start:done] were printed and give context for the next piece

    def push(self, token: int) -> str:
        """Text completed by `token`; "" while a character is unfinished."""
        self._ids.append(token)
        text = self._pending()
        if not text or text.endswith("\ufffd"):  # an unfinished UTF-8 sequence decodes to the replacement character
            return ""
        self._start, self._done = self._done, len(self._ids)
        return text

    def flush(self) -> str:
        """What is left at the end of the answer, with replacement characters for bytes that never became one."""
        text = self._pending()
        self._start = self._done = len(self._ids)
        return text

    def _pending(self) -> str:
        printed = self._decode(self._ids[self._start : self._done])
        return self._decode(self._ids[self._start :])[len(printed) :]


class Piece(NamedTuple):
    """Text that can be shown, and the token (position in the answer) that completed it."""

    token: int
    text: str


class TextStream:
    """Text of one answer, with stop strings. Text that may be the start of a stop string is held back."""

    def __init__(self, decode: Decode, stops: Sequence[str] = ()):
        self._detokenizer, self._stops = Detokenizer(decode), tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._text, self._ends = "", [0][:0]  # _ends[i]: length of the text after token i
        self._shown, self._limit = 0, -1  # _limit: length of the finished text, -1 while it grows

    @property
    def text(self) -> str:
        """All text so far, cut before a stop string."""
        return self._text if self._limit < 0 else self._text[: self._limit]

    def push(self, tokens: Sequence[int]) -> int | None:
        """Add tokens. None, or, when a stop string is complete, how many tokens of the answer its text before the stop needs."""
        for token in tokens:
            before = len(self._text)
            self._text += self._detokenizer.push(token)
            self._ends.append(len(self._text))
            if self._find_stop(before):
                return bisect_left(self._ends, self._limit) + 1 if self._limit else 0
        return None

    def finish(self) -> None:
        """No more tokens: release what was held back. Does nothing after a stop string."""
        if self._limit < 0:
            self._text += self._detokenizer.flush()
            if self._ends:
                self._ends[-1] = len(self._text)
            self._limit = len(self._text)

    def take(self) -> list[Piece]:
        """Text that became safe to show since the last call."""
        safe = len(self._text) - self._held() if self._limit < 0 else self._limit
        pieces = []
        while self._shown < safe:
            token = bisect_left(self._ends, self._shown + 1)
            end = min(self._ends[token], safe)
            pieces.append(Piece(token, self._text[self._shown : end]))
            self._shown = end
        return pieces

    def _find_stop(self, before: int) -> bool:
        found = [self._text.find(stop, max(0, before - self._longest + 1)) for stop in self._stops]
        starts = [start for start in found if start >= 0]
        if starts:
            self._limit = min(starts)
        return bool(starts)

    def _held(self) -> int:
        """Length of the longest end of the text that starts a stop string."""
        for length in range(min(self._longest - 1, len(self._text) - self._shown), 0, -1):
            tail = self._text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return length
        return 0
