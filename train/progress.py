"""How far a command is: one line rewritten on a terminal, a heartbeat line elsewhere."""

from __future__ import annotations

import sys
import time

HEARTBEAT_S = 20.0  # between two lines where stderr is not a terminal


class Progress:
    """Prompts done, speed and time left: one line rewritten on a terminal, a heartbeat line elsewhere."""

    def __init__(self, total: int):
        self.total = total
        self.began = self.said = time.monotonic()
        self.done = 0

    def advance(self, prompts: int, tokens: int) -> None:
        self.done += prompts
        now = time.monotonic()
        seconds = now - self.began
        left = seconds / self.done * (self.total - self.done)
        message = f"{self.done}/{self.total} prompts, {tokens / seconds:.0f} tokens/s, about {left / 60:.0f} min left"
        if sys.stderr.isatty():
            print(f"\r{message}\033[K", end="" if self.done < self.total else "\n", file=sys.stderr, flush=True)
        elif now - self.said >= HEARTBEAT_S or self.done == self.total:
            self.said = now
            print(message, file=sys.stderr, flush=True)
