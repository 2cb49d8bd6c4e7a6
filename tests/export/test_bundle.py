"""Building a bundle: what it holds, and that a refused, failed or killed build leaves what was there before."""

import json
import os
import shutil
import signal
from collections import namedtuple
from contextlib import contextmanager

import pytest

from lilicorr.export import bundle as module
from lilicorr.export.bundle import build_bundle
from lilicorr.export.options import BuildOptions
from lilicorr.export.progress import Progress
from lilicorr.runtime.bundle import open_bundle
from lilicorr.runtime.errors import UserError
from lilicorr.runtime.manifest import FILE_NAME, read_manifest
from tests.fixtures import MASK_ID, VOCAB, edit_json


@pytest.fixture
def quick(tiny_bundle, monkeypatch):
    """Replaces tracing by a copy of the tiny bundle's graphs; everything around it stays real."""

    def copy_graphs(pair, options, folder, progress):
        with progress.phase("trace the target"):
            shutil.copy(tiny_bundle / "target.onnx", folder)
        with progress.phase("write the graphs"):
            shutil.copytree(tiny_bundle / "weights", folder / "weights")
            for name in ("drafter", "scorer"):
                shutil.copy(tiny_bundle / f"{name}.onnx", folder)
        return read_manifest(tiny_bundle).components

    monkeypatch.setattr(module, "_write_graphs", copy_graphs)


class Interrupting(Progress):
    """Calls `action` when the phase `name` begins or, with `after`, when it has ended."""

    def __init__(self, name, action, after=False):
        super().__init__(None)
        self._name, self._action, self._after = name, action, after

    @contextmanager
    def phase(self, name):
        if name == self._name and not self._after:
            self._action()
        with super().phase(name):
            yield
        if name == self._name and self._after:
            self._action()


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def killed_build(target, drafter, out, progress, patch=None):
    """Build in a child process that is expected to die of SIGKILL."""
    child = os.fork()
    if child == 0:
        try:
            if patch is not None:
                patch()
            build_bundle(target, drafter, out, BuildOptions(), progress)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == signal.SIGKILL


def loadable(folder):
    found = []
    for path in folder.iterdir():
        try:
            open_bundle(path)
        except UserError:
            continue
        found.append(path.name)
    return found


def test_the_bundle_is_whole_and_described(tiny_bundle, tiny_target, tiny_drafter):
    manifest = open_bundle(tiny_bundle).manifest
    assert manifest.target.stop_token_ids == (2,)
    assert (manifest.target.bos_token, manifest.target.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (manifest.target.vocab_size, manifest.drafter.mask_token_id) == (VOCAB, MASK_ID)
    assert (manifest.drafter.block_size, manifest.drafter.trained_block_size) == (5, 5)
    assert (manifest.head.logit_scale, manifest.head.vector_eps) == (8.0, 1e-4)
    assert (manifest.limits.max_context, manifest.limits.max_batch) == (512, 4)
    assert manifest.command[:4] == ("lilicorr-export", "build", "--target", str(tiny_target.resolve()))
    assert {"torch", "transformers", "onnx", "python"} <= manifest.environment.keys()
    listed = {record.path for record in manifest.files}
    on_disk = {p.relative_to(tiny_bundle).as_posix() for p in tiny_bundle.rglob("*") if p.is_file()}
    assert listed == on_disk - {FILE_NAME}
    assert (tiny_bundle / "tokenizer.json").read_bytes() == (tiny_target / "tokenizer.json").read_bytes()


def test_the_embedding_is_on_disk_once(tiny_bundle):
    manifest = read_manifest(tiny_bundle)
    assert all("weights/embedding.bin" in part.weights for part in manifest.components.values())
    assert (tiny_bundle / "weights/embedding.bin").stat().st_size == VOCAB * manifest.target.hidden_size * 4


def test_stop_ids_come_from_every_source(quick, own_pair, tmp_path):
    target, drafter = own_pair
    edit_json(target / "generation_config.json", {"eos_token_id": [7, 0]})
    edit_json(target / "config.json", {"eos_token_id": 5})
    manifest = build_bundle(target, drafter, tmp_path / "out", BuildOptions(), Progress(None))
    assert manifest.target.stop_token_ids == (0, 2, 5, 7)


@pytest.mark.usefixtures("quick")
class TestRefusals:
    def refused(self, target, drafter, out, match, monkeypatch):
        def heavy(*args):
            raise AssertionError("heavy work began")

        monkeypatch.setattr(module, "_write_graphs", heavy)
        with pytest.raises(UserError, match=match) as caught:
            build_bundle(target, drafter, out, BuildOptions(), Progress(None))
        return caught.value

    def test_unwritable_output(self, tiny_target, tiny_drafter, tmp_path, monkeypatch):
        (tmp_path / "file").touch()
        self.refused(tiny_target, tiny_drafter, tmp_path / "file" / "out", "cannot be written", monkeypatch)

    def test_a_folder_that_is_no_bundle(self, tiny_target, tiny_drafter, tmp_path, monkeypatch):
        (tmp_path / "photo.jpg").touch()
        self.refused(tiny_target, tiny_drafter, tmp_path, "not a bundle", monkeypatch)
        assert [path.name for path in tmp_path.iterdir()] == ["photo.jpg"]

    def test_a_full_disk(self, tiny_target, tiny_drafter, tmp_path, monkeypatch):
        usage = namedtuple("usage", "total used free")
        monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10, 9, 1000))
        self.refused(tiny_target, tiny_drafter, tmp_path / "out", "not enough space", monkeypatch)
        assert list(tmp_path.iterdir()) == []

    def test_a_pair_that_does_not_fit(self, own_pair, tmp_path, monkeypatch):
        target, drafter = own_pair
        edit_json(drafter / "config.json", {"rope_theta": 1e6})
        self.refused(target, drafter, tmp_path / "out", "rope_theta", monkeypatch)


def test_a_failing_build_keeps_the_old_bundle(quick, tiny_target, tiny_drafter, own_bundle):
    def fail():
        raise RuntimeError("no")

    before = (own_bundle / FILE_NAME).read_bytes()
    with pytest.raises(RuntimeError, match="no"):
        build_bundle(tiny_target, tiny_drafter, own_bundle, BuildOptions(), Interrupting("publish", fail))
    assert (own_bundle / FILE_NAME).read_bytes() == before
    assert loadable(own_bundle.parent) == ["bundle"]


@pytest.mark.parametrize("phase", ["check the pair", "trace the target", "write the graphs", "write the manifest"])
@pytest.mark.parametrize("replacing", [False, True])
def test_a_killed_build_leaves_no_bundle_of_its_own(quick, tiny_target, tiny_drafter, own_bundle, phase, replacing):
    parent = own_bundle.parent
    if not replacing:
        shutil.rmtree(own_bundle)
    expected = ["bundle"] if replacing else []
    killed_build(tiny_target, tiny_drafter, own_bundle, Interrupting(phase, kill_me, after=phase == "write the graphs"))
    assert loadable(parent) == expected
    build_bundle(tiny_target, tiny_drafter, own_bundle, BuildOptions(), Progress(None))
    assert [path.name for path in parent.iterdir()] == ["bundle"]
    open_bundle(own_bundle)


@pytest.mark.parametrize("rename", [1, 2])
def test_a_kill_while_replacing_loses_neither_bundle(quick, tiny_target, tiny_drafter, own_bundle, rename):
    """The old bundle moves away (1), the new one moves in (2): a kill before either leaves a whole one to come back."""

    def patch():
        real, calls = os.rename, []

        def dying_rename(*paths):
            calls.append(paths)
            if len(calls) == rename:
                kill_me()
            real(*paths)

        os.rename = dying_rename

    edit_json(own_bundle / FILE_NAME, {"created": "before"})
    killed_build(tiny_target, tiny_drafter, own_bundle, Progress(None), patch)
    with pytest.raises(RuntimeError, match="stop"):
        build_bundle(tiny_target, tiny_drafter, own_bundle, BuildOptions(), Interrupting("publish", stop))
    assert [path.name for path in own_bundle.parent.iterdir()] == ["bundle"]
    assert json.loads((own_bundle / FILE_NAME).read_text())["created"] == "before"
    open_bundle(own_bundle)


def stop():
    raise RuntimeError("stop")


@pytest.mark.parametrize("name", ["target.onnx", "weights/embedding.bin", "tokenizer.json"])
def test_one_flipped_byte_is_found(own_bundle, name):
    data = bytearray((own_bundle / name).read_bytes())
    data[len(data) // 2] ^= 1
    (own_bundle / name).write_bytes(data)
    with pytest.raises(UserError, match=name):
        open_bundle(own_bundle)
