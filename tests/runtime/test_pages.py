"""Paging out: the pages of a mapped file leave memory and come back with the same content."""

import mmap
import sys
from pathlib import Path

import pytest

from lilicorr.runtime.pages import page_out


def _resident(path: Path) -> int:
    """Resident KiB of this process's mapping of `path`."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line.endswith(str(path)):
            inside = True
        elif inside and line.startswith("Rss:"):
            return int(line.split()[1])
    raise AssertionError(f"{path} is not mapped")


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux's /proc and madvise")
def test_pages_leave_and_come_back(tmp_path):
    path = tmp_path.resolve() / "weights" / "w.bin"
    path.parent.mkdir()
    content = bytes(range(256)) * 4096
    path.write_bytes(content)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        file.flush()
        assert bytes(view) == content
        before = _resident(path)
        page_out(tmp_path)
        if _resident(path) == before:
            pytest.skip("this file system keeps its pages resident (a tmpfs, say)")
        assert _resident(path) < before / 4
        assert bytes(view) == content
