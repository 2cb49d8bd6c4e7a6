"""The process in which one engine is built: `python -m lilicorr.export.engine_worker JOB.json`, events on stdout, one JSON each.

    {"say": text}    {"error": {"what", "hint", "exit_code"}}    {"done": {"layers", "seconds", "peak_bytes"}}

SIGINT ends the build at the builder's next step, with exit code 130 and no engine.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, TextIO

from lilicorr.runtime.errors import UserError

INTERRUPTED = 130


def main(path: str) -> int:
    """Build the job described in the file `path`; returns the exit code."""
    events = _take_stdout()
    interrupted = _watch_interrupt()

    def send(event: dict[str, Any]) -> None:
        events.write(json.dumps(event) + "\n")
        events.flush()

    from lilicorr.export.engine_builder import Cancelled, Job, build_engine
    from lilicorr.runtime.manifest import parse

    problems: list[str] = []
    job: Job = parse(Job, json.loads(Path(path).read_text(encoding="utf-8")), "", problems)
    if problems:
        raise AssertionError(problems)
    begun = time.monotonic()
    try:
        layers = build_engine(job, lambda text: send({"say": text}), interrupted.is_set)
    except UserError as error:
        send({"error": {"what": error.what, "hint": error.hint, "exit_code": error.exit_code}})
        return error.exit_code
    except Cancelled:
        return INTERRUPTED
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    send({"done": {"layers": layers, "seconds": time.monotonic() - begun, "peak_bytes": peak}})
    return 0


def _take_stdout() -> TextIO:
    """Keep stdout for events; whatever a library prints goes to stderr."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _watch_interrupt() -> threading.Event:
    """Set the event on SIGINT from a thread: Python's own handler would wait until the builder returns."""
    interrupted = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def wait() -> None:
        signal.sigwait({signal.SIGINT})
        interrupted.set()

    threading.Thread(target=wait, daemon=True).start()
    return interrupted


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
