"""Engines against this machine, from the description alone: every difference with both sides, exit code 4."""

import ctypes
import dataclasses

import pytest

from lilicorr.runtime import engine_check
from lilicorr.runtime.bundle import file_sha256
from lilicorr.runtime.engine_check import Here, open_engines, require_compatible
from lilicorr.runtime.engine_set import FILE_NAME
from lilicorr.runtime.errors import EXIT_ENGINE, UserError
from tests.runtime.test_engine_set import CONTENT, example

HERE = Here("tensorrt", "10.3.0", "8.7", "linux", "aarch64", "ef" * 32, "1")


def refuse(**changes):
    with pytest.raises(UserError) as caught:
        require_compatible(example(), dataclasses.replace(HERE, **changes))
    assert caught.value.exit_code == EXIT_ENGINE
    return caught.value


def test_the_machine_it_was_built_on_takes_it():
    require_compatible(example(), HERE)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"tensorrt_version": "11.1.0"}, "TensorRT version: 10.3.0, here 11.1.0"),
        ({"compute_capability": "8.9"}, "compute capability: 8.7, here 8.9"),
        ({"machine": "x86_64"}, "processor: aarch64, here x86_64"),
        ({"system": "windows"}, "operating system: linux, here windows"),
        ({"backend": "tensorrt-rtx"}, "backend: tensorrt, here tensorrt-rtx"),
        ({"plugin_version": "2"}, "plugin version: 1, here 2"),
        ({"plugin_version": None, "plugin_sha256": None}, "plugin version: 1, here none loaded"),
        ({"plugin_sha256": "00" * 32}, "plugin sha256: efefefefefefefef, here 0000000000000000"),
    ],
)
def test_each_difference_is_named(changes, line):
    assert refuse(**changes).what.splitlines()[1:] == [f"  {line}"]


def test_all_differences_at_once_and_the_command():
    error = refuse(tensorrt_version="11.1.0", compute_capability="8.9")
    assert error.what.startswith(
        "engines were built with TensorRT 10.3.0 for compute capability 8.7 on linux aarch64; "
        "here is TensorRT 11.1.0 for compute capability 8.9 on linux aarch64:"
    )
    assert len(error.what.splitlines()) == 3
    assert error.hint == "lilicorr-export engine BUNDLE --backend tensorrt"


def test_engines_without_plugin_layers_need_no_plugin():
    require_compatible(example(plugin=None), dataclasses.replace(HERE, plugin_version=None, plugin_sha256=None))


def test_an_ahead_of_time_engine_serves_every_capability_in_its_list():
    engines = example(compute_capabilities=("8.9", "12.0"), plugin=None)
    for capability in engines.compute_capabilities:
        require_compatible(engines, dataclasses.replace(HERE, compute_capability=capability))
    with pytest.raises(UserError, match=r"compute capability: 8\.9, 12\.0, here 8\.6"):
        require_compatible(engines, dataclasses.replace(HERE, compute_capability="8.6"))


@pytest.fixture
def folders(tmp_path):
    """(engine folder, bundle) that belong together and fit HERE."""
    engines, bundle = tmp_path / "engines", tmp_path / "bundle"
    engines.mkdir()
    bundle.mkdir()
    (bundle / "manifest.json").write_text("{}")
    described = example(bundle_sha256=file_sha256(bundle / "manifest.json"))
    (engines / FILE_NAME).write_text(described.to_json())
    (engines / "target.engine").write_bytes(CONTENT)
    return engines, bundle


def test_engines_that_belong_and_fit_are_opened(folders):
    assert open_engines(*folders, HERE).tensorrt_version == "10.3.0"


def test_engines_of_another_bundle_are_refused(folders):
    engines, bundle = folders
    (bundle / "manifest.json").write_text("{ }")
    with pytest.raises(UserError, match="were built from another bundle") as caught:
        open_engines(engines, bundle, HERE)
    assert caught.value.exit_code == EXIT_ENGINE
    assert str(bundle) in caught.value.hint


def test_the_machine_is_checked_before_an_engine_file_is_read(folders):
    engines, bundle = folders
    (engines / "target.engine").write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match=r"here is TensorRT 11\.1\.0"):
        open_engines(engines, bundle, dataclasses.replace(HERE, tensorrt_version="11.1.0"))
    with pytest.raises(UserError, match="has 8 bytes, expected 9"):
        open_engines(engines, bundle, HERE)


class FakeDriver:
    def __init__(self, status):
        self.status = status

    def cuInit(self, flags):
        return self.status

    def cuDeviceGet(self, device, index):
        return 0

    def cuDeviceGetAttribute(self, value, attribute, device):
        ctypes.cast(value, ctypes.POINTER(ctypes.c_int)).contents.value = {75: 8, 76: 7}[attribute]
        return 0


def test_the_capability_is_the_drivers(monkeypatch):
    monkeypatch.setattr(engine_check.ctypes, "CDLL", lambda name: FakeDriver(0))
    assert engine_check.compute_capability() == "8.7"


def test_a_driver_without_a_device_is_said(monkeypatch):
    monkeypatch.setattr(engine_check.ctypes, "CDLL", lambda name: FakeDriver(100))
    with pytest.raises(UserError, match="no NVIDIA GPU: the CUDA driver answers with error 100"):
        engine_check.compute_capability()


def test_no_driver_is_said(monkeypatch):
    def missing(name):
        raise OSError(name)

    monkeypatch.setattr(engine_check.ctypes, "CDLL", missing)
    with pytest.raises(UserError, match="no NVIDIA driver"):
        engine_check.compute_capability()
