"""A staged folder appears whole or not at all, whatever kills its writer."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from lilicorr.export.staging import Staging
from lilicorr.runtime.errors import UserError

MARKER = "manifest.json"


def make(out, text="new", publish=True):
    with Staging(out, MARKER) as staging:
        (staging.folder / MARKER).write_text(text)
        if publish:
            staging.publish()
    return out


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_published_folder_is_all_there_is(tmp_path):
    make(tmp_path / "deep" / "out")
    assert names(tmp_path / "deep") == ["out"]
    assert (tmp_path / "deep" / "out").stat().st_mode & 0o777 == 0o755


def test_unpublished_folder_leaves_nothing(tmp_path):
    make(tmp_path / "out", publish=False)
    assert names(tmp_path) == []


def test_replaces_a_folder_with_the_marker(tmp_path):
    out = make(tmp_path / "out", "old")
    (out / "extra").write_text("x")
    make(out, "new")
    assert names(tmp_path) == ["out"]
    assert names(out) == [MARKER]
    assert (out / MARKER).read_text() == "new"


def test_an_unfinished_writer_leaves_the_old_folder(tmp_path):
    out = make(tmp_path / "out", "old")
    make(out, publish=False)
    assert (out / MARKER).read_text() == "old"


def test_leaves_another_folder_alone(tmp_path):
    precious = tmp_path / "out" / "thesis.tex"
    precious.parent.mkdir()
    precious.write_text("x")
    with pytest.raises(UserError, match="not a bundle"):
        make(tmp_path / "out")
    assert precious.read_text() == "x"


def test_leaves_a_file_alone(tmp_path):
    (tmp_path / "out").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        make(tmp_path / "out")


def test_an_empty_folder_is_used(tmp_path):
    (tmp_path / "out").mkdir()
    assert names(make(tmp_path / "out")) == [MARKER]


def test_unwritable_place_is_one_error(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written") as caught:
        make(tmp_path / "file" / "out")
    assert "--out" in caught.value.hint


def test_a_killed_writer_is_cleaned_up_and_a_live_one_is_not(tmp_path):
    out = tmp_path / "out[1]"  # a name that is also a glob pattern
    code = (
        "import sys, time; from pathlib import Path; from lilicorr.export.staging import Staging\n"
        "with Staging(Path(sys.argv[1]), 'manifest.json') as s:\n"
        "    print(s.folder, flush=True); time.sleep(60)"
    )
    writer = subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True)
    try:
        stale = writer.stdout.readline().strip()
        make(out, publish=False)
        assert os.path.isdir(stale), "a live writer was disturbed"
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        assert os.path.isdir(stale)
        make(out, publish=False)
        assert names(tmp_path) == []
    finally:
        writer.kill()
        writer.wait()


def test_a_kill_between_the_two_renames_loses_nothing(tmp_path):
    out = make(tmp_path / "out", "old")
    out.rename(tmp_path / ".out-old-abcd")
    make(out, publish=False)
    assert names(tmp_path) == ["out"]
    assert (out / MARKER).read_text() == "old"


def test_a_file_system_without_locks_is_used_and_nothing_is_taken_for_dead(tmp_path, monkeypatch):
    def no_locks(handle, how):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("lilicorr.export.staging.fcntl.flock", no_locks)
    other = tmp_path / ".out-new-abcd"
    other.mkdir()
    make(tmp_path / "out")
    assert names(tmp_path) == [".out-new-abcd", "out"]


def test_a_disk_that_fills_up_is_one_error_and_leaves_the_old_folder(tmp_path):
    out = make(tmp_path / "out", "old")
    with pytest.raises(UserError, match=r"out` cannot be written: No space left on device"), Staging(out, MARKER):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert names(tmp_path) == ["out"]
    assert (out / MARKER).read_text() == "old"


def test_another_os_error_stays_a_defect(tmp_path):
    with pytest.raises(FileNotFoundError), Staging(tmp_path / "out", MARKER):
        (tmp_path / "none").read_text()
