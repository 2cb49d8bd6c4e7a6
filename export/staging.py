"""A folder that appears whole or not at all: written as a hidden sibling, then renamed.

A killed writer leaves only the hidden sibling `.NAME-new-XXXX`, which the next `Staging` of the same name removes. The
sibling is locked (flock on the folder, released by the kernel when its writer dies), so a live writer is never disturbed.
A folder being replaced is renamed to `.NAME-old-XXXX` first, and put back if the writer died between the two renames.
"""

from __future__ import annotations

import errno
import fcntl
import glob
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

from lilicorr.runtime.errors import UserError

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Staging:
    """Context manager around one write of the folder `out`.

    `folder` is where to write. `publish()` makes it `out`; leaving the block without `publish` removes it.

    Args:
        out: The folder to make or replace.
        marker: A file name that a folder at `out` must hold to be replaced; any other folder is left alone.

    Raises:
        UserError: on entry, when `out` is a file or another kind of folder, or cannot be written; on leaving, when the disk or
            a quota was full.
    """

    def __init__(self, out: Path, marker: str):
        self._out = out.resolve()
        self._marker = marker
        self.folder = Path()
        self._lock = -1

    def __enter__(self) -> Staging:
        parent = self._out.parent
        try:
            parent.mkdir(parents=True, exist_ok=True)
            guard = _locked(parent)
            try:
                self._clean_dead()
                self._refuse_other()
                self.folder = Path(tempfile.mkdtemp(prefix=f".{self._out.name}-new-", dir=parent))
                self._lock = _locked(self.folder)
            finally:
                os.close(guard)
        except OSError as error:
            raise UserError(
                f"`{self._out}` cannot be written: {error.strerror} (`{error.filename}`)",
                hint="choose another folder with --out",
            ) from None
        return self

    def publish(self) -> None:
        """Flush everything to disk and rename the folder to `out`, replacing an older one."""
        for path in [*self.folder.rglob("*"), self.folder]:
            _sync(path)
        self.folder.chmod(0o755)  # mkdtemp makes 0700
        old = None
        guard = _locked(self._out.parent)
        try:
            if self._out.exists():
                old = Path(tempfile.mkdtemp(prefix=f".{self._out.name}-old-", dir=self._out.parent))
                os.rename(self._out, old)  # rename onto an empty folder replaces it
            os.rename(self.folder, self._out)
            _sync(self._out.parent)
        finally:
            os.close(guard)
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)  # a build that starts now clears it, too

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)
        if isinstance(value, OSError) and value.errno in _NO_ROOM:
            raise UserError(
                f"`{self._out}` cannot be written: {value.strerror}", hint="free some space or choose another --out"
            ) from value

    def _refuse_other(self) -> None:
        out = self._out
        if out.is_file() or (out.is_dir() and any(out.iterdir()) and not (out / self._marker).is_file()):
            found = "a file" if out.is_file() else f"a folder without `{self._marker}`"
            raise UserError(f"`{out}` is {found}, not a bundle, and is left alone", hint="choose another --out")

    def _clean_dead(self) -> None:
        name, parent = glob.escape(self._out.name), self._out.parent
        for old in parent.glob(f".{name}-old-*"):
            if not self._out.exists() and (old / self._marker).is_file():
                os.rename(old, self._out)
            else:
                shutil.rmtree(old, ignore_errors=True)  # its writer may be removing it
        for path in parent.glob(f".{name}-new-*"):
            try:
                lock = _locked(path, wait=False)
            except OSError:
                continue  # its writer lives
            shutil.rmtree(path)
            os.close(lock)


def _locked(folder: Path, *, wait: bool = True) -> int:
    """Open and lock `folder`; where the file system knows no locks (some network ones) a waiting caller goes on without."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if not wait:
            os.close(handle)
            raise
    return handle


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
