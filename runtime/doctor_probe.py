"""What a report asks of the machine: text files and commands that may not be there. Nothing here raises."""

from __future__ import annotations

import subprocess
from importlib import metadata, util
from pathlib import Path

TIMEOUT_S = 10  # nvidia-smi can hang for minutes on a GPU that fell off the bus


class Probe:
    """The machine this process runs on. Tests replace it by one that answers from tables."""

    def text(self, path: str) -> str | None:
        """Content of a text file; None where it cannot be read."""
        try:
            return Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None

    def output(self, *command: str) -> str | None:
        """Standard output of a command that succeeded; None where it is missing, fails or hangs."""
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout if done.returncode == 0 else None

    def package(self, name: str) -> str | None:
        """Version of an installed Python distribution."""
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    def module_folder(self, name: str) -> str | None:
        """Folder a Python module would be imported from, without importing it."""
        try:
            spec = util.find_spec(name)
        except (ImportError, ValueError):
            return None
        return str(Path(spec.origin).parent) if spec is not None and spec.origin is not None else None

    def compute_capability(self) -> str | None:
        """Of GPU 0, from the CUDA driver, as "8.7"."""
        from lilicorr.runtime.engine_check import compute_capability
        from lilicorr.runtime.errors import UserError

        try:
            return compute_capability()
        except UserError:
            return None
