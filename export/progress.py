"""Progress of a long command on stderr: one line per phase with its elapsed time, and a heartbeat in long phases.

Says nothing on stdout. A caller that wants silence passes `stream=None`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

HEARTBEAT_S = 15.0  # a phase that is silent for longer than this looks like a hang


class Progress:
    """Prints `[  12.3 s] phase … took` lines to `stream`, and keeps the seconds of each phase in `seconds`."""

    def __init__(self, stream: TextIO | None):
        self._stream = stream
        self._start = time.monotonic()
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Announce `name`, repeat it every HEARTBEAT_S seconds, and print what it took when it ends well."""
        begun = time.monotonic()
        done = threading.Event()
        self.say(name)
        heart = threading.Thread(target=self._beat, args=(name, begun, done), daemon=True)
        heart.start()
        try:
            yield
        finally:
            done.set()
            heart.join()
        self.seconds[name] = time.monotonic() - begun
        self.say(f"{name}: {self.seconds[name]:.1f} s")

    def say(self, text: str) -> None:
        if self._stream is not None:
            self._stream.write(f"[{time.monotonic() - self._start:6.1f} s] {text}\n")
            self._stream.flush()

    def _beat(self, name: str, begun: float, done: threading.Event) -> None:
        while not done.wait(HEARTBEAT_S):
            self.say(f"{name}: still running after {time.monotonic() - begun:.0f} s")
