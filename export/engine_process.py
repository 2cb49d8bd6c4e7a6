"""Start the worker of one engine, pass on what it says, and turn how it ends into one plain result or error."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from lilicorr.export.engine_builder import Job
from lilicorr.export.engine_memory import killed
from lilicorr.export.progress import Progress
from lilicorr.runtime.errors import UserError

GRACE_S = 20.0  # for a builder to reach its next step after Ctrl-C


@dataclass(frozen=True)
class Built:
    """What building one engine took."""

    layers: int
    seconds: float
    peak_bytes: int


def run_job(job: Job, needed: int, progress: Progress) -> Built:
    """Build the engine of `job` in a process of its own.

    Args:
        needed: The memory estimate, for the message when the system kills the worker.

    Raises:
        UserError: the builder's own refusal, or it was killed.
        KeyboardInterrupt: passed on, after the worker has ended.
        RuntimeError: the worker broke: a defect, of ours or TensorRT's.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.json"
        path.write_text(json.dumps(dataclasses.asdict(job)), encoding="utf-8")
        command = [sys.executable, "-m", "lilicorr.export.engine_worker", str(path)]
        with open(Path(folder) / "stderr", "w+", encoding="utf-8", errors="replace") as talk:
            # a session of its own: Ctrl-C reaches this process only, which then asks the worker to end
            worker = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=talk, text=True, start_new_session=True)
            try:
                built = _follow(worker, job.component, progress)
                code = worker.wait()
            except BaseException:
                _end(worker)
                raise
            if built is not None and code == 0:
                return built
            if code == -signal.SIGKILL:
                raise killed(job.component, needed)
            talk.seek(0)
            raise RuntimeError(
                f"the builder of the {job.component} engine ended with code {code}:\n{talk.read()[-4000:]}"
            )


def _follow(worker: subprocess.Popen[str], component: str, progress: Progress) -> Built | None:
    assert worker.stdout is not None
    for line in worker.stdout:
        event = json.loads(line)
        if "say" in event:
            progress.say(f"{component}: {event['say']}")
        elif "error" in event:
            worker.wait()
            raise UserError(event["error"]["what"], hint=event["error"]["hint"], exit_code=event["error"]["exit_code"])
        else:
            return Built(**event["done"])
    return None


def _end(worker: subprocess.Popen[str]) -> None:
    """Ask the worker to stop, and kill it (its process group: the session it leads) when it does not."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGINT)
        try:
            worker.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
